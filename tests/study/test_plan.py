"""The plan: what a study expands to, in which order, and what a machine cannot run of it."""

from __future__ import annotations

import configparser
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from scaling_study.datasets import DataSource
from scaling_study.errors import StudyError
from scaling_study.estimate import Estimate
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts.hosts import Host
from scaling_study.machine import Machine
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study, support
from scaling_study.study.plan import Plan
from scaling_study.study.study import Study
from scaling_study.study.support import Cluster, too_old
from scaling_study.trial import Trial, Window

DEFAULT_STUDY = CHECKOUT / "sweeps.yaml"
HOROVOD = "study: a\nsweeps:\n  - framework: horovod\n    matrix: {model: [resnet8], "


def timed(made: Plan) -> list[Trial]:
    """The trials of a plan, its gates apart."""
    return [planned.trial for planned in made.trials() if planned.trial.find is None]


def rows(made: Plan) -> list[tuple[Any, ...]]:
    return [
        (t.framework, t.model, t.batch_per_worker, t.allreduce, t.workers)
        for t in (p.trial for p in made.configurations)
    ]


def unsupported(made: Plan) -> Counter[str]:
    return Counter(p.unsupported for p in made.configurations if p.unsupported)


def test_a_trial_is_resolved_in_full(plan_of, machine):
    here = machine(cores=8)
    made = plan_of(
        "study: a\n"
        "measure: {warmup_steps: 1, min_steps: 2, min_seconds: 3, max_seconds: 4, max_steps: 5}\n"
        "sweeps:\n"
        "  - framework: horovod\n"
        "    matrix: {model: [resnet50], batch_per_worker: [128], gradients: [fp16], workers: [2]}\n",
        here,
        data={"cifar10": DataSource("cifar10", "in /data")},
    )
    (planned,) = made.configurations
    assert planned.trial == Trial(
        framework="horovod", model="resnet50", batch_per_worker=128, allreduce="fp16", precision="fp32", workers=2,
        launcher="horovodrun", controller="mpi", device="cpu", cores_per_worker=4, oversubscribe=False,
        data="cifar10", image_size=None, memory_format="contiguous", learning_rate=None, seed=42, epochs=None,
        machine=here.fingerprint, repeat=1,
        window=Window(warmup_steps=1, min_steps=2, min_seconds=3.0, max_seconds=4.0, max_steps=5),
    )  # fmt: skip
    assert (planned.unsupported, made.notes) == ("", ())


def test_settings_that_changed_stand_in_the_ids_of_the_frameworks_that_have_them(plan_of):
    """So a result of before them is read and shown, and never kept as that of a new trial."""
    made = plan_of(
        "study: a\nsweeps:\n"
        "  - {framework: torch_ddp, model: resnet8, workers: 2, buffers: synced}\n"
        "  - {framework: torch_ddp, model: resnet8, workers: 2}\n"
        "  - {framework: horovod, model: resnet8, workers: 2}\n"
    )
    trials = [planned.trial for planned in made.configurations]
    assert [trial.buffers for trial in trials] == ["synced", "local", None]
    before = [replace(trial, buffers=None).id for trial in trials]
    assert before[0] == before[1] and not {trial.id for trial in trials[:2]} & set(before)
    assert trials[2].id == before[2]


def test_one_worker_reduces_nothing_and_runs_once(plan_of):
    made = plan_of(f"{HOROVOD}allreduce: [fp32, fp16], workers: [1, 2]}}\n")
    assert rows(made) == [
        ("horovod", "resnet8", 32, "none", 1),
        ("horovod", "resnet8", 32, "fp32", 2),
        ("horovod", "resnet8", 32, "fp16", 2),
    ]
    assert made.notes == (
        "study.yaml has older names of keys, which stay valid: allreduce (now gradients)",
        "1 combination(s) mean the same as another and run once "
        "(with one worker no gradients are sent, so `gradients` does not matter)",
    )


