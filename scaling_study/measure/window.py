"""When the timed window ends: a pure rule that rank 0 asks between blocks of steps, outside the timed ones.

    steps = 0; seconds = 0.0
    while block := next_block(steps, seconds, window):
        ...every rank runs `block` steps and adds them up; rank 0 decides, the others are told...

Ranks that looked at their own clocks would stop after different numbers of steps and deadlock in the next
collective; asking after every step would put a broadcast between the steps that are being timed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaling_study.trial import Window


def next_block(steps: int, seconds: float, window: Window, expected_step_seconds: float | None = None) -> int:
    """How many more steps to run before asking again; 0 when the window is over.

    `steps` and `seconds` are those timed so far. The first block is min_steps; each later one is what the mean
    step so far says is missing of min_seconds, at most as many steps as were done already (so the total at most
    doubles, and a slow first block cannot send the run far past its aim). Over when both minima are reached, or
    either maximum. No block is planned to end more than one step past max_seconds.

    `expected_step_seconds`, where the warm-up gave one, also holds the first block to max_seconds.
    Raises ValueError for negative or non-finite `steps` or `seconds`.
    """
    if steps < 0 or not (0 <= seconds < math.inf):
        raise ValueError(f"timed so far cannot be {steps} steps in {seconds} s")
    most = math.inf if window.max_steps is None else window.max_steps - steps
    max_seconds = math.inf if window.max_seconds is None else window.max_seconds
    if most <= 0 or seconds >= max_seconds:
        return 0
    if steps >= window.min_steps and seconds >= window.min_seconds:
        return 0
    if steps == 0:
        step_seconds = expected_step_seconds or 0.0
        wanted: float = window.min_steps
    else:
        step_seconds = seconds / steps
        wanted = min(max(_steps_in(window.min_seconds - seconds, step_seconds), window.min_steps - steps), steps)
    affordable = _steps_in(max_seconds - seconds, step_seconds)
    return max(1, int(min(wanted, affordable, most)))


def _steps_in(seconds: float, step_seconds: float) -> float:
    """Steps that fill `seconds`, rounded up; infinite where steps take no time that the clock could see."""
    if seconds <= 0:
        return 0.0
    steps = seconds / step_seconds if step_seconds > 0 else math.inf
    return math.ceil(steps) if math.isfinite(steps) else math.inf
