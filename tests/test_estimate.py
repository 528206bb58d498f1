"""How long it will take: from what was seen, else from what starting and stepping cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scaling_study.estimate import (
    DECODE_SECONDS,
    INSTRUMENTED,
    LAUNCH_SECONDS,
    SEARCH_STARTS,
    SHARE_SECONDS,
    STEP_SECONDS_PER_SAMPLE,
    Estimate,
)
from scaling_study.launch.launchers import LAUNCHERS
from scaling_study.records.schema import Record
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.study import Measure
from scaling_study.trial import Trial, Window

TRIAL = Trial(model="resnet18", batch_per_worker=100, device="cpu", allreduce="none")
MEASURE = Measure(warmup_steps=4, min_steps=10, min_seconds=1, max_seconds=60)
STEP = 100 * STEP_SECONDS_PER_SAMPLE["resnet18"]


def estimate(trial: Trial = TRIAL, measure: Measure = MEASURE, unsupported: str = "", **changes: Any) -> float:
    asked = replace(trial, **changes)
    if measure.warm:
        window = Window(measure.warmup_steps, measure.min_steps, measure.min_seconds)
        asked = groups.warmed(replace(asked, window=window), measure)
    return Estimate()(Planned(asked, measure, unsupported))


def finished(trial: Trial, seconds: float) -> Record:
    return Record("a", trial.id, trial.configuration, trial, "ok", total_seconds=seconds)


def test_a_search_is_some_starts_with_few_steps():
    assert estimate(find="max_batch") == pytest.approx(SEARCH_STARTS * (LAUNCH_SECONDS["python"] + 4 * STEP))


def test_an_unseen_trial_is_launching_and_its_three_windows():
    assert estimate() == pytest.approx(LAUNCH_SECONDS["python"] + 4 * STEP + 10 * STEP * 1.25)


def test_the_timed_window_is_at_least_min_seconds_and_at_most_max_seconds():
    launched = LAUNCH_SECONDS["python"] + 4 * STEP
    long = MEASURE.model_copy(update={"min_seconds": 20.0})
    assert estimate(measure=long) == pytest.approx(launched + 20 * 1.25)
    short = MEASURE.model_copy(update={"max_seconds": 1.5})
    assert estimate(measure=short) == pytest.approx(launched + 1.5 * 1.25)


def test_rounds_take_their_blocks_and_a_step_before_each():
    measure = Measure(warm=True, rounds=10, block_seconds=0.5, warmup_steps=4, min_steps=10, min_seconds=1.0)
    assert estimate(measure=measure, warm=True) == pytest.approx(SHARE_SECONDS + (4 + 8 + 10) * STEP + 10 * 0.5)
    longer = measure.model_copy(update={"min_seconds": 60.0, "max_seconds": 60.0})
    assert estimate(measure=longer, warm=True) == pytest.approx(SHARE_SECONDS + (4 + 13 + 10) * STEP + 60.0)
    short = measure.model_copy(update={"block_seconds": STEP / 2, "warmup_steps": 1})
    assert estimate(measure=short, warm=True) == pytest.approx(SHARE_SECONDS + (1 + 3 + 10) * STEP), "none before each"


def test_a_training_on_a_tree_takes_as_long_as_its_images_and_their_pixels():
    trial = replace(TRIAL, data="images", image_size=64, train_epochs=2)
    seconds = Estimate(tree_images=lambda: 500)(Planned(trial, MEASURE, ""))
    each = 4 * STEP_SECONDS_PER_SAMPLE["resnet18"] + DECODE_SECONDS  # 64 pixels a side are four times CIFAR-10's 32
    assert seconds == pytest.approx(LAUNCH_SECONDS["python"] + 2 * 500 * each)


def test_no_trial_takes_longer_than_its_time_out():
    impatient = MEASURE.model_copy(update={"timeout_seconds": 5.0})
    assert estimate(measure=impatient, batch_per_worker=100_000) == 5.0


def test_the_ends_of_a_trial_bound_its_estimate():
    assert estimate(unsupported="no GPU") == 0.0
    few = MEASURE.model_copy(update={"min_steps": 2, "max_steps": 2, "min_seconds": 50.0})
    assert estimate(measure=few) == pytest.approx(LAUNCH_SECONDS["python"] + 4 * STEP + 2 * STEP * 1.25)
    assert estimate(epochs=1) > 50_000 * STEP_SECONDS_PER_SAMPLE["resnet18"]
    rounds = Measure(warm=True, rounds=10, block_seconds=0.5, min_steps=10, min_seconds=6.0)
    assert estimate(measure=rounds, device="cuda") == pytest.approx(SHARE_SECONDS + 6.0 * INSTRUMENTED)


def test_every_launcher_has_its_seconds():
    assert set(LAUNCH_SECONDS) == set(LAUNCHERS)
    assert estimate(launcher="horovodrun") - estimate() == pytest.approx(
        LAUNCH_SECONDS["horovodrun"] - LAUNCH_SECONDS["python"]
    )


def test_a_configuration_that_was_seen_takes_its_median():
    seen = [finished(replace(TRIAL, repeat=n), seconds) for n, seconds in enumerate([10.0, 100.0, 12.0], 1)]
    planned = Planned(TRIAL, MEASURE)
    learned = Estimate(seen)
    assert learned(planned.at(4)) == 12.0
    learned.learn(finished(replace(TRIAL, repeat=4), 1000.0))
    assert learned(planned) == 56.0
    other = replace(TRIAL, batch_per_worker=101)
    assert learned(Planned(other, MEASURE)) != 56.0