def test_shard_groups_divide_the_workers_and_one_of_all_of_them_is_what_leaving_it_out_means(plan_of, problems_of):
    text = "study: a\nsweeps:\n  - framework: torch_fsdp2\n    workers: 4\n    matrix: {shard_group: [%s], "
    text += "reduce_scatter: [library, all_to_all]}\n"
    made = [p.trial for p in plan_of(text % "1, 2, 4").configurations]
    assert [(trial.shard_group, trial.reduce_scatter, trial.data_parallel) for trial in made] == [
        (1, None, 4), (2, None, 4), (2, "all_to_all", 4), (None, None, 4), (None, "all_to_all", 4)
    ]  # fmt: skip
    assert problems_of(text % "2, 3, 8") == [
        "study.yaml:5: shard_group=3 does not divide workers=4", "study.yaml:5: shard_group=8 does not divide workers=4"
    ]  # fmt: skip
    gates = {(gate.workers, gate.shard_group, gate.oversubscribe) for trial in made for gate in support.gates_of(trial)}
    assert gates == {(2, 1, False), (4, 2, True), (2, None, False)}, "two groups of one, of two, and one of all"


def test_replicas_of_a_pipeline_shard_in_groups_that_divide_them(plan_of, problems_of):
    text = "study: a\nsweeps:\n  - framework: torch_pipeline\n    workers: 8\n    stages: 2\n    batch_per_worker: 32\n"
    text += "    matrix: {shard_group: [%s]}\n"
    made = [p.trial for p in plan_of(text % "1, 2, 4").configurations]
    assert [(trial.shard_group, trial.replicas, trial.global_batch) for trial in made] == [
        (None, 4, 128), (2, 4, 128), (4, 4, 128)
    ]  # fmt: skip
    assert problems_of(text % "3, 8") == [
        "study.yaml:7: shard_group=3 does not divide replicas=4",
        "study.yaml:7: shard_group=8 does not divide replicas=4",
    ]  # fmt: skip
    gates = [next(support.gates_of(trial)) for trial in made]
    assert [(gate.workers, gate.replicas, gate.shard_group) for gate in gates] == [(4, 2, None), (8, 4, 2), (4, 2, 2)]


@pytest.mark.parametrize(
    ("key", "given", "noted"),
    [("", 2, True), ("", 1, False), ("", 0, False), ("hosts: 2, ", 2, False), ("hosts: 1, ", 2, False)],
)
def test_hosts_that_no_trial_uses_are_noted(study_of, key, given, noted):
    text = f"study: a\nsweeps:\n  - {{framework: torch_ddp, model: resnet8, workers: 2, {key}batch_per_worker: 8}}\n"
    hosts = tuple(Host(f"h{number}", 2) for number in range(given))
    machine = Machine(2, "Xeon", 8 << 30, (), {"torch": "2.15.0"})
    made = plan.make(study_of(text, False), machine, cluster=Cluster(hosts))
    assert any(plan.ONE_HOST in note for note in made.notes) == noted


def test_in_rounds_what_can_be_and_the_plan_says_why_not_the_rest(plan_of):
    made = plan_of(
        "study: a\n"
        "measure: {warm: true, rounds: 4, block_seconds: 0.25}\n"
        "sweeps:\n"
        "  - {framework: torch_ddp, model: resnet8, workers: 2}\n"
        "  - {framework: torch_ddp, model: resnet8, workers: 2, compile: true}\n"
        "  - {framework: deepspeed_zero, model: resnet8, workers: 2}\n"
        "  - {framework: torch_ddp, model: resnet8, workers: 2, batch_per_worker: 64, warm: false}\n"
    )
    able = [planned for planned in made.configurations if not planned.unsupported]
    assert [planned.trial.warm for planned in made.configurations] == [True, None, None, None]
    assert [planned.trial.window.rounds for planned in made.configurations] == [4, None, None, None]
    assert all(gate.trial.warm is None and gate.trial.window.rounds is None for gate in made.gates)
    alone = {planned.trial.framework for planned in able if planned.measure.warm and not planned.trial.warm}
    told = [note for note in made.notes if note.startswith("not interleaved: ")]
    assert {note.split(": ")[1] for note in told} == alone != set()


def test_exclude_matches_partially_and_include_adds_whole_trials(plan_of):
    made = plan_of(
        "study: a\nsweeps:\n  - framework: horovod\n"
        "    matrix: {model: [resnet8, resnet50], batch_per_worker: [32, 64], workers: [2]}\n"
        "    exclude: [{model: resnet50, batch_per_worker: 64}]\n"
        "    include: [{model: resnet50, batch_per_worker: 64, workers: 4, allreduce: fp16}, {model: resnet18}]\n"
    )
    assert rows(made) == [
        ("horovod", "resnet8", 32, "fp32", 2),
        ("horovod", "resnet8", 64, "fp32", 2),
        ("horovod", "resnet50", 32, "fp32", 2),
        ("horovod", "resnet50", 64, "fp16", 4),
        ("horovod", "resnet18", 32, "none", 1),
    ]


