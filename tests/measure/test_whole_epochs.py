"""Whole epochs: their three figures come from other clocks than the steps', and agree with them."""

from __future__ import annotations

import sys

import forked
import pytest

from scaling_study.records import schema, store
from scaling_study.settings import CHECKOUT

FLAGS = ["--model=resnet8", "--data=synthetic", "--batch-per-worker=100", "--cores-per-worker=1", "--device=cpu"]


def report(folder, *flags: str) -> schema.RankReport:
    argv = [sys.executable, str(CHECKOUT / "data_parallel/single.py"), *FLAGS, "--warmup-steps=1", *flags]
    done = forked.run([*argv, "--record", folder])
    assert done.returncode == 0, done.stderr
    (found,) = store.read_ranks(folder, 1)
    return found


@pytest.mark.slow
def test_epochs_are_timed_by_themselves_after_those_that_warm_up(tmp_path):
    found = report(tmp_path, "--epochs=2", "--warmup-epochs=1", "--max-steps=3", "--min-steps=1")
    assert [epoch.warmup for epoch in found.epochs] == [True, False, False]
    assert {(epoch.steps, epoch.samples) for epoch in found.epochs} == {(3, 300)}
    assert len(found.warmup_seconds) == 4 + 3 and len(found.step_seconds) == 2 * 3
    for index, epoch in enumerate(found.epochs[1:]):
        steps = sum(found.step_seconds[3 * index : 3 * index + 3])
        assert epoch.running_seconds == pytest.approx(steps, rel=0.02)
        assert epoch.data_seconds + epoch.training_seconds == pytest.approx(epoch.running_seconds, rel=0.02)
        assert 0 < epoch.data_seconds < epoch.training_seconds
