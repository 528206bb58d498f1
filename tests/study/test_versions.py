"""What an installed library is too old for, and that a container's own build of a version is not older than it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scaling_study.machine import Machine
from scaling_study.study.plan import Plan
from scaling_study.study.support import too_old
from scaling_study.trial import Trial

PIPELINE = "framework: torch_pipeline, workers: 2, micro_batches: 4, model: mlp_wide"
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


def test_a_trial_that_needs_a_newer_torch_is_planned_as_unsupported(
    plan_of: Callable[..., Plan], machine: Callable[..., Machine]
) -> None:
    here = replace(machine(cores=2), libraries={"torch": "2.8.0"})
    made = plan_of(
        f"study: a\nsweeps:\n- {{{PIPELINE}, schedule: 1f1b}}\n- {{{PIPELINE}, schedule: dualpipev}}\n",
        here,
    )
    reasons: dict[Any, str] = {planned.trial.schedule: planned.unsupported for planned in made.configurations}
    assert reasons == {"1f1b": "", "dualpipev": "schedule=dualpipev needs torch 2.10 or newer: 2.8.0 is installed"}
