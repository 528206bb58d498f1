"""A rank's batches of operations: frames, labels, and the video that each frame is of.                      [torch]

    data: cholect45        DATA_PATH, where it holds CholecT45           data: surgical_scenes    drawn by us
    data: auto             the former, else the latter, which the record states
    data: synthetic        random numbers, one batch that stays on the device: nothing is read

Timed or trained, batches are of the training split; splits are of whole videos (cholect45.py). Threads decode frames
ahead of time. A rank decodes each frame once, as far as memory goes, whichever epoch or evaluation asks first.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch

from scaling_study.datasets import NO_SURGERY, SCENES, surgery_folder
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import surgical_scenes
from scaling_study.workloads.cholect45 import CHOLECT45, LABELS, Splits, Surgery, read, split
from scaling_study.workloads.feed import (
    Batch,
    Begun,
    Data,
    DrawnAhead,
    Feed,
    Order,
    random_batches,
    read_ahead,
    sent,
)
from scaling_study.workloads.held_out import (
    counted_by_one,
    file_digests,
    in_both,
    refuse_other_data,
    validation_share,
)
from scaling_study.workloads.inputs import ImageDecoder
from scaling_study.workloads.views import Reading, augmented, opened

SHARE_OF_MEMORY = 0.25  # of what the host has free, for the frames of all ranks


class Frames(ImageDecoder):
    def __init__(
        self, surgery: Surgery, reading: Reading, height: int, width: int, most_bytes: int | None = None
    ) -> None:
        """`most_bytes`: of frames that are kept; None: all."""
        super().__init__(reading, height, width)
        self.surgery = surgery
        frames, each = len(surgery.files), height * width * 3
        self.most = frames if most_bytes is None else min(frames, most_bytes // each)
        memory = mmap.mmap(-1, max(1, self.most * each))  # pages that are never written take no memory
        self.kept = np.frombuffer(memory, np.uint8, self.most * each).reshape(self.most, height, width, 3)
        self.there = np.zeros(self.most, bool)  # whose frame is kept

    def begin_frames(self, ids: torch.Tensor) -> Begun:
        """(batch, height, width, 3) uint8 on the host, in the making."""
        begun = Begun(self.room(len(ids)))
        for row, frame in zip(begun.samples.numpy(), ids.tolist(), strict=True):
            if frame < self.most and self.there[frame]:
                row[:] = self.kept[frame]
            else:
                begun.jobs.append(self.pool.submit(self._decode, row, frame))
        return begun

    def _decode(self, row: np.ndarray, frame: int) -> None:
        if frame < self.most and self.there[frame]:  # since it was asked for
            row[:] = self.kept[frame]
            return
        self.fill(row, self.surgery.root / self.surgery.files[frame])
        if frame < self.most:
            self.kept[frame] = row
            self.there[frame] = True  # last: whoever sees it sees the whole frame

    def note(self) -> str:
        frames, millions = len(self.surgery.files), self.kept.nbytes / 1e6
        kept = "all" if self.most == frames else f"{self.most:,}"
        again = "" if self.most == frames else "; the others are decoded whenever they are read"
        return (
            f"{frames:,} frames, of {self.height} x {self.width} pixels, decoded by {self.reading.cores} thread(s) of "
            f"each rank; {kept} of them stay in its memory ({millions:,.0f} MB) once decoded{again}"
        )


SYNTHETIC_SAMPLES = 2048  # that an epoch of random frames has
POSITIVE = 0.05  # share of random labels that are 1: of 131 about as many as two triplets and their parts set
Normalised = Callable[[torch.Tensor], torch.Tensor]  # (b, 3, height, width) uint8 -> what the model is given


@dataclass(frozen=True)
class SurgicalData(Data):
    """Batches (frames (b, 3, height, width), labels (b, 131) float32, video (b,) int64), all on the rank's device.

    `source` is "cholect45", "surgical_scenes (synthetic scenes)" or "synthetic (why)".
    """

    sizes: Mapping[str, int] = field(default_factory=dict)  # split -> frames; none of random ones
    read: Callable[[torch.Tensor], Batch] | None = None  # numbers of frames (b,) -> their batch; of random ones None
    in_both: Mapping[str, int] = field(default_factory=dict)  # of a training: "train/validation" -> frames in both
    surgery: Surgery | None = None
    splits: Splits | None = None


def surgical_data(trial: Trial, ranks: Ranks, height: int, width: int, normalised: Normalised) -> SurgicalData:
    """The data that a trial's `data` means here. `auto` falls back by name, never silently. Raises SystemExit."""
    if trial.data == "synthetic":
        return _random(trial, ranks, height, width, normalised)
    surgery = found(trial, ranks)
    parts = split(surgery, validation_share(trial))
    most = int(SHARE_OF_MEMORY * psutil.virtual_memory().available / ranks.world_size)
    frames = Frames(surgery, Reading.of(trial, ranks, height), height, width, most)
    order = Order(torch.from_numpy(parts.ids["train"]), trial, ranks)
    ahead = DrawnAhead(order, order.steps, read_ahead(lambda drawn: frames.begin_frames(drawn.ids)))
    labels, video = torch.from_numpy(surgery.labels), torch.from_numpy(surgery.video)
    kind = trial.train_augmentation or "none"

    def batch(pixels: torch.Tensor, ids: torch.Tensor, kind: str = "none") -> Batch:
        images = sent(pixels, ranks.device).permute(0, 3, 1, 2)
        images = augmented(kind, images, trial.seed, order.epoch, ids)
        return normalised(images), sent(labels[ids].float(), ranks.device), sent(video[ids], ranks.device)

    feed = Feed(ahead, lambda ids: batch(ahead.take(ids), ids, kind))
    feed.notes = frames.reading.damaged.notes
    of_split = [f"{name}: videos {' '.join(map(str, videos))}" for name, videos in parts.videos.items() if videos]
    return SurgicalData(
        feed,
        CHOLECT45 if surgery.source == CHOLECT45 else f"{SCENES} (synthetic scenes)",
        order.steps,
        notes=[frames.note(), "; ".join(of_split)],
        sizes={name: len(ids) for name, ids in parts.ids.items()},
        read=lambda ids: batch(frames.begin_frames(ids).whole(), ids),
        in_both=counted_by_one(ranks, lambda: in_two_splits(surgery, parts)) if trial.trained else {},
        surgery=surgery,
        splits=parts,
    )


