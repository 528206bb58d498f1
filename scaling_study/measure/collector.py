"""Python's garbage collector, kept from walking what setting up left behind.                             [torch]

Importing torch and building a model leaves hundreds of thousands of objects. A full collection walks them all: some
tenths of a second, at another step on every rank, and all ranks wait for each. What is alive when the window begins is
collected once and then set apart; what the steps themselves make is collected as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle() -> None:
    """Set apart what is alive now."""
    gc.collect()
    gc.freeze()


@contextmanager
def settled() -> Iterator[None]:
    """The timed window runs in here."""
    settle()
    try:
        yield
    finally:
        gc.unfreeze()
