"""Maps of test frames, scored by where the instruments are, and some of them as pictures.                 [torch]

    frames of each test video, evenly spaced --> each instrument that is in one: a row of scores
    of these, evenly spaced for each instrument: a picture

Maps are chosen by what is in the frame, not by what the model says of it: a map of the wrong place counts whether the
instrument was recognised or not.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from scaling_study.datasets import SCENES
from scaling_study.records.maps import CAMS, CENTRE, CHANCE, HIDDEN, METHODS, OWN, PICTURE, RIGHT, SCORED
from scaling_study.stats import scores as localisation
from scaling_study.stats.scores import Region, Score
from scaling_study.workloads.cholect45 import Surgery, masks_of
from scaling_study.workloads.views import opened

INSTRUMENTS = 6
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Activation:
    """A Tripnet's probabilities and class maps of n frames on the host, and what lies hidden before those."""

    probability: Floats  # (n, 6)
    own: Floats  # (n, 6, h, w) logits, before the global maximum
    hidden: Floats  # (n, h, w): the channel of the head's hidden layer whose number is that of the least likely class
    channels: str  # the layer whose maps `own` are: "class" where their maxima are the head's logits, else "hidden"
    features: torch.Tensor  # (n, channels, h, w) of the backbone, where they were computed

    @property
    def grid(self) -> tuple[int, int]:
        return self.own.shape[2], self.own.shape[3]


def activation(model: Any, frames: torch.Tensor) -> Activation:
    """`model`: a Tripnet in evaluation; `frames`: (n, 3, height, width) as it is given them. Raises ValueError."""
    inputs: list[torch.Tensor] = []
    of_classes = [layer for layer in model.instrument.modules() if getattr(layer, "out_channels", 0) == INSTRUMENTS]
    if not of_classes:
        raise ValueError(f"its instrument head has no convolution with {INSTRUMENTS} channels, so it has no class maps")
    hook = of_classes[-1].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        with torch.no_grad():
            features = model.backbone(frames)
            logits = model(features)[:, :INSTRUMENTS]
            own = model.class_maps(features)
    finally:
        hook.remove()
    hidden = inputs[0][torch.arange(len(frames)), logits.argmin(1)]
    same = torch.allclose(own.amax((2, 3)), logits, rtol=1e-3, atol=1e-3)
    arrays: list[Floats] = [tensor.float().cpu().numpy() for tensor in (logits.sigmoid(), own, hidden)]
    return Activation(arrays[0], arrays[1], arrays[2], RIGHT["channels"] if same else "hidden", features)


def cam(method: str, model: nn.Module, features: torch.Tensor, classes: Sequence[int]) -> Floats:
    """(n, h, w) from 0 to 1, of `features`, (n, channels, h, w) of the backbone's last stage, as grad-cam has them.

    Grad-CAM and HiResCAM are of the logits of `classes`, (n,) (Selvaraju et al., arXiv 1610.02391; Draelos and Carin,
    arXiv 2011.08891); EigenCAM knows none (Muhammad and Yeasin, arXiv 2008.00299). The instrument head ends in a global
    maximum, so a gradient comes from the one place that its class map is highest at.
    """
    from pytorch_grad_cam import EigenCAM, GradCAM, HiResCAM  # a package that not everybody has
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    kind: Any = {"grad_cam": GradCAM, "hires_cam": HiResCAM, "eigen_cam": EigenCAM}[method]
    last_stage = nn.Identity()
    heads, given = nn.Sequential(last_stage, model), features.detach().requires_grad_()  # gradients of the heads alone
    with kind(model=heads, target_layers=[last_stage]) as made:
        scaled = made(input_tensor=given, targets=[ClassifierOutputTarget(number) for number in classes])
    maps: Floats = np.asarray(scaled, np.float32)
    return maps


AT_ONCE = 16  # frames
QUALITY = 88  # of a JPEG
UNKNOWN = Score(float("nan"), float("nan"), float("nan"))
Ids = NDArray[np.int64]
Fetch = Callable[[Ids], torch.Tensor]  # numbers of frames -> (n, 3, height, width) as the model is given them
Picture = dict[str, Any]  # a row as it is drawn: of each of records.maps.ARRAYS its part, and the bytes of the frame


@dataclass(frozen=True)
class Scored:
    """Rows of records.maps.COLUMNS, and some of them as pictures."""

    rows: list[list[float]]
    pictures: list[Picture]
    grid: tuple[int, int]  # (h, w) of the maps
    size: tuple[int, int]  # (height, width) of the frames
    channels: str  # the layer whose maps the model's own are (Activation)


def evenly(ids: Ids, most: int) -> Ids:
    """At most so many of them, evenly spaced; 0: all."""
    return ids if not most or len(ids) <= most else ids[np.linspace(0, len(ids) - 1, most).round().astype(int)]


def of_each_video(surgery: Surgery, ids: Ids, most: int) -> Ids:
    """Frames to be scored: so many of each video, of those that have an instrument at all."""
    having = ids[surgery.labels[ids, :INSTRUMENTS].any(1)]
    video = surgery.video[having]
    parts = [evenly(having[video == number], most) for number in np.unique(video)]
    return np.concatenate(parts) if parts else having


