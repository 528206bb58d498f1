"""Clocks of a training's parts on several GPUs and hosts, and the averaging rounds of a peer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from scaling_study.measure import Phase, Timeline, training
from scaling_study.measure.clock import Stopwatch
from scaling_study.measure.memory import Memory
from scaling_study.measure.training import AveragingRounds

FIRST, SECOND, THIRD = (torch.device("cuda", index) for index in range(3))
ALL = {FIRST, SECOND, THIRD}


class Cuda:
    """torch.cuda as far as waiting goes: which devices the host, and which streams the first device's, waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_host: list[torch.device] = []
        self.by_events: list[set[torch.device]] = []  # of each event: whose work lies before it
        self.joined: set[torch.device] = set()
        monkeypatch.setattr(torch.cuda, "synchronize", self.by_host.append)
        monkeypatch.setattr(torch.cuda, "current_stream", self.stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: SimpleNamespace(
            record=self.recorded, elapsed_time=lambda other: 2.0
        ))  # fmt: skip

    def stream(self, device: torch.device) -> Any:
        return SimpleNamespace(
            device=device,
            synchronize=lambda: self.by_host.append(device),
            wait_stream=lambda other: self.joined.add(other.device),
        )

    def recorded(self, stream: Any) -> None:
        self.by_events.append({stream.device, *self.joined})
        self.joined.clear()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_a_step_ends_with_its_last_device(cuda: Cuda) -> None:
    watch = Stopwatch(FIRST, SECOND, THIRD)
    watch.start()
    assert set(cuda.by_host) == ALL, "nothing of the block before is still running"
    cuda.by_host.clear()
    watch.lap()
    watch.lap()
    assert cuda.by_events == [ALL] * 3 and not cuda.by_host, "no step waits on the host"
    assert watch.seconds() == [0.002, 0.002] and set(cuda.by_host) == ALL


def test_a_phase_ends_with_its_last_device(cuda: Cuda) -> None:
    phase = Phase(FIRST, SECOND, THIRD)
    phase.on = True
    with phase("backward"):
        cuda.by_host.clear()
    assert set(cuda.by_host) == ALL


def test_peak_memory_is_of_the_device_that_needed_most(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {FIRST: 100, SECOND: 700, THIRD: 300}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peaks.__getitem__)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peaks.update({device: 10}))
    memory = Memory(nn.Linear(2, 2), None, FIRST, further=(SECOND, THIRD))
    memory.start()
    peaks[THIRD] = 200
    memory.stop()
    assert (memory.setup_peak_bytes, memory.peak_bytes()) == (700, 200)


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


def rounds_of(*samples: int, peers: int = 2) -> AveragingRounds:
    rounds = AveragingRounds(peers)
    for count in samples:
        rounds.current.samples, rounds.current.peers = count, peers
        rounds.end()
    return rounds


def test_samples_are_counted_once() -> None:
    rounds = rounds_of(64, 96)
    assert (rounds.uncounted(), rounds.uncounted()) == (160, 0)
    rounds.current.samples = 32
    assert rounds.uncounted() == 0  # the round is not over
    rounds.end()
    assert rounds.uncounted() == 32


def test_a_round_without_everybody_says_why() -> None:
    rounds = AveragingRounds(3)
    for peers, failure in ((3, ""), (2, ""), (1, "TimeoutError"), (0, "")):
        rounds.current.peers, rounds.current.failure = peers, failure
        rounds.end()
    failures = [each.failure for each in rounds.since(0)]
    assert failures == ["", "2 of 3 peers took part", "TimeoutError", "nothing was averaged with anybody"]
    assert [each.failure for each in rounds.since(-2)] == failures[-2:]


@pytest.mark.parametrize(("late", "failed"), [(0, [True, True]), (1, [True, False]), (None, [False, False])])
def test_only_what_is_late_may_still_be_averaged(late: int | None, failed: list[bool]) -> None:
    """Synchronous updates wait for it, of delayed ones the last may be under way, local ones need none."""
    rounds = AveragingRounds(2, late)
    for _ in failed:
        rounds.end()
    assert [bool(each.failure) for each in rounds.since(0)] == failed


@pytest.mark.parametrize(
    ("peers", "failures"),
    [
        ((None, 3, 2), ["", "", "weights: 2 of 3 peers took part"]),
        ((3, 0, 0), ["", "", ""]),  # under way, or waited for just now
        ((0, 3, 3), ["weights: what came of averaging them is not known", "", ""]),
    ],
)
def test_weights_without_everybody_fail_the_round(peers: tuple[int | None, ...], failures: list[str]) -> None:
    rounds = AveragingRounds(3)
    for count in peers:
        rounds.current.peers, rounds.current.weights_peers = 3, count
        rounds.end()
    assert [each.failure for each in rounds.since(0)] == failures
