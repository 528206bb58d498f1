"""When the timed window of a run ends, and how many steps warm up before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling_study.flags import key

OF_ROUNDS = ("rounds", "block_seconds")
SLACK = 1e-9  # of a step, that dividing seconds leaves over
LONG_STEP = 2.0  # seconds: more steps that are not timed would cost more than they bring


@dataclass(frozen=True)
class Window:
    """When the timed window of a run ends: after min_steps and min_seconds, but never past max_*."""

    warmup_steps: int = key(
        5, "steps before the clock starts, recorded separately; at least 4 (long ones: 2), or 0", minimum=0
    )
    min_steps: int = key(10, "time at least this many steps", minimum=1)
    min_seconds: float = key(2.0, "and at least this many seconds", minimum=0)
    max_seconds: float | None = key(30.0, "stop timing after this many seconds, even below --min-steps", above=0)
    max_steps: int | None = key(None, "stop timing after this many steps", minimum=1)
    # Of a launch that several configurations share, instead of the maxima; a script's own launch has none.
    rounds: int | None = None
    block_seconds: float | None = None

    def warmup(self, fastest: float) -> int:
        """How many steps warm up where the fastest so far takes `fastest` seconds.

        As many as asked for, at least three after the first (DDP makes its buckets anew in the second), or one where
        steps are long; in rounds none then, as those that are looked at come before the first block. None at all where
        none was asked for.
        """
        after_first = 3 if not self.is_long(fastest) else 0 if self.rounds else 1
        return max(self.warmup_steps, 1 + after_first) if self.warmup_steps else 0

    def is_long(self, step_seconds: float) -> bool:
        """Whether a step takes so long that few are spent on anything but timing: more than LONG_STEP, in rounds more
        than a block. One whose seconds are not known (inf) is not."""
        return math.isfinite(step_seconds) and step_seconds > min(LONG_STEP, self.block_seconds or math.inf)

    def steps_in_block(self, step_seconds: float) -> int:
        """How many steps of so many seconds come nearest to a block's length; at least its share of the minima."""
        rounds, seconds = self.rounds or 1, self.block_seconds or 0.0
        fewest = max(self.min_seconds / step_seconds, self.min_steps) / rounds
        return max(1, round(seconds / step_seconds), math.ceil(fewest - SLACK))
