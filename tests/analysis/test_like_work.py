"""Two commands are held against each other: samples of a step, learning rates, losses, and doubts about their ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planted import Planted
from planted_flaws import Flawed, plant_flawed

from analysis.compare.like_work import FirstSteps, Work, caveats, first_steps

SAME = "all ranks train on the same data: is a DistributedSampler missing?"
LOSSES = (0.7, 0.6, 0.5)


def work(label: str, *losses: tuple[float | None, ...], workers: int = 1, samples: int = 32, **seen: Any) -> Work:
    return Work(label, workers, samples, FirstSteps(losses or (LOSSES,), **seen))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        pytest.param(work("B"), ["losses of the first 3 steps are equal bit for bit in A and B"], id="equal"),
        pytest.param(work("B", (0.7, 0.6, 0.500001)), ["but for rounding (at most 2e-06 of a loss)"], id="rounding"),
        pytest.param(work("B", (0.7, 0.601, 0.5)), ["close in A and B (to 0.17 %)"], id="16 bits"),
        pytest.param(work("B", (0.7, 0.66, 0.9)), ["apart from step 2 on (by 9.1 % there)"], id="apart"),
        pytest.param(work("B", (0.71, 0.6, 0.5)), ["apart from step 1 on (by 1.4 % there)"], id="apart at once"),
        pytest.param(work("B", LOSSES, (0.7, 0.8, 0.9)), ["launches of B itself, from step 2 on"], id="no seed"),
        pytest.param(work("B", (None, None)), [], id="no losses"),
        pytest.param(work("B", (None, 0.6)), ["losses of the first 1 step are equal"], id="one unknown"),
        pytest.param(work("B", samples=64), ["unlike work: a step of A has 32 samples, of B 64"], id="samples"),
        pytest.param(
            work("B", learning_rates=(0.1, 0.05)), ["learning rates differ: 0.1 in A, 0.05 in B in step 2", "equal"],
            id="rates",
        ),
        pytest.param(
            work("B", workers=2, learning_rates=(0.2,)), ["changes with the workers: 0.1 in A, 0.2 in B", "equal"],
            id="a scaled rate",
        ),
        pytest.param(work("B", notes=(SAME,)), ["equal", f"B: {SAME}"], id="doubts"),
    ],
)  # fmt: skip
def test_two_commands_are_held_against_each_other(second: Work, said: list[str]) -> None:
    found = list(caveats(work("A", learning_rates=(0.1, 0.1)), second))
    assert len(found) == len(said) and all(map(str.__contains__, found, said)), found


def test_first_steps_are_read_from_the_records_of_a_configuration(tmp_path: Path) -> None:
    observed = Planted("command", workers=2, allreduce="fp32", keys=(("command", "torchrun t.py"),))
    said = {"first_learning_rates": [0.1], "notes": ["peak memory is of the process", f"doubt: {SAME}"]}
    done = plant_flawed(tmp_path, [Flawed(observed, lambda rank: {**said, "first_losses": [rank.rank, 2.0, None]})])
    (row,) = done.rows
    assert first_steps(done.details, row["configuration"]) == FirstSteps(((0.5, 2.0, None),) * 3, (0.1,), (SAME,))
    assert first_steps(done.details, "another") == FirstSteps()
