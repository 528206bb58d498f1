"""The part of an image that a model sees: augmentation, rectangles of files; damaged files.                  [torch]

    (seed, epoch, sample id, which number)  --hash-->  a number in [0, 1)

Augmentation depends on seed, epoch and sample, never on rank, worker count or framework. No generator is advanced.

    whole           all of it, its shape lost: what is only timed
    middle          a square of 7/8 of its shorter side (ImageNet's 224 of 256 pixels): what is evaluated
    crop_flip       such a square, anywhere, mirrored half of the time (He et al., arXiv 1512.03385, section 3.4)
    resized_crop    8 to 100 % of its area, 3/4 to 4/3 as wide as high, mirrored half of the time: how ImageNet is
                    trained today (Szegedy et al., arXiv 1409.4842, section 6)
    near_square_crop    25 to 100 % of it, 0.9 to 1.1 as wide as high, mirrored with probability 0.3
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial

PAD = 4  # pixels around an image, of which a window is cut (He et al., arXiv 1512.03385, section 4.2)


@dataclass(frozen=True)
class Augmentation:
    """One way to augment. Without `area`: a window of its own size in the padded image, or a square of an image file;
    else a rectangle, resized."""

    mirrored: float  # probability
    area: tuple[float, float] | None = None  # share of the image's
    aspect: tuple[float, float] = (1.0, 1.0)  # width over height, its logarithm uniform


KINDS: Mapping[str, Augmentation] = {
    "crop_flip": Augmentation(0.5),
    "resized_crop": Augmentation(0.5, (0.25, 1.0), (3 / 4, 4 / 3)),
    "near_square_crop": Augmentation(0.3, (0.25, 1.0), (0.9, 1.1)),  # as the published DeepSpeed study had DALI do it
}
# Files of any size are read: ImageNet's rectangles are smaller (Szegedy et al., arXiv 1409.4842, section 6).
OF_FILES: Mapping[str, Augmentation] = {**KINDS, "resized_crop": Augmentation(0.5, (0.08, 1.0), (3 / 4, 4 / 3))}
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


def sides(kind: Augmentation, area: torch.Tensor, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


Box = tuple[float, float, float, float]  # left, upper, right, lower, in pixels


@dataclass(frozen=True)
class ImageView:
    box: Callable[[int, int], Box]  # width, height of the image
    mirrored: bool = False


def _drawn(kind: Augmentation, flip: float, a: float, b: float, x: float, y: float) -> ImageView:
    """From five numbers in [0, 1), used as `augmented` uses them."""

    def box(width: int, height: int) -> Box:
        if kind.area is None:
            return _square(width, height, a, b)
        (least, most), (narrow, wide) = kind.area, map(math.log, kind.aspect)
        share, aspect = least + a * (most - least), math.exp(narrow + b * (wide - narrow))
        across, down = (math.sqrt(share * width * height * factor) for factor in (aspect, 1 / aspect))
        # Cut where it is wider or higher than the image; torchvision draws such a one again.
        return _placed(width, height, min(across, width), min(down, height), x, y)

    return ImageView(box, flip < kind.mirrored)


def _square(width: int, height: int, x: float, y: float) -> Box:
    side = SQUARE * min(width, height)
    return _placed(width, height, side, side, x, y)


def _placed(width: int, height: int, across: float, down: float, x: float, y: float) -> Box:
    left, upper = x * (width - across), y * (height - down)
    return left, upper, min(left + across, width), min(upper + down, height)  # min: of a rounding


WHOLE = ImageView(lambda width, height: (0, 0, width, height))
MIDDLE = ImageView(lambda width, height: _square(width, height, 0.5, 0.5))


def views_of(reading: Reading, epoch: int, ids: torch.Tensor) -> Sequence[ImageView]:
    """The view of each of the samples `ids`, (b,), in an epoch."""
    if reading.whole or reading.augmentation == "none":
        return [WHOLE if reading.whole else MIDDLE] * len(ids)
    numbers = (uniform(reading.seed, epoch, ids, number).tolist() for number in range(5))
    return [_drawn(OF_FILES[reading.augmentation], *of_sample) for of_sample in zip(*numbers, strict=True)]


NAMED = 5  # in a note; all are counted


class DamagedFiles:
    """Images that a rank could not decode, and why; the trial key `damaged_images` says what becomes of them."""

    def __init__(self, replace: bool = False) -> None:
        self.replace, self.met = replace, dict[Path, str]()

    def meet(self, file: Path, why: str) -> None:
        """A black image is to take the place of `file`. Raises SystemExit with `why` where it is to stop instead."""
        if not self.replace:
            raise SystemExit(why)
        self.met[file] = why

    def notes(self) -> list[str]:
        """For the record: how many and which."""
        if not self.met:
            return []
        more = ", ..." if len(self.met) > NAMED else ""
        names = ", ".join(map(str, sorted(self.met)[:NAMED]))
        return [f"{len(self.met):,} damaged image(s), in whose places are black ones: {names}{more}"]


@dataclass(frozen=True)
class Samples:
    """Images in memory, or files, by their ids; and their labels."""

    labels: torch.Tensor  # (samples,) int64
    pixels: torch.Tensor | None = None  # (samples, side, side, 3) uint8: libraries read images row by row
    folder: Path = Path()
    files: Sequence[str] = ()  # below `folder`

    @classmethod
    def in_memory(cls, images: torch.Tensor, labels: torch.Tensor) -> Samples:
        """From images (samples, 3, side, side) uint8, which are copied."""
        return cls(labels, images.permute(0, 2, 3, 1).contiguous())

    def file(self, id: int) -> Path:
        return self.folder / self.files[id]


def decoded(file: Path, height: int, width: int, view: ImageView = WHOLE) -> np.ndarray:
    """(height, width, 3) uint8, as PIL decodes and resizes what is seen of it. Raises SystemExit that names a damaged
    file."""
    image = opened(file)
    seen = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, view.box(*image.size)))
    return seen[:, ::-1] if view.mirrored else seen


@dataclass(frozen=True)
class Reading:
    side: int  # of the images that are made, in pixels
    seed: int
    cores: int  # processes of a DataLoader, threads of DALI
    device: torch.device
    augmentation: str = "none"  # or one of KINDS
    whole: bool = False  # no augmentation, and the whole of a file's image: what is only timed
    damaged: DamagedFiles = field(default_factory=DamagedFiles)

    @classmethod
    def of(cls, trial: Trial, ranks: Ranks, side: int) -> Reading:
        """As many processes or threads as the rank has cores, to which they are pinned as the rank is; where it is
        pinned to none, as torch has threads there."""
        return cls(
            side=side,
            seed=trial.seed,
            cores=len(ranks.cores) or torch.get_num_threads(),
            device=ranks.device,
            augmentation=trial.train_augmentation or "none",
            whole=not trial.trained,
            damaged=DamagedFiles(replace=trial.damaged_images == "replace"),
        )


def opened(file: Path) -> Image.Image:
    """In RGB of 8 bits a channel, decoded whole, without transparency. Raises SystemExit that names a damaged file, or
    one whose pixels have no known range."""
    try:
        with Image.open(file) as image:
            if image.mode in ("I", "F"):
                raise ValueError("its pixels are numbers without a known range: save it with 8 or 16 bits a channel")
            if image.mode.startswith("I;16"):  # Pillow would cut each pixel off at 255, and most of the image be white
                return Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8)).convert("RGB")
            return image.convert("RGB")
    except Exception as error:  # PIL raises whatever its parsers of a damaged file stumble over
        why = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise SystemExit(
            f"{file} cannot be decoded ({why}): replace it, or take it out of the tree, or have black images in the "
            "places of damaged ones (damaged_images: replace)"
        ) from error
