"""Augmentation of images that depends on seed, epoch and sample, never on rank, worker count or framework.  [torch]

    (seed, epoch, sample id, which number)  --hash-->  a number in [0, 1)

No generator is advanced: whoever reads a sample in an epoch draws the same numbers for it, in whatever batch it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

PAD = 4  # pixels around an image, of which a window is cut (He et al., arXiv 1512.03385, section 4.2)


@dataclass(frozen=True)
class Kind:
    """One way to augment. Without `area`: a window of its own size in the padded image, or a square of an image file;
    else a rectangle, resized."""

    mirrored: float  # probability
    area: tuple[float, float] | None = None  # share of the image's
    aspect: tuple[float, float] = (1.0, 1.0)  # width over height, its logarithm uniform


KINDS: Mapping[str, Kind] = {
    "crop_flip": Kind(0.5),
    "resized_crop": Kind(0.5, (0.25, 1.0), (3 / 4, 4 / 3)),
    "near_square_crop": Kind(0.3, (0.25, 1.0), (0.9, 1.1)),  # as the published DeepSpeed study had DALI do it
}
# Of files of any size: ImageNet's rectangles are smaller (Szegedy et al., arXiv 1409.4842, section 6).
OF_FILES: Mapping[str, Kind] = {**KINDS, "resized_crop": Kind(0.5, (0.08, 1.0), (3 / 4, 4 / 3))}
SQUARE = 7 / 8  # of the shorter side of a file's image: ImageNet's 224 of 256 pixels


def augmented(kind: str, images: torch.Tensor, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
    """Images (b, c, height, width) of the samples `ids` (b,), augmented; float stays float, bytes stay bytes.

    `kind`: none, or one of KINDS.
    """
    if kind == "none":
        return images
    draw = [uniform(seed, epoch, ids, number).to(images.device) for number in range(5)]
    flip = draw[0] < KINDS[kind].mirrored
    if KINDS[kind].area is None:
        return cropped(images, flip, draw[1], draw[2])
    return resized(images, flip, *sides(KINDS[kind], draw[1], draw[2]), *draw[3:])


def sides(kind: Kind, area: torch.Tensor, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(width, height) of rectangles, as shares of the image's own, from numbers in [0, 1)."""
    assert kind.area is not None
    (least, most), (narrow, wide) = kind.area, map(math.log, kind.aspect)
    share, aspect = least + area * (most - least), torch.exp(narrow + ratio * (wide - narrow))
    return (share * aspect).sqrt().clamp(max=1.0), (share / aspect).sqrt().clamp(max=1.0)


def uniform(seed: int, epoch: int, ids: torch.Tensor, number: int) -> torch.Tensor:
    """Numbers in [0, 1), (b,) float64: the `number`-th of each sample in an epoch."""
    state = _mixed(torch.tensor([seed, epoch, number]))
    return (_mixed(_mixed(ids.cpu() + state[0]) + state[1] + 31 * state[2]) >> 11 & (2**53 - 1)).double() / 2**53


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014), on int64 that wraps around; shifts fill with zeros."""
    x = (x ^ (x >> 30 & (2**34 - 1))) * -4658895280553007687
    x = (x ^ (x >> 27 & (2**37 - 1))) * -7723592293110705685
    return x ^ (x >> 31 & (2**33 - 1))


def cropped(images: torch.Tensor, flip: torch.Tensor, down: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A window of the image's own size out of the image with PAD black pixels around it, mirrored where `flip` says."""
    (height, width), places = images.shape[-2:], 2 * PAD + 1
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (b, c, places, places, height, width)
    each = torch.arange(len(images), device=images.device)
    chosen = windows[each, :, (down * places).long(), (right * places).long()]
    return torch.where(flip[:, None, None, None], chosen.flip(-1), chosen)


def resized(images: torch.Tensor, flip: torch.Tensor, *rectangle: torch.Tensor) -> torch.Tensor:
    """A rectangle of (width, height, x, y), placed at shares x and y of the room it leaves, resized to the image's own
    size (bilinear)."""
    width, height, x, y = rectangle
    zero = torch.zeros_like(width)
    mirrored = torch.where(flip, -width, width)
    across = torch.stack([mirrored, zero, (2 * x - 1) * (1 - width)], dim=1)
    down = torch.stack([zero, height, (2 * y - 1) * (1 - height)], dim=1)
    grid = F.affine_grid(torch.stack([across, down], dim=1).float(), list(images.shape), align_corners=False)
    pixels = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return pixels if images.is_floating_point() else pixels.round().to(images.dtype)