def pictured(surgery: Surgery, ids: Ids, most: int) -> set[tuple[int, int]]:
    """(frame, instrument) of the pictures: so many of each instrument, and of each frame at most one while there are
    others."""
    chosen: dict[int, int] = {}
    counts = surgery.labels[ids, :INSTRUMENTS].sum(0)
    for instrument in np.argsort(counts, kind="stable").tolist():  # those that are in few frames choose first
        having = ids[surgery.labels[ids, instrument] == 1]
        free = np.array([frame for frame in having.tolist() if frame not in chosen], np.int64)
        chosen |= dict.fromkeys(evenly(free, most).tolist(), instrument) if most else {}
    return set(chosen.items())


def score(
    model: Any,
    surgery: Surgery,
    fetch: Fetch,
    ids: Ids,
    pictures: set[tuple[int, int]],
    progress: Callable[[int], object] = lambda done: None,
) -> Scored:
    """`ids`: frames to be scored, `pictures`: which of their rows to draw. `progress` is told of each frame's end."""
    rows: list[list[float]] = []
    drawn: list[Picture] = []
    grid, size, channels = (0, 0), (0, 0), RIGHT["channels"]
    for start in range(0, len(ids), AT_ONCE):
        now = ids[start : start + AT_ONCE]
        frames = fetch(now)
        seen = activation(model, frames)
        grid, size = seen.grid, (frames.shape[2], frames.shape[3])
        channels = channels if seen.channels == RIGHT["channels"] else seen.channels
        for row, picture in _of_batch(model, surgery, now, frames, seen, pictures):
            rows.append(row)
            drawn += [picture] if picture else []
        progress(len(now))
    return Scored(rows, drawn, grid, size, channels)


def _of_batch(
    model: Any, surgery: Surgery, ids: Ids, frames: torch.Tensor, seen: Activation, pictures: set[tuple[int, int]]
) -> Iterator[tuple[list[float], Picture | None]]:
    at, instruments = surgery.labels[ids, :INSTRUMENTS].nonzero()
    each = seen.features[torch.from_numpy(at).to(frames.device)]
    of_class = {method: cam(method, model, each, instruments.tolist()) for method in ("grad_cam", "hires_cam")}
    eigen = cam("eigen_cam", model, seen.features, [0] * len(seen.features))
    others = {**of_class, "eigen_cam": eigen[at], HIDDEN: seen.hidden[at]}
    size = frames.shape[2], frames.shape[3]
    places = [_places(surgery, int(frame), size, seen.grid) for frame in ids]
    for number, (place_of, instrument) in enumerate(zip(at.tolist(), instruments.tolist(), strict=True)):
        frame, (place, mask) = int(ids[place_of]), places[place_of]
        maps: dict[str, NDArray[Any]] = {name: maps_of[number] for name, maps_of in others.items()}
        scores = _scores({OWN: probabilities(seen.own[place_of, instrument]), **maps}, place.get(instrument))
        about = {"frame": frame, "video": int(surgery.video[frame]), "instrument": instrument}
        probability = seen.probability[place_of]
        row = [*about.values(), probability[instrument], *(getattr(one, name) for one in scores for name in SCORED)]
        tips = place[instrument].tips if instrument in place else ()
        picture: Picture = {
            **about,
            "present": surgery.labels[frame, :INSTRUMENTS],
            "probability": probability,
            "hits": np.array([score.mask for score in scores], np.float32),
            "mask": mask,
            "tip": tips[0] if tips else (float("nan"), float("nan")),
            OWN: seen.own[place_of].astype(np.float16),
            **{name: maps[name].astype(np.float16) for name in (*CAMS, HIDDEN)},
        }
        shown = (frame, instrument) in pictures
        yield [float(value) for value in row], {**picture, PICTURE: jpeg(surgery, frame, size)} if shown else None


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Probabilities of an instrument at each cell of its class map, of which the energy is."""
    probability: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))  # fp32 would round to 1
    return probability


def _scores(maps: Mapping[str, NDArray[Any]], place: Region | None) -> tuple[Score, ...]:
    if place is None:
        return (UNKNOWN,) * len(METHODS)
    without = {CHANCE: localisation.chance, CENTRE: localisation.centre}
    return tuple(without[name](place) if name in without else place.score(maps[name]) for name in METHODS)


def _places(
    surgery: Surgery, frame: int, size: tuple[int, int], grid: tuple[int, int]
) -> tuple[dict[int, Region], NDArray[np.uint8]]:
    """(instrument -> where it is, for those that are seen; (height, width) 1 + class of what is seen, 0: none)."""
    classes = np.zeros(size, np.uint8)
    if surgery.source != SCENES:
        return {}, classes
    outlines = surgery.masks(frame)
    places: dict[int, Region] = {}
    for instrument, mask in masks_of(outlines, *size).items():
        tips = tuple(one.tip_at(*size) for one in outlines if one.instrument == instrument)
        inside = tuple(tip for tip in tips if 0 <= tip[0] < size[1] and 0 <= tip[1] < size[0])
        if mask.any():
            places[instrument] = Region(mask, inside, grid)
            classes[mask] = 1 + instrument
    return places, classes


def jpeg(surgery: Surgery, frame: int, size: tuple[int, int]) -> bytes:
    """The frame at the size in which the model sees it."""
    content = io.BytesIO()
    image = opened(surgery.paths([frame])[0])
    image.resize(size[::-1], Image.Resampling.BILINEAR).save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def arrays(pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
    columns = {name: np.array([one[name] for one in pictures]) for name in (pictures[0] if pictures else ())}
    columns.pop(PICTURE, None)
    frames = {PICTURE.format(at): np.frombuffer(one[PICTURE], np.uint8) for at, one in enumerate(pictures)}
    return {**columns, **frames}
