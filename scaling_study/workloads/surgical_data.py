"""A rank's batches of operations: frames, labels, and the video that each frame is of.                      [torch]

    data: cholect45        DATA_PATH, where it holds CholecT45           data: surgical_scenes    drawn by us
    data: auto             the former, else the latter, which the record states
    data: synthetic        random numbers, one batch that stays on the device: nothing is read

Timed or trained, batches are of the training split; splits are of whole videos (surgical_splits.py).
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image

from scaling_study.datasets import NO_SURGERY, SCENES, surgery_folder
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import surgical_scenes
from scaling_study.workloads.cholect45 import CHOLECT45, LABELS, Splits, Surgery, read, split
from scaling_study.workloads.feed import (
    Batch,
    Begun,
    Feed,
    ReadAhead,
    batches_of_indices,
    digests,
    sent,
    steps_per_epoch,
)
from scaling_study.workloads.trained_images import VALIDATION, Order, in_both
from scaling_study.workloads.tree import DamagedFiles, augmented, opened

# Frames of operations as bytes: decoded by threads ahead of time, and kept in memory from then on.
#
#     first read   data/VID01/000000.png --PIL: decode, resize--> (height, width, 3) bytes, a row of the batch --> kept
#     later        kept row --> row of the batch
#
# A rank decodes each frame once, as far as memory goes, whichever epoch or evaluation asks first.

SHARE_OF_MEMORY = 0.25  # of what the host has free, for the frames of all ranks


class Frames:
    """Frames of all splits, by their places in Surgery.files."""

    def __init__(
        self, surgery: Surgery, height: int, width: int, threads: int, pinned: bool, damaged: DamagedFiles,
        most_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """`pinned`: memory for a GPU. `most_bytes`: of frames that are kept; None: all."""
        self.surgery, self.height, self.width = surgery, height, width
        self.threads, self.pinned, self.damaged = threads, pinned, damaged
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        frames, each = len(surgery.files), height * width * 3
        self.room = frames if most_bytes is None else min(frames, most_bytes // each)
        memory = mmap.mmap(-1, max(1, self.room * each))  # pages that are never written take no memory
        self.kept = np.frombuffer(memory, np.uint8, self.room * each).reshape(self.room, height, width, 3)
        self.there = np.zeros(self.room, bool)  # whose frame is kept

    def ahead(self, order: Iterator[torch.Tensor]) -> ReadAhead:
        """`order`, whose next batches are begun whenever one is taken."""
        return ReadAhead(order, self.begin)

    def begin(self, ids: torch.Tensor) -> Begun:
        """(batch, height, width, 3) uint8 on the host, in the making."""
        samples = torch.empty(len(ids), self.height, self.width, 3, dtype=torch.uint8, pin_memory=self.pinned)
        rows = samples.numpy()  # filled by numpy: torch would start threads of its own in each of ours
        jobs = []
        for row, frame in enumerate(ids.tolist()):
            if frame < self.room and self.there[frame]:
                rows[row] = self.kept[frame]
            else:
                jobs.append(self.pool.submit(self._decode, rows, row, frame))
        return Begun(samples, jobs)

    def _decode(self, rows: np.ndarray, row: int, frame: int) -> None:
        """Into its row, and into what is kept."""
        if frame < self.room and self.there[frame]:  # since it was asked for
            rows[row] = self.kept[frame]
            return
        file = self.surgery.root / self.surgery.files[frame]
        try:
            image = opened(file)
            if image.size != (self.width, self.height):
                image = image.resize((self.width, self.height), Image.Resampling.BILINEAR)
            rows[row] = np.asarray(image)
        except SystemExit as why:
            self.damaged.meet(file, str(why))
            rows[row] = 0
        if frame < self.room:
            self.kept[frame] = rows[row]
            self.there[frame] = True  # last: whoever sees it sees the whole frame

    def note(self) -> str:
        """For the record."""
        frames, millions = len(self.surgery.files), self.kept.nbytes / 1e6
        kept = "all" if self.room == frames else f"{self.room:,}"
        again = "" if self.room == frames else "; the others are decoded whenever they are read"
        return (
            f"{frames:,} frames, of {self.height} x {self.width} pixels, decoded by {self.threads} thread(s) of each "
            f"rank; {kept} of them stay in its memory ({millions:,.0f} MB) once decoded{again}"
        )


def room_in_memory(ranks: int) -> int:
    """Bytes of frames that a rank may keep."""
    return int(SHARE_OF_MEMORY * psutil.virtual_memory().available / ranks)


# A rank's batches of operations: frames, labels, and the video that each frame is of.
#
#     data: cholect45        DATA_PATH, where it holds CholecT45           data: surgical_scenes    drawn by us
#     data: auto             the former, else the latter, which the record states
#     data: synthetic        random numbers, one batch that stays on the device: nothing is read
#
# Timed or trained, batches are of the training split; splits are of whole videos (surgical_splits.py).

PAIRS = ("train/validation", "train/test", "validation/test")
SYNTHETIC_SAMPLES = 2048  # that an epoch of random frames has
POSITIVE = 0.05  # share of random labels that are 1: of 131 about as many as two triplets and their parts set
Normalised = Callable[[torch.Tensor], torch.Tensor]  # (b, 3, height, width) uint8 -> what the model is given


@dataclass(frozen=True)
class SurgicalData:
    """Batches (frames (b, 3, height, width), labels (b, 131) float32, video (b,) int64), all on the rank's device."""

    feed: Feed
    steps_per_epoch: int
    source: str  # as recorded: "cholect45", "surgical_scenes (synthetic scenes)", "synthetic (why)"
    notes: list[str] = field(default_factory=list)
    sizes: Mapping[str, int] = field(default_factory=dict)  # split -> frames; none of random ones
    read: Callable[[torch.Tensor], Batch] | None = None  # numbers of frames (b,) -> their batch; of random ones None
    in_both: Mapping[str, int] = field(default_factory=dict)  # of a training: "train/validation" -> frames in both
    surgery: Surgery | None = None
    splits: Splits | None = None


