"""Keys that choose kernels, or synthetic data: ids without them stay as they were, and what they cannot do is said."""

from __future__ import annotations

from typing import Any

import pytest

from scaling_study.datasets import DataSource
from scaling_study.frameworks import FRAMEWORKS, FUSED_SGD_OF_SHARDS
from scaling_study.machine import Machine
from scaling_study.study import support
from scaling_study.trial import Trial

AS_BEFORE = {
    "gelu": "new",
    "vocabulary": 50257,
    "cross_entropy": "whole",
    "optimizer_kernels": "default",
    "resident_batches": 1,
}
OTHERWISE = {
    "gelu": "tanh",
    "vocabulary": 50304,
    "cross_entropy": "chunked",
    "optimizer_kernels": "fused",
    "resident_batches": 8,
    "dropout": 0,
}
LIBRARIES = dict.fromkeys(("torch", "transformers", "tokenizers", "torchvision"), "2.15.0")


def lines(keys: str, framework: str = "single", more: str = "") -> str:
    return f"study: s\nparity: false\n{more}sweeps:\n  - {{framework: {framework}, {keys}}}\n"


def ids(plan: Any) -> list[str]:
    return [planned.trial.id for planned in plan.trials()]


@pytest.mark.parametrize("key", AS_BEFORE)
def test_the_value_of_before_is_no_part_of_an_id_and_another_is(plan_of: Any, key: str) -> None:
    model = "model: gpt2, data: synthetic"
    before = ids(plan_of(lines(model)))
    assert ids(plan_of(lines(f"{model}, {key}: {AS_BEFORE[key]}"))) == before
    assert not set(ids(plan_of(lines(f"{model}, {key}: {OTHERWISE[key]}")))) & set(before)


def test_all_of_them_together_are_one_command_line(plan_of: Any) -> None:
    keys = ", ".join(f"{key}: {value}" for key, value in OTHERWISE.items())
    text = lines(f"model: gpt2, data: synthetic, compile: true, {keys}")
    (planned,) = plan_of(text, Machine(2, "Xeon", 8 << 30, (), LIBRARIES)).configurations
    again, _ = Trial.from_argv("single", planned.trial.to_argv())
    assert not planned.unsupported and all(getattr(again, key) == value for key, value in OTHERWISE.items())
    (scoped,) = plan_of(text.replace("compile: true", "compile: true, compile_scope: model_and_loss")).configurations
    assert scoped.trial.compile_scope == "model_and_loss" and scoped.trial.id != planned.trial.id


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("torch_pipeline", "cross_entropy: chunked"),
        ("torch_pipeline", "compile_scope: model_and_loss"),
        ("hivemind", "optimizer_kernels: fused"),
    ],
)
def test_a_framework_that_cannot_has_no_such_key(problems_of: Any, framework: str, key: str) -> None:
    said = problems_of(lines(f"model: gpt2, workers: 2, batch_per_worker: 8, {key}", framework))
    assert any(f"framework {framework} has no {key.partition(':')[0]!r}" in line for line in said), said


def why_not(framework: str, **keys: Any) -> str:
    libraries = dict.fromkeys((*LIBRARIES, *FRAMEWORKS[framework].needs, "torchmetrics"), "2.15.0")
    machine = Machine(16, "Xeon", 8 << 30, ("NVIDIA H100",) * 2, libraries)
    launcher = FRAMEWORKS[framework].launchers[0]
    return support.unsupported(Trial(framework, launcher=launcher, device="cuda", workers=2, **keys), machine)


def test_fsdp2_has_no_fused_sgd_and_data_parallel_no_chunked_loss() -> None:
    fused = {"optimizer_kernels": "fused"}
    assert why_not("torch_fsdp2", model="resnet50", **fused) == FUSED_SGD_OF_SHARDS
    assert not why_not("torch_fsdp2", model="gpt2", **fused) and not why_not("torch_ddp", model="resnet50", **fused)
    sgd, adamw = ({"train_epochs": 1, "train_optimizer": name, "learning_rate": 0.1} for name in ("sgd", "adamw"))
    assert why_not("torch_fsdp2", model="gpt2", **fused, **sgd) == FUSED_SGD_OF_SHARDS
    assert not why_not("torch_fsdp2", model="resnet50", **fused, **adamw)
    assert "cross_entropy=whole" in why_not("torch_dp", model="gpt2", cross_entropy="chunked")
    stages = {"stages": 1, "replicas": 2}
    assert why_not("torch_pipeline", model="resnet50", shard_group=2, **stages, **fused) == FUSED_SGD_OF_SHARDS
    assert "split matrices (DTensor)" in why_not("torch_pipeline", model="llama_tiny", tensor_parallel=2, **fused)


def test_real_data_have_no_ring_of_batches_and_run_once(plan_of: Any) -> None:
    text = lines("model: resnet8, matrix: {resident_batches: [1, 8]}")
    assert len(plan_of(text, data={"cifar10": DataSource("synthetic", "not found")}).configurations) == 2
    assert len(plan_of(text, data={"cifar10": DataSource("cifar10", "present")}).configurations) == 1


def test_a_gate_has_the_kernels_of_the_model_and_neither_its_ring_nor_its_update() -> None:
    keys: dict[str, Any] = {**OTHERWISE, "compile": True, "compile_scope": "model_and_loss"}
    trial = Trial("torch_ddp", model="gpt2", workers=2, launcher="torchrun", device="cpu", data="synthetic", **keys)
    for gate in support.gates_of(trial):
        assert (gate.model, gate.gelu, gate.vocabulary) == ("gpt2_tiny", "tanh", 50304)
        assert (gate.cross_entropy, gate.compile_scope) == ("chunked", "model_and_loss")
        assert (gate.resident_batches, gate.optimizer_kernels, gate.classes) == (None, None, None)
