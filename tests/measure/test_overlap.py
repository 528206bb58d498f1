"""Overlap by spans, and of a library with handles of its own. In real launches: tests/frameworks/test_launches.py."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from scaling_study.measure import inspected
from scaling_study.measure.inspected import Flights
from scaling_study.measure.wire import Wire


@pytest.mark.parametrize(
    ("in_flight", "computing", "share"),
    [
        ([(0, 10)], [(0, 10)], 1.0),
        ([(0, 10)], [(10, 20)], 0.0),
        ([(0, 10), (5, 20)], [(0, 5), (3, 8), (15, 40)], 13 / 20),  # both overlap themselves: 8 + 5 of 20 in flight
        ([(0, 4), (10, 14)], [(2, 12)], 0.5),
        ([(0, 10)], [], 0.0),
        ([], [(0, 10)], None),
    ],
)
def test_overlap_is_the_share_of_the_time_in_flight(
    in_flight: list[tuple[int, int]], computing: list[tuple[int, int]], share: float | None
) -> None:
    assert inspected.overlap(in_flight, computing) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("name", "collective"),
    [("gloo:all_reduce", True), ("nccl:all_gather", True), ("gloo:send", False), ("aten::mm", False)],
)
def test_names_of_collectives(name: str, collective: bool) -> None:
    assert inspected.is_collective(name) == collective


def test_a_blocking_call_is_its_own_flight_and_a_handle_one_until_it_is_complete() -> None:
    flights, ready = Flights(), time.monotonic() + 0.05
    assert flights.following(lambda: "result", None) == "result"

    def done(handle: int) -> bool:
        if handle == 2:
            raise ValueError("Handle 2 was not created or has been cleared.")  # as Horovod says of one waited for
        return time.monotonic() > ready

    assert [flights.following(lambda: 1, done), flights.following(lambda: 2, done)] == [1, 2]
    flights.settle()
    lasted = sorted(end - begin for begin, end in flights.spans)
    assert len(lasted) == 3 and lasted[-1] >= 0.04e9 > lasted[1]


@pytest.mark.parametrize(("computes_meanwhile", "least", "most"), [(True, 0.7, 1.0), (False, 0.0, 0.3)])
def test_a_step_is_observed_through_the_functions_that_a_library_names(
    computes_meanwhile: bool, least: float, most: float
) -> None:
    wire, complete_at = Wire(), [0.0]
    model, data = nn.Linear(512, 512), torch.ones(256, 512)

    def start() -> int:
        complete_at[0] = time.monotonic() + 0.1
        return 7

    library = SimpleNamespace(start=start)
    wire.watch(library, "start", "allreduce", done=lambda handle: time.monotonic() > complete_at[0])

    def step() -> None:
        library.start()
        while time.monotonic() < complete_at[0]:
            if computes_meanwhile:
                model(data)
            else:
                time.sleep(0.01)

    observed = inspected.observe(step, wire, torch.device("cpu"))
    assert library.start is start, "put back"
    assert observed.nccl_kernels is None
    assert observed.overlap is not None and least <= observed.overlap <= most


def test_what_is_counted_may_be_observed_in_the_same_step() -> None:
    """Each puts its own function in place of the library's."""
    wire, sent = Wire(), torch.ones(10)
    library = SimpleNamespace(reduce=lambda tensor: time.sleep(0.01))
    wire.watch(library, "reduce", "allreduce")
    original = library.reduce

    def step() -> None:
        with wire:
            library.reduce(sent)

    assert inspected.observe(step, wire, torch.device("cpu")).overlap is not None
    assert wire.bytes == {"allreduce": 40}
    assert library.reduce is original, "put back"
