"""Scores of held-out data: average precision, and how often maps point at what they should. Pure.

    scores, labels  (frames, classes)    video  (frames,)
    average precision of each class in each video that has it
      -> mean over these videos, of each class  -> mean over the classes that any video has

A class that no frame of a video has is left out. The average precision of one class is the area under its
precision-recall curve as steps, sum over thresholds of (R_n - R_n-1) P_n, without interpolation; frames with one score
are one threshold.

    map (h, w), of cells          mask (height, width), of pixels: what it should show; tips (x, y)

Pointing game (Zhang et al., "Top-down Neural Attention by Excitation Backprop", ECCV 2016): the cell with the highest
value is a hit where a part of the mask is in it. Their margin is 15 pixels; ours the cell: no map can be finer than its
cells. By the tip: where that is no further than a cell from its middle, across and down. Where several cells have the
highest value, as in a map that shows nothing, the share of them that hit: what a choice among them has on average.

Energy (Wang et al., "Score-CAM", CVPR Workshops 2020): of a map's sum, bilinearly enlarged to the frame, the share that
is inside the mask; values below 0 count as 0, and a map that is 0 everywhere as one that is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.floating[Any]]  # (frames, classes), of any scale: only their order counts
Labels = NDArray[Any]  # (frames, classes) of 0 and 1
Numbers = NDArray[np.float64]


def of_classes(scores: Scores, labels: Labels) -> Numbers:
    """(classes,): the average precision of each class; nan of one that no frame has."""
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked, true = (np.take_along_axis(table, order, axis=0) for table in (scores, labels.astype(np.float64)))
    frames = len(scores)
    precision = true.cumsum(axis=0) / np.arange(1, frames + 1)[:, None]
    ends = np.ones(scores.shape, bool)  # where a threshold's last frame is
    ends[:-1] = ranked[1:] != ranked[:-1]
    place = np.where(ends, np.arange(frames)[:, None], frames)
    end = np.minimum.accumulate(place[::-1], axis=0)[::-1]  # of the threshold that each frame has
    present = true.sum(axis=0)
    areas = (true * np.take_along_axis(precision, end, axis=0)).sum(axis=0)
    return np.where(present > 0, areas / np.maximum(present, 1), np.nan)


def of_videos(scores: Scores, labels: Labels, video: NDArray[Any]) -> Numbers:
    """(videos, classes): the same within each video, in the order of their numbers."""
    return np.stack([of_classes(scores[video == one], labels[video == one]) for one in np.unique(video)])


def mean(scores: Scores, labels: Labels, video: NDArray[Any]) -> float:
    """Mean average precision: over the videos that have a class, then over classes; nan where no frame has any."""
    each = of_videos(scores, labels, video)
    there = ~np.isnan(each)
    of_class = np.where(there, each, 0.0).sum(axis=0)[there.any(axis=0)] / there.sum(axis=0)[there.any(axis=0)]
    return float(of_class.mean()) if len(of_class) else float("nan")


def in_top(scores: Scores, labels: Labels, most: int) -> float:
    """The share of all labels that are among the `most` highest scores of their frame; nan where there is no label."""
    highest = np.argpartition(-scores, most - 1, axis=1)[:, :most]
    count = float(labels.sum())
    return float(np.take_along_axis(labels, highest, axis=1).sum()) / count if count else float("nan")


def grouped(triplets: Labels, members: Sequence[Sequence[int]]) -> Labels:
    """(frames, groups) of (frames, triplets): the highest of each group's members, as the field derives components."""
    return np.stack([triplets[:, list(group)].max(axis=1) for group in members], axis=1)


Map = NDArray[np.floating[Any]]  # (h, w)
Mask = NDArray[np.bool_]  # (height, width)
Cells = NDArray[np.float64]  # (h, w)
CENTRE_WIDTH = 0.25  # of the frame: standard deviation of the Gaussian that stands for "in the middle"


@dataclass(frozen=True)
class Score:
    """Shares of 1; `tip` is nan where there is none in the frame."""

    mask: float
    tip: float
    energy: float


