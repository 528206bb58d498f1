"""Each kind of workload passes the parity gate of frameworks that cut, shard or reduce it in ways of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trained

from scaling_study.machine import installed
from scaling_study.models import OURS
from scaling_study.records import store

pytestmark = pytest.mark.slow
PADDED, CHUNKED = {"vocabulary": 50_304, "gelu": "tanh"}, {"cross_entropy": "chunked"}
TOGETHER = {"compile": True, "compile_scope": "model_and_loss"}


@pytest.mark.parametrize(
    ("framework", "model", "keys"),
    [
        ("horovod", "albert_tiny", {"sequence_length": 32, "controller": "mpi"}),
        pytest.param("torch_ddp", "albert_tiny", {"sequence_length": 32}, marks=pytest.mark.long),
        ("torch_ddp", "transformer_lm", {}),
        pytest.param("torch_ddp", "transformer_lm", {"allreduce": "bf16"}, marks=pytest.mark.long),
        ("torch_pipeline", "gpt2", PADDED),  # with one tensor at both ends
        pytest.param("torch_fsdp2", "gpt2", {**PADDED, **CHUNKED}, marks=pytest.mark.long),
        pytest.param("deepspeed_zero", "gpt2", {**PADDED, **CHUNKED, "zero_stage": 3}, marks=pytest.mark.long),
        pytest.param("torch_ddp", "gpt2", {**PADDED, **TOGETHER}, marks=pytest.mark.long),
        pytest.param("torch_fsdp2", "resnet8", TOGETHER, marks=pytest.mark.long),
        pytest.param("torch_pipeline", "llama_3_2_1b", {}, marks=pytest.mark.long),
        pytest.param("torch_fsdp2", "llama_3_2_1b", {"checkpoint": "selective"}, marks=pytest.mark.long),
        pytest.param("torch_ddp", "llama_3_2_1b", {"checkpoint": "block", "allreduce": "bf16"}, marks=pytest.mark.long),
        ("torch_fsdp2", "vit_small_dataset", {}),
        ("deepspeed_zero", "vit_small_dataset", {"zero_stage": 3}),
        ("torch_pipeline", "vit_small_dataset", {}),
        pytest.param("torch_fsdp2", "timm_vit_tiny", {"wrap": "none"}, marks=pytest.mark.long),
    ],
)
def test_its_gate_is_passed(framework: str, model: str, keys: dict[str, Any], tmp_path: Path) -> None:
    if absent := [name for name in OURS[model].needs if not installed(name)]:
        pytest.skip(f"{absent[0]} is not installed")
    launcher = "horovodrun" if framework == "horovod" else "torchrun"
    asked = {"model": model, "launcher": launcher, "cores_per_worker": None, "allreduce": "fp32", **keys}
    judged = trained.judged(trained.a_trial(framework, **asked), tmp_path)
    assert judged["verdict"] == "passed", judged
    if "sequence_length" in OURS[model].keys:
        assert any(rank.tokens_seen for rank in store.read_ranks(tmp_path, 2))  # of a pipeline, the last stage
