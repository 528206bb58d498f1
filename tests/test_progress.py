"""The words in which a trial is named to whoever watches a sweep."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import planted_sweeps
import pytest
from rich.console import Console

from scaling_study.commands.progress import MAY_BE_ALIKE, Progress, clock, describe, print_after
from scaling_study.estimate import Estimate
from scaling_study.records.results import Summary
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial

PIPELINE = Trial(
    framework="torch_pipeline", model="resnet8", workers=2, allreduce="none", schedule="1f1b", stages=2,
    virtual_stages=1, micro_batches=4, replicas=1, stage_cut="time",
)  # fmt: skip


def watching(plan: Plan, screen: io.StringIO | None = None) -> Progress:
    """What somebody sees of a plan; `screen`: where it is said too."""
    console = Console(file=screen or io.StringIO(), width=200)
    return Progress(console, plan, plan.trials(), Estimate(), quiet=screen is None)


def ended(trial: Trial) -> Summary:
    return Summary(trial.id, trial.configuration, trial, "ok", "", "", 9.0, 99.0, None)


def test_a_line_says_what_sets_trials_apart():
    assert describe(Trial(allreduce="none")) == "single resnet18 batch 32, 1 worker"
    two = Trial(framework="horovod", workers=2, allreduce="fp16")
    assert describe(two) == "horovod resnet18 batch 32, 2 workers, fp16 gradients"
    gate = replace(two, find="parity", precision="fp64")
    assert describe(gate) == "parity of horovod resnet18, 2 workers, fp16 gradients, fp64"
    assert describe(PIPELINE) == "torch_pipeline resnet8 batch 32, 2 workers, 1f1b, m = 4, cut time"
    wide = replace(
        PIPELINE, workers=8, replicas=2, allreduce="fp16", virtual_stages=2, schedule="interleaved_1f1b",
        tensor_parallel=2, shard_group=2,
    )  # fmt: skip
    assert describe(wide) == (
        "torch_pipeline resnet8 batch 32, 8 workers, interleaved_1f1b, 2 stages each, m = 4, matrices over 2, "
        "2 replicas, shards over 2, cut time, fp16 gradients"
    )
    sharded = [describe(Trial(framework="torch_fsdp2", workers=4, shard_group=size)) for size in (None, 1, 2)]
    assert len({*sharded}) == 3 and "shards over 2" in sharded[2]


def test_keys_that_all_configurations_have_alike_are_left_out():
    trial = Trial(framework="torch_ddp", workers=2, allreduce="fp16")
    assert describe(trial) == "torch_ddp resnet18 batch 32, 2 workers, fp16 gradients"
    assert describe(trial, ("model", "workers", "hosts")) == "torch_ddp batch 32, fp16 gradients"
    assert describe(trial, ("workers",)) == describe(trial), "on other hosts"
    gate = describe(replace(trial, find="parity"), MAY_BE_ALIKE)
    assert gate.startswith("parity of torch_ddp resnet18, 2 workers, fp16 gradients")
    planned = planted_sweeps.plan("single", batches=(1, 2))
    one, two = planned.configurations
    several = (one, replace(two, trial=replace(two.trial, workers=2, allreduce="fp16")))  # one worker sends none
    assert watching(replace(planned, configurations=several)).alike == {"model", "allreduce", "hosts"}
    assert watching(replace(planned, configurations=(one,))).alike == set()


def test_keys_in_which_configurations_differ_are_said():
    planned = planted_sweeps.plan("single")
    (one,) = planned.configurations
    unlike = [{}, {"precision": "bf16", "compile": True, "train_steps": 9, "weights": "\x1b[2J"}]
    several = tuple(replace(one, trial=replace(one.trial, **keys)) for keys in unlike)
    shown = watching(replace(planned, configurations=several))
    named = [shown._named(each.trial) for each in several]
    assert named == ["single, precision fp32", r"single, precision bf16, weights \x1b[2J, compile, steps 9"]


def test_times_are_said_in_two_units_at_most():
    assert [clock(seconds) for seconds in (42, 320, 10_980)] == ["42 s", "5 min 20 s", "3 h 03 min"]


def test_a_launch_says_how_far_it_is_and_what_it_has_found():
    planned = planted_sweeps.plan("single", batches=(1, 2), repeats=2, max_repeats=2)
    trials, screen = planned.trials(), io.StringIO()
    shown = watching(planned, screen)
    asked, second = trials[0], trials[1].trial
    first = asked.trial
    shown.starts(asked)
    shown.building(second)
    assert f"launch 1: building single batch {second.batch_per_worker}" in drawn(shown), "what all have is left out"
    for block, seconds in enumerate((0.010, 0.011, 0.009), 1):
        shown.block_begins(1, block, 3)
        shown.block_timed(first, seconds)
    assert "launch 1: block 3 of 3" in drawn(shown)
    assert "% over its blocks" in drawn(shown) and "100.7" in drawn(shown)
    lines = screen.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"launch 1: block {block} of 3" for block in (1, 2, 3)]
    assert "±" not in lines[-1], "of two blocks"
    shown.block_begins(1, 4, 4)
    assert screen.getvalue().rstrip().endswith("left; ± 25.0% (25.0% at most) over its blocks")
    shown.finished(asked, ended(first), again=False)
    assert "launch 1" not in drawn(shown) and "99.0" in drawn(shown) and "over its blocks" not in drawn(shown)


def test_repeats_that_the_spread_asks_for_are_in_what_is_left():
    planned = planted_sweeps.plan("single", batches=(1, 2), repeats=2, max_repeats=4)
    trials, shown = planned.trials(), watching(planned)
    before, first = shown.remaining_seconds(), trials[0]
    more = [first.at(repeat) for repeat in (3, 4)]
    shown.expects(more)
    assert shown.remaining_seconds() == pytest.approx(before + 2 * Estimate()(first))
    assert shown.total == len(trials) + 2
    for each in (first, *more):
        shown.finished(each, ended(each.trial), again=False)
    assert shown.waiting[first.trial.configuration] == 1 and shown.total == len(trials) + 2


def test_what_is_measured_alone_after_all_has_a_row_of_its_own():
    planned = planted_sweeps.plan("single", batches=(1, 2), repeats=1)
    shown = watching(planned)
    first, rows = planned.trials()[0], drawn(shown).count("single")
    shown.alone(first.trial)
    assert f"separate launch 1, as it failed beside others: single batch {first.trial.batch_per_worker}" in drawn(shown)
    cold = replace(first, trial=replace(first.trial, batch_per_worker=77))
    shown.expects([cold])
    shown.starts(cold)
    assert drawn(shown).count("single") >= rows + 1 and " 77 " in drawn(shown)


@pytest.mark.parametrize(("find", "what"), [("parity", "Records and logs"), (None, "Tables, figures and records")])
def test_the_last_line_promises_tables_only_where_there_are_some(tmp_path, find, what):
    trial, screen = Trial(find=find), io.StringIO()
    record = Summary(trial.id, trial.configuration, trial, "failed", "parity: no", "", 9.0, None, None)
    job, going_on = SimpleNamespace(folder=tmp_path, records={trial.id: record}), SimpleNamespace(signal=None)
    print_after(Console(file=screen, width=500), job, [record], [], going_on, "again", quiet=False)
    assert screen.getvalue().splitlines()[-1] == f"{what}: {tmp_path}/"


def drawn(shown: Progress) -> str:
    """What a terminal would show now."""
    screen = io.StringIO()
    Console(file=screen, width=200, height=50).print(shown.render())
    return screen.getvalue()
