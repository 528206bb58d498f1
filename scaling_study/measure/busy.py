"""Cores that compute while the network is measured.                                                   [torch]

On a CPU a worker's cores do both: backward computes, and whatever carries its gradients takes turns with it on the same
cores. A network that is measured while they idle is faster than training will ever see it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SIDE = 256  # of the matrices: a product takes a core under a millisecond, so Python is seldom what runs


@contextmanager
def cores_busy(on: bool) -> Iterator[None]:
    """Within it, if `on`, a thread multiplies matrices without a pause, on as many of this worker's cores as torch
    computes on (it is pinned as its process is)."""
    if not on:
        yield
        return
    begun, stop = threading.Event(), threading.Event()

    def compute() -> None:
        matrix, product = torch.rand(SIDE, SIDE), torch.empty(SIDE, SIDE)
        while not stop.is_set():
            torch.mm(matrix, matrix, out=product)  # releases Python's lock: the thread that communicates can run
            begun.set()

    thread = threading.Thread(target=compute, name="cores-busy", daemon=True)
    thread.start()
    try:
        begun.wait()
        yield
    finally:
        stop.set()
        thread.join()
