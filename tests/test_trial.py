"""One trial: an id that is stable, and a command line that is the same thing."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.targets import Target, better
from scaling_study.trial import LATER, OF_ROUNDS, Trial, Window, flag, parser, script_keys

ANOTHER: dict[str, Any] = {  # for every key a value that is not its default
    "framework": "horovod", "model": "resnet50", "batch_per_worker": 33, "allreduce": "fp16", "precision": "bf16",
    "workers": 2, "hosts": 2, "launcher": "mpirun", "controller": "gloo", "device": "cpu", "cores_per_worker": 3,
    "oversubscribe": True, "data": "synthetic", "image_size": 64, "image_width": 112, "memory_format": "channels_last",
    "sequence_length": 64, "padding": "dynamic", "learning_rate": 0.1, "accumulation": 3, "compile": True,
    "zero_stage": 2, "schedule": "gpipe", "stages": 2, "virtual_stages": 2, "micro_batches": 4, "replicas": 1,
    "tensor_parallel": 2, "sequence_parallel": True, "loss_parallel": True, "context_parallel": 2,
    "attention": "all_gather", "shard_group": 2, "reduce_scatter": "all_to_all", "sync_every": 8, "outer": "nesterov",
    "checkpoint": "block",
    "stage_cut": "time", "buffers": "synced", "tuned_for": "memory", "wrap": "none", "weights": "best.safetensors",
    "freeze": "backbone", "part_learning_rates": "heads=0.01",
    "gelu": "tanh", "vocabulary": 50304, "cross_entropy": "chunked", "compile_scope": "model_and_loss",
    "optimizer_kernels": "fused", "classes": 1000, "resident_batches": 8,
    "warmup_epochs": 1, "bucket_bytes": 1 << 20, "fusion_bytes": 1 << 21, "cycle_seconds": 0.002,
    "collective": "all_gather", "min_bytes": 64, "max_bytes": 1 << 22, "size_factor": 2,
    "target_batch_size": 512, "matchmaking_seconds": 1.5, "averaging_timeout_seconds": 20.0, "average_state_every": 4,
    "state_allreduce": "fp16", "daemon_cores": 1,
    "updates": "delayed", "allocator": "system", "input": "dali", "damaged_images": "replace",
    "train_epochs": 3, "train_steps": 30, "train_max_seconds": 60.0, "train_target": "accuracy=0.6",
    "train_evaluate_every": 0.5, "train_validation": 0.2, "train_patience": 4, "train_optimizer": "adamw",
    "train_momentum": 0.8, "train_weight_decay": 0.01, "train_clip_norm": 1.0, "train_label_smoothing": 0.1,
    "train_schedule": "cosine", "train_warmup_steps": 5, "train_scale_learning_rate": "sqrt",
    "train_reference_batch": 128, "train_augmentation": "crop_flip", "train_loop": "native", "train_log": "wandb",
    "train_start_learning_rate": 0.001, "train_cycle_steps": 40, "train_keep": "best", "dropout": 0.2,
    "command": "python train.py", "arguments": "amp=--amp", "workdir": "mine", "env": "A=1",
    "seed": 7, "epochs": 2, "find": "max_batch", "warm": True, "machine": "abcd1234", "repeat": 2,
    "window": Window(min_steps=11),
}  # fmt: skip
FIRST_KEYS = (  # those of the first version, whose ids name results that people have
    "framework", "model", "batch_per_worker", "allreduce", "precision", "workers", "launcher", "controller", "device",
    "cores_per_worker", "oversubscribe", "data", "image_size", "memory_format", "learning_rate", "seed", "epochs",
    "machine", "repeat", "window",
)  # fmt: skip
ANOTHER_WINDOW: dict[str, Any] = {
    "warmup_steps": 0, "min_steps": 3, "min_seconds": 0.25, "max_seconds": 12.5, "max_steps": 40,
}  # fmt: skip


def test_every_key_has_another_value_to_be_tested_with():
    assert set(ANOTHER) == {f.name for f in fields(Trial)}
    assert set(ANOTHER_WINDOW) == {f.name for f in fields(Window)} - set(OF_ROUNDS)  # no script has flags for those
    assert all(getattr(Trial(), name) != value for name, value in ANOTHER.items())
    assert all(getattr(Window(), name) != value for name, value in ANOTHER_WINDOW.items())


def test_ids_are_stable():
    """They name folders of results that people have: change one, and no finished trial is found again."""
    assert Trial(**LATER).id == "single-resnet18-b32-fp32-w1-ce5c5c474e39.r1"
    first = {name: ANOTHER[name] for name in FIRST_KEYS} | LATER
    assert Trial(**first).id == "horovod-resnet50-b33-fp16-w2-0ca739be2c98.r2"
    assert Trial(**first).configuration == "horovod-resnet50-b33-fp16-w2-0ca739be2c98"


@pytest.mark.parametrize("name", sorted(ANOTHER))
def test_a_trial_that_differs_in_any_key_has_another_id(name):
    assert replace(Trial(), **{name: ANOTHER[name]}).id != Trial().id


@pytest.mark.parametrize("name", sorted(ANOTHER_WINDOW))
def test_a_trial_that_is_timed_otherwise_has_another_id(name):
    assert Trial(window=replace(Window(), **{name: ANOTHER_WINDOW[name]})).id != Trial().id


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.sampled_from([None, value]) for value in ANOTHER.values()]), max_size=20, unique=True))
def test_no_two_trials_share_an_id(choices):
    trials = [
        replace(Trial(), **{name: value for name, value in zip(ANOTHER, choice, strict=True) if value is not None})
        for choice in choices
    ]
    assert len({t.id for t in trials}) == len(set(trials)) == len(choices)


@pytest.mark.parametrize(("flag", "value", "problem"), [
    ("--train-target", "accuracy=1.6", "'accuracy=1.6': a target of accuracy is between 0 and 1"),
    ("--train-log", "mlflow", "'mlflow' is no log: it is one of tensorboard, wandb, or both with a comma"),
])  # fmt: skip
def test_what_is_wrong_about_a_training_is_one_line_by_hand_too(flag, value, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        Trial.from_argv("single", ["--train-epochs", "1", flag, value])
    assert ended.value.code == 2 and problem in capsys.readouterr().err.splitlines()[-1]


def test_global_batch_is_that_of_all_workers():
    assert Trial(batch_per_worker=32, workers=3).global_batch == 96
    assert Trial(batch_per_worker=32, workers=4, stages=2).to_dict()["global_batch"] == 64, "pipelines share one batch"


@pytest.mark.parametrize(
    ("trial", "argv"),
    [
        (Trial(), ["--model", "resnet18", "--batch-per-worker", "32", "--data", "auto"]),
        (
            Trial(framework="horovod", workers=2, launcher="horovodrun", controller="mpi", machine="m", repeat=9),
            ["--model", "resnet18", "--batch-per-worker", "32", "--allreduce", "fp32", "--data", "auto"],
        ),
    ],
)  # fmt: skip
def test_command_lines_are_short_and_say_what_matters(trial, argv):
    assert trial.to_argv() == argv


def as_the_script_sees_it(trial: Trial) -> Trial:
    """What is the launcher's business is not in the script's flags."""
    known = {name: getattr(trial, name) for name in script_keys(trial.framework)}
    return Trial(framework=trial.framework, window=trial.window, **known)


def values_of(name: str, framework: str) -> st.SearchStrategy[Any]:
    """Any value that a key may have for a framework."""
    field = next(f for f in fields(Trial) if f.name == name)
    if choices := FRAMEWORKS[framework].axes.get(name) or field.metadata.get("choices"):
        return st.sampled_from(choices)
    if "float" in str(field.type):
        below = field.metadata.get("below", 1e12)
        return st.none() | st.floats(min_value=1e-12, max_value=below, exclude_max=True)
    if name == "train_target":
        return st.none() | st.sampled_from(["accuracy=0.6", "loss=1.5"])
    if name == "train_log":
        return st.none() | st.sampled_from(["tensorboard", "tensorboard,wandb"])
    if name == "weights":
        return st.none() | st.sampled_from(["best.safetensors", "/some/where/best.pt"])
    if name == "part_learning_rates":
        return st.none() | st.sampled_from(["backbone=0.0001", "heads=0.1,verb=1"])
    if name == "stage_cut":
        return st.none() | st.sampled_from(["even", "time", "3,4"])
    least = field.metadata["minimum"]
    return st.integers(least, 10**9) | (st.none() if field.default is None else st.nothing())


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    framework = draw(st.sampled_from(sorted(FRAMEWORKS)))
    window = Window(
        warmup_steps=draw(st.integers(0, 10**6)),
        min_steps=draw(st.integers(1, 10**6)),
        min_seconds=draw(st.floats(0, 1e6)),
        max_seconds=draw(st.floats(1e-6, 1e6)),
        max_steps=draw(st.none() | st.integers(1, 10**6)),
    )
    keys = {name: draw(values_of(name, framework)) for name in script_keys(framework)}
    business = {"workers": draw(st.integers(1, 64)), "repeat": draw(st.integers(1, 9)), "machine": draw(st.text())}
    return Trial(framework=framework, window=window, **{**business, **keys})


@given(trials())
def test_a_command_line_gives_its_trial_back(trial):
    again, record = Trial.from_argv(trial.framework, trial.to_argv())
    assert (again, record) == (as_the_script_sees_it(trial), None)
    assert again.to_argv() == trial.to_argv()


def test_steps_time_exactly_so_many():
    trial, _ = Trial.from_argv("single", ["--steps", "7", "--warmup-steps", "2"])
    assert trial.window == Window(warmup_steps=2, min_steps=7, min_seconds=0.0, max_seconds=None, max_steps=7)


def test_the_folder_of_the_record_is_no_part_of_the_trial():
    assert Trial.from_argv("single", ["--record", "/some where"]) == (Trial(), "/some where")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--batch-per-worker", "0"], "argument --batch-per-worker: 0 is less than 1"),
        (["--learning-rate", "0"], "argument --learning-rate: 0 is not above 0"),
        (["--learning-rate", "nan"], "argument --learning-rate: "),
        (["--steps", "0"], "argument --steps: 0 is less than 1"),
        (["--model", "resnet9"], "argument --model: invalid choice: 'resnet9'"),
        (["--workers", "2"], "unrecognized arguments: --workers 2"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_clear_line(capsys, argv, said):
    with pytest.raises(SystemExit) as end:
        Trial.from_argv("horovod", argv)
    assert end.value.code == 2
    assert f"error: {said}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_help_explains_every_flag(framework):
    text = " ".join(parser(framework).format_help().split())
    assert FRAMEWORKS[framework].title in text
    for name in [*script_keys(framework), *ANOTHER_WINDOW, "steps", "record"]:
        assert flag(name) in text
    assert "(default: None)" not in text


@pytest.mark.parametrize("text", ["accuracy=0.6", "loss=1.5", "perplexity=120", "matthews=-0.1"])
def test_a_target_is_written_as_it_is_read(text):
    assert str(Target.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accuracy=1.2", "a target of accuracy is between 0 and 1"),
        ("accuracy=0", "between 0 and 1"),
        ("loss=-1", "a target of loss is above 0"),
        ("perplexity=1", "above 1"),
        ("matthews=1", "between -1 and 1"),
        ("f1=0.5", "is no target"),
        ("loss=low", "'low' is no number"),
        ("loss=nan", "above 0"),
    ],
)
def test_what_is_no_target_says_what_would_be(text, message):
    with pytest.raises(ValueError, match=r"target|number") as refused:
        Target.parse(text)
    assert message in str(refused.value)


def test_accuracy_is_reached_from_below_and_loss_from_above():
    assert Target("accuracy", 0.35).reached(0.35) and not Target("accuracy", 0.35).reached(0.3499)
    assert Target("loss", 1.5).reached(1.5) and not Target("loss", 1.5).reached(1.51)
    assert not Target("accuracy", 0.1).reached(math.nan) and not Target("loss", 9.0).reached(math.nan)


def test_the_first_number_is_better_than_none_and_nan_is_never():
    assert better("accuracy", 0.1, None) and not better("accuracy", math.nan, None)
    assert better("accuracy", 0.2, 0.1) and not better("accuracy", 0.1, 0.1)
    assert better("loss", 0.1, 0.2) and not better("loss", math.nan, 0.2)
