"""Which videos of an operation data set are trained on, which select, and which test.

    folds  1          2 3 4 5
           test       the last video of each in turn, as many as asked: validation          all others: train

Whole videos: a frame looks like the one a second before it. The three are parts of one list, each taken out of what is
left, so that none can overlap. A published loader cuts five videos off its training list and then takes the last five
of what is left as validation, which it trains on (F22's kind).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling_study.workloads.cholect45 import Numbers, Surgery

TEST_FOLD = 1


@dataclass(frozen=True)
class Splits:
    """Frames of each split, as places in Surgery.files."""

    train: Numbers
    validation: Numbers
    test: Numbers
    videos: Mapping[str, tuple[int, ...]]  # split -> its videos

    @property
    def ids(self) -> dict[str, Numbers]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


def split(surgery: Surgery, validation: float, test_fold: int = TEST_FOLD) -> Splits:
    """`validation`: share of the videos outside the test's fold, at least one unless it is 0. Raises SystemExit where
    none is left to train on, and for a fold that there is not."""
    if test_fold not in surgery.folds:
        raise SystemExit(f"fold {test_fold}: there are folds {', '.join(map(str, sorted(surgery.folds)))}")
    others = [list(videos) for fold, videos in sorted(surgery.folds.items()) if fold != test_fold]
    count = sum(map(len, others))
    wanted = max(1, round(validation * count)) if validation else 0
    if wanted >= count:
        raise SystemExit(
            f"validation={validation:g} holds out all {count} videos of {surgery.root}: none is left to train"
        )
    held_out: list[int] = []
    while len(held_out) < wanted:
        held_out += [videos.pop() for videos in others if videos][: wanted - len(held_out)]
    videos = {
        "train": tuple(sorted(set(surgery.videos) - set(held_out) - set(surgery.folds[test_fold]))),
        "validation": tuple(sorted(held_out)),
        "test": tuple(sorted(surgery.folds[test_fold])),
    }
    ids = {name: np.flatnonzero(np.isin(surgery.video, numbers)) for name, numbers in videos.items()}
    return Splits(ids["train"], ids["validation"], ids["test"], videos)
