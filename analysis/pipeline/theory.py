"""What a schedule's bubble should be, in closed form, and how fast an unbalanced cut can be at most.

    p  workers along the pipeline     v  stages that each holds (virtual stages)     m  micro-batches

A bubble here is what bubble.py measures: the share of the makespan that workers are idle, with stages that take
equally long and transfers that take no time. Backward takes twice as long as forward; where it is split, the input's
gradient as long as the weights'. Where a paper counts otherwise, or asks something of p, v and m, that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NAIVE = "naive"  # stages one after the other, the batch in one piece


@dataclass(frozen=True)
class Theory:
    """The bubble, 0 to 1, or None with the reason why none is claimed; by which formula, and whose."""

    bubble: float | None
    formula: str
    why: str = ""


def bubble(schedule: str, workers: int, micro_batches: int, virtual_stages: int = 1) -> Theory:
    """The bubble of a schedule (frameworks.SCHEDULES, or NAIVE)."""
    if schedule not in SCHEDULES:
        return Theory(None, "", f"no closed form is known here for {schedule}")
    return SCHEDULES[schedule](workers, micro_batches, virtual_stages)


def naive(p: int, m: int, v: int) -> Theory:
    return Theory((p - 1) / p, "(p-1)/p: one worker at a time, the case m = 1 of GPipe's")


def gpipe(p: int, m: int, v: int) -> Theory:
    return Theory((p - 1) / (m + p - 1), "(p-1)/(m+p-1) (Huang et al., arXiv 1811.06965)")


def one_forward_one_backward(p: int, m: int, v: int) -> Theory:
    """Less memory than GPipe, and the same bubble."""
    return Theory((p - 1) / (m + p - 1), "(p-1)/(m+p-1), as GPipe's (Narayanan et al., arXiv 2104.04473)")


def interleaved(p: int, m: int, v: int) -> Theory:
    """The paper has m a multiple of p; torch's rounds of other sizes keep the form for every m >= p."""
    return _looped(p, m, v, "Narayanan et al., arXiv 2104.04473")


def looped_bfs(p: int, m: int, v: int) -> Theory:
    return _looped(p, m, v, "Lamy-Poirier, arXiv 2211.05953")


def _looped(p: int, m: int, v: int, whose: str) -> Theory:
    """With m < p the first worker has done its micro-batches p - m units before they come round again, v - 1 times."""
    idle = p - 1 + (v - 1) * max(0, p - m)
    form = "(p-1)/(v m+p-1)" if m >= p else "i/(v m+i), i = p-1+(v-1)(p-m) as m < p"
    return Theory(idle / (v * m + idle), f"{form} ({whose})")


def zero_bubble(p: int, m: int, v: int) -> Theory:
    """With the memory of 1F1B the bubble is (p-1) (F + B_input - B_weight): a third of 1F1B's where all are equal."""
    formula = "ZB-H1: (p-1)/(3 v m+p-1) (Qi et al., arXiv 2401.10241)"
    if m < p:
        return Theory(None, formula, f"it needs m >= p: {m} is below {p}")
    return Theory((p - 1) / (3 * v * m + p - 1), formula)


def zero_bubble_v(p: int, m: int, v: int) -> Theory:
    """No worker has a break, but worker i begins i forwards of one of its stages after the first."""
    formula = "ZB-V: (p-1)/(6 m+p-1), the fill alone (Qi et al., arXiv 2401.10241, who do not count it: zero)"
    if m < 2 * p:
        return Theory(None, formula, f"it needs m >= 2 p to be without a break: {m} is below {2 * p}")
    return Theory((p - 1) / (6 * m + p - 1), formula)


def dual_pipe_v(p: int, m: int, v: int) -> Theory:
    """Their (p-1) (F&B + B - 3 W) with F&B = F + B. A pair hands on both results together, as torch's do; an order
    replayed event by event hands each on at once, and has half the bubble."""
    formula = "DualPipeV: (p-1)/(3 m+p-1), pairs in one piece, not overlapped (DeepSeek-AI, arXiv 2412.19437)"
    if m < 2 * p:
        return Theory(None, formula, f"it needs m >= 2 p: {m} is below {2 * p}")
    return Theory((p - 1) / (3 * m + p - 1), formula)


SCHEDULES: Mapping[str, Callable[[int, int, int], Theory]] = {
    NAIVE: naive,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved,
    "looped_bfs": looped_bfs,
    "interleaved_zero_bubble": zero_bubble,
    "zbv_zero_bubble": zero_bubble_v,
    "dualpipev": dual_pipe_v,
}
IN_LOCKSTEP = (NAIVE, "gpipe")  # all forwards, then all backwards


def most_speedup(shares: Sequence[float]) -> float:
    """The most that any schedule can gain over one process: the busiest worker does its share of every sample.

    `shares`: of the time, one a worker, 0 to 1. Raises ValueError where there are none.
    """
    return 1 / _largest(shares)


def cap(schedule: str, shares: Sequence[float], micro_batches: int) -> float:
    """The most that this schedule can gain over one process with this cut (F16).

    GPipe: the first micro-batch goes through every stage, 1 of its times; each further one waits for the slowest:
    m / (1 + (m-1) max s). 1F1B hides behind the slowest stage what comes after it, but not what comes before:
    m / max (m s_i + s_1 + ... + s_(i-1)). The others: 1 / max s.
    """
    largest, m = _largest(shares), micro_batches
    if schedule in IN_LOCKSTEP:
        return m / (1 + (m - 1) * largest)
    if schedule == "1f1b":
        return m / max(m * share + sum(shares[:index]) for index, share in enumerate(shares))
    return 1 / largest


def _largest(shares: Sequence[float]) -> float:
    largest = max(shares, default=0.0)
    if not 0 < largest <= 1 + 1e-9:
        raise ValueError(f"shares of the time are between 0 and 1, not {list(shares)}")
    return largest
