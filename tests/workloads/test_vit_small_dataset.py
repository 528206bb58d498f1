"""The vision transformer for small data sets is the published one, is trained by every framework, and to a result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_cifar import tiny_cifar

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads.vit_small_dataset import SMALL, TINY, SmallVisionTransformer
from scaling_study.workloads.workload import Workload

SIZES = {"vit_small_dataset": (SMALL, 4_371_438), "vit_small_dataset_tiny": (TINY, 327_180)}
TINY_ONE = {"model": "vit_small_dataset_tiny", "data": "synthetic", "batch_per_worker": 4}


def workload(world_size: int = 1, **keys: object) -> Workload:
    torch.set_num_threads(1)
    return load(Trial(**{**TINY_ONE, **keys}), Ranks(0, world_size))


# --- the model ---


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
