"""Which gates a study needs: every one can be run, and no configuration stands without its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.frameworks import FRAMEWORKS, SCHEDULES
from scaling_study.models import MODEL_KEYS, OURS, SMOOTH_IMAGES
from scaling_study.study import rules, support
from scaling_study.trial import Trial

RUNNABLE = sorted(name for name, table in FRAMEWORKS.items() if "model" in table.axes)
CUTTING = sorted(name for name in RUNNABLE if FRAMEWORKS[name].cuts_model)
SHARING = sorted(name for name in RUNNABLE if not FRAMEWORKS[name].shares_batches)  # each worker has data of its own


def configurations(framework: str) -> st.SearchStrategy[Trial]:
    """Any configuration that a plan could make of a framework."""
    table = FRAMEWORKS[framework]

    def of(axis: str, *otherwise: object) -> st.SearchStrategy:
        return st.sampled_from(table.axes.get(axis, ()) or otherwise or (getattr(Trial, axis),))

    def resolved(trial: Trial) -> Trial:
        wire = "fp32" if trial.allreduce == "none" else trial.allreduce
        return replace(
            trial, allreduce="none" if trial.workers == 1 else wire,
            batch_per_worker=trial.batch_per_worker * trial.accumulation,
        )  # fmt: skip

    return st.builds(
        Trial, framework=st.just(framework), model=of("model"), allreduce=of("allreduce"), precision=of("precision"),
        workers=of("workers", 1, 2, 3, 8), launcher=st.sampled_from(table.launchers), controller=of("controller"),
        batch_per_worker=st.integers(1, 512), accumulation=st.integers(1, 16), compile=st.booleans(),
        zero_stage=of("zero_stage"), learning_rate=st.sampled_from([None, 0.1]),
        device=st.sampled_from(["cpu", "cuda"]),
        image_size=st.sampled_from([None, 224]), epochs=st.sampled_from([None, 3]), repeat=st.integers(1, 9),
        cores_per_worker=st.sampled_from([1, 8]),
    ).map(resolved)  # fmt: skip


anything = st.sampled_from(RUNNABLE).flatmap(configurations)


def test_fsdp2_is_shown_in_the_precision_that_is_timed_too():
    """It reduces fp64 by another path: torch 2.8 doubled its fp32 gradients, which no gate in fp64 could see."""
    trial = Trial(framework="torch_fsdp2", model="resnet50", workers=4, allreduce="fp32", zero_stage=3, device="cpu")
    fp64, fp32 = support.gates_of(trial)
    assert (fp64.model, fp64.precision, fp64.window.max_steps) == ("resnet50", "fp64", 10)
    assert (fp32.model, fp32.precision, fp32.allreduce) == (SMOOTH_IMAGES, "fp32", "fp32")
    assert fp32.window.max_steps == 1 and fp32.zero_stage == 3
    (alone,) = support.gates_of(replace(trial, precision="fp64"))
    assert alone == fp64
    in_half = [gate.precision for gate in support.gates_of(replace(trial, precision="bf16"))]
    assert in_half == ["fp64", "bf16"]


@pytest.mark.parametrize(("framework", "wire"), [
    (name, wire) for name in SHARING for wire in ("fp16", "bf16") if wire in FRAMEWORKS[name].axes["allreduce"]
])  # fmt: skip
def test_every_16_bit_wire_is_shown_for_one_step_where_rounding_is_all_that_differs(framework, wire):
    trial = Trial(framework=framework, model="resnet50", workers=4, allreduce=wire, device="cpu")
    full, half = support.gates_of(trial)
    fp64 = FRAMEWORKS[framework].parity_precision == "fp64"
    assert (full.model, full.allreduce) == ("resnet50" if fp64 else SMOOTH_IMAGES, "fp32")
    assert (half.model, half.allreduce, half.precision) == ("resnet8_groupnorm", wire, "fp32")
    assert half.window.max_steps == 1 and half.window.warmup_steps == 0


@pytest.mark.parametrize("framework", CUTTING)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_pipeline_is_shown_with_two_stages_and_four_micro_batches(framework, workers):
    shape = rules.resolved(framework, workers, {"stage_cut": "time"})
    (gate,) = support.gates_of(Trial(framework=framework, model="resnet8", workers=workers, device="cpu", **shape))
    assert (gate.workers, gate.stages, gate.data_parallel, gate.allreduce) == (2, 2, 1, "none")
    assert (gate.stage_cut, gate.micro_batches) == ("even", 4 if "micro_batches" in shape else None)
    assert not list(rules.pipeline_problems(framework, gate.workers, gate.batch_per_worker, asked(gate)))


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_schedule_has_a_gate_of_its_own_that_can_be_run(schedule):
    shape = rules.resolved("torch_pipeline", 4, {"schedule": schedule, "micro_batches": 20})
    (gate,) = support.gates_of(Trial(framework="torch_pipeline", model="resnet8", workers=4, device="cpu", **shape))
    assert gate.schedule == schedule
    assert not list(rules.pipeline_problems("torch_pipeline", gate.workers, gate.batch_per_worker, asked(gate)))


@pytest.mark.parametrize(("workers", "replicas", "shape"), [(8, 1, (2, 2, 1, "none")), (8, 4, (4, 2, 2, "bf16"))])
def test_matrices_are_shown_over_two_workers_and_twice_where_there_are_replicas(workers, replicas, shape):
    known = rules.resolved("torch_tp", workers, {"replicas": replicas})
    wire = "none" if replicas == 1 else "bf16"
    trial = Trial(framework="torch_tp", model="llama_3_1_8b", workers=workers, allreduce=wire, device="cpu", **known)
    *_, gate = support.gates_of(replace(trial, sequence_parallel=True))
    assert (gate.workers, gate.tensor_parallel, gate.replicas, gate.allreduce) == shape
    assert gate.model == "llama_tiny" and gate.sequence_parallel and gate.oversubscribe == (replicas > 1)
    assert not list(rules.mesh_problems("torch_tp", gate.workers, {**asked(gate), "model": gate.model}))


def asked(gate):
    return {key: getattr(gate, key) for key in rules.SHAPE if getattr(gate, key) is not None}


@pytest.mark.parametrize("path", [{"compile": True}, {"memory_format": "channels_last"}])
def test_another_path_through_the_kernels_is_shown_by_itself(path):
    """The plain path's gate shows nothing of what torch.compile makes, or of kernels for another layout."""
    plain = Trial(framework="torch_ddp", model="resnet8", workers=2, allreduce="fp16", device="cpu")
    ours = replace(plain, **path)
    assert not set(support.gate_ids(ours)) & set(support.gate_ids(plain))
    assert all(getattr(gate, key) == value for gate in support.gates_of(ours) for key, value in path.items())
    assert len(support.needed([plain, ours])) == 4


