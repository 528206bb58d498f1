"""Blocks of a launch in rounds against the steps that a rank reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scaling_study.records import outcome


def block(round: Any, steps: Any) -> dict[str, Any]:
    return {"round": round, "at": 1.0, "steps": steps}


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ([block(0, 2), block(1, 1)], ""),
        ([block(0, 2)], "3 steps in blocks of [2]"),
        ([block(0, 3), block(1, 0)], "blocks of [3, 0] steps"),
        ([block(0, 4), block(1, -1)], "blocks of [4, -1] steps"),
        ([block(0, 1.5), block(1, 1.5)], "blocks of [1.5, 1.5] steps"),
        ([block(0, 3), {"round": 1}], "blocks of [3, 0] steps"),
        ([block(0, 2), {"steps": 1}], "blocks of rounds [0, None]"),
        ([block(0, 2), block(0, 1)], "blocks of rounds [0, 0]"),
        ([block(1, 2), block(0, 1)], "blocks of rounds [1, 0]"),
        ([block(-1, 2), block(0, 1)], "blocks of rounds [-1, 0]"),
        ([block(0.0, 3)], "blocks of rounds [0.0]"),
    ],
)
def test_blocks_are_those_of_its_steps_one_a_round(blocks: list[dict[str, Any]], problem: str) -> None:
    report = SimpleNamespace(rank=1, blocks=blocks, step_seconds=[0.1] * 3)
    problems = list(outcome._of_blocks(report))  # type: ignore[arg-type]
    assert len(problems) == bool(problem) and all(problem in each for each in problems)
    assert all(each.startswith("rank 1 reports ") for each in problems)
