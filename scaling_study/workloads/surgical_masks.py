"""Where each instrument is in a drawn scene: outlines and tips, as they lie beside the frames.

    masks/VID01/000000.json    {"height": 128, "width": 224, "instruments": [{"instrument": 0, "triplet": 17,
                                "tip": [101.5, 60.0], "polygons": [[[x, y], ...], ...]}]}

An instrument that is listed later lies above those before it, and hides what it covers of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Point = tuple[float, float]  # x to the right, y down, in pixels of the frame
Polygon = Sequence[Point]


@dataclass(frozen=True)
class InstrumentMask:
    """One instrument of a frame."""

    instrument: int
    triplet: int  # what is done with it
    tip: Point
    polygons: tuple[Polygon, ...]
    height: int  # of the frame, in pixels
    width: int

    def visible(self, height: int, width: int, above: Sequence[InstrumentMask] = ()) -> NDArray[np.bool_]:
        """(height, width): where it is seen in a frame of this size; `above` are those that lie over it."""
        mask = Image.new("1", (width, height))
        draw = ImageDraw.Draw(mask)
        for one, ink in ((self, 1), *((other, 0) for other in above)):
            for polygon in one.polygons:
                draw.polygon([(x * width / one.width, y * height / one.height) for x, y in polygon], fill=ink)
        return np.asarray(mask)

    def tip_at(self, height: int, width: int) -> Point:
        """The tip in a frame of this size."""
        return self.tip[0] * width / self.width, self.tip[1] * height / self.height


def read_masks(path: Path) -> list[InstrumentMask]:
    """Of a frame, the lowest first. Raises SystemExit that names a file that is missing or damaged."""
    try:
        frame = json.loads(path.read_text(encoding="utf-8"))
        return [
            InstrumentMask(
                one["instrument"], one["triplet"], (one["tip"][0], one["tip"][1]),
                tuple([(x, y) for x, y in polygon] for polygon in one["polygons"]), frame["height"], frame["width"],
            )
            for one in frame["instruments"]
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SystemExit(f"{path} is no list of masks ({error}): write the scenes anew") from error


def masks_of(instruments: Sequence[InstrumentMask], height: int, width: int) -> dict[int, NDArray[np.bool_]]:
    """Class of instrument -> (height, width) where any of that class is seen."""
    seen: dict[int, NDArray[np.bool_]] = {}
    for place, one in enumerate(instruments):
        mask = one.visible(height, width, instruments[place + 1 :])
        seen[one.instrument] = seen[one.instrument] | mask if one.instrument in seen else mask
    return seen
