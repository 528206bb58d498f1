"""Maps and scores of trainings that kept their best model: `python -m scaling_study.maps RUN [RUN ...]`.     [torch]

RUN is a trial's folder with a best.pt (`train: {keep: best}`), or a study's results: then every trial that has one and
no maps of it yet. One process, whatever trained it. Each is written when it is done, so what was killed goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from scaling_study.errors import printable
from scaling_study.evaluate import WRONG, nothing_in, restored
from scaling_study.maps import scored
from scaling_study.records import maps, store
from scaling_study.records.store import BEST
from scaling_study.train import checkpoints
from scaling_study.workloads.metrics import HeldOutVideos
from scaling_study.workloads.surgical_scenes.triplets import INSTRUMENTS

LACKING = "maps need the package grad-cam: pip install 'scaling-study[surgery]'"
THRESHOLD = 0.5  # of a probability, from which on an instrument counts as recognised


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scaling_study.maps", description=__doc__.split("\n")[0])
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a trial's folder, or a study's results")
    parser.add_argument(
        "--frames", type=int, default=100, help="of each test video that are scored, evenly spaced; 0: all"
    )
    parser.add_argument("--pictures", type=int, default=4, help="of each instrument; they are drawn in figures")
    parser.add_argument("--again", action="store_true", help="also where there are maps of this model already")
    asked = parser.parse_args(words)
    if min(asked.frames, asked.pictures) < 0:
        parser.error("--frames and --pictures are 0 or more")
    try:
        if util.find_spec("pytorch_grad_cam") is None:
            raise ValueError(LACKING)
        for run in trials(asked.runs):
            kept = checkpoints.load(run / BEST)
            if not asked.again and done(run, kept, asked.frames, asked.pictures):
                print(f"{printable(run.name)}: has its maps already (--again computes them anew)")
                continue
            print(of_run(run, kept, asked.frames, asked.pictures), flush=True)
    except (ValueError, OSError, store.UnreadableRecord, SystemExit) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return WRONG
    return 0


def trials(runs: Sequence[Path]) -> list[Path]:
    """The folders of trials that are meant. Raises ValueError for one without a best model."""
    folders: list[Path] = []
    for run in runs:
        having = sorted(path.parent for path in (run / "trials").glob(f"*/{BEST}"))
        if not having and (why := nothing_in(run)):
            raise ValueError(why)
        folders += having or [run]
    return folders


def done(run: Path, kept: dict[str, Any], frames: int, pictures: int) -> bool:
    """True where there are maps of this very model, of as many frames."""
    about = maps.read_about(run)
    model = {key: kept[key] for key in ("step", "value")}
    asked = {**model, "frames_per_video": frames, "pictures_per_instrument": pictures}
    return about is not None and all(about.get(key) == value for key, value in asked.items())


def of_run(run: Path, kept: dict[str, Any], frames: int, pictures: int) -> str:
    """Write maps/ of one trial; what is to be said of it. Raises ValueError or SystemExit."""
    began = time.monotonic()
    trial, _, workload = restored(kept, freeze=None)  # a frozen backbone is a part of the model as any other here
    held_out, model = workload.held_out, workload.model
    if not isinstance(held_out, HeldOutVideos):
        raise ValueError(f"{run}: {trial.model} has no class maps: only the Tripnets have (tripnet_...)")
    model.eval()
    model.requires_grad_(True)  # of the activations, which have none behind weights that are frozen
    places = torch.arange(held_out.sizes["test"])
    ids = held_out.ids["test"][places].numpy()
    row_of = {int(number): place for place, number in enumerate(ids)}
    surgery = held_out.surgery
    chosen = scored.of_each_video(surgery, ids, frames)

    def fetch(numbers: scored.Ids) -> torch.Tensor:
        return held_out.fetch("test", torch.tensor([row_of[int(number)] for number in numbers]))[0]

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(printable(run.name), total=len(chosen))
        drawn = scored.pictured(surgery, chosen, pictures)
        result = scored.score(model, surgery, fetch, chosen, drawn, lambda done: bar.advance(task, done))
    about = {
        **{key: kept[key] for key in ("step", "epoch", "metric", "value")},
        "source": surgery.source,
        "frames_per_video": frames,
        "pictures_per_instrument": pictures,
        "frames": len(chosen),
        "videos": sorted({int(row[maps.COLUMNS.index("video")]) for row in result.rows}),
        "instruments": list(INSTRUMENTS),
        "threshold": THRESHOLD,
        "grid": list(result.grid),
        "size": list(result.size),
        "shown": {"channels": result.channels, "class": maps.RIGHT["class"]},
        "versions": {"grad-cam": metadata.version("grad-cam"), "torch": torch.__version__},
        "seconds": time.monotonic() - began,
    }
    maps.write(run, about, result.rows, scored.arrays(result.pictures))
    return summary(run, result, time.monotonic() - began)


def summary(run: Path, result: scored.Scored, seconds: float) -> str:
    """A line of what the scores come to."""
    columns = [maps.COLUMNS.index(f"{name}_mask") for name in maps.METHODS]
    hits = np.array(result.rows).reshape(-1, len(maps.COLUMNS))[:, columns]
    seen = hits[np.isfinite(hits).all(1)]
    each = ", ".join(f"{name} {value:.3f}" for name, value in zip(maps.METHODS, seen.mean(0), strict=True) if len(seen))
    scores = f"points at the instrument: {each}" if each else "no masks to score them by"
    return f"{printable(run.name)}: {len(result.rows):,} maps in {seconds:.0f} s; {scores}"


if __name__ == "__main__":
    sys.exit(main())
