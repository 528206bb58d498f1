"""The zero of a pipeline's timeline: rank 0's on its own host, elsewhere the moment at which that one's came."""

from __future__ import annotations

import time

import pytest
import torch

from scaling_study.measure import Phase, Timeline, training


@pytest.mark.parametrize(("host", "shared"), [("h1", True), ("h2", False)])
def test_a_clock_is_shared_where_the_host_is_and_not_where_it_looks_alike(
    monkeypatch: pytest.MonkeyPatch, host: str, shared: bool
) -> None:
    """Two hosts that booted within seconds of one another have clocks that look alike."""
    said: list[float] = []

    def of_rank_0(mine: float) -> float:
        said.append(mine)
        return mine

    monkeypatch.setattr(training.socket, "gethostname", lambda: "h1")
    Timeline(Phase(torch.device("cpu"))).begin(of_rank_0)
    heard = iter([time.perf_counter() - 30.0, said[1]])
    monkeypatch.setattr(training.socket, "gethostname", lambda: host)
    ours = Timeline(Phase(torch.device("cpu")))
    ours.phase.on = True
    ours.begin(lambda mine: next(heard))
    with ours("forward", 0, 0):
        pass
    start = ours.events[0][4]
    assert (30.0 <= start < 90.0) if shared else (0.0 <= start < 30.0)
