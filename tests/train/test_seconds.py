"""Seconds of a training, by what they were spent on."""

from __future__ import annotations

import pytest

from scaling_study.train.log import Intervals, Progress


def test_what_our_loop_counted_itself_is_not_counted_twice() -> None:
    progress = Progress()
    intervals = Intervals(progress)
    intervals.end("evaluate", 5.0)  # before the first mark: nothing is known of it
    intervals.begin(10.0)
    progress.seconds["log"] += 1.5  # within the evaluation
    intervals.end("evaluate", 14.0)
    intervals.end("save", 14.25)
    assert progress.seconds == {"train": 0.0, "evaluate": 2.5, "save": 0.25, "log": 1.5, "test": 0.0}


def test_epochs_of_rounds_go_by_the_samples_that_they_had() -> None:
    progress = Progress(steps=6)
    assert progress.epochs(4) == 1.5
    progress.rows.append({"steps": 4, "epoch": 1.25})
    assert progress.epochs(4) == pytest.approx(6 * 1.25 / 4)
    assert Progress(steps=6).batches(16) == 6
    assert Progress(steps=6, samples=160).batches(16) == 10
