"""A folder tree of images: what is seen of each image, and how it is read ahead of time.                  [torch]"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn import functional as F

from scaling_study.datasets import is_image
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Begun, ReadAhead

# Augmentation of images that depends on seed, epoch and sample, never on rank, worker count or framework.
#
#     (seed, epoch, sample id, which number)  --hash-->  a number in [0, 1)
#
# No generator is advanced: whoever reads a sample in an epoch draws the same numbers for it, in whatever batch it is.

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


# What is seen of an image, whatever its size: a rectangle of it, mirrored or not.
#
#     whole           all of it, its shape lost: what is only timed
#     middle          a square of 7/8 of its shorter side (ImageNet's 224 of 256 pixels): what is evaluated
#     crop_flip       such a square, anywhere, mirrored half of the time (He et al., arXiv 1512.03385, section 3.4)
#     resized_crop    8 to 100 % of its area, 3/4 to 4/3 as wide as high, mirrored half of the time: how ImageNet is
#                     trained today (Szegedy et al., arXiv 1409.4842, section 6)
#     near_square_crop    25 to 100 % of it, 0.9 to 1.1 as wide as high, mirrored with probability 0.3
#
# A random view is drawn as augment.py draws: from seed, epoch and sample id, whoever reads the sample.

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


def views_augmented(kind: str, seed: int, epoch: Callable[[], int]) -> Views:
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


# Images that cannot be decoded: the run stops at the first, or has black ones in their places, counted and named.
#
# Which it is, is the trial key `damaged_images`.

NAMED = 5  # in a note; all are counted


class DamagedFiles:
    """What a rank met."""

    def __init__(self, replace: bool = False) -> None:
        self.replace, self.met = replace, dict[Path, str]()

    @classmethod
    def of(cls, trial: Trial) -> DamagedFiles:
        return cls(replace=trial.damaged_images == "replace")

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


# What a library is told of the images that it is to read, and how.


@dataclass(frozen=True)
class Samples:
    """What ids name: images in memory, or files; and their labels."""

    labels: torch.Tensor  # (samples,) int64
    pixels: torch.Tensor | None = None  # (samples, side, side, 3) uint8: libraries read images row by row
    folder: Path = Path()
    files: Sequence[str] = ()  # below `folder`

    @classmethod
    def in_memory(cls, images: torch.Tensor, labels: torch.Tensor) -> Samples:
        """Of images (samples, 3, side, side) uint8, which are copied."""
        return cls(labels, images.permute(0, 2, 3, 1).contiguous())

    def file(self, id: int) -> Path:
        return self.folder / self.files[id]


@dataclass(frozen=True)
class Reading:
    """How a rank reads them."""

    side: int  # of the images that are made, in pixels
    seed: int
    cores: int  # processes of a DataLoader, threads of DALI
    device: torch.device
    augmentation: str = "none"  # or one of augment.KINDS
    whole: bool = False  # no augmentation, and the whole of a file's image: what is only timed
    damaged: DamagedFiles = field(default_factory=DamagedFiles)

    @classmethod
    def of(cls, trial: Trial, ranks: Ranks, side: int) -> Reading:
        """As many processes or threads as the rank has cores, to which they are pinned as the rank is; where it is
        pinned to none, as torch has threads there."""
        return cls(
            side, trial.seed, len(ranks.cores) or torch.get_num_threads(), ranks.device,
            trial.train_augmentation or "none", not trial.trained, DamagedFiles.of(trial),
        )  # fmt: skip


# A folder tree of images, and how its batches are decoded ahead of time.
#
#     train/cat/1.png --PIL: decode, a view, resize--> (side, side, 3) bytes, a row of the batch
#     val/cat/7.png     threads, as many as the rank has cores
#
# PIL lets go of the interpreter's lock while it decodes: so threads do, and nothing is pickled from process to
# process.

LAYOUT = "train/<class>/*.png, *.jpg or *.jpeg"


@dataclass(frozen=True)
class Tree:
    """What lies under `train`, or under `val`; sample i is files[i]."""

    folder: Path
    classes: tuple[str, ...]  # sorted: their places are the labels
    files: list[str]  # "cat/1.png", sorted within their class
    labels: torch.Tensor  # (samples,) int64

    def paths(self, ids: Iterable[torch.Tensor | int]) -> list[Path]:
        return [self.folder / self.files[int(id)] for id in ids]


def listed(root: Path) -> Tree:
    """The images under root/train. Raises SystemExit for what is no train/<class>/<image> of two classes or more."""
    train = root / "train"
    if not train.is_dir():
        raise SystemExit(f"DATA_PATH={root} has no folder train/: images are expected as {LAYOUT}")
    names = _classes(train)
    if len(names) < 2:
        raise SystemExit(f"{train} has {len(names)} folder(s) of a class, a classifier needs two or more: {LAYOUT}")
    return _of_classes(train, names)


def listed_test(root: Path, train: Tree) -> Tree:
    """The images under root/val, of the classes of `train`. Raises SystemExit where those are others."""
    val = root / "val"
    if not val.is_dir():
        raise SystemExit(f"DATA_PATH={root} has no folder val/: a training is tested on val/<class>/*, as in train/")
    for name in sorted(set(names := _classes(val)) ^ set(train.classes)):
        there, not_there = (val, train.folder) if name in names else (train.folder, val)
        raise SystemExit(f"class {name} is in {there} and not in {not_there}: both need the same folders of classes")
    return _of_classes(val, train.classes)


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))


def _of_classes(folder: Path, names: tuple[str, ...]) -> Tree:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(filter(is_image, os.listdir(folder / name)))
        if not images:
            raise SystemExit(f"{folder / name} holds no images: {LAYOUT}")
        files += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    return Tree(folder, names, files, torch.tensor(labels))


class Decoder:
    """Threads that decode files, as (batch, side, side, 3) uint8 on the host, in `pinned` memory for a GPU."""

    def __init__(self, side: int, threads: int, pinned: bool, damaged: DamagedFiles | None = None) -> None:
        self.side, self.threads, self.pinned = side, threads, pinned
        self.damaged = damaged or DamagedFiles()
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def begin(self, files: Sequence[Path], views: Sequence[View]) -> Begun:
        samples = torch.empty(len(files), self.side, self.side, 3, dtype=torch.uint8, pin_memory=self.pinned)
        rows = samples.numpy()  # filled by numpy: torch would start threads of its own in each of ours

        def fill(row: int, file: Path, view: View) -> None:
            try:
                rows[row] = decoded(file, self.side, view)
            except SystemExit as why:
                self.damaged.meet(file, str(why))
                rows[row] = 0

        jobs = enumerate(zip(files, views, strict=True))
        return Begun(samples, [self.pool.submit(fill, row, file, view) for row, (file, view) in jobs])


def decoding(tree: Tree, order: Iterator[torch.Tensor], decoder: Decoder, views: Views) -> ReadAhead:
    """`order`, whose batches are taken as `decoder` makes them."""
    return ReadAhead(order, lambda ids: decoder.begin(tree.paths(ids), views(ids)))


def decoded(file: Path, side: int, view: View = WHOLE) -> np.ndarray:
    """(side, side, 3) uint8, as PIL decodes and resizes what is seen of it. Raises SystemExit that names a damaged
    file."""
    image = opened(file)
    seen = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, view.box(*image.size)))
    return seen[:, ::-1] if view.mirrored else seen


def opened(file: Path) -> Image.Image:
    """In RGB, decoded whole. Raises SystemExit that names a damaged file."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as error:  # PIL raises whatever its parsers of a damaged file stumble over
        why = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise SystemExit(
            f"{file} cannot be decoded ({why}): replace it, or take it out of the tree, or have black images in the "
            "places of damaged ones (damaged_images: replace)"
        ) from error