def surgical_data(trial: Trial, ranks: Ranks, height: int, width: int, normalised: Normalised) -> SurgicalData:
    """What the trial's `data` means here. `auto` falls back by name, never silently. Raises SystemExit."""
    if trial.data == "synthetic":
        return _random(trial, ranks, height, width, normalised)
    surgery = found(trial, ranks)
    parts = split(surgery, VALIDATION if trial.train_validation is None else trial.train_validation)
    most = room_in_memory(ranks.world_size)
    threads = len(ranks.cores) or torch.get_num_threads()
    frames = Frames(surgery, height, width, threads, ranks.device.type == "cuda", DamagedFiles.of(trial), most)
    order = Order(torch.from_numpy(parts.train), trial, ranks)
    ahead = frames.ahead(order)
    labels, video = torch.from_numpy(surgery.labels), torch.from_numpy(surgery.video)
    kind = trial.train_augmentation or "none"

    def batch(pixels: torch.Tensor, ids: torch.Tensor, kind: str = "none") -> Batch:
        images = sent(pixels, ranks.device).permute(0, 3, 1, 2)
        images = augmented(kind, images, trial.seed, order.epoch, ids)
        return normalised(images), sent(labels[ids].float(), ranks.device), sent(video[ids], ranks.device)

    def read(ids: torch.Tensor) -> Batch:
        return batch(frames.begin(ids).whole(), ids)

    feed = Feed(ahead, lambda ids: batch(ahead.take(ids), ids, kind))
    feed.notes = frames.damaged.notes
    return SurgicalData(
        feed, order.steps, CHOLECT45 if surgery.source == CHOLECT45 else f"{SCENES} (synthetic scenes)",
        [frames.note(), of_videos(parts)], {name: len(ids) for name, ids in parts.ids.items()}, read,
        shared(surgery, parts, ranks) if trial.trained else {}, surgery, parts,
    )  # fmt: skip


def found(trial: Trial, ranks: Ranks) -> Surgery:
    """Called by all ranks. Raises SystemExit where it is not there, not whole, or another than that of rank 0."""
    folder = surgery_folder() if trial.data in (CHOLECT45, "auto") else None
    if folder is None:
        if trial.data == CHOLECT45:
            raise SystemExit(f"--data {CHOLECT45}: {NO_SURGERY.split(';')[0]}")
        folder = surgical_scenes.written()
    surgery = read(folder)
    names = hashlib.sha256("\n".join(surgery.files).encode() + surgery.labels.tobytes())
    number = int(names.hexdigest()[:12], 16)  # exact as fp64
    if ranks.agree(number) != number:
        raise SystemExit(f"{folder} of rank {ranks.rank} holds other frames than that of rank 0: copy one of the two")
    return surgery


def shared(surgery: Surgery, parts: Splits, ranks: Ranks) -> dict[str, int]:
    """Frames that two splits share, byte for byte. Called by all ranks; rank 0 alone reads.

    Frames of one colour do not count: CholecT45 has black ones in the place of what shows the people in the room.
    """
    counted: dict[str, int] = {}
    if ranks.rank == 0:
        same = digests(surgery.paths(range(len(surgery.files))))
        numbers, firsts, times = np.unique(same.numpy(), return_index=True, return_counts=True)
        again = zip(numbers[times > 1].tolist(), surgery.paths(firsts[times > 1]), strict=True)
        empty = torch.tensor([number for number, file in again if _of_one_colour(file)], dtype=torch.int64)
        of = {name: same[torch.from_numpy(ids)] for name, ids in parts.ids.items()}
        counted = in_both({name: ids[~torch.isin(ids, empty)] for name, ids in of.items()})
    return {pair: int(ranks.agree(counted.get(pair, 0))) for pair in PAIRS}


def of_videos(parts: Splits) -> str:
    """Which videos are in which split, for the record."""
    return "; ".join(f"{name}: videos {' '.join(map(str, videos))}" for name, videos in parts.videos.items() if videos)


def _of_one_colour(file: Path) -> bool:
    try:
        return opened(file).getcolors(1) is not None
    except SystemExit:
        return False  # damaged: whoever reads it says so


def _random(trial: Trial, ranks: Ranks, height: int, width: int, normalised: Normalised) -> SurgicalData:
    """Seeded random frames; where every sample must be distinct (parity) each id has its own."""

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randint(256, (samples, 3, height, width), dtype=torch.uint8, generator=generator)
        labels = (torch.rand(samples, LABELS, generator=generator) < POSITIVE).float()
        return (
            normalised(pixels.to(ranks.device)),
            labels.to(ranks.device),
            torch.zeros(samples, dtype=torch.int64).to(ranks.device),
        )

    def own(ids: torch.Tensor) -> Batch:
        frames, labels, video = zip(*(drawn(trial.seed * 1_000_003 + int(id), 1) for id in ids), strict=True)
        return torch.cat(frames), torch.cat(labels), torch.cat(video)

    samples = max(SYNTHETIC_SAMPLES, ranks.world_size * trial.batch_per_worker)
    order = batches_of_indices(samples, trial.seed, ranks.rank, ranks.world_size, trial.batch_per_worker)
    resident = None if trial.find == "parity" else drawn(trial.seed * 1_000_003 + ranks.rank, trial.batch_per_worker)
    feed = Feed(order, own if resident is None else lambda ids: resident)
    return SurgicalData(
        feed, steps_per_epoch(samples, ranks.world_size, trial.batch_per_worker), "synthetic (asked for)"
    )
