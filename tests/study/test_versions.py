"""What an installed library is too old for, and that a container's own build of a version is not older than it."""

from __future__ import annotations

import pytest

from scaling_study.study.support import too_old
from scaling_study.trial import Trial

ZBV = "schedule=zbv_zero_bubble needs torch 2.10 or newer"


@pytest.mark.parametrize(
    ("torch", "schedule", "answer"),
    [
        ("2.8.0", "dualpipev", "schedule=dualpipev needs torch 2.10 or newer: 2.8.0 is installed"),
        ("2.8.0+cu128", "zbv_zero_bubble", f"{ZBV}: 2.8.0+cu128 is installed"),
        ("2.10.0a0+b558c986e8.nv25.11", "dualpipev", ""),
        ("2.9.0a0+50eac811a6.nv25.9", "zbv_zero_bubble", f"{ZBV}: 2.9.0a0+50eac811a6.nv25.9 is installed"),
        ("2.10.0", "zbv_zero_bubble", ""),
        ("2.8.0", "1f1b", ""),
        ("2.8.0", None, ""),
    ],
)
def test_an_older_torch_is_named_with_the_version_that_is_needed(torch: str, schedule: str | None, answer: str) -> None:
    assert too_old(Trial(framework="torch_pipeline", schedule=schedule), {"torch": torch}) == answer
