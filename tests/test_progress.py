"""The words in which a trial is named to whoever watches a sweep."""

from __future__ import annotations

from dataclasses import replace

from scaling_study.progress import clock, describe
from scaling_study.trial import Trial

PIPELINE = Trial(
    framework="torch_pipeline", model="resnet8", workers=2, allreduce="none", schedule="1f1b", stages=2,
    virtual_stages=1, micro_batches=4, replicas=1, stage_cut="time",
)  # fmt: skip


def test_a_line_says_what_sets_trials_apart() -> None:
    assert describe(Trial(allreduce="none")) == "single resnet18 batch 32, 1 worker, allreduce none"
    assert describe(PIPELINE) == "torch_pipeline resnet8 batch 32, 2 workers, 1f1b, m = 4, cut time"
    wide = replace(PIPELINE, workers=4, replicas=2, allreduce="fp16", virtual_stages=2, schedule="interleaved_1f1b")
    assert describe(wide) == (
        "torch_pipeline resnet8 batch 32, 4 workers, interleaved_1f1b, 2 stages each, m = 4, "
        "2 replicas, allreduce fp16, cut time"
    )


def test_a_gate_is_named_as_one() -> None:
    gate = replace(PIPELINE, find="parity", precision="fp64", stage_cut="even")
    assert describe(gate) == "parity of torch_pipeline resnet8, 2 workers, 1f1b, m = 4, cut even, fp64"


def test_times_are_said_in_two_units_at_most() -> None:
    assert [clock(seconds) for seconds in (42, 320, 10_980)] == ["42 s", "5 min 20 s", "3 h 03 min"]
