"""The largest batch that fits: doubling until one does not, then bisection between the two. Pure.

    32 ok   64 ok   128 ok   256 oom        192 ok   224 oom   208 ok ...      until they are 3 % apart

Each try is a fresh group of processes: an allocator that ran out of memory once is no longer representative,
and ranks whose peer has died would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable

RESOLUTION = 32  # the answer is exact to 1/32 of itself
MOST = 1_000_000


def largest_batch(fits: Callable[[int], bool], start: int) -> int | None:
    """The largest batch size that `fits`, to 1/RESOLUTION of it; None if not even one sample does.

    `fits` is asked for each size at most once. It is taken to hold for everything below a size for which it holds.
    """
    good, bad = 0, None
    size = start
    while size and bad is None:
        if fits(size):
            good, size = size, min(2 * size, MOST)
            if good == MOST:
                return good
        else:
            bad = size
    while bad is not None and bad - good > max(1, good // RESOLUTION):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good or None
