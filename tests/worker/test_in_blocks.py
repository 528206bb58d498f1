"""What a rank does when asked for a block, with steps that are only counted. Real ones: test_warm_group.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaling_study.measure.clock import Measurement
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.worker import in_blocks
from scaling_study.worker.in_blocks import Serving


@pytest.fixture
def steps() -> list[Any]:
    """What a measurement was asked for, in order."""
    return []


@pytest.fixture
def serving(steps: list[Any], monkeypatch: pytest.MonkeyPatch) -> Serving:
    """A rank that has built its only configuration."""

    def timed_block(round: int, count: int) -> list[float]:
        steps.append((round, count))
        return [0.1] * count

    measurement = SimpleNamespace(
        forget=lambda: steps.append("forget"), step=lambda batch: steps.append("untimed"), timed_block=timed_block,
        workload=SimpleNamespace(batches=iter(range(100))), report=lambda: "a report",
    )  # fmt: skip

    rank = Serving([(Trial(), Path("a trial"))], Ranks(), lambda trial, ranks: None)
    rank.measurements[0] = measurement  # type: ignore[assignment]
    rank.watches[0] = SimpleNamespace(check_block=lambda before: None)  # type: ignore[assignment]
    rank.states[0] = SimpleNamespace(leave=lambda: ["threads of torch"])  # type: ignore[assignment]
    monkeypatch.setattr(in_blocks.store, "write_rank", lambda folder, report: steps.append((folder.name, report)))
    return rank


@pytest.mark.parametrize(("untimed", "before"), [(True, ["untimed"]), (False, [])])
def test_a_step_is_left_out_before_a_block_only_where_asked_for(
    untimed: bool, before: list[str], serving: Serving, steps: list[Any]
) -> None:
    answer = serving.block(0, block=3, steps=2, untimed=untimed)
    assert steps == [*before, (3, 2), ("a trial", "a report")], "its report is on the disk before it answers"
    assert answer == {"step_seconds": [0.1, 0.1], "changed": ["threads of torch"]}


def test_rounds_that_begin_anew_forget_what_was_timed_before(serving: Serving, steps: list[Any]) -> None:
    for round in (0, 1, 0):
        serving.block(0, block=round, steps=1, untimed=False)
    timed = [each for each in steps if each != ("a trial", "a report")]
    assert timed == ["forget", (0, 1), (1, 1), "forget", (0, 1)]


def test_nothing_lies_between_the_barrier_and_the_first_timed_step() -> None:
    """Or a rank whose meters start sooner waits for the others in its first step, and has that in its throughput."""
    log: list[str] = []

    @contextmanager
    def timed() -> Iterator[None]:
        log.append("meters start")
        yield
        log.append("meters stop")

    def block(*_: Any) -> list[float]:
        log.append("steps")
        return [0.1, 0.1]

    measured: Any = SimpleNamespace(
        timed=timed, block=block, step=None, workload=SimpleNamespace(batches=None), step_seconds=[], blocks=[],
        ranks=SimpleNamespace(total=lambda numbers: log.append("barrier")),
    )  # fmt: skip
    assert Measurement.timed_block(measured, 0, 2) == measured.step_seconds == [0.1, 0.1]
    assert log == ["meters start", "barrier", "steps", "meters stop"]
