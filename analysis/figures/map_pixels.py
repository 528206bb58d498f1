"""Maps of a frame as pixels: the frame in grey, and over it a colour for each instrument, as strong as its map."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scaling_study.records.maps import PICTURE
from scaling_study.stats.localisation import enlarged

# Okabe and Ito's, which the colour-blind can tell apart; those of them that are seen on grey (https://jfly.uni-koeln.de/color).
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#cc79a7")
DARKEST, LIGHTEST = 0.16, 0.86  # of the grey under the colours
STRONGEST = 0.85  # of a colour: some of the frame is always seen
Pixels = NDArray[np.float64]  # (height, width, 3) from 0 to 1
Layer = tuple[NDArray[np.floating[Any]], int]  # (h, w) from 0 to 1, and whose


def frame(pictures: dict[str, NDArray[Any]], row: int) -> Pixels:
    """In its own colours."""
    with Image.open(io.BytesIO(pictures[PICTURE.format(row)].tobytes())) as image:
        return np.asarray(image.convert("RGB"), np.float64) / 255


def grey(pixels: Pixels) -> Pixels:
    """Its luminance (Rec. 601), from the darkest to the lightest hundredth, so that no colour is lost in it."""
    light = pixels @ np.array([0.299, 0.587, 0.114])
    low, high = np.percentile(light, (1, 99))
    stretched = np.clip((light - low) / max(high - low, 1e-6), 0, 1)
    return np.repeat((DARKEST + (LIGHTEST - DARKEST) * stretched)[..., None], 3, axis=2)


def tinted(under: Pixels, layers: Iterable[Layer]) -> Pixels:
    """`under`, with each map enlarged to it; the colour of the instrument is as strong as the map's value."""
    pixels = under
    for shown, instrument in layers:
        strength = STRONGEST * np.clip(enlarged(shown.astype(np.float64), (under.shape[0], under.shape[1])), 0, 1)
        colour = np.array(mpl.colors.to_rgb(COLOURS[instrument % len(COLOURS)]))
        pixels = pixels * (1 - strength[..., None]) + colour * strength[..., None]
    return pixels


def masked(under: Pixels, mask: NDArray[np.uint8], strength: float = 0.6) -> Pixels:
    """`under`, with each instrument that is seen in its colour. `mask`: (height, width) of 1 + instrument, 0: none."""
    pixels = under.copy()
    for instrument in range(len(COLOURS)):
        there = mask == 1 + instrument
        pixels[there] = (1 - strength) * pixels[there] + strength * np.array(mpl.colors.to_rgb(COLOURS[instrument]))
    return pixels
