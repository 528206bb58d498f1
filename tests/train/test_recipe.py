"""Schedules, ends and evaluations, in steps."""

from __future__ import annotations

import pytest
import torch

from scaling_study.train.recipe import Recipe
from scaling_study.trial import Trial


def recipe(**keys: object) -> Recipe:
    return Recipe.of(Trial(**{f"train_{name}": value for name, value in keys.items()}), 100, "accuracy")


@pytest.mark.parametrize("steps", [7, 50, 101])
def test_one_cycle_is_torchs(steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, steps, cycle_momentum=False)
    ours = recipe(steps=steps, schedule="one_cycle")
    for step in range(steps):
        assert ours.rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if step < steps - 1:
            theirs.step()


def test_a_triangle_goes_up_and_down_and_stays_where_it_began() -> None:
    keys = {"train_schedule": "triangular", "train_start_learning_rate": 0.2}
    ours = Recipe.of(Trial(learning_rate=1.0, train_max_seconds=5.0, train_cycle_steps=8, **keys), 100, "accuracy")
    rates = [0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    assert [ours.rate(step) for step in range(11)] == pytest.approx(rates)
    whole = Recipe.of(Trial(learning_rate=1.0, train_steps=5, **keys), 100, "accuracy")
    assert [whole.rate(step) for step in range(5)] == pytest.approx([0.2, 0.52, 0.84, 0.84, 0.52])


def test_a_cycle_needs_the_rate_that_it_grows_to() -> None:
    with pytest.raises(SystemExit, match=r"start_learning_rate=0\.001 needs a learning_rate to grow to"):
        Recipe.of(Trial(train_steps=5, train_start_learning_rate=1e-3), 100, "accuracy")


def test_cosine_falls_from_one_after_the_warm_up_and_step_by_tens() -> None:
    cosine = recipe(steps=110, schedule="cosine", warmup_steps=10)
    assert [cosine.rate(step) for step in (0, 4, 9, 10)] == [0.1, 0.5, 1.0, 1.0]
    assert cosine.rate(60) == pytest.approx(0.5) and 0 < cosine.rate(109) < 0.001
    by_tens = recipe(epochs=1, schedule="step")
    assert [by_tens.rate(step) for step in (0, 49, 50, 74, 75, 99)] == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]


def test_it_stops_for_evaluations_and_at_the_end() -> None:
    ours = recipe(epochs=2, evaluate_every=0.75)
    stops, step = [], 0
    while step < 200:
        step = ours.next_stop(step)
        stops.append(step)
    assert stops == [75, 150, 200] and recipe(max_seconds=5.0).next_stop(99) == 100
    assert recipe(max_seconds=5.0).steps is None and recipe(steps=30).next_stop(0) == 30