def test_a_global_batch_is_shared_out(plan_of):
    made = plan_of(f"{HOROVOD}global_batch: [64, 96], workers: [1, 4]}}\n")
    found = [(t.batch_per_worker, t.workers, t.global_batch) for t in (p.trial for p in made.configurations)]
    assert found == [(64, 1, 64), (16, 4, 64), (96, 1, 96), (24, 4, 96)]


@pytest.mark.parametrize(
    ("asked", "data", "planned", "notes"),
    [
        ("auto", {"cifar10": DataSource("cifar10", "in /data")}, "cifar10", ()),
        ("auto", {"cifar10": DataSource("synthetic", "no network")}, "synthetic", ("SYNTHETIC DATA: no network",)),
        ("auto", {"cola": DataSource("cola", "in /data")}, "auto", ()),
        ("auto", None, "auto", ()),
        ("synthetic", {"cifar10": DataSource("cifar10", "in /data")}, "synthetic", ()),
        ("cifar10", {"cifar10": DataSource("synthetic", "no network")}, "cifar10", ()),
    ],
)
def test_auto_data_becomes_what_this_machine_has(plan_of, asked, data, planned, notes):
    made = plan_of(f"study: a\nsweeps:\n  - framework: single\n    data: {asked}\n", data=data)
    assert (made.configurations[0].trial.data, made.notes) == (planned, notes)


@pytest.mark.parametrize(("cores", "share"), [(1, 1), (2, 1), (3, 1), (4, 1), (8, 2), (64, 16)])
def test_every_worker_of_a_study_has_the_same_share_of_the_cores(plan_of, machine, cores, share):
    made = plan_of(
        "study: a\nsweeps:\n"
        "  - framework: single\n    matrix: {model: [resnet8]}\n"
        "  - framework: horovod\n    matrix: {model: [resnet8], workers: [1, 2]}\n"
        "  - framework: horovod\n    include: [{model: resnet8, workers: 4}]\n",
        machine(cores=cores),
    )
    assert [(p.trial.workers, p.trial.cores_per_worker) for p in made.configurations] == [
        (1, share), (1, share), (2, share), (4, share),
    ]  # fmt: skip


def test_a_share_that_is_asked_for_is_kept(plan_of, machine):
    made = plan_of(f"{HOROVOD}workers: [1, 2], cores_per_worker: [3]}}\n", machine(cores=4))
    assert [(p.trial.cores_per_worker, p.unsupported) for p in made.configurations] == [
        (3, ""),
        (3, "2 workers of 3 cores each need 6 cores, this machine has 4"),
    ]


@pytest.mark.parametrize(
    ("cores", "gpus", "reasons"),
    [
        (2, 0, {"4 workers need 4 cores, this machine has 2": 1}),
        (4, 0, {}),
        (1, 2, {"4 workers need 4 GPUs, this machine has 2": 1}),
        (1, 8, {}),
    ],
)
def test_more_workers_than_cores_or_gpus_are_unsupported(plan_of, machine, cores, gpus, reasons):
    made = plan_of(f"{HOROVOD}workers: [1, 2, 4]}}\n", machine(cores=cores, gpus=gpus))
    assert unsupported(made) == reasons
    assert {p.trial.device for p in made.configurations} == {"cuda" if gpus else "cpu"}


@pytest.mark.parametrize(
    ("keys", "gpus", "reason"),
    [
        ("device: cuda", 0, "device cuda: no GPU on this machine"),
        ("precision: fp16", 0, "fp16 compute on a CPU is about 20 times slower than bf16"),
        ("precision: fp16", 2, ""),
        ("precision: bf16", 0, ""),
        ("allreduce: bf16", 2, "Horovod 0.28.1 cannot reduce bf16"),
    ],
)
def test_what_only_this_machine_or_framework_lacks_is_a_reason_and_no_error(plan_of, machine, keys, gpus, reason):
    text = f"study: a\nsweeps:\n  - framework: horovod\n    workers: 2\n    {keys}\n"
    [why] = [p.unsupported for p in plan_of(text, machine(gpus=gpus)).configurations]
    assert why.startswith(reason) and bool(why) == bool(reason)