def test_on_one_gpu_two_workers_are_shown_on_the_cpu_unless_there_is_nothing_to_show_there():
    (gate,) = support.gates_of(Trial(framework="horovod", workers=1, allreduce="none", device="cuda"))
    assert (gate.workers, gate.device) == (2, "cpu")
    (gate,) = support.gates_of(Trial(framework="torch_dp", workers=1, allreduce="none", device="cuda"))
    assert (gate.workers, gate.device, gate.allreduce) == (1, "cuda", "none")


@given(anything)
def test_a_gate_can_be_run_as_a_command_line(trial):
    for gate in support.gates_of(trial):
        again, _ = Trial.from_argv(gate.framework, gate.to_argv())
        assert again.to_argv() == gate.to_argv() and again.find == "parity" and again.window == gate.window
        for axis, values in FRAMEWORKS[gate.framework].axes.items():
            assert not values or getattr(gate, axis) in values or getattr(gate, axis) == getattr(Trial, axis), axis


@given(anything)
def test_every_micro_batch_of_a_gate_is_whole_and_has_a_variance(trial):
    for gate in support.gates_of(trial):
        assert gate.batch_per_worker % gate.accumulation == 0
        assert gate.accumulation == min(trial.accumulation, 4)
        assert gate.batch_per_worker // gate.accumulation >= (4 if gate.accumulation > 1 else 2)
        assert gate.batch_per_worker >= support.BATCH


