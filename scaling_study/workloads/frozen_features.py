"""Features of a backbone that is not trained: computed once a training, and read from memory afterwards.    [torch]

    frames of ids --backbone, once--> features, kept by id         a batch all of whose ids are kept: no frame is read

Of a training only: a trial that is timed has the backbone in every step. The backbone is a copy of the model's own,
which sharded frameworks split up. The seconds are the training's, of steps; they are no waiting for data.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.workload import autocast

MOST_BYTES = 4 * 2**30  # that a rank keeps; what is beyond is computed again in each epoch
AT_ONCE = 32  # frames


class FrozenFeatures:
    """Of one rank; ids name frames of all splits."""

    def __init__(self, backbone: nn.Module, precision: str, ranks: Ranks) -> None:
        self.backbone = copy.deepcopy(backbone).eval()
        self.precision, self.ranks = precision, ranks
        self.kept: dict[int, torch.Tensor] = {}  # id -> (channels, h, w)
        self.rest: dict[int, Batch] = {}  # id -> the other tensors of its row
        self.bytes, self.computed, self.seconds = 0, 0, 0.0  # the second: frames, counted each time

    def batch(self, ids: torch.Tensor, fetch: Callable[[torch.Tensor], Batch]) -> Batch:
        """The batch of ids, with features in the place of frames. `fetch`: ids -> a batch whose first tensor are the
        frames, (b, 3, height, width), on the device."""
        numbers = ids.tolist()
        if all(number in self.kept for number in numbers):
            rows = [(self.kept[number], *self.rest[number]) for number in numbers]
            return tuple(torch.stack(column) for column in zip(*rows, strict=True))
        frames, *rest = fetch(ids)
        missing = [place for place, number in enumerate(numbers) if number not in self.kept]
        computed = dict(zip(missing, self.of(frames[missing]), strict=True))
        features = torch.stack([computed[place] if place in computed else self.kept[numbers[place]]
                                for place in range(len(numbers))])  # fmt: skip
        for place in missing:
            number = numbers[place]
            if number not in self.kept and self.bytes < MOST_BYTES:
                self.kept[number] = features[place].clone()
                self.rest[number] = tuple(tensor[place] for tensor in rest)
                self.bytes += features[place].nbytes
        return features, *rest

    def of(self, frames: torch.Tensor) -> torch.Tensor:
        """(b, channels, h, w)."""
        began = time.perf_counter()
        with torch.no_grad(), autocast(self.ranks.device, self.precision):
            features = torch.cat([self.backbone(some) for some in frames.split(AT_ONCE)])
        self.computed += len(frames)
        self.seconds += time.perf_counter() - began
        return features

    def notes(self) -> list[str]:
        """For the record."""
        again = self.computed - len(self.kept)
        more = f"; {again:,} times of frames that were not kept" if again else ""
        return [
            f"features of the frozen backbone: of {len(self.kept):,} frames, computed once in {self.seconds:.1f} s and "
            f"kept in {self.bytes / 2**20:,.0f} MiB of a rank{more}"
        ]
