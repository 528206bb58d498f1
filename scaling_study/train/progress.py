"""How far a training is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

PARTS = ("train", "evaluate", "save", "log", "test")  # of a training's seconds


@dataclass
class Progress:
    """How far a training is: what a checkpoint says of it beside the state of its model."""

    steps: int = 0
    samples: int = 0  # of all ranks, where a step takes no fixed number of them; else 0
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the evaluations
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    loss_first: float | None = None
    best: float | None = None
    best_step: int | None = None
    resumed: int = 0
    lost_steps: int = 0  # made since a checkpoint that was gone on from
    noise: dict[str, Any] = field(default_factory=dict)  # of gradients (noise.py)
    best_file: str = ""  # of a library that keeps its best model itself
    data_seconds: float = 0.0  # of the training's, until the host had its batches
    data_seconds_logged: float = 0.0  # of those, up to the last row

    def batches(self, size: int) -> int:
        """That a rank has read: one a step. Of rounds the mean over ranks, as the others' are not known; `size`: of a
        batch of every rank."""
        return self.samples // size or self.steps

    def epochs(self, steps_per_epoch: int) -> float:
        """So far; of rounds, which may have more samples than others' steps, at the rate that the last row knows."""
        last = self.rows[-1] if self.rows else {"steps": steps_per_epoch, "epoch": 1.0}
        return self.steps * float(last["epoch"]) / int(last["steps"])

    def step_means(self) -> dict[str, float | None]:
        """Mean seconds of a step since the last row, and of those until the host had its batch; the latter is not known
        of a library's own loop."""
        last = self.rows[-1] if self.rows else {"steps": 0, "seconds": 0.0}
        steps, waited = max(1, self.steps - last["steps"]), self.data_seconds - self.data_seconds_logged
        return {
            "step_seconds": (self.seconds["train"] - last["seconds"]) / steps,
            "step_data_seconds": waited / steps if self.data_seconds else None,
        }


class Intervals:
    """Seconds of a loop that is not ours: from one mark to the next, less what our loop counted itself meanwhile."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.since, self.counted = progress, math.nan, 0.0

    def begin(self, at: float) -> None:
        """`at`: seconds of any clock that does not jump."""
        self.since, self.counted = at, sum(self.progress.seconds.values())

    def end(self, what: str, at: float) -> None:
        """Count what passed since the mark before as seconds of `what`; before the first mark nothing is counted."""
        if not math.isnan(self.since):
            apart = sum(self.progress.seconds.values()) - self.counted
            self.progress.seconds[what] += at - self.since - apart
        self.begin(at)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
