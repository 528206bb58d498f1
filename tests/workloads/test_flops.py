"""FLOPs of a forward pass: as counted by hand, and nothing of the counting stays behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from analysis.views import roofline
from scaling_study.measure import Wire
from scaling_study.measure.memory import Memory
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads.workload import forward_flops_per_sample

SYNTHETIC = {"data": "synthetic", "batch_per_worker": 4}


def counted(model: str, **keys) -> float:
    flops = load(Trial(model=model, **{**SYNTHETIC, **keys}), Ranks()).forward_flops_per_sample
    assert flops is not None
    return flops


def test_a_perceptron_is_two_flops_a_weight():
    workload = load(Trial(model="mlp_wide", **SYNTHETIC), Ranks())
    weights = sum(p.numel() for p in workload.model.parameters() if p.ndim == 2)
    assert workload.forward_flops_per_sample == 2 * weights


@pytest.mark.parametrize(
    ("model", "flops"),  # published multiply-adds x 2, where the model is the published one at its size
    [("resnet8", 25_003_264), ("resnet18", 74_033_152), ("resnet50", 166_862_848)],
)
def test_networks_need_what_they_need(model, flops):
    assert counted(model) == flops


def of_gpt2(layers: int, width: int, length: int) -> int:
    """By hand, of a sequence: two for each weight of a matrix, scores included, and attention over all places."""
    weights = layers * 12 * width**2 + 50_257 * width
    return length * (2 * weights + layers * 4 * length * width)


def of_vit(patch: int, width: int, depth: int, heads: int, hidden: int) -> int:
    """By hand, of one image of 32 pixels: two for each weight that a token meets, and attention over all tokens."""
    patches, inner = (32 // patch) ** 2, 64 * heads
    tokens = 1 + patches
    weights = width * 3 * inner + inner * width + 2 * width * hidden
    block = 2 * tokens * weights + 4 * tokens**2 * inner
    return 2 * patches * 15 * patch**2 * width + depth * block + 2 * width * 10


def test_transformers_need_what_their_matrices_and_attention_do():
    pytest.importorskip("transformers")
    assert counted("gpt2_tiny", sequence_length=16) == of_gpt2(layers=2, width=64, length=16)
    assert counted("vit_small_dataset") == of_vit(patch=4, width=512, depth=4, heads=6, hidden=256)


def test_flops_are_of_a_sample_whatever_the_batch():
    assert counted("resnet8", batch_per_worker=2) == counted("resnet8", batch_per_worker=16)
    assert counted("resnet8", precision="bf16") == counted("resnet8")


@pytest.mark.parametrize("model", ["resnet8", "albert_tiny", "transformer_lm"])
def test_nothing_stays_behind(model):
    workload = load(Trial(model=model, find="parity", **SYNTHETIC), Ranks())
    assert workload.forward_flops_per_sample is None, "a gate is not measured"
    state = {name: value.clone() for name, value in workload.model.state_dict().items()}
    random, first = torch.random.get_rng_state(), workload.batches.peek()
    assert forward_flops_per_sample(workload)
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in workload.model.state_dict().items())
    assert all(a is b for a, b in zip(first, next(workload.batches), strict=True))
    assert all(p.grad is None for p in workload.model.parameters())


def test_a_model_that_takes_no_part_of_a_batch_has_none():
    workload = load(Trial(model="resnet8", find="parity", **SYNTHETIC), Ranks())

    def whole_batches_only(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if len(batch[0]) != 4:
            raise RuntimeError("shape '[4]' is invalid")
        return batch[0].mean()

    assert forward_flops_per_sample(replace(workload, loss=whole_batches_only)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("resnet8", {"batch_per_worker": 64}),
        ("resnet8", {"batch_per_worker": 64, "precision": "bf16"}),
        ("vit_small_dataset_tiny", {"batch_per_worker": 64}),
        ("gpt2_tiny", {"batch_per_worker": 8, "precision": "bf16"}),
        pytest.param("gpt2", {"batch_per_worker": 1, "precision": "bf16"}, marks=pytest.mark.long),
    ],
)
def test_operators_move_at_least_what_the_roofline_estimates(
    model: str, keys: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """And less than three times that, so the estimate is of use where nothing was counted."""
    workload = load(Trial(model=model, **{**SYNTHETIC, **keys}), Ranks())
    optimizer = workload.optimizer(workload.model.parameters())
    memory, wire = Memory(workload.model, optimizer, torch.device("cpu")), Wire()

    def step() -> None:
        workload.share(workload.model, next(workload.batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # the optimiser's state is there from the second on
    with memory.watching(), wire:
        step()
    kinds = memory.by_kind()
    state, activations = (
        sum(roofline.USES[f"{kind}_bytes"] * kinds[kind] for kind in of)
        for of in (("parameters", "gradients", "optimizer"), ("activations",))
    )
    with capsys.disabled():
        print(f"\n{model}, {keys}: {wire.moved_bytes:,} bytes counted, {state:,} + {activations:,} estimated")
    assert state + activations <= wire.moved_bytes < 3 * (state + activations)
