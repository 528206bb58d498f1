"""Images as torchvision's users read them: a data set of single images, transforms v2, torch's DataLoader.  [torch]

    ids of our order --> DataLoader's processes: open with PIL, crop, mirror, normalise --> batches, in the same order

The random numbers are torchvision's own. Before each image its generator is seeded by (seed, epoch, sample), so that an
image is cropped alike whichever process reads it; that takes microseconds of some hundred.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from scaling_study.workloads.cifar10 import MEAN, STD
from scaling_study.workloads.feed import Drawn
from scaling_study.workloads.tree import KINDS, OF_FILES, PAD, SQUARE, Reading, Samples, opened, uniform

OWN_NUMBER = 5  # of augment.uniform, which draws the first five itself
Place = tuple[int, int]  # sample id, and the seed of its transforms
Made = tuple[torch.Tensor, dict[Path, str]]  # images, and why some of them are black


def transforms(reading: Reading, files: bool) -> Any:
    """A PIL image -> (3, side, side) float32, normalised. Of `files` a square is seen, as ImageNet's users have it."""
    side, kind = reading.side, (OF_FILES if files else KINDS).get(reading.augmentation)
    larger = round(side / SQUARE)
    if kind and kind.area:
        shaping = [v2.RandomResizedCrop(side, scale=kind.area, ratio=kind.aspect)]
    elif reading.whole or not files:
        shaping = [v2.Resize((side, side)), *([v2.RandomCrop(side, padding=PAD)] if kind else [])]
    else:
        shaping = [v2.Resize(larger), v2.RandomCrop(side) if kind else v2.CenterCrop(side)]
    mirroring = [v2.RandomHorizontalFlip(kind.mirrored)] if kind else []
    number = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([*shaping, *mirroring, *number])


class SingleImages(Dataset[Made]):
    """(3, side, side) of a place, and why it is black, if it is."""

    def __init__(self, samples: Samples, reading: Reading) -> None:
        self.samples, self.transforms = samples, transforms(reading, files=samples.pixels is None)
        self.black = Image.new("RGB", (reading.side, reading.side))

    def __getitem__(self, place: Place) -> Made:
        id, seed = place
        torch.default_generator.manual_seed(seed)
        if self.samples.pixels is not None:
            return self.transforms(Image.fromarray(self.samples.pixels[id].numpy())), {}
        file = self.samples.file(id)
        try:
            return self.transforms(opened(file)), {}
        except SystemExit as why:
            return self.transforms(self.black), {file: str(why)}


def stacked(made: list[Made]) -> Made:
    """A batch of single images."""
    return torch.stack([image for image, _ in made]), {f: why for _, black in made for f, why in black.items()}


class Batches:
    """Makes batches that are drawn: (batch, 3, side, side) float32 on the host."""

    def __init__(self, samples: Samples, reading: Reading) -> None:
        self.images, self.reading = SingleImages(samples, reading), reading

    def __call__(self, drawn: Iterator[Drawn]) -> Generator[torch.Tensor, None, None]:
        loader = DataLoader(
            self.images, batch_sampler=self.places(drawn), num_workers=self.reading.cores, collate_fn=stacked,
            pin_memory=self.reading.device.type == "cuda",
            generator=torch.Generator(),  # or it would take a number from those of dropout
        )  # fmt: skip
        # One iteration has all epochs in it, so its processes are started once.
        for images, black in loader:
            for file, why in black.items():
                self.reading.damaged.meet(file, why)
            yield images

    def places(self, drawn: Iterator[Drawn]) -> Iterator[list[Place]]:
        """Of each batch."""
        for batch in drawn:
            seeds = uniform(self.reading.seed, batch.epoch, batch.ids, OWN_NUMBER) * 2**53
            yield list(zip(batch.ids.tolist(), seeds.long().tolist(), strict=True))
