"""What a rank does when asked for a block, with steps that are only counted. Real ones: test_warm_group.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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

    def total(numbers: Sequence[float]) -> list[float]:
        steps.append("barrier")
        return list(numbers)

    rank = Serving([(Trial(), Path("a trial"))], Ranks(total=total), lambda trial, ranks: None)
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
    assert steps == [*before, "barrier", (3, 2), ("a trial", "a report")], "its report is on the disk before it answers"
    assert answer == {"step_seconds": [0.1, 0.1], "changed": ["threads of torch"]}


def test_rounds_that_begin_anew_forget_what_was_timed_before(serving: Serving, steps: list[Any]) -> None:
    for round in (0, 1, 0):
        serving.block(0, block=round, steps=1, untimed=False)
    timed = [each for each in steps if each not in ("barrier", ("a trial", "a report"))]
    assert timed == ["forget", (0, 1), (1, 1), "forget", (0, 1)]


def test_what_others_hold_on_a_gpu_is_known_before_it_is_built(
    serving: Serving, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it holds itself, once its steps were looked at; its share of the memory is what the driver is told."""

    def note(name: str, answer: Any = None) -> Callable[..., Any]:
        return lambda *asked: steps.append((name, *asked)) or answer

    memory = SimpleNamespace(beside=note("beside"), settle=note("settle"))
    built = SimpleNamespace(
        memory=memory, warm_up=note("warm up"), inspect=note("inspect"), warmup_seconds=[0.3, 0.2]
    )  # fmt: skip
    monkeypatch.setattr(in_blocks, "Measurement", lambda *_: steps.append("built") or built)
    monkeypatch.setattr(in_blocks.memory, "release_workspaces", note("release"))
    monkeypatch.setattr(in_blocks.memory, "held_on", note("held", {"a GPU": 100}))
    monkeypatch.setattr(in_blocks.memory, "used_share", note("used", 0.4))
    answer = serving.build(0)
    assert [each if isinstance(each, str) else each[0] for each in steps] == [
        "release", "held", "built", "beside", "warm up", "inspect", "settle", "used",
    ]  # fmt: skip
    assert ("beside", {"a GPU": 100}) in steps
    assert (answer["gpu_share"], answer["step_seconds"]) == (0.4, 0.2)
