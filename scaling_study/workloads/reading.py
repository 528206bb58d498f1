"""What a library is told of the images that it is to read, and how.                                         [torch]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.damaged import DamagedFiles


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
