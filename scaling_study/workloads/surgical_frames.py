"""Frames of operations as bytes: decoded by threads ahead of time, and kept in memory from then on.          [torch]

    first read   data/VID01/000000.png --PIL: decode, resize--> (height, width, 3) bytes, a row of the batch --> kept
    later        kept row --> row of the batch

A rank decodes each frame once, as far as memory goes, whichever epoch or evaluation asks first.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import torch
from PIL import Image

from scaling_study.workloads.cholect45 import Surgery
from scaling_study.workloads.damaged import DamagedFiles
from scaling_study.workloads.image_tree import opened
from scaling_study.workloads.read_ahead import Begun, ReadAhead

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
