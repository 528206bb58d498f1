"""What is seen of an image, whatever its size: a rectangle of it, mirrored or not.                         [torch]

    whole           all of it, its shape lost: what is only timed
    middle          a square of 7/8 of its shorter side (ImageNet's 224 of 256 pixels): what is evaluated
    crop_flip       such a square, anywhere, mirrored half of the time (He et al., arXiv 1512.03385, section 3.4)
    resized_crop    8 to 100 % of its area, 3/4 to 4/3 as wide as high, mirrored half of the time: how ImageNet is
                    trained today (Szegedy et al., arXiv 1409.4842, section 6)
    near_square_crop    25 to 100 % of it, 0.9 to 1.1 as wide as high, mirrored with probability 0.3

A random view is drawn as augment.py draws: from seed, epoch and sample id, whoever reads the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from scaling_study.workloads.augment import OF_FILES, SQUARE, Kind, uniform

Box = tuple[float, float, float, float]  # left, upper, right, lower, in pixels


@dataclass(frozen=True)
class View:
    """A rectangle of an image of any size, and whether it is mirrored."""

    box: Callable[[int, int], Box]  # width, height of the image
    mirrored: bool = False


Views = Callable[[torch.Tensor], Sequence[View]]  # of the samples of a batch, (b,) ids


def same(view: View) -> Views:
    """The same view of every sample."""
    return lambda ids: [view] * len(ids)


def augmented(kind: str, seed: int, epoch: Callable[[], int]) -> Views:
    """What a training sees of its samples. `kind`: none, or one of OF_FILES; `epoch`: of the ids it is asked for."""
    if kind == "none":
        return same(MIDDLE)

    def drawn(ids: torch.Tensor) -> list[View]:
        numbers = (uniform(seed, epoch(), ids, number).tolist() for number in range(5))
        return [_drawn(OF_FILES[kind], *of_sample) for of_sample in zip(*numbers, strict=True)]

    return drawn


def _drawn(kind: Kind, flip: float, a: float, b: float, x: float, y: float) -> View:
    """From five numbers in [0, 1), used as augment.py uses them."""
    if kind.area is None:
        return View(lambda width, height: _square(width, height, a, b), flip < kind.mirrored)
    (least, most), (narrow, wide) = kind.area, map(math.log, kind.aspect)
    share, aspect = least + a * (most - least), math.exp(narrow + b * (wide - narrow))
    return View(lambda width, height: _rectangle(width, height, share, aspect, x, y), flip < kind.mirrored)


def _square(width: int, height: int, x: float, y: float) -> Box:
    side = SQUARE * min(width, height)
    return _placed(width, height, side, side, x, y)


def _rectangle(width: int, height: int, share: float, aspect: float, x: float, y: float) -> Box:
    """Cut to the image where it is wider or higher than that; torchvision draws such a one again."""
    across, down = (math.sqrt(share * width * height * factor) for factor in (aspect, 1 / aspect))
    return _placed(width, height, min(across, width), min(down, height), x, y)


def _placed(width: int, height: int, across: float, down: float, x: float, y: float) -> Box:
    left, upper = x * (width - across), y * (height - down)
    return left, upper, min(left + across, width), min(upper + down, height)  # min: of a rounding


WHOLE = View(lambda width, height: (0, 0, width, height))
MIDDLE = View(lambda width, height: _square(width, height, 0.5, 0.5))
