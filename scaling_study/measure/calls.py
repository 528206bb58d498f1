"""The calls of one collective and size: warm-up, then as many as their share of the time allows.      [torch]

    fill | barrier | CALL | check        every result is checked, also of timed calls
                    '----' timed

The barrier makes all ranks begin together, so the slowest rank's seconds are the call's: of a broadcast the root would
else run ahead. Rank 0 decides between blocks of calls, outside the timed ones, and tells the others (window.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import torch

from scaling_study.measure.payload import Payload
from scaling_study.measure.phases import now
from scaling_study.measure.window import next_block
from scaling_study.ranks import Ranks
from scaling_study.trial import Window

Call = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]  # (collective, sent, received) -> the result
WARM_UP_SHARE = 0.2  # of a row's time, beyond which warming up ends early
TARGET = 0.05  # half of the mean's 95 % interval over the mean: more calls are spent on it while there is time
FEWEST_CALLS = 3  # of one row, however long they take: one call has no interval
MOST_CALLS = 1000  # of one row, unless min_steps or max_steps ask for more


@dataclass(frozen=True)
class Budget:
    """Time that is shared out among what is still to come: what small sizes leave over goes to the larger ones."""

    ends: float  # on the monotonic clock

    @classmethod
    def within(cls, seconds: float | None) -> Budget:
        return cls(math.inf if seconds is None else time.monotonic() + seconds)

    def share(self, left: int) -> float | None:
        """Seconds for each of `left`, which may be next to none; None where there is no limit."""
        return None if math.isinf(self.ends) else max(1e-3, (self.ends - time.monotonic()) / left)


class Calls:
    """The calls of one row, on this rank. `barrier` returns once all ranks have come to it."""

    def __init__(self, call: Call, barrier: Callable[[], object], payload: Payload, ranks: Ranks) -> None:
        self.call, self.barrier, self.payload, self.ranks = call, barrier, payload, ranks
        self.warmup_seconds: list[float] = []
        self.seconds: list[float] = []
        self.wrong = 0

    def run(self, window: Window) -> Calls:
        """Warm up, then call until the window is over; its max_seconds hold for both, barriers and checks included."""
        budget, warm = (
            Budget.within(window.max_seconds),
            Budget.within(window.max_seconds and WARM_UP_SHARE * window.max_seconds),
        )
        begun = time.monotonic()
        while self.ranks.agree(len(self.warmup_seconds) < window.warmup_steps and time.monotonic() < warm.ends):
            self.warmup_seconds.append(self.timed_call())
        expected = (time.monotonic() - begun) / len(self.warmup_seconds) if self.warmup_seconds else None
        window, begun = replace(window, max_seconds=budget.share(1)), time.monotonic()
        while block := int(self.ranks.agree(next_block(len(self.seconds), self._since(begun), window, expected))):
            self.seconds += [self.timed_call() for _ in range(block)]
        took = self._since(begun)
        left = math.inf if window.max_seconds is None else (window.max_seconds - took) / took * len(self.seconds)
        more = missing(self.seconds, window.max_steps or MOST_CALLS, left)
        self.seconds += [self.timed_call() for _ in range(int(self.ranks.agree(more)))]
        return self

    def timed_call(self) -> float:
        """Seconds of one call on this rank, from the moment at which all ranks were ready."""
        self.payload.fill()
        now(self.ranks.device)
        self.barrier()
        start = now(self.ranks.device)
        result = self.call(self.payload.collective, self.payload.sent, self.payload.received)
        seconds = now(self.ranks.device) - start
        self.wrong += not self.payload.is_correct(result)
        return seconds

    def row(self) -> dict[str, Any]:
        """What the record keeps, to the nanosecond."""
        kept = {"warmup_seconds": self.warmup_seconds, "seconds": self.seconds}
        return {
            **{name: [round(value, 9) for value in times] for name, times in kept.items()},
            "correct": not self.wrong,
        }

    def of_all_ranks(self) -> tuple[list[float], int]:
        """(seconds of the slowest rank, call by call; how many results were wrong on any rank), on every rank.

        They travel by the collective that is measured first of all, an allreduce: where that is wrong, so are they.
        """
        ours = torch.tensor([*self.seconds, self.wrong], dtype=torch.float64, device=self.ranks.device)
        every = torch.zeros(self.ranks.world_size, len(ours), dtype=torch.float64, device=self.ranks.device)
        every[self.ranks.rank] = ours
        every = self.call("allreduce", every, every)
        *seconds, wrong = (*every[:, :-1].amax(0).tolist(), every[:, -1].sum().item())
        return (seconds, round(wrong)) if math.isfinite(sum(seconds) + wrong) else (self.seconds, self.wrong)

    def _since(self, begun: float) -> float:
        return time.monotonic() - begun if self.seconds else 0.0


def missing(seconds: Sequence[float], most: int, affordable: float) -> int:
    """How many more calls bring the mean to +-TARGET, of `most` in all and as many as are affordable.

    Decided once: to stop as soon as an interval looks narrow would favour samples that vary little by chance.
    FEWEST_CALLS come before what is affordable, not before `most`.
    """
    n = len(seconds)
    variation = stdev(seconds) / mean(seconds) if n > 1 else math.inf
    wanted = math.ceil((2 * variation / TARGET) ** 2) - n if n > 1 else most
    return max(0, min(most - n, max(FEWEST_CALLS - n, min(wanted, math.floor(min(affordable, most))))))
