"""Does a map of a frame show where something is? Pointing game and energy, against what no model is needed for.

    map (h, w), of cells          mask (height, width), of pixels: what it should show; tips (x, y)

Pointing game (Zhang et al., "Top-down Neural Attention by Excitation Backprop", ECCV 2016): the cell with the highest
value is a hit where a part of the mask is in it. Their margin is 15 pixels; ours the cell: no map can be finer than its
cells. By the tip: where that is no further than a cell from its middle, across and down. Where several cells have the
highest value, as in a map that shows nothing, the share of them that hit: what a choice among them has on average.

Energy (Wang et al., "Score-CAM", CVPR Workshops 2020): of a map's sum, bilinearly enlarged to the frame, the share that
is inside the mask; values below 0 count as 0, and a map that is 0 everywhere as one that is the same everywhere.

Pure functions of numpy's arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
class Place:
    """Where one thing is in a frame, on a grid of (h, w) cells."""

    mask: Mask
    tips: tuple[tuple[float, float], ...]  # x, y in pixels; several where several of its kind are in the frame
    grid: tuple[int, int]

    @cached_property
    def hits(self) -> Cells:
        """1 where a part of the mask is in a cell."""
        down, across = (_edges(n, side) for n, side in zip(self.grid, self.mask.shape, strict=True))
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
        """What each cell's value adds to the sum inside the mask, once the map is enlarged."""
        (h, w), (height, width) = self.grid, self.mask.shape
        inside: Cells = _enlarging(h, height).T @ self.mask @ _enlarging(w, width)
        return inside

    @cached_property
    def whole(self) -> Cells:
        """Likewise, to the sum of the whole frame."""
        (h, w), (height, width) = self.grid, self.mask.shape
        whole: Cells = np.outer(_enlarging(h, height).sum(axis=0), _enlarging(w, width).sum(axis=0))
        return whole

    def score(self, shown: Map) -> Score:
        """Of a map of this grid."""
        highest = shown == shown.max()
        values = np.maximum(shown.astype(np.float64), 0.0)
        if not values.any():
            values = np.ones(self.grid)
        tip = float(self.at_tip[highest].mean()) if self.at_tip is not None else float("nan")
        energy = float((values * self.inside).sum() / (values * self.whole).sum())
        return Score(float(self.hits[highest].mean()), tip, energy)


def chance(place: Place) -> Score:
    """What a cell chosen at random has, on average."""
    return place.score(np.ones(place.grid))


def centre(place: Place) -> Score:
    """What the same Gaussian in the middle of every frame has; its standard deviation is a quarter of each side."""
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
    pixels: NDArray[np.float64] = _enlarging(shown.shape[0], size[0]) @ shown @ _enlarging(shown.shape[1], size[1]).T
    return pixels


def _edges(cells: int, pixels: int) -> list[tuple[int, int]]:
    """First pixel of each cell, and the one after its last."""
    return [(cell * pixels // cells, -(-(cell + 1) * pixels // cells)) for cell in range(cells)]


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
