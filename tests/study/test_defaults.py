"""Defaults that follow the device: what `auto` becomes on each machine, and what `defaults: 2026` adds to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from scaling_study.datasets import DataSource
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import MODELS
from scaling_study.study import defaults
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial

LIBRARIES = {library for table in (*FRAMEWORKS.values(), *MODELS.values()) for library in table.needs}
CPU = Machine(16, "Xeon", 64 << 30, (), dict.fromkeys(sorted(LIBRARIES), "99"))
H100, T4, P100 = (replace(CPU, gpus=(gpu,) * 4) for gpu in ("NVIDIA H100 80GB HBM3", "Tesla T4", "Tesla P100-PCIE"))
UNKNOWN = replace(CPU, gpus=("GPU",) * 4)  # as a node of Slurm whose GPUs have no type
BARE = replace(H100, cannot_compile={"cuda": "no C compiler (gcc or clang) on PATH: apt install gcc"})
MACHINES = {"CPU": CPU, "H100": H100, "T4": T4, "P100": P100, "unknown": UNKNOWN, "no compiler": BARE}
TRAINING = sorted(name for name, table in FRAMEWORKS.items() if "resnet8" in table.axes.get("model", ()))
IMAGES_STAY = ("torch_pipeline", "naive_model_parallel")  # stages send only contiguous tensors
PlanOf = Callable[..., Plan]


def text(framework: str, keys: str = "", top: str = "") -> str:
    workers = 1 if FRAMEWORKS[framework].axes["workers"] == (1,) else 2
    sweep = f"framework: {framework}, workers: {workers}, batch_per_worker: 8, {keys}"
    return f"study: a\n{top}parity: false\nsweeps:\n  - {{{sweep}}}\n"


AUTO = "precision: auto, memory_format: auto, compile: auto"


@pytest.mark.parametrize("framework", TRAINING)
@pytest.mark.parametrize("model", ["resnet8", "gpt2_tiny"])
def test_auto_becomes_what_device_framework_and_model_have(plan_of: PlanOf, framework: str, model: str) -> None:
    """The oracle is written anew, and the trial is the one that a study has which names the values."""
    for name, machine in MACHINES.items():
        made = plan_of(text(framework, f"model: {model}, {AUTO}"), machine)
        (auto,) = made.configurations
        compiles = name in ("H100", "T4", "unknown") and "compile" in FRAMEWORKS[framework].axes
        images = model == "resnet8" and framework not in IMAGES_STAY
        expected = {
            "precision": "bf16" if name in ("H100", "no compiler") else "fp32",
            "memory_format": "channels_last" if images and name != "CPU" else "contiguous",
            "compile": compiles and framework != "torch_dp",
        }
        assert {key: getattr(auto.trial, key) for key in expected} == expected, name
        said = "".join(f", {key}: {str(value).lower()}" for key, value in expected.items() if value)
        said = said if model == "resnet8" else said.replace(", memory_format: contiguous", "")
        (explicit,) = plan_of(text(framework, f"model: {model}{said}"), machine).configurations
        assert auto.trial.id == explicit.trial.id and auto.unsupported == explicit.unsupported, name
        (plain,) = plan_of(text(framework, f"model: {model}"), machine).configurations
        assert auto.unsupported == plain.unsupported, f"{name}: nothing is refused for what follows the device"
        assert made.follows == defaults.FOLLOWING


@pytest.mark.parametrize("framework", TRAINING)
def test_a_study_of_2026_has_the_gpus_defaults_where_it_names_nothing(plan_of: PlanOf, framework: str) -> None:
    for model in ("resnet8", "gpt2_tiny", "vit_small_dataset_tiny"):
        keys = f"model: {model}, data: synthetic"
        (auto,) = plan_of(text(framework, f"{keys}, {AUTO}"), H100).configurations
        (made,) = plan_of(text(framework, keys, "defaults: 2026\n"), H100).configurations
        (plain,) = plan_of(text(framework, keys), H100).configurations
        assert made.unsupported == plain.unsupported
        assert all(getattr(made.trial, key) == getattr(auto.trial, key) for key in defaults.FOLLOWING)
        others = [f.name for f in fields(Trial) if f.name not in defaults.KEYS]
        assert all(getattr(made.trial, name) == getattr(plain.trial, name) for name in others)


def test_every_default_is_a_value_that_some_framework_has() -> None:
    assert len(set(defaults.KEYS)) == len(defaults.KEYS) and defaults.KEYS[:3] == defaults.FOLLOWING
    for row in defaults.ON_GPUS:
        having = [table for table in FRAMEWORKS.values() if row.key in table.axes]
        assert any(not table.axes[row.key] or row.value in table.axes[row.key] for table in having), row.key
        assert getattr(Trial, row.key) != row.value, "else it says nothing"


def test_what_models_have_of_it_is_exactly_this(plan_of: PlanOf) -> None:
    images = {"precision": "bf16", "memory_format": "channels_last", "compile": True, "compile_scope": "model_and_loss"}
    kernels = {"optimizer_kernels": "fused", "resident_batches": 8}
    gpt2 = {"gelu": "tanh", "vocabulary": 50_304, "dropout": 0.0, "memory_format": "contiguous"}
    for model, framework, expected in (
        ("resnet50", "torch_ddp", images | kernels),
        ("gpt2", "torch_ddp", images | kernels | gpt2),
        ("vit_small_dataset", "single", images | kernels | {"memory_format": "contiguous"}),
        ("tripnet_resnet18", "single", images | kernels | {"compile_scope": None}),  # its loss notes its parts
        ("resnet50", "torch_fsdp2", images | kernels | {"optimizer_kernels": None}),  # no fused SGD of shards
        ("gpt2", "torch_pipeline", kernels | gpt2 | {"precision": "bf16", "compile": False, "compile_scope": None}),
    ):
        asked = text(framework, f"model: {model}, data: synthetic", "defaults: 2026\n")
        (made,) = plan_of(asked, H100).configurations
        before = {key: getattr(Trial, key) for key in defaults.KEYS}
        assert {key: getattr(made.trial, key) for key in defaults.KEYS} == before | expected, (model, framework)
        (on_cpu,) = plan_of(asked, CPU).configurations
        (plain,) = plan_of(asked.replace("defaults: 2026", ""), CPU).configurations
        assert on_cpu.trial == plain.trial
    real = {name: DataSource(name, "there") for name in ("cifar10",)}
    (made,) = plan_of(text("single", "model: resnet8", "defaults: 2026\n"), H100, data=real).configurations
    assert (made.trial.data, made.trial.resident_batches) == ("cifar10", None), "real data are read as they come"
    (kept,) = plan_of(text("single", "model: gpt2, dropout: 0.1, gelu: new", "defaults: 2026\n"), H100).configurations
    assert (kept.trial.dropout, kept.trial.gelu) == (0.1, None), "as if it were left out before 2026"


@pytest.mark.parametrize(("key", "value"), [("precision", "fp16"), ("memory_format", "contiguous"), ("compile", False)])
def test_a_value_that_is_named_stays(plan_of: PlanOf, key: str, value: object) -> None:
    keys = f"model: resnet8, {key}: {str(value).lower()}"
    (made,) = plan_of(text("torch_ddp", keys, "defaults: 2026\n"), H100).configurations
    assert getattr(made.trial, key) == value
    assert made.trial.precision in ("bf16", "fp16")


def test_on_a_cpu_nothing_changes_and_on_a_gpu_one_note_says_what_would(plan_of: PlanOf) -> None:
    matrix = "model: resnet8, matrix: {batch_per_worker: [8, 16]}"
    study = f"study: a\nparity: false\nsweeps:\n  - {{framework: torch_ddp, workers: 2, {matrix}}}\n"
    dated = study.replace("parity", "defaults: 2026\nparity")
    ids = [[p.trial.id for p in plan_of(each, CPU).configurations] for each in (study, dated)]
    assert ids[0] == ids[1] and plan_of(study, CPU).notes == plan_of(dated, CPU).notes == ()
    before, now = plan_of(study, H100), plan_of(dated, H100)
    assert not {p.trial.id for p in before.configurations} & {p.trial.id for p in now.configurations}
    (note,) = before.notes
    assert "`defaults: 2026` lets precision, memory_format, compile" in note and now.notes == ()
    named = study.replace("model:", "precision: fp32, memory_format: contiguous, compile: false, model:")
    for machine, followed in (
        (T4, "memory_format, compile"),
        (P100, "memory_format"),
        (BARE, "precision, memory_format"),
    ):
        assert f"`defaults: 2026` lets {followed}" in plan_of(study, machine).notes[0], (
            "what cannot follow is not named"
        )
    others = [key for key in defaults.KEYS if key not in defaults.FOLLOWING]
    assert all(any(key in note for key in others) for note in plan_of(named, H100).notes)


def test_what_means_the_same_runs_once(plan_of: PlanOf) -> None:
    asked = text("single", "model: resnet8, matrix: {precision: [auto, fp32, bf16]}")
    assert [p.trial.precision for p in plan_of(asked, CPU).configurations] == ["fp32", "bf16"]
    assert [p.trial.precision for p in plan_of(asked, H100).configurations] == ["bf16", "fp32"]


@pytest.mark.parametrize(
    ("machine", "keys", "said"),
    [
        (T4, "precision: bf16", "precision=bf16 needs a GPU of compute capability 8.0: Tesla T4 has"),
        (P100, "compile: true", "compile=true needs a GPU of compute capability 7.0: Tesla P100-PCIE has"),
        (BARE, "compile: true", "compile=true: no C compiler (gcc or clang) on PATH: apt install gcc; or"),
    ],
)
def test_what_the_gpu_has_no_kernels_for_is_unsupported_and_the_plan_names_the_line(plan_of, machine, keys, said):
    study = f"study: a\nparity: false\nsweeps:\n  - framework: single\n    model: resnet8\n    {keys}\n"
    made = plan_of(study, machine)
    (planned,) = made.configurations
    assert planned.unsupported.startswith(said)
    assert [note for note in made.notes if "study.yaml:6: " + said in note]
    (on_cpu,) = plan_of(f"{study}    device: cpu\n", machine).configurations
    assert not on_cpu.unsupported
    (better,) = plan_of(study, H100).configurations
    assert not better.unsupported
    command = "study: a\nsweeps:\n  - {framework: command, command: python t.py, batch_per_worker: 1, " + keys + "}\n"
    assert not plan_of(command, machine).configurations[0].unsupported.startswith(said), "there it is a label"


def test_the_plan_says_why_something_does_not_follow_the_gpu(plan_of: PlanOf) -> None:
    dated = text("single", "model: resnet8", "defaults: 2026\n")
    (unknown,) = plan_of(dated, UNKNOWN).notes
    stays, why = unknown.split(": ", 1)
    assert stays == "precision stays fp32 for single"
    assert why == "whether GPU computes in bf16 is not known; name a precision"
    assert any("compile stays false" in note and "apt install gcc" in note for note in plan_of(dated, BARE).notes)
    assert any("precision stays fp32" in note and "Tesla T4" in note for note in plan_of(dated, T4).notes)
    driver = replace(UNKNOWN, gpu_capability=9.0)  # the driver knows more than a name
    assert plan_of(dated, driver).notes == () and plan_of(dated, driver).configurations[0].trial.precision == "bf16"


SINGLE = "  - {framework: single, model: resnet8}\n"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (f"study: a\ndefaults: 2025\nsweeps:\n{SINGLE}", "2: defaults: 2025 is not right: the only defaults are"),
        (f"study: a\ndefaults: '2026'\nsweeps:\n{SINGLE}", "2: defaults: '2026' is not right: input should be a valid"),
        (f"study: a\nbaseline: {{compile: auto}}\nsweeps:\n{SINGLE}", "2: baseline: compile=auto has a value for each"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(problems_of: Callable[..., list[str]], wrong: str, said: str) -> None:
    (problem,) = problems_of(wrong)
    assert problem.startswith(f"study.yaml:{said}")
