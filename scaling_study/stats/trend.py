"""Did steps become faster or slower within one run?

A window that begins before the warm-up is over holds steps that become faster; one that throttling or a growing heap
slows down holds steps that become slower. Either way its mean is that of no steady speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

FEWEST_STEPS = 6  # two in a third: below, one slow step would be a trend


def step_trend(step_seconds: Sequence[float]) -> float | None:
    """The median of the last third of the steps over that of the first, less 1: -0.03 became 3 % faster.

    Medians: single slow steps are no trend. None for fewer than FEWEST_STEPS, or where steps took no time. Steps of
    one run are alike when they are close in time, so a trend of one run alone proves nothing: it is tested over the
    repeats (analysis/findings/timing.py).
    """
    third = len(step_seconds) // 3
    if len(step_seconds) < FEWEST_STEPS or not (first := median(step_seconds[:third])):
        return None
    return median(step_seconds[-third:]) / first - 1
