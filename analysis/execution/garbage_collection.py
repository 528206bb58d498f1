"""Work that makes many objects which stay, or which all go at once: looking for garbage among them meanwhile would take
as long as the work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignored() -> Iterator[None]:
    """No collection inside; one is due where what was made refers to itself, as a drawn figure does."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def only_new() -> Iterator[None]:
    """Collections inside look at nothing that was there before: thousands of trials take a while to look through."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
