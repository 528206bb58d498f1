"""Results folders of a study of pre-training whose truth is known: what each arm reached, and where its maps point.

plant_arms(tmp_path, [Arm("imagenet", rates={0.001: 0.5}), Arm("none", rates={0.001: 0.2, 0.01: 0.3})])
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from planted import MACHINE, Planted, plant, record

from analysis.frames import results
from analysis.frames.results import Results
from scaling_study.records import maps
from scaling_study.records.maps import CAMS, HIDDEN, METHODS, OWN, PICTURE, RIGHT
from scaling_study.records.store import write_record
from scaling_study.stats import scores as localisation
from scaling_study.stats.scores import Region

MODEL = "tripnet_efficientnet_lite0"
GRID, SIZE = (6, 11), (96, 176)
NAMES = ("grasper", "bipolar", "hook", "scissors", "clipper", "irrigator")
STEPS, VIDEOS, OF_A_VIDEO = 300, (3, 7, 12, 20), 12


@dataclass(frozen=True)
class Arm:
    """`rates`: learning rate -> what its seeds reach on validation data, on average. On the test videos it is `test`
    less, plus a part of each seed's own, which all arms share. `pointing`: how often its own maps hit."""

    weights: str = "none"
    freeze: str = "backbone"
    rates: Mapping[float, float] = field(default_factory=lambda: {0.001: 0.3})
    test: float = 0.0
    seeds: Sequence[int] = (1, 2, 3, 4, 5)
    pointing: float | None = None  # None: it has no maps
    shown: Mapping[str, str] = field(default_factory=lambda: dict(RIGHT))
    keys: tuple[tuple[str, Any], ...] = ()

    def planted(self, rate: float) -> Planted:
        keys = (("weights", self.weights), ("freeze", self.freeze), ("learning_rate", rate), ("train_epochs", 5))
        return Planted("single", MODEL, 16, keys=(*keys, ("data", "surgical_scenes"), *self.keys))


def plant_arms(folder: Path, arms: Sequence[Arm], study: str = "pre-training", **about: Any) -> Results:
    plant(folder, [], study=study, **{"machine": MACHINE, **about})
    rng = np.random.default_rng(0)
    of_seed = {seed: 0.05 * rng.normal() for seed in range(100)}
    for arm in arms:
        for rate, reached in arm.rates.items():
            for repeat, seed in enumerate(arm.seeds, start=1):
                planted = arm.planted(rate)
                trial = replace(planted.trial(repeat), seed=seed)
                value = reached + of_seed[seed] + 0.01 * rng.normal()
                made = record(planted, trial, 100.0, study, rng)
                ranks = [replace(rank, training=training(value, value - arm.test)) for rank in made.ranks]
                write_record(folder / "trials" / trial.id, replace(made, ranks=ranks))
                if arm.pointing is not None:
                    plant_maps(folder / "trials" / trial.id, arm, seed)
    return results.read(folder)


def training(validated: float, tested: float) -> dict[str, Any]:
    """Still rising by a tenth in the last quarter of its steps."""
    rows = [
        {"steps": STEPS * part // 4, "samples": STEPS * part * 4, "epoch": part, "seconds": 10.0 * part,
         "all_seconds": 11.0 * part, "learning_rate": 0.01, "train_loss": 1.0 / part, "loss": 1.0,
         **heads(validated - 0.1 * (4 - part))}
        for part in (1, 2, 3, 4)
    ]  # fmt: skip
    return {
        "ended_by": "steps", "target": "", "reached": None, "rows": rows, "best_step": STEPS, "steps": STEPS,
        "resumed": 0, "lost_steps": 0, "seconds": {"train": 40.0, "evaluate": 4.0, "save": 0.0, "test": 1.0},
        "evaluated": {"split": "test", "samples": 480, "step": STEPS, "loss": 1.1, **heads(tested)},
    }  # fmt: skip


def heads(value: float) -> dict[str, float]:
    """A Tripnet's metrics: more of instruments than of triplets."""
    made = {"ap_i": value + 0.3, "ap_v": value, "ap_t": value - 0.05, "ap_ivt": value / 5, "ap_iv": value / 2,
            "ap_it": value / 2, "top5_ivt": value}  # fmt: skip
    pairs = {f"ap_{name}_of_triplets": value / 3 for name in ("i", "v", "t", "iv", "it")}
    return {"ap_heads": value, **made, **pairs}