def found(trial: Trial, ranks: Ranks) -> Surgery:
    """The frames that the trial's `data` names. Called by all ranks.

    Raises SystemExit where they are not there, not whole, or others than those of rank 0.
    """
    folder = surgery_folder() if trial.data in (CHOLECT45, "auto") else None
    if folder is None:
        if trial.data == CHOLECT45:
            raise SystemExit(f"--data {CHOLECT45}: {NO_SURGERY.split(';')[0]}")
        folder = surgical_scenes.written()
    surgery = read(folder)
    refuse_other_data(folder, "frames", "\n".join(surgery.files).encode() + surgery.labels.tobytes(), ranks)
    return surgery


def in_two_splits(surgery: Surgery, parts: Splits) -> dict[str, int]:
    """Frames that two splits share, byte for byte.

    Frames of one colour do not count: CholecT45 has black ones in the place of what shows the people in the room.
    """
    same = file_digests(surgery.paths(range(len(surgery.files))))
    numbers, firsts, times = np.unique(same.numpy(), return_index=True, return_counts=True)
    again = zip(numbers[times > 1].tolist(), surgery.paths(firsts[times > 1]), strict=True)
    empty = torch.tensor([number for number, file in again if _of_one_colour(file)], dtype=torch.int64)
    digests = {name: same[torch.from_numpy(ids)] for name, ids in parts.ids.items()}
    return in_both({name: marks[~torch.isin(marks, empty)] for name, marks in digests.items()})


def _of_one_colour(file: Path) -> bool:
    try:
        return opened(file).getcolors(1) is not None
    except SystemExit:
        return False  # damaged: whoever reads it says so


def _random(trial: Trial, ranks: Ranks, height: int, width: int, normalised: Normalised) -> SurgicalData:
    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randint(256, (samples, 3, height, width), dtype=torch.uint8, generator=generator)
        labels = (torch.rand(samples, LABELS, generator=generator) < POSITIVE).float()
        video = torch.zeros(samples, dtype=torch.int64, device=ranks.device)
        return normalised(pixels.to(ranks.device)), labels.to(ranks.device), video

    samples = max(SYNTHETIC_SAMPLES, ranks.world_size * trial.batch_per_worker)
    order = Order(samples, trial, ranks)
    return SurgicalData(Feed(order, random_batches(trial, ranks, drawn)), "synthetic (asked for)", order.steps)
