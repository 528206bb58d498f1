"""Every workload: what trains is the same wherever and whenever a seed and a rank ask for it, and it learns.

A model gets its row in ONES; what only one model does is tested in its own file beside this one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.nn import Dropout

from scaling_study.datasets import SCENES, NoData
from scaling_study.machine import installed
from scaling_study.models import OURS
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import Workload, cifar10, cola, load, prepare, wikitext2
from scaling_study.workloads.workload import fused


@dataclass(frozen=True)
class One:
    """A small model of a workload. `dropped`: its shares of dropout, where no parity is asked for."""

    model: str
    parameters: int | None = None
    keys: dict[str, Any] = field(default_factory=dict)
    dropped: frozenset[float] = frozenset()
    first_loss: float | None = None  # where at first every class is as likely as any other
    rates: tuple[float, float] = (0.0, 0.0)  # the optimiser's own, of one worker and of two
    blocks: int = 0  # layers that a sharded framework wraps

    def load(self, rank: int = 0, world_size: int = 1, **keys: Any) -> Workload:
        if absent := [name for name in OURS[self.model].needs if not installed(name)]:
            pytest.skip(f"{absent[0]} is not installed")
        torch.set_num_threads(1)
        asked = {"model": self.model, "data": "synthetic", "batch_per_worker": 4, **self.keys, **keys}
        return load(Trial(**asked), Ranks(rank, world_size))


TEXT = {"batch_per_worker": 2, "sequence_length": 8}
ONES = [
    One("resnet8", 78_042, {"learning_rate": 0.05}, rates=(0.01, 0.02), blocks=3),
    One("iformer_tiny", None, {"image_size": 32}, rates=(1e-3, 1e-3), blocks=5),
    One("vit_small_dataset_tiny", 327_180, {"learning_rate": 1e-3}, frozenset({0.1}), rates=(1e-4, 1e-4), blocks=2),
    One("timm_vit_tiny", 245_098, rates=(1e-3, 1e-3), blocks=2),
    One("albert_tiny", 1_016_386, {"learning_rate": 1e-3}, frozenset({0.0, 0.1}), rates=(2e-5, 4e-5), blocks=1),
    One("transformer_lm", 12_025_582, TEXT, frozenset({0.2}), math.log(28_782), (5.0, 10.0), 2),
    One("gpt2_tiny", 3_382_080, TEXT, frozenset({0.1}), math.log(wikitext2.PAIR_VOCABULARY), (6e-4, 6e-4), 2),
    One("llama_tiny", 164_160, {**TEXT, "learning_rate": 1e-3}, frozenset(), math.log(512), (3e-4, 3e-4), 2),
]
LARGE = [  # are counted, and built for nothing else
    One("resnet8_groupnorm", 78_042),
    One("resnet18", 11_181_642),
    One("resnet50", 23_528_522),
    One("resnet50", 25_557_032, {"classes": 1000, "batch_per_worker": 2}),  # torchvision's, of ImageNet's classes
    One("mlp_wide", 79_753_226),  # 16 bytes each: more than a GiB of state
    One("gpt2", 124_439_808, TEXT),
    One("albert_base_v2", 11_685_122),
    One("transformer_lm_deep", 43_426_926),
    One("transformer_lm_unmasked", 12_025_582),
    One("vit_small_dataset", 4_371_438),
]
each = pytest.mark.parametrize("one", ONES, ids=lambda one: one.model)


def some(*models: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("one", [one for one in ONES if one.model in models], ids=lambda one: one.model)


@pytest.mark.parametrize(
    "one",
    [*(one for one in ONES if one.parameters), *(pytest.param(one, marks=pytest.mark.slow) for one in LARGE)],
    ids=lambda one: one.model,
)
def test_parameter_counts(one: One) -> None:
    loaded = one.load()
    assert loaded.parameters == one.parameters
    assert all(parameter.ndim for parameter in loaded.model.parameters()), "DeepSpeed partitions no 0-dim tensor"


@each
def test_the_same_seed_gives_the_same_weights_on_every_rank_and_another_does_not(one: One) -> None:
    a, b, c = (one.load(rank, 2, seed=seed).model.state_dict() for rank, seed in ((0, 1), (1, 1), (0, 2)))
    assert all(a[name].equal(b[name]) for name in a)
    assert any(not a[name].equal(c[name]) for name in a)


@each
def test_nothing_is_random_where_parity_is_asked_for(one: One) -> None:
    exact, usual = one.load(find="parity"), one.load()
    batch = next(exact.batches)
    assert exact.loss(exact.model, batch).equal(exact.loss(exact.model, batch)) and usual.model.training

    def dropped(workload: Workload) -> set[float]:
        return {module.p for module in workload.model.modules() if isinstance(module, Dropout)}

    assert dropped(exact) <= {0.0} and dropped(usual) - {0.0} == one.dropped - {0.0}


@each
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow), "fp64"])
def test_a_few_steps_lower_the_loss(one: One, precision: str) -> None:
    workload = one.load(precision=precision)
    optimizer = workload.optimizer(workload.model.parameters())
    batch, losses = next(workload.batches), []
    for _ in range(8):
        loss = workload.loss(workload.model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert one.first_loss is None or losses[0] == pytest.approx(one.first_loss, abs=0.5)


@each
def test_the_published_rate_is_taken_unless_another_is_given(one: One) -> None:
    def rate(world_size: int, given: float | None = None) -> float:
        loaded = one.load(0, world_size, learning_rate=given)
        return float(loaded.optimizer(loaded.model.parameters()).param_groups[0]["lr"])

    assert (rate(1), rate(2), rate(2, 0.3)) == (*one.rates, 0.3)
    assert one.load().scales_rate == (one.rates[0] != one.rates[1])
    made = one.load().optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(made, torch.optim.SGD) == OURS[one.model].sgd, "of which FSDP2 has no fused kernel"


@some("resnet8", "timm_vit_tiny", "transformer_lm", "gpt2_tiny")
@pytest.mark.slow
def test_a_fused_update_is_the_same_update_by_fewer_kernels(one: One) -> None:
    weights, kernels = [], []
    for kind in ("default", "fused"):
        workload = one.load(optimizer_kernels=kind, precision="fp64")
        workload.model.eval()  # no dropout
        optimizer = workload.optimizer(workload.model.parameters())
        for _ in range(3):
            workload.loss(workload.model, next(workload.batches)).backward()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                optimizer.step()
            optimizer.zero_grad()
        weights.append([weight.detach().clone() for weight in workload.model.parameters()])
        kernels.append({event.name for event in seen.events() or () if "_fused_" in event.name})
    for plain, other in zip(*weights, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-9, atol=1e-12)
    assert not kernels[0] and kernels[1], "it was torch's fused kernel that stepped"


def test_an_optimiser_without_a_fused_kernel_is_named() -> None:
    with pytest.raises(SystemExit, match="torch has no fused RMSprop: leave optimizer_kernels out"):
        fused(torch.optim.RMSprop)([torch.nn.Parameter(torch.zeros(1))])


def test_an_accumulation_that_does_not_divide_the_batch_is_refused_by_hand_too() -> None:
    """It would leave fewer micro-batches, none of them the last, and workers that never exchange gradients."""
    with pytest.raises(SystemExit, match="--accumulation 4 does not divide --batch-per-worker 5"):
        load(Trial(model="resnet8", data="synthetic", batch_per_worker=5, accumulation=4), Ranks())


@some("resnet8", "gpt2_tiny", "albert_tiny")
def test_resident_batches_are_read_in_turn_and_each_rank_has_its_own(one: One) -> None:
    single, first, second = (
        [tensors[0].clone() for tensors in itertools.islice(one.load(rank, 2, resident_batches=count).batches, 7)]
        for rank, count in ((0, None), (0, 3), (1, 3))
    )
    assert all(batch.equal(single[0]) for batch in single), "one, read again each step"
    assert first[0].equal(single[0]) and first[3].equal(first[0]) and first[6].equal(first[0])
    different = [*first[:3], *second[:3]]
    assert not any(a.equal(b) for a, b in itertools.combinations(different, 2))


@pytest.mark.parametrize("model", ["resnet8", "vit_small_dataset_tiny", "timm_vit_tiny"])
def test_synthetic_images_are_of_the_classes_the_size_and_the_memory_format_that_were_asked_for(model: str) -> None:
    layout = {} if model.startswith("vit") else {"memory_format": "channels_last"}
    keys = {"classes": 1000, "image_size": 48, "batch_per_worker": 64, "resident_batches": 2}
    workload = One(model).load(**keys, **layout)
    images, labels = next(workload.batches)
    assert images.shape == (64, 3, 48, 48) and 10 < labels.max() < 1000
    assert not layout or images.is_contiguous(memory_format=torch.channels_last)
    assert workload.model(images[:2]).shape == (2, 1000) and workload.loss(workload.model, (images, labels)).isfinite()
    ring = [next(workload.batches)[0].data_ptr() for _ in range(4)]
    copied = model.startswith("timm")  # renormalised in each step, as real images are
    assert copied or (ring[0] == ring[2] and ring[1] == ring[3]), "as they lie on the device, laid out for the model"


@each
def test_its_blocks_are_what_a_sharded_framework_wraps(one: One) -> None:
    loaded = one.load()
    assert sum(isinstance(module, loaded.blocks) for module in loaded.model.modules()) == one.blocks


@pytest.mark.parametrize(
    ("model", "keys", "why"),
    [
        ("albert_tiny", {"sequence_length": 513}, "--sequence-length 513: ALBERT has 512 positions"),
        ("gpt2_tiny", {"sequence_length": 1025}, "--sequence-length 1025: GPT-2 has 1024 positions"),
        ("llama_tiny", {"sequence_length": 131_073}, "--sequence-length 131073: llama_tiny has 131072 positions"),
        ("iformer_tiny", {"image_size": 40}, "--model iformer_tiny: image size 40: it must be a multiple of 16"),
        ("vit_small_dataset_tiny", {"image_size": 36}, "image size 36: it must be a multiple of 8"),
    ],
)
def test_a_size_that_a_model_cannot_take_is_refused(model: str, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        One(model).load(**keys)


@each
def test_synthetic_batches_are_seeded_and_differ_between_ranks(one: One) -> None:
    first, again, other = (next(one.load(rank, 2).batches)[0] for rank in (0, 0, 1))
    assert first.equal(again) and not first.equal(other)


@each
def test_a_sample_is_itself_on_any_rank_where_parity_is_asked_for(one: One) -> None:
    feeds = [one.load(rank, 2, find="parity").batches for rank in range(2)]
    fetched = [feed.fetch(torch.tensor([5, 7])) for feed in feeds]
    assert all(a.equal(b) for a, b in zip(*fetched, strict=True))
    assert not fetched[0][0][0].equal(fetched[0][0][1])


@pytest.mark.parametrize(
    ("model", "module", "reader", "data", "named"),
    [
        ("resnet8", cifar10, "images_and_labels", "cifar10", "CIFAR-10"),
        ("albert_tiny", cola, "sentences", "cola", "CoLA"),
        ("transformer_lm", wikitext2, "tokens", "wikitext2", "WikiText-2"),
        ("gpt2_tiny", wikitext2, "training_text", "wikitext2_bpe", "WikiText-2"),
        ("llama_tiny", wikitext2, "training_text", "wikitext2_bpe", "WikiText-2"),
    ],
)
def test_auto_without_data_is_synthetic_and_says_so(
    model: str, module: Any, reader: str, data: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise NoData(f"{named} is not in /nowhere")

    (one,) = (one for one in ONES if one.model == model)
    monkeypatch.setattr(module, reader, missing)
    assert one.load(data="auto").data_source == f"synthetic ({named} not found)"
    with pytest.raises(SystemExit, match=f"--data {data}: {named} is not in /nowhere"):
        one.load(data=data)


@pytest.mark.parametrize("name", ("cifar10", "cola", "wikitext2", "wikitext2_bpe", "images", "cholect45", SCENES))
def test_a_command_makes_each_data_set_ready(name: str) -> None:
    assert callable(prepare.preparing(name))
