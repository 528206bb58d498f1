"""The zero of a pipeline's timeline: rank 0's on its own host, elsewhere the moment at which that one's came."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from scaling_study.measure import Phase, Timeline, training


@pytest.mark.parametrize(("host", "shared"), [("h1", True), ("h2", False)])
def test_a_clock_is_shared_where_the_host_is_and_not_where_it_looks_alike(
    monkeypatch: pytest.MonkeyPatch, host: str, shared: bool
) -> None:
    """Two hosts that booted within seconds of one another have clocks that look alike."""
    zero = time.perf_counter() - 30.0
    monkeypatch.setattr(training.socket, "gethostname", lambda: "h1")
    said = iter([zero, training.clock_of_this_host()])
    monkeypatch.setattr(training.socket, "gethostname", lambda: host)
    agree: Callable[[float], float] = lambda mine: next(said)  # noqa: E731
    ours = Timeline(Phase(torch.device("cpu")))
    ours.phase.on = True
    ours.begin(agree)
    with ours("forward", 0, 0):
        pass
    start = ours.events[0][4]
    assert (30.0 <= start < 90.0) if shared else (0.0 <= start < 30.0)