@dataclass(frozen=True)
class Region:
    """Where one thing is in a frame, on a grid of (h, w) cells."""

    mask: Mask
    tips: tuple[tuple[float, float], ...]  # x, y in pixels; several where several of its kind are in the frame
    grid: tuple[int, int]

    @cached_property
    def hits(self) -> Cells:
        """1 where a part of the mask is in a cell."""
        down, across = (
            [(cell * pixels // cells, -(-(cell + 1) * pixels // cells)) for cell in range(cells)]  # first pixel, end
            for cells, pixels in zip(self.grid, self.mask.shape, strict=True)
        )
        return np.array([[float(self.mask[a:b, c:d].any()) for c, d in across] for a, b in down])

    @cached_property
    def at_tip(self) -> Cells | None:
        """1 where a cell's middle is no further than a cell from a tip."""
        if not self.tips:
            return None
        (h, w), (height, width) = self.grid, self.mask.shape
        near = np.zeros(self.grid, bool)
        for x, y in self.tips:
            across = np.abs(_middles(w, width) - x) <= width / w
            near |= np.outer(np.abs(_middles(h, height) - y) <= height / h, across)
        return near.astype(np.float64)

    @cached_property
    def inside(self) -> Cells:
        """(h, w) factors of the cells' values in the sum inside the mask, once the map is enlarged."""
        (h, w), (height, width) = self.grid, self.mask.shape
        return np.asarray(_enlarging(h, height).T @ self.mask @ _enlarging(w, width))

    @cached_property
    def whole(self) -> Cells:
        """(h, w) factors of the cells' values in the sum over the whole frame."""
        (h, w), (height, width) = self.grid, self.mask.shape
        return np.outer(_enlarging(h, height).sum(axis=0), _enlarging(w, width).sum(axis=0))

    def score(self, shown: Map) -> Score:
        """The scores of a map of this grid."""
        highest = shown == shown.max()
        values = np.maximum(shown.astype(np.float64), 0.0)
        if not values.any():
            values = np.ones(self.grid)
        tip = float(self.at_tip[highest].mean()) if self.at_tip is not None else float("nan")
        energy = float((values * self.inside).sum() / (values * self.whole).sum())
        return Score(float(self.hits[highest].mean()), tip, energy)


def chance(place: Region) -> Score:
    """The score of a cell chosen at random, on average."""
    return place.score(np.ones(place.grid))


def centre(place: Region) -> Score:
    """The score of a Gaussian in the middle of the frame, whose standard deviation is a quarter of each side."""
    return place.score(centred(place.grid))


@lru_cache
def centred(grid: tuple[int, int]) -> Cells:
    down, across = (np.exp(-(((np.arange(n) + 0.5) / n - 0.5) ** 2) / (2 * CENTRE_WIDTH**2)) for n in grid)
    return np.outer(down, across)


def highest(shown: Map, size: tuple[int, int]) -> tuple[float, float]:
    """(x, y) of the middle of the first cell with the highest value, in pixels of a frame of (height, width)."""
    row, column = np.unravel_index(int(np.argmax(shown)), shown.shape)
    return float(_middles(shown.shape[1], size[1])[column]), float(_middles(shown.shape[0], size[0])[row])


def enlarged(shown: Map, size: tuple[int, int]) -> NDArray[np.float64]:
    """(height, width) of (h, w), bilinearly: what the energy is of."""
    return np.asarray(_enlarging(shown.shape[0], size[0]) @ shown @ _enlarging(shown.shape[1], size[1]).T)


def _middles(cells: int, pixels: int) -> NDArray[np.float64]:
    return (np.arange(cells) + 0.5) * pixels / cells


@lru_cache
def _enlarging(cells: int, pixels: int) -> NDArray[np.float64]:
    """(pixels, cells): linear interpolation between the middles of cells, beyond the outer ones as they are."""
    at = np.clip((np.arange(pixels) + 0.5) * cells / pixels - 0.5, 0, cells - 1)
    low = np.minimum(at.astype(int), max(cells - 2, 0))
    weights = np.zeros((pixels, cells))
    weights[np.arange(pixels), low] = 1 - (at - low)
    weights[np.arange(pixels), np.minimum(low + 1, cells - 1)] += at - low
    return weights
