"""Batches of images by the library that the trial key `input` names, from the same samples in the same order. [torch]

    ids of our order --> memory       this project: pixels in memory (images.py), or files decoded by threads
                     --> torchvision  single images in the processes of torch's DataLoader: open with PIL, crop, mirror
                     --> dali         a pipeline of NVIDIA DALI (dali_input.py)

Shards, epochs, the tail that is left out, and going on after a stop are the same for all. Augmentation is each
library's own, and depends on seed, epoch and sample alone: it is the same for any number of workers.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from scaling_study.trial import Trial
from scaling_study.workloads import cifar10
from scaling_study.workloads.cifar10 import MEAN, STD
from scaling_study.workloads.feed import Batch, Begun, Drawn, DrawnAhead, Feed, Library, read_ahead, sent
from scaling_study.workloads.views import (
    KINDS,
    OF_FILES,
    PAD,
    SQUARE,
    WHOLE,
    ImageView,
    Reading,
    Samples,
    decoded,
    opened,
    uniform,
    views_of,
)

SHARED_MEMORY = Path("/dev/shm")
BATCH_SECONDS = 120.0  # that torchvision's processes may take for a batch
AHEAD = 2  # batches that each of them makes before they are asked for, by torch's default
MEMORY, TORCHVISION, DALI = "memory", "torchvision", "dali"


def library(trial: Trial) -> str:
    """The library that makes the batches; empty where this project does."""
    return "" if trial.input in (None, MEMORY) else str(trial.input)


def feed(library: str, samples: Samples, order: Iterator[torch.Tensor], steps_per_epoch: int, reading: Reading) -> Feed:
    """Batches as `library` makes them, MEMORY only of files: images (batch, 3, side, side) float32, normalised, and
    labels (batch,) int64, both on the device."""
    makes: Library
    if library == DALI:
        from scaling_study.workloads.dali_input import DaliBatches  # DALI may not be installed, and takes a second

        makes = DaliBatches(samples, reading)
    elif library == TORCHVISION:
        makes = TorchvisionBatches(samples, reading)
    else:
        makes = decoding(samples, ImageDecoder(reading))
    made, normalised = DrawnAhead(order, steps_per_epoch, makes), cifar10.normalising(reading.device)

    def fetch(ids: torch.Tensor) -> Batch:
        images = made.take(ids)
        images = images if images.is_cuda else sent(images, reading.device)
        if library not in (DALI, TORCHVISION):
            images = normalised(images.permute(0, 3, 1, 2))
        return images, sent(samples.labels[ids], reading.device)

    batches = Feed(made, fetch)
    batches.notes = lambda: [*note(library, reading), *reading.damaged.notes()]
    return batches


def note(library: str, reading: Reading) -> list[str]:
    """A line for the record on a library that is not this project."""
    who = {TORCHVISION: "process(es) of each rank, whose memory is not counted", DALI: "thread(s) of each rank"}
    return [f"input {library}: batches are made by {reading.cores} {who[library]}"] if library in who else []


class ImageDecoder:
    """Threads that decode files into rows of a batch, in pinned memory for a GPU.

    PIL lets go of the interpreter's lock while it decodes: so threads do, and nothing is pickled.
    """

    def __init__(self, reading: Reading, height: int | None = None, width: int | None = None) -> None:
        """`height`, `width`: of the images that are made, in pixels; None: the side of `reading`."""
        self.reading, self.height, self.width = reading, height or reading.side, width or reading.side
        self.pool = ThreadPoolExecutor(reading.cores, thread_name_prefix="decode")

    def room(self, images: int) -> torch.Tensor:
        """(images, height, width, 3) uint8 on the host, to be filled."""
        pinned = self.reading.device.type == "cuda"
        return torch.empty(images, self.height, self.width, 3, dtype=torch.uint8, pin_memory=pinned)

    def begin(self, files: Sequence[Path], views: Sequence[ImageView]) -> Begun:
        samples = self.room(len(files))
        rows = samples.numpy()  # filled by numpy: torch would start threads of its own in each of ours
        jobs = zip(rows, files, views, strict=True)
        return Begun(samples, [self.pool.submit(self.fill, row, file, view) for row, file, view in jobs])

    def fill(self, row: np.ndarray, file: Path, view: ImageView = WHOLE) -> None:
        """Make one row of a batch: black where the file is damaged and the trial goes on."""
        try:
            row[:] = decoded(file, self.height, self.width, view)
        except SystemExit as why:
            self.reading.damaged.meet(file, str(why))
            row[:] = 0


def decoding(samples: Samples, decoder: ImageDecoder) -> Library:
    """The library that has `decoder` make files into bytes, (batch, side, side, 3) on the host."""

    def begin(batch: Drawn) -> Begun:
        views = views_of(decoder.reading, batch.epoch, batch.ids)
        return decoder.begin([samples.file(id) for id in batch.ids.tolist()], views)

    return read_ahead(begin)


OWN_NUMBER = 5  # of views.uniform, which draws the first five itself
Place = tuple[int, int]  # sample id, and the seed of its transforms
Made = tuple[torch.Tensor, dict[Path, str]]  # images, and why some of them are black


def transforms(reading: Reading, files: bool) -> Any:
    """A PIL image -> (3, side, side) float32, normalised. Of `files` a square is seen, as ImageNet's users have it."""
    from torchvision.transforms import v2  # a second to import

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
    return torch.stack([image for image, _ in made]), {f: why for _, black in made for f, why in black.items()}


def require_shared_memory(needed: int) -> None:
    """Raises SystemExit where fewer bytes are free: a process that reads would be killed, or wait, without a word."""
    if SHARED_MEMORY.is_dir() and (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
        raise SystemExit(
            f"input {TORCHVISION}: {SHARED_MEMORY} has {free >> 20} MiB free, batches in it take {needed >> 20} MiB: "
            "give the container more (docker run --shm-size), or make batches smaller"
        )


class TorchvisionBatches:
    """Makes batches that are drawn: (batch, 3, side, side) float32 on the host."""

    def __init__(self, samples: Samples, reading: Reading) -> None:
        self.images, self.reading = SingleImages(samples, reading), reading

    def __call__(self, drawn: Iterator[Drawn]) -> Generator[torch.Tensor, None, None]:
        loader = DataLoader(
            self.images,
            batch_sampler=self.places(drawn),
            num_workers=self.reading.cores,
            timeout=BATCH_SECONDS if self.reading.cores else 0,  # without processes torch takes none
            collate_fn=stacked,
            pin_memory=self.reading.device.type == "cuda",
            generator=torch.Generator(),  # or it would take a number from those of dropout
        )
        # One iteration has all epochs in it, so its processes are started once.
        for images, black in loader:
            for file, why in black.items():
                self.reading.damaged.meet(file, why)
            yield images

    def places(self, drawn: Iterator[Drawn]) -> Iterator[list[Place]]:
        """The places of each batch. Raises SystemExit where batches on their way to this process have no room."""
        for number, batch in enumerate(drawn):
            if not number:
                require_shared_memory(AHEAD * self.reading.cores * len(batch.ids) * 3 * self.reading.side**2 * 4)
            seeds = uniform(self.reading.seed, batch.epoch, batch.ids, OWN_NUMBER) * 2**53
            yield list(zip(batch.ids.tolist(), seeds.long().tolist(), strict=True))