def test_who_makes_batches_of_images_is_a_key_of_models_that_have_them(plan_of, problems_of):
    text = "study: a\nsweeps:\n  - framework: single\n    model: %s\n    matrix: {input: [memory, torchvision, dali]}\n"
    pip = "nvidia-dali-cuda130 is not installed (pip install 'scaling-study[dali]')"
    assert [p.unsupported for p in plan_of(text % "resnet8").configurations] == ["", "", pip]
    assert "model albert_tiny has no 'input'" in problems_of(text % "albert_tiny")[0]
    gated = support.needed(p.trial for p in plan_of(text % "resnet8").configurations)
    assert [gate.input for gate in gated] == [None], "the gate is the framework's, whatever makes its batches"


@pytest.mark.parametrize(("source", "warm"), [("images", None), ("synthetic", True)])
def test_files_are_read_ahead_so_these_are_measured_alone_whatever_auto_means(plan_of, source, warm):
    text = "study: a\nmeasure: {warm: true}\nsweeps: [{framework: single, model: iformer_tiny}]\n"
    made = plan_of(text, data={"images": DataSource(source, "there is no tree")})
    assert [(p.trial.data, p.trial.warm) for p in made.configurations] == [(source, warm)]
    assert any("not interleaved: single: its batches are read ahead" in note for note in made.notes) == (not warm)


@pytest.mark.parametrize(
    ("other", "warm"),
    [
        ("", True),
        ("{framework: torch_ddp, workers: 2}", None),
        ("{framework: network_probe, workers: 2}", True),
        ("{framework: torch_ddp, workers: 2, device: cpu}", True),
        ("{framework: torch_ddp}", True),
        ("{framework: fairscale_oss}", None),
        ("{framework: mpi_allreduce, workers: 4, oversubscribe: true}", True),
    ],
)
def test_a_study_of_one_worker_on_a_gpu_is_measured_in_rounds_and_no_other(plan_of, machine, other, warm):
    """What is compared with others on GPUs is measured as they are."""
    text = f"study: a\nmeasure: {{warm: true}}\nsweeps:\n  - framework: single\n{f'  - {other}' if other else ''}\n"
    made = plan_of(text, machine(cores=4, gpus=2))
    assert (made.configurations[0].trial.device, made.configurations[0].trial.warm) == ("cuda", warm)
    names = "single, torch_ddp" if "torch_ddp" in other else "single"  # FairScale is not installed there
    said = f"not interleaved: {names}: on a GPU interleaving was tried with one worker of "
    assert any(said in note for note in made.notes) == (not warm)


ZBV = "schedule=zbv_zero_bubble needs torch 2.10 or newer"


@pytest.mark.parametrize(
    ("torch", "schedule", "answer"),
    [
        ("2.8.0+cu128", "zbv_zero_bubble", f"{ZBV}: 2.8.0+cu128 is installed"),
        ("2.10.0a0+b558c986e8.nv25.11", "dualpipev", ""),
        ("2.9.0a0+50eac811a6.nv25.9", "zbv_zero_bubble", f"{ZBV}: 2.9.0a0+50eac811a6.nv25.9 is installed"),
        ("2.10.0", "zbv_zero_bubble", ""),
        ("2.8.0", "1f1b", ""),
    ],
)
def test_an_older_torch_is_named_with_the_version_that_is_needed(torch, schedule, answer):
    assert too_old(Trial(framework="torch_pipeline", schedule=schedule), {"torch": torch}) == answer


@pytest.mark.parametrize("key", ["tensor_parallel", "shard_group"])
def test_stages_that_several_workers_hold_together_need_the_torch_that_they_were_tried_with(plan_of, machine, key):
    text = f"study: a\nsweeps:\n  - {{framework: torch_pipeline, model: llama_tiny, workers: 4, stages: 2, {key}: 2}}\n"
    why = f"{key}=2 in a pipeline needs torch 2.15 or newer: 2.14.0 is installed"
    older = replace(machine(), cores=4, libraries={**machine().libraries, "tokenizers": "1", "torch": "2.14.0"})
    assert unsupported(plan_of(text, older)) == {why: 1}
    here = replace(older, libraries={**older.libraries, "torch": "2.15.0"})
    assert unsupported(plan_of(text, here)) == {}
    assert not too_old(Trial(framework="torch_fsdp2", shard_group=2), {"torch": "2.8.0"})


