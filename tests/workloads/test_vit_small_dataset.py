"""The vision transformer for small data sets is the published one, is trained by every framework, and to a result."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_cifar import tiny_cifar

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads.vit_small_dataset import (
    SMALL,
    TINY,
    Attention,
    Block,
    Size,
    SmallVisionTransformer,
    patches_of,
    shifted,
)
from scaling_study.workloads.workload import Workload

SIZES = {"vit_small_dataset": (SMALL, 4_371_438), "vit_small_dataset_tiny": (TINY, 327_180)}
TINY_ONE = {"model": "vit_small_dataset_tiny", "data": "synthetic", "batch_per_worker": 4}


def workload(world_size: int = 1, **keys: object) -> Workload:
    torch.set_num_threads(1)
    return load(Trial(**{**TINY_ONE, **keys}), Ranks(0, world_size))


# --- the model ---


@pytest.mark.parametrize("model", SIZES)
def test_parameters_are_as_published_and_blocks_are_what_is_wrapped(model: str) -> None:
    size, parameters = SIZES[model]
    loaded = workload(model=model)
    assert loaded.parameters == parameters
    assert sum(isinstance(module, Block) for module in loaded.model.modules()) == size.depth
    assert loaded.blocks == (Block,)
    assert all(parameter.ndim for parameter in loaded.model.parameters()), "DeepSpeed partitions no 0-dim tensor"


@pytest.mark.slow
@pytest.mark.parametrize("model", SIZES)
def test_it_computes_what_an_independent_implementation_computes(model: str) -> None:
    vit = pytest.importorskip("vit_pytorch.vit_for_small_dataset", reason="vit-pytorch is not installed")
    size, parameters = SIZES[model]
    torch.manual_seed(0)
    theirs = vit.ViT(
        image_size=32, patch_size=size.patch, num_classes=10, dim=size.width, depth=size.depth, heads=size.heads,
        mlp_dim=size.hidden, dropout=0.1, emb_dropout=0.1,
    ).eval()  # fmt: skip
    ours = SmallVisionTransformer(size, classes=10, image_size=32, dropout=0.1).eval()
    weights, named = list(theirs.parameters()), dict(ours.named_parameters())
    assert sum(weight.numel() for weight in weights) == parameters and len(weights) == len(named)
    given = {}
    for (name, own), weight in zip(named.items(), weights, strict=True):  # in one order; ours have no empty dimensions
        assert [n for n in weight.shape if n > 1] == [n for n in own.shape if n > 1], name
        given[name] = weight.detach().reshape(own.shape)
    ours.load_state_dict(given)
    images = torch.randn(8, 3, 32, 32)
    assert (ours(images) - theirs(images)).abs().max() < 1e-6
    assert (ours.double()(images.double()) - theirs.double()(images.double())).abs().max() < 1e-13
    (ours(images.double()).sum() - theirs(images.double()).sum()).backward()
    for (name, own), weight in zip(named.items(), weights, strict=True):
        torch.testing.assert_close(own.grad, -weight.grad.reshape(own.shape), rtol=1e-9, atol=1e-12, msg=name)


def test_each_copy_of_an_image_is_moved_by_one_pixel_and_zeros_move_in() -> None:
    image = torch.arange(1.0, 5.0).view(1, 1, 2, 2).expand(1, 3, 2, 2)  # rows 1 2 and 3 4
    moved = shifted(image)
    assert moved.shape == (1, 15, 2, 2)
    assert [moved[0, 3 * copy].flatten().tolist() for copy in range(5)] == [
        [1, 2, 3, 4], [0, 1, 0, 3], [2, 0, 4, 0], [0, 0, 1, 2], [3, 4, 0, 0],
    ]  # fmt: skip


def test_patches_are_read_row_by_row_and_channels_last() -> None:
    maps = torch.arange(32).view(1, 2, 4, 4)  # the second channel is the first one + 16
    patches = patches_of(maps, 2)
    assert patches.shape == (1, 4, 8)
    assert patches[0, 1].tolist() == [2, 18, 3, 19, 6, 22, 7, 23], "the patch on the upper right"


def test_no_token_attends_to_itself_and_the_temperature_is_learned() -> None:
    attention = Attention(Size(patch=8, width=16, depth=1, heads=2, hidden=16), dropout=0.0).double()
    assert attention.temperature.shape == (1,) and attention.temperature.exp().item() == pytest.approx(1 / 8)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    q, k, v = (
        part.unflatten(-1, (2, 64)).transpose(1, 2) for part in (normal @ attention.qkv.weight.T).chunk(3, dim=-1)
    )
    for temperature in (0.125, 0.7):
        with torch.no_grad():
            attention.temperature.fill_(math.log(temperature))
        scores = (q @ k.transpose(2, 3) * temperature).masked_fill(torch.eye(5).bool(), -math.inf)
        expected = attention.project((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(attention(x), expected, rtol=1e-10, atol=1e-12)
    attention(x).sum().backward()
    assert attention.temperature.grad


# --- its training ---


def test_a_training_takes_back_only_what_was_multiplied_by_workers(tmp_path: Path) -> None:
    with tiny_cifar(tmp_path):
        for model, rate in (("vit_small_dataset_tiny", 1e-4), ("resnet8", 0.01)):
            loaded = workload(4, model=model, data="cifar10", train_steps=1)
            assert loaded.optimizer(loaded.model.parameters()).param_groups[0]["lr"] == pytest.approx(rate)


def test_dropout_is_what_the_trial_asks_for() -> None:
    for asked, expected in ((None, 0.1), (0.0, 0.0), (0.25, 0.25)):
        loaded = workload(dropout=asked)
        assert {module.p for module in loaded.model.modules() if isinstance(module, torch.nn.Dropout)} == {expected}
    assert Trial(dropout=0.0).id != Trial().id == Trial(dropout=None).id