@given(anything, st.integers(1, 512), st.integers(2, 9), st.sampled_from([None, 0.3]))
def test_batch_size_workers_and_rate_need_no_gate_of_their_own(trial, batch, workers, rate):
    if trial.workers > 1:
        other = replace(trial, batch_per_worker=batch, workers=workers, learning_rate=rate, cores_per_worker=3)
        assert support.gate_ids(other) == support.gate_ids(trial)


@pytest.mark.slow
@given(st.lists(anything, max_size=6))
def test_a_study_runs_each_gate_once_and_has_those_of_every_configuration(trials):
    ids = [gate.id for gate in support.needed(trials)]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id for trial in trials for id in support.gate_ids(trial)}


@pytest.mark.slow
@given(anything, st.lists(st.sampled_from(["passed", "not checked", "loss of step 1: off by 1e-01"]), min_size=2))
def test_a_configuration_has_passed_if_all_its_gates_have(trial, said):
    known = dict(zip(support.gate_ids(trial), said, strict=False))
    heard = [known.get(id, "not checked") for id in support.gate_ids(trial)]
    verdict = support.verdict(trial, known)
    assert (verdict == "passed") == (set(heard) == {"passed"})
    assert verdict in heard
    if any(one.startswith("loss") for one in heard):  # a failure is louder than what nobody looked at
        assert verdict.startswith("loss")


def test_every_model_with_batchnorm_has_a_smooth_one_of_its_own_kind():
    for name, model in OURS.items():
        smooth = support.smooth(Trial(model=name)).model
        assert not OURS[smooth].smooth.replace(smooth, "")
        for gate in support.gates_of(Trial(model=name, image_width=56 if "image_width" in model.keys else None)):
            lacking = set(MODEL_KEYS) - set(OURS[gate.model].keys) - {"memory_format"}
            assert not [key for key in lacking if getattr(gate, key) is not None], "keys that the smooth one lacks"


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({"allreduce": "powersgd2"}, [("fp64", "fp32", 10), ("fp64", "powersgd2", 10)]),
        (
            {"allreduce": "powersgd4", "precision": "bf16"},
            [("fp64", "fp32", 10), ("fp64", "powersgd4", 10), ("bf16", "fp32", 1)],
        ),
    ],
)
def test_powersgd_is_shown_in_all_steps_and_its_precision_of_compute_by_itself(keys, shown):
    gates = list(support.gates_of(Trial(framework="torch_ddp", model="resnet8", workers=2, device="cpu", **keys)))
    assert [(gate.precision, gate.allreduce, gate.window.max_steps) for gate in gates] == shown
    said = [support.reference_of(vars(gate)) for gate in gates]
    assert said[1] == f"one process: PowerSGD of rank {keys['allreduce'][-1]}"
    assert {said[0], *said[2:]} == {"one process"}


def test_workers_that_train_alone_meet_three_times_in_a_gate_and_step_once_more():
    trial = Trial(framework="diloco", model="resnet8", workers=8, sync_every=64, outer="average", device="cpu")
    (gate,) = support.gates_of(trial)
    assert (gate.sync_every, gate.outer, gate.workers, gate.window.max_steps) == (3, "average", 2, 10)
    assert support.gate_ids(replace(trial, sync_every=8)) == [gate.id]
    assert support.gate_ids(replace(trial, outer="nesterov")) != [gate.id]
    assert support.reference_of(vars(gate)) == "one process: local SGD every 3 steps"
    by_hand = replace(trial, sync_every=None, outer=None)
    assert [(gate.sync_every, gate.outer) for gate in support.gates_of(by_hand)] == [(3, "nesterov")]