def plant_maps(trial: Path, arm: Arm, seed: int) -> None:
    """Scenes of discs, one instrument each, at places that every trial shares."""
    scenes = np.random.default_rng(7)
    luck = np.random.default_rng((seed, round(1000 * (arm.pointing or 0))))
    rows, pictures = [], list[dict[str, Any]]()
    for number, video in enumerate(np.repeat(VIDEOS, OF_A_VIDEO).tolist()):
        instrument, x, y = number % 6, *scenes.uniform((30, 25), (146, 70))
        image, mask = scene(x, y, instrument)
        place = Region(mask, ((float(x), float(y)),), GRID)
        made = {method: _map(place, luck.random() < share) for method, share in _shares(arm).items()}
        scores = [_score(place, method, made) for method in METHODS]
        probability = np.full(6, 0.1, np.float32)
        probability[instrument] = 0.9 if luck.random() < 0.5 + (arm.pointing or 0) / 2 else 0.2
        rows.append([number, video, instrument, probability[instrument], *(v for s in scores for v in s)])
        if number % 2 == 0:
            pictures.append({
                "frame": number, "video": video, "instrument": instrument, "probability": probability,
                "present": np.eye(6, dtype=np.uint8)[instrument], "hits": [score[0] for score in scores],
                "mask": (mask * (1 + instrument)).astype(np.uint8), "tip": (x, y),
                OWN: np.where(np.arange(6)[:, None, None] == instrument, 8 * made[OWN] - 4, -4.0),
                **{name: made[name] for name in (*CAMS, HIDDEN)}, "image": image,
            })  # fmt: skip
    images = {PICTURE.format(at): np.frombuffer(one.pop("image"), np.uint8) for at, one in enumerate(pictures)}
    arrays = {name: np.array([one[name] for one in pictures]) for name in pictures[0]}
    about = {"step": STEPS, "epoch": 5.0, "metric": "ap_heads", "value": 0.5, "source": "surgical_scenes",
             "frames": len(rows), "frames_per_video": OF_A_VIDEO, "pictures_per_instrument": 4, "threshold": 0.5,
             "videos": list(VIDEOS), "instruments": list(NAMES), "grid": list(GRID), "size": list(SIZE),
             "shown": dict(arm.shown), "versions": {}, "seconds": 1.0}  # fmt: skip
    maps.write(trial, about, rows, arrays | images)


def scene(x: float, y: float, instrument: int) -> tuple[bytes, np.ndarray]:
    """(the frame as a JPEG file, where its disc is)."""
    image = Image.new("RGB", SIZE[::-1], (150, 60, 50))
    mask = Image.new("1", SIZE[::-1])
    for draw, ink in ((ImageDraw.Draw(image), (200, 200, 40 * instrument)), (ImageDraw.Draw(mask), 1)):
        draw.ellipse((x - 20, y - 20, x + 20, y + 20), fill=ink)
    content = io.BytesIO()
    image.save(content, "JPEG")
    return content.getvalue(), np.asarray(mask)


def _shares(arm: Arm) -> dict[str, float]:
    own = arm.pointing or 0.0
    return {OWN: own, "grad_cam": 0.9 * own, "hires_cam": 0.8 * own, "eigen_cam": 0.3, HIDDEN: 0.05}


def _map(place: Region, hit: bool) -> np.ndarray:
    """Highest at the disc, or far from it."""
    x, y = place.tips[0]
    if not hit:
        x, y = (x + SIZE[1] / 2) % SIZE[1], y
    down, across = ((np.arange(n) + 0.5) * side / n for n, side in zip(GRID, SIZE, strict=True))
    return np.exp(-((across[None] - x) ** 2 + (down[:, None] - y) ** 2) / (2 * 18**2))


def _score(place: Region, method: str, made: Mapping[str, np.ndarray]) -> tuple[float, float, float]:
    without = {"chance": localisation.chance, "centre": localisation.centre}
    score = without[method](place) if method in without else place.score(made[method])
    return score.mask, score.tip, score.energy
