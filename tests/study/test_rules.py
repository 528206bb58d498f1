"""Combinations of keys that cannot be, of pipelines and of peers; and what is left open is filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.frameworks import FRAMEWORKS, SCHEDULES
from scaling_study.study import rules, support
from scaling_study.trial import Trial

CUTTING = sorted(name for name, table in FRAMEWORKS.items() if table.cuts_model)
PIPELINE, TENSOR, CONTEXT = "torch_pipeline", "torch_tp", "torch_context"


def said(framework: str, workers: int, batch: int = 8, **given: object) -> list[tuple[str, str]]:
    """What the rules of pipelines and of meshes say of workers that split a model."""
    keys = {"model": "llama_tiny", **given}
    return [*rules.pipeline_problems(framework, workers, batch, keys), *rules.mesh_problems(framework, workers, keys)]


def test_left_open_all_workers_are_one_pipeline():
    assert rules.resolved("torch_pipeline", 4, {}) == {
        "stages": 4, "replicas": 1, "schedule": "1f1b", "virtual_stages": 1, "micro_batches": 8, "stage_cut": "even",
    }  # fmt: skip
    assert rules.resolved("naive_model_parallel", 4, {}) == {"stages": 4, "stage_cut": "even"}
    assert rules.resolved("fairscale_pipe", 2, {}) == {"stages": 2, "micro_batches": 4, "stage_cut": "even"}


@pytest.mark.parametrize(("given", "stages", "replicas"), [
    ({"stages": 2}, 2, 2), ({"replicas": 2}, 2, 2), ({"replicas": 4}, 1, 4), ({"stages": 4, "replicas": 1}, 4, 1),
])  # fmt: skip
def test_stages_and_replicas_follow_from_each_other(given, stages, replicas):
    shape = rules.resolved("torch_pipeline", 4, given)
    assert (shape["stages"], shape["replicas"]) == (stages, replicas)
    assert said(PIPELINE, 4, **given) == []
    split = {**given, "tensor_parallel": 2}
    assert rules.resolved("torch_pipeline", 8, split) == {**shape, "tensor_parallel": 2}
    assert said(PIPELINE, 8, **split) == []


@given(
    st.sampled_from(CUTTING), st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(1, 4),
    st.integers(1, 8), st.integers(1, 8),
)  # fmt: skip
def test_every_shape_that_is_not_refused_is_whole(framework, schedule, stages, replicas, parts, size):
    workers, given = stages * replicas, {"schedule": schedule, "stages": stages, "micro_batches": parts}
    if any(key not in FRAMEWORKS[framework].axes for key in given):
        given = {"stages": stages}
    if list(rules.pipeline_problems(framework, workers, parts * size, given)):
        return
    shape = rules.resolved(framework, workers, given)
    assert shape["stages"] * shape.get("replicas", 1) == workers
    assert (parts * size) % shape.get("micro_batches", 1) == 0
    assert set(shape) == set(rules.SHAPE) & set(FRAMEWORKS[framework].axes)


INTERLEAVED, ZBV = "interleaved_1f1b", "zbv_zero_bubble"
WRONG: list[tuple[str, int, dict[str, Any], str, str]] = [
    (PIPELINE, 3, {"stages": 4}, "stages", "workers=3 does not divide into pipelines of stages=4"),
    (PIPELINE, 3, {"replicas": 2}, "replicas", "replicas=2 does not divide workers=3"),
    (PIPELINE, 4, {"stages": 2, "replicas": 3}, "workers", "workers=4 is not stages=2 x replicas=3"),
    (PIPELINE, 2, {"batch": 10}, "micro_batches", "micro_batches=4 (2 x stages, the default) does not divide batch_"),
    (PIPELINE, 2, {"virtual_stages": 2}, "virtual_stages", "schedule=1f1b has one stage a worker"),
    (PIPELINE, 2, {"schedule": INTERLEAVED, "virtual_stages": 1}, "virtual_stages", "2 or more, not 1"),
    (PIPELINE, 2, {"schedule": ZBV, "virtual_stages": 3}, "virtual_stages", "two stages a worker"),
    (PIPELINE, 4, {"micro_batches": 2}, "micro_batches", "for each of the 4 stages, not micro_batches=2"),
    (PIPELINE, 2, {"schedule": "dualpipev", "micro_batches": 2}, "micro_batches", "each of the 4 stages, not 2"),
    (PIPELINE, 2, {"batch": 10, "schedule": INTERLEAVED, "micro_batches": 5}, "micro_batches", "multiple of stages=2"),
    (PIPELINE, 6, {"stages": 2, "tensor_parallel": 2}, "stages", "into pipelines of stages=2 x tensor_parallel=2"),
    (PIPELINE, 4, {"tensor_parallel": 2, "schedule": ZBV}, "tensor_parallel", "needs schedule=gpipe or 1f1b"),
    (PIPELINE, 4, {"tensor_parallel": 2, "train_steps": 9}, "tensor_parallel", "in a pipeline can only be timed"),
    (PIPELINE, 4, {"tensor_parallel": 2, "model": "gpt2"}, "model", "matrices of model gpt2 cannot be split"),
    (PIPELINE, 4, {"stages": 2, "shard_group": 2, "schedule": ZBV}, "shard_group", "needs schedule=gpipe or 1f1b"),
    (PIPELINE, 4, {"stages": 2, "shard_group": 2, "train_steps": 9}, "shard_group", "in a pipeline can only be timed"),
    (PIPELINE, 8, {"stages": 2, "shard_group": 2, "tensor_parallel": 2}, "shard_group", "are untested: give one"),
    (PIPELINE, 2, {"stage_cut": "evn"}, "stage_cut", "'evn' must be even, time"),
    (PIPELINE, 2, {"stage_cut": "3,4,5"}, "stage_cut", "names 3 stages, the pipeline has 2"),
    ("naive_model_parallel", 4, {"stages": 2}, "stages", "one stage a worker: stages=2 must be workers=4"),
    (TENSOR, 4, {"tensor_parallel": 2, "replicas": 3}, "workers", "workers=4 is not tensor_parallel=2 x replicas=3"),
    (TENSOR, 3, {"replicas": 2}, "replicas", "replicas=2 does not divide workers=3"),
    (TENSOR, 3, {"tensor_parallel": 2}, "tensor_parallel", "tensor_parallel=2 does not divide workers=3"),
    (TENSOR, 4, {}, "tensor_parallel", "tensor_parallel=4 does not divide the 2 key/value heads of llama_tiny"),
    (TENSOR, 2, {"model": "smollm2_135m"}, "tensor_parallel", "not divide the 3 key/value heads of smollm2_135m"),
    (TENSOR, 2, {"sequence_parallel": True, "sequence_length": 7}, "sequence_parallel", "divide sequence_length=7"),
    (TENSOR, 2, {"loss_parallel": True, "train_label_smoothing": 0.1}, "loss_parallel", "label_smoothing=0.1"),
    (TENSOR, 2, {"model": "gpt2"}, "model", "matrices of model gpt2 cannot be split"),
    (CONTEXT, 3, {"replicas": 2}, "replicas", "replicas=2 does not divide workers=3"),
    (CONTEXT, 3, {"context_parallel": 2}, "context_parallel", "context_parallel=2 does not divide workers=3"),
    (CONTEXT, 4, {"context_parallel": 2, "replicas": 3}, "workers", "workers=4 is not context_parallel=2 x replicas=3"),
    (CONTEXT, 2, {"sequence_length": 9}, "context_parallel", "context_parallel=2 does not divide sequence_length=9"),
    (CONTEXT, 4, {}, "context_parallel", "context_parallel=4 does not divide the 2 key/value heads of llama_tiny"),
    (CONTEXT, 3, {"attention": "all_gather"}, "context_parallel", "sequence_length=64, the default of llama_tiny"),
]


@pytest.mark.parametrize(("framework", "workers", "given", "key", "message"), WRONG)
def test_what_cannot_be_split_is_said_with_both_values(framework, workers, given, key, message):
    ((at, why),) = said(framework, workers, **given)
    assert at == key and message in why


def test_left_open_all_workers_share_every_matrix_and_replicas_follow():
    assert rules.resolved("torch_tp", 2, {}) == {"tensor_parallel": 2, "replicas": 1} and not said(TENSOR, 2)
    for asked in ({"tensor_parallel": 2}, {"replicas": 2}):
        assert rules.resolved("torch_tp", 4, asked) == {"tensor_parallel": 2, "replicas": 2}
        assert not said(TENSOR, 4, **asked)
    assert rules.resolved("torch_ddp", 4, {}) == {} and not said("torch_ddp", 4)


def test_a_cut_by_hand_is_a_list_of_layers():
    assert rules.by_hand("9,5") == [9, 5]
    assert rules.by_hand("time") is None and rules.by_hand("9,") is None


PEERS = Trial(framework="hivemind", model="resnet8", workers=2, launcher="torchrun", device="cpu")


def test_the_same_gates_for_all_targets_and_ways_to_update():
    keys = {"target_batch_size": 4096, "matchmaking_seconds": 9.0, "average_state_every": 3, "state_allreduce": "fp16"}
    ways = FRAMEWORKS["hivemind"].axes["updates"]
    fp64, fp32 = support.needed([PEERS, *(replace(PEERS, **keys, updates=way, daemon_cores=1) for way in ways)])
    assert (fp64.precision, fp64.target_batch_size, fp64.updates) == ("fp64", None, None)
    assert (fp32.precision, fp32.allreduce, fp32.updates) == ("fp32", "fp32", None), "what Hivemind does by itself"


def test_eight_bits_have_a_gate_of_their_own():
    gates = [(gate.precision, gate.allreduce) for gate in support.gates_of(replace(PEERS, allreduce="int8"))]
    assert gates == [("fp64", "fp32"), ("fp32", "int8")]


def test_a_daemon_has_cores_of_its_own_where_there_are_two_a_peer(plan_of, machine):
    text = "study: a\nsweeps:\n  - {framework: hivemind, model: resnet8, workers: 2, matrix: {daemon_cores: [1]}}\n"
    why = "daemon_cores=1 leaves no core to compute on: a worker has 1"
    libraries = dict.fromkeys(("hivemind", "torch", "torchvision"), "1")
    for cores, unsupported in ((2, why), (4, "")):
        (made,) = plan_of(text, replace(machine(cores=cores), libraries=libraries)).configurations
        assert (made.trial.daemon_cores, made.unsupported) == (1, unsupported)


def test_with_a_gpu_no_cores_are_pinned_and_none_is_the_daemons():
    assert rules.no_core_left(1, 0).startswith("daemon_cores=1 needs workers that are pinned to cores")
    assert [rules.no_core_left(0, 0), rules.no_core_left(0, 1), rules.no_core_left(2, 3)] == [""] * 3


def test_ten_averaging_rounds_have_the_time_that_they_take_unless_a_study_says_otherwise(study_of):
    peers, alone = "{framework: hivemind, model: resnet8, workers: 2}", "{framework: single, model: resnet8}"
    text = f"study: a\n%ssweeps:\n  - {peers}\n  - {alone}\n"
    for measure, expected in (
        ("", [(10, 120.0), (10, 30.0)]),
        ("measure: {min_steps: 12}\n", [(12, 120.0), (12, 30.0)]),
        ("measure: {max_seconds: 30.0}\n", [(10, 30.0), (10, 30.0)]),
    ):
        windows = [sweep.window for sweep in study_of(text % measure).sweeps]
        assert [(window.min_steps, window.max_seconds) for window in windows] == expected


def test_weights_averaged_as_they_are_mean_the_same_said_or_not(plan_of):
    said = "state_allreduce: [fp32, fp16]"
    text = "study: a\nsweeps:\n  - {framework: hivemind, model: resnet8, matrix: {workers: [2], %s}}\n"
    plain, (as_before, rounded) = plan_of(text % "batch_per_worker: [32]"), plan_of(text % said).configurations
    assert plain.configurations[0].trial.id == as_before.trial.id != rounded.trial.id


def test_workers_that_train_alone_average_every_eighth_step_unless_told_otherwise(plan_of, problems_of):
    sweep = "study: a\nsweeps:\n  - {{framework: diloco, model: resnet8, workers: 2{}}}\n"
    (left_open,) = plan_of(sweep.format("")).configurations
    assert (left_open.trial.sync_every, left_open.trial.outer, left_open.unsupported) == (8, "nesterov", "")
    (told,) = plan_of(sweep.format(", sync_every: 64, outer: average")).configurations
    assert (told.trial.sync_every, told.trial.outer) == (64, "average")
    (problem,) = problems_of(sweep.format(", outer: sideways"))
    assert "sideways" in problem and "average" in problem and "nesterov" in problem


def test_powersgd_is_refused_with_a_scaler_of_losses(plan_of, machine):
    text = "study: a\nsweeps:\n  - framework: torch_ddp\n    model: resnet8\n    workers: 2\n    device: cuda\n"
    text += "    matrix: {allreduce: [fp16, powersgd2], precision: [fp32, fp16]}\n"
    planned = plan_of(text, machine(gpus=2)).configurations
    refused = {(p.trial.allreduce, p.trial.precision): p.unsupported for p in planned if p.unsupported}
    assert list(refused) == [("powersgd2", "fp16")]
    assert refused["powersgd2", "fp16"].endswith("precision=bf16 or fp32, or other gradients")


@pytest.mark.parametrize(("given", "parts", "replicas"), [
    ({}, 4, 1), ({"replicas": 2}, 2, 2), ({"context_parallel": 2}, 2, 2), ({"context_parallel": 1}, 1, 4),
])  # fmt: skip
def test_parts_and_replicas_of_a_mesh_follow_from_each_other(given, parts, replicas):
    shape = rules.resolved("torch_context", 4, {"attention": "all_gather", **given})
    assert shape == {"context_parallel": parts, "replicas": replicas, "attention": "all_gather"}
    assert said(CONTEXT, 4, attention="all_gather", **given) == []
    trial = Trial("torch_context", "llama_tiny", 8, workers=4, **shape)
    assert (trial.data_parallel, trial.global_batch) == (replicas, 8 * replicas)
    (gate,) = support.gates_of(trial)
    assert (gate.workers, gate.context_parallel, gate.replicas) == (2 * min(2, replicas), 2, min(2, replicas))
    assert gate.allreduce == "fp32" and (gate.model, gate.sequence_length) == ("llama_tiny", 8)


def test_a_global_batch_is_that_of_the_workers_that_share_a_sequence(plan_of):
    text = "study: a\nsweeps:\n  - {framework: torch_context, model: llama_tiny, workers: 2, global_batch: 8}\n"
    (planned,) = plan_of(text).configurations
    keys = planned.trial.to_dict()
    assert keys["batch_per_worker"] == keys["global_batch"] == 8 and keys["allreduce"] == "fp32"
    assert (keys["context_parallel"], keys["replicas"], keys["attention"]) == (2, 1, "all_to_all")