@pytest.mark.parametrize("framework", ["deepspeed_zero", "fairscale_oss", "hivemind", "lightning_ddp"])
def test_the_extra_of_a_missing_framework_is_named(plan_of, machine, framework):
    library = FRAMEWORKS[framework].needs[0]
    text = f"study: a\nsweeps:\n  - {{framework: {framework}, model: resnet8, workers: 2}}\n"
    why = f"{library} is not installed (pip install 'scaling-study[{library}]')"
    assert unsupported(plan_of(text, machine(without=library))) == {why: 1}
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    assert setup["options.extras_require"][library].startswith(f"\n{library}>=")


def test_the_default_study_means_something_in_under_6_minutes_on_2_cores(machine):
    made = plan.make(study.load(DEFAULT_STUDY), machine())
    estimate = Estimate()
    assert sum(map(estimate, made.trials())) < 360


def test_the_order_is_a_literal(plan_of):
    """A resumed study, and another machine, meet the same order: change it, and old studies lose their design."""
    made = plan_of(f"order_seed: 1\nmeasure: {{repeats: 2}}\n{HOROVOD}batch_per_worker: [1, 2, 3, 4], workers: [2]}}\n")
    found = [(t.batch_per_worker, t.repeat) for t in timed(made)]
    assert found == [(2, 1), (3, 1), (1, 1), (4, 1), (4, 2), (3, 2), (2, 2), (1, 2)]


MODELS, FLOATS = ["resnet8", "resnet18", "resnet50"], [0.1, 0.5, 1.0]
CHOICES: dict[str, list[Any]] = {
    "model": MODELS,
    "batch_per_worker": [1, 8, 32, 33],
    "precision": ["fp32", "bf16", "fp16"],
    "image_size": [32, 64],
    "seed": [1, 42],
    "learning_rate": FLOATS,
    "memory_format": ["contiguous", "channels_last"],
    "device": ["auto", "cpu", "cuda"],
    "data": ["auto", "cifar10", "synthetic"],
    "cores_per_worker": [1, 2],
}
HOROVOD_CHOICES = {
    **CHOICES,
    "allreduce": ["fp32", "fp16", "bf16"],
    "workers": [1, 2, 3, 8],
    "controller": ["mpi", "gloo"],
    "oversubscribe": [True, False],
}


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, Any]:
    framework = draw(st.sampled_from(["single", "horovod"]))
    choices = HOROVOD_CHOICES if framework == "horovod" else CHOICES
    crossed = draw(st.lists(st.sampled_from(sorted(choices)), min_size=1, max_size=4, unique=True))
    made: dict[str, Any] = {
        "framework": framework,
        "matrix": {k: draw(st.lists(st.sampled_from(choices[k]), min_size=1, max_size=4)) for k in crossed},
    }
    fixed = draw(st.lists(st.sampled_from(sorted(set(choices) - set(crossed))), max_size=2, unique=True))
    made |= {key: draw(st.sampled_from(choices[key])) for key in fixed}
    made |= draw(st.fixed_dictionaries({}, optional={"repeats": st.integers(1, 4), "min_steps": st.integers(1, 3)}))
    combinations = product(made["matrix"])
    picked = draw(st.lists(st.sampled_from(combinations), max_size=2))
    made["exclude"] = [{k: c[k] for k in draw(st.sets(st.sampled_from(crossed), min_size=1))} for c in picked]
    included = draw(st.lists(st.sets(st.sampled_from(sorted(choices)), min_size=1, max_size=4), max_size=2))
    made["include"] = [{k: draw(st.sampled_from(choices[k])) for k in sorted(keys)} for keys in included]
    return made


def product(matrix: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]


def partly_equal(keys: dict[str, Any], part: dict[str, Any]) -> bool:
    return part.items() <= keys.items()


studies = st.fixed_dictionaries(
    {"study": st.just("any"), "sweeps": st.lists(sweeps(), min_size=1, max_size=3)},
    optional={
        "order_seed": st.integers(0, 5),
        "measure": st.fixed_dictionaries({}, optional={"repeats": st.integers(1, 3), "min_seconds": st.just(1)}),
    },
)
machines = st.builds(
    Machine,
    cores=st.integers(1, 16),
    cpu=st.just("Xeon"),
    memory_bytes=st.just(8 << 30),
    gpus=st.sampled_from([(), ("T4",), ("T4", "T4")]),
    libraries=st.sampled_from([{"torch": "2", "torchvision": "1"}, {"torch": "2", "torchvision": "1", "horovod": "0"}]),
)


