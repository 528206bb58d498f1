"""glibc's allocator with fixed thresholds, the same in every step and whatever ran before.                 [torch]

By default glibc returns a large tensor to the kernel as soon as it is freed: the next step faults its pages in again,
and zeroes them. From which size on is a threshold that moves with what was freed before, so that a configuration's
speed depends on its history. With `allocator: fixed` freed memory stays in the process (mallopt(3)); resident memory
then is the most that was ever in use at once, and what fragments of it.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of malloc.h
TOP_PAD_BYTES = 256 << 20  # taken from the kernel at once


def fix_thresholds() -> None:
    """For the rest of this process. Raises SystemExit where the C library is another than glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        raise SystemExit("--allocator fixed needs glibc's mallopt, which is not here: --allocator system") from None
    never = -1  # trim nothing
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, never), (M_TOP_PAD, TOP_PAD_BYTES)):
        if not mallopt(option, value):
            raise SystemExit(f"--allocator fixed: glibc refused mallopt({option}, {value}): --allocator system")
