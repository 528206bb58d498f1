"""The wide perceptron holds as much state as its page says."""

from __future__ import annotations

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load


def test_its_state_is_more_than_one_gibibyte() -> None:
    workload = load(Trial(model="mlp_wide", batch_per_worker=2, data="synthetic"), Ranks())
    assert workload.parameters == 79_753_226
    assert 16 * workload.parameters > 2**30
    assert workload.loss(workload.model, next(workload.batches)).isfinite()