def planned(asked: Study, machine: Machine) -> Plan:
    try:
        return plan.make(asked, machine)
    except StudyError as wrong:
        # The one thing that may be wrong with a generated study: it excludes all of itself.
        assert all("has no trials left" in problem for problem in wrong.problems), wrong.problems
        assume(False)
        raise


@pytest.mark.slow
@given(studies, machines)
def test_any_valid_study_expands_to_what_it_asks_for(study_of, value, machine):
    made = planned(study_of(yaml.safe_dump(value)), machine)
    trials = [p.trial for p in made.configurations]

    assert len({t.configuration for t in trials}) == len(set(trials)) == len(trials), "no configuration twice"
    assert all((t.allreduce == "none") == (t.workers == 1) for t in trials), "one worker, and no other, reduces nothing"
    assert all(t.machine == machine.fingerprint and t.device != "auto" for t in trials)

    asked, largest = [], 1
    for sweep in value["sweeps"]:
        fixed = {k: v for k, v in sweep.items() if k in HOROVOD_CHOICES}
        kept = [c for c in product(sweep["matrix"]) if not any(partly_equal(c, e) for e in sweep["exclude"])]
        whole = [{"framework": sweep["framework"], **fixed, **c} for c in [*kept, *sweep["include"]]]
        largest = max([largest, *(keys.get("workers", 1) for keys in whole)])
        asked += whole
    share = max(1, machine.cores // largest)

    def answers(trial: Trial, keys: dict[str, Any]) -> bool:
        said = trial.to_dict()
        expected = {"workers": 1, "model": "resnet18", "batch_per_worker": 32, "cores_per_worker": share, **keys}
        if expected["workers"] == 1:
            expected["allreduce"] = "none"
        if expected.get("device", "auto") == "auto":
            expected["device"] = machine.device
        return partly_equal(said, expected)

    assert all(any(answers(t, keys) for keys in asked) for t in trials), "nothing that was not asked for"
    assert all(any(answers(t, keys) for t in trials) for keys in asked), "everything that was asked for"


@pytest.mark.slow
@given(studies, machines, machines)
def test_any_plan_is_repeatable_and_its_repeats_are_interleaved(study_of, value, machine, other):
    asked = study_of(yaml.safe_dump(value))
    made = planned(asked, machine)
    trials = timed(made)
    assert trials == timed(planned(asked, machine)), "the same every time"
    assert len({t.id for t in trials}) == len(trials)

    repeats = [t.repeat for t in trials]
    assert repeats == sorted(repeats), "every configuration's r-th before any (r+1)-th"
    due = {p.trial.configuration: 1 if p.unsupported else p.measure.repeats for p in made.configurations}
    seen: dict[str, list[int]] = {}
    for trial in trials:
        seen.setdefault(trial.configuration, []).append(trial.repeat)
    assert seen == {c: list(range(1, n + 1)) for c, n in due.items()}

    elsewhere = planned(asked, other)
    if len(elsewhere.configurations) == len(made.configurations):
        position = {id(p): i for i, p in enumerate(made.configurations)}
        there = {id(p): i for i, p in enumerate(elsewhere.configurations)}
        for repeat in (1, 2):
            here = [position[id(p)] for p in made.shuffled(repeat)]
            assert here == [there[id(p)] for p in elsewhere.shuffled(repeat)], "the order depends on the seed alone"


BY_ACCELERATE = (
    "study: a\nparity: false\nsweeps:\n  - {framework: torch_fsdp2, model: resnet8, launcher: accelerate, %s}\n"
)


def test_accelerate_is_a_launcher_of_one_host_where_it_is_installed(plan_of, machine):
    text = BY_ACCELERATE % "workers: 2"
    why = "accelerate is not installed (pip install 'scaling-study[accelerate]')"
    assert unsupported(plan_of(text, machine(without="accelerate"))) == {why: 1}
    here = replace(machine(), libraries={**machine().libraries, "accelerate": "1.15.0"})
    (planned,) = plan_of(text, here).configurations
    assert planned.unsupported == "" and planned.trial.launcher == "accelerate"
    (planned,) = plan_of(BY_ACCELERATE % "workers: 2, hosts: 2", here).configurations
    assert planned.unsupported.startswith(
        "launcher=accelerate starts the workers of one host only: use launcher=torchrun"
    )
