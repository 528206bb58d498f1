"""Blocks of a launch in rounds against the steps that a rank reports."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scaling_study.records import outcome
from scaling_study.records.store import Block


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ([Block(0, 2), Block(1, 1)], ""),
        ([Block(0, 2)], "3 steps in blocks of [2]"),
        ([Block(0, 3), Block(1, 0)], "blocks of [3, 0] steps"),
        ([Block(0, 4), Block(1, -1)], "blocks of [4, -1] steps"),
        ([Block(0, 2), Block(0, 1)], "blocks of rounds [0, 0]"),
        ([Block(1, 2), Block(0, 1)], "blocks of rounds [1, 0]"),
        ([Block(-1, 2), Block(0, 1)], "blocks of rounds [-1, 0]"),
    ],
)
def test_blocks_are_those_of_its_steps_one_a_round(blocks: list[Block], problem: str) -> None:
    report = SimpleNamespace(rank=1, blocks=blocks, step_seconds=[0.1] * 3)
    problems = list(outcome._of_blocks(report))  # type: ignore[arg-type]
    assert len(problems) == bool(problem) and all(problem in each for each in problems)
    assert all(each.startswith("rank 1 reports ") for each in problems)
