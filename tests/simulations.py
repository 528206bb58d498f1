"""How often something is simulated whose truth is known, and which share of it may then be seen.

    pytest tests/analysis/test_coverage.py                          quick: seconds; finds what is broken
    STATISTICS=long pytest -s tests/analysis/test_coverage.py       long: the figures of docs/internals/how-sure.md

What is seen of n simulations is binomial around the true share. A claim is refuted where so few, or so many, would be
seen less than once in 1,000 times if it were true; the long form also asks that the share seen keeps it to the letter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from scipy.stats import binom

FORM = os.environ.get("STATISTICS", "quick")
if FORM not in ("quick", "long"):
    raise SystemExit(f"STATISTICS={FORM}: quick or long")
LONG = FORM == "long"
REFUTED = 0.001  # how improbable what refutes a true claim is


@dataclass(frozen=True)
class Seen:
    """How many of how many simulations."""

    count: int
    of: int

    @property
    def share(self) -> float:
        return self.count / self.of

    def keeps(self, least: float = 0.0, most: float = 1.0) -> bool:
        """Whether it may be that the true share is from `least` to `most`."""
        few, many = bounds(self.of, least, most)
        return few <= self.count <= many and (not LONG or least <= self.share <= most)

    def __str__(self) -> str:
        return f"{100 * self.share:.2f} % of {self.of:,}"


def bounds(of: int, least: float, most: float) -> tuple[int, int]:
    """The fewest and the most that do not refute a true share from `least` to `most`."""
    return int(binom.ppf(REFUTED, of, least)), int(binom.ppf(1 - REFUTED, of, most))


def times(quick: int, long: int) -> int:
    return long if LONG else quick
