"""Augmentation of images that depends on seed, epoch and sample, never on rank, worker count or framework.  [torch]

    (seed, epoch, sample id, which number)  --hash-->  a number in [0, 1)

No generator is advanced: whoever reads a sample in an epoch draws the same numbers for it, in whatever batch it is.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

PAD = 4  # pixels around an image, of which a window is cut (He et al., arXiv 1512.03385, section 4.2)
AREA, LOG_RATIO = (0.25, 1.0), (math.log(3 / 4), math.log(4 / 3))  # of resized crops


def augmented(kind: str, images: torch.Tensor, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
    """Images (b, c, side, side) of the samples `ids` (b,), augmented; float stays float, bytes stay bytes.

    `kind`: none, crop_flip or resized_crop (which flips too).
    """
    if kind == "none":
        return images
    draw = [uniform(seed, epoch, ids, number).to(images.device) for number in range(5)]
    flip = draw[0] < 0.5
    return cropped(images, flip, draw[1], draw[2]) if kind == "crop_flip" else resized(images, flip, *draw[1:])


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
    side, places = images.shape[-1], 2 * PAD + 1
    windows = F.pad(images, (PAD, PAD, PAD, PAD)).unfold(2, side, 1).unfold(3, side, 1)  # (b, c, places, places, ...)
    each = torch.arange(len(images), device=images.device)
    chosen = windows[each, :, (down * places).long(), (right * places).long()]
    return torch.where(flip[:, None, None, None], chosen.flip(-1), chosen)


def resized(
    images: torch.Tensor, flip: torch.Tensor, area: torch.Tensor, ratio: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """A rectangle of some share of the area and some aspect ratio, resized to the image's own size (bilinear)."""
    share = AREA[0] + area * (AREA[1] - AREA[0])
    aspect = torch.exp(LOG_RATIO[0] + ratio * (LOG_RATIO[1] - LOG_RATIO[0]))
    width, height = (share * aspect).sqrt().clamp(max=1.0), (share / aspect).sqrt().clamp(max=1.0)
    zero = torch.zeros_like(width)
    mirrored = torch.where(flip, -width, width)
    across = torch.stack([mirrored, zero, (2 * x - 1) * (1 - width)], dim=1)
    down = torch.stack([zero, height, (2 * y - 1) * (1 - height)], dim=1)
    grid = F.affine_grid(torch.stack([across, down], dim=1).float(), list(images.shape), align_corners=False)
    pixels = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return pixels if images.is_floating_point() else pixels.round().to(images.dtype)
