"""iFormer as a workload: what the published study trained, whole and layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from scaling_study.datasets import Data
from scaling_study.ranks import Ranks
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial
from scaling_study.workloads import Workload, load
from scaling_study.workloads.iformer import Block
from scaling_study.workloads.workload import autocast


def tiny(rank: int = 0, world_size: int = 1, **keys: object) -> Workload:
    torch.set_num_threads(1)
    asked = {"model": "iformer_tiny", "data": "synthetic", "batch_per_worker": 4, "image_size": 32, **keys}
    return load(Trial(**asked), Ranks(rank, world_size))


@pytest.mark.slow
def test_the_published_parameters_at_the_published_size() -> None:
    workload = load(Trial(model="iformer_small", data="synthetic", batch_per_worker=1), Ranks())
    assert workload.parameters == 19_485_194
    pixels, labels = next(workload.batches)
    assert pixels.shape == (1, 3, 224, 224)
    model = workload.model.eval()  # one image alone has no variance
    with torch.no_grad():
        assert workload.loss(model, (pixels, labels)).isfinite()


def test_the_test_size_is_small_and_has_every_part() -> None:
    workload = load(Trial(model="iformer_tiny", data="synthetic", batch_per_worker=2), Ranks())
    assert next(workload.batches)[0].shape == (2, 3, 64, 64)
    assert workload.parameters < 1_000_000
    names = [name for name, _ in workload.model.named_parameters()]
    for part in ("position", "scale", "attend.qkv", "convolve", "pool.1", "fuse"):
        assert any(part in name for name in names), part


def test_the_rate_is_published_not_scaled_by_workers() -> None:
    def group(world: int, **keys: object) -> dict[str, object]:
        workload = tiny(0, world, **keys)
        optimizer = workload.optimizer(workload.model.parameters())
        assert isinstance(optimizer, torch.optim.AdamW)
        return optimizer.param_groups[0]

    assert (group(1)["lr"], group(4)["lr"], group(4, learning_rate=0.1)["lr"]) == (1e-3, 1e-3, 0.1)
    assert (group(1)["betas"], group(1)["weight_decay"]) == ((0.9, 0.999), 0.01)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_the_chain_is_the_model_bit_by_bit(precision: str) -> None:
    workload = tiny(precision=precision)
    batch = next(workload.batches)
    assert workload.chain
    whole = workload.loss(workload.model, batch)
    with autocast(torch.device("cpu"), precision):
        layered = workload.chain(workload.model)(batch)
    assert whole.equal(layered)
    gradients = [torch.autograd.grad(loss, list(workload.model.parameters())) for loss in (whole, layered)]
    assert all(a.equal(b) for a, b in zip(*gradients, strict=True))


def test_every_parameter_and_buffer_is_in_exactly_one_layer() -> None:
    """F15: a pipeline that moved the position embeddings by hand trained none of them."""
    model = tiny().model
    chain = load(Trial(model="iformer_tiny", data="synthetic"), Ranks()).chain
    assert chain
    layers = chain(model).layers
    held = [id(t) for layer in layers.values() for t in (*layer.parameters(), *layer.buffers())]
    everything = [id(t) for t in (*model.parameters(), *model.buffers())]
    assert sorted(held) == sorted(everything) and len(set(held)) == len(held)
    positions = [name for name, p in model.named_parameters() if "position" in name and p.requires_grad]
    assert positions == ["stem.position", "downsampling2.position", "downsampling3.position", "downsampling4.position"]
    assert list(layers)[:3] == ["stem", "stage1_block1", "downsampling2"] and list(layers)[-1] == "head"


def test_blocks_are_what_a_sharded_framework_wraps() -> None:
    workload = tiny()
    assert workload.blocks == (Block,)
    inside = sum(p.numel() for m in workload.model if isinstance(m, Block) for p in m.parameters())
    assert inside > workload.parameters / 2


def test_samples_differ_where_they_must_be_told_apart_and_nowhere_else() -> None:
    resident = tiny(batch_per_worker=2).batches
    assert next(resident)[0].equal(next(resident)[0])
    told_apart = tiny(batch_per_worker=2, find="parity", precision="fp64").batches
    first, second = next(told_apart)[0], next(told_apart)[0]
    assert first.dtype == torch.float64 and not first.equal(second)
    ids = told_apart.ids
    again = tiny(batch_per_worker=2, find="parity", precision="fp64").batches
    assert again.fetch(ids)[0].equal(second)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_memory_format_reaches_the_batch_and_changes_no_number(memory_format: str) -> None:
    workload = tiny(memory_format=memory_format, precision="fp64")
    pixels, labels = next(workload.batches)
    channels_last = pixels.is_contiguous(memory_format=torch.channels_last)
    assert channels_last == (memory_format == "channels_last")
    loss, plain = workload.loss(workload.model, (pixels, labels)), tiny(precision="fp64")
    torch.testing.assert_close(loss, plain.loss(plain.model, (pixels, labels)))


def test_an_image_size_that_cannot_be_pooled_is_one_line() -> None:
    with pytest.raises(SystemExit, match="--model iformer_tiny: image size 40: it must be a multiple of 16"):
        tiny(image_size=40)


def test_a_study_may_ask_for_a_tree_or_cifar10_and_for_no_text(
    plan_of: Callable[..., Plan], problems_of: Callable[[str], list[str]]
) -> None:
    study = "study: one\nsweeps:\n  - {framework: single, model: iformer_tiny, data: DATA}\n"
    for data in ("auto", "images", "cifar10", "synthetic"):
        assert plan_of(study.replace("DATA", data)).configurations[0].trial.data == data
    instead = {"images": Data("cifar10", "no DATA_PATH is set")}
    assert plan_of(study.replace("DATA", "auto"), data=instead).configurations[0].trial.data == "cifar10"
    said = "study.yaml:3: model iformer_tiny trains on images or cifar10, not on cola"
    assert problems_of(study.replace("DATA", "cola")) == [said]
