"""The Inception Transformer is the paper's, stage by stage, and trains all that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scaling_study.datasets import DataSource
from scaling_study.ranks import Ranks
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial
from scaling_study.workloads import Workload, load
from scaling_study.workloads.iformer import SMALL, TINY, InceptionTransformer, Mixer


def on_no_device(classes: int = 10, image_size: int = 224) -> InceptionTransformer:
    with torch.device("meta"):
        return InceptionTransformer(SMALL, classes, image_size)


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def by_stage(model: InceptionTransformer) -> Counter[str]:
    """Parameters of each part, blocks of a stage together."""
    counted: Counter[str] = Counter()
    for name, layer in model.named_children():
        counted[name.split("_")[0]] += parameters(layer)
    return counted


def test_the_small_one_has_exactly_its_parameters_stage_by_stage() -> None:
    """Summed by hand from the table."""
    assert (parameters(on_no_device()), parameters(on_no_device(1000))) == (19_485_194, 19_866_344)
    assert by_stage(on_no_device()) == {
        "stem": 43_200 + 56 * 56 * 96,
        "stage1": 3 * 99_392,
        "downsampling2": 166_464 + 28 * 28 * 192,
        "stage2": 3 * 392_832,
        "downsampling3": 553_920 + 14 * 14 * 320,
        "stage3": 4 * 1_121_280 + 5 * 1_189_888,
        "downsampling4": 1_107_072 + 7 * 7 * 384,
        "stage4": 3 * 1_721_856,
        "head": 768 + 3_850,
    }


def test_position_embeddings_are_trained_and_belong_to_one_image_size() -> None:
    """F15: 533,120 of them silently stopped being parameters."""

    def positions(image_size: int) -> int:
        return sum(p.numel() for n, p in on_no_device(image_size=image_size).named_parameters() if "position" in n)

    assert positions(224) == 533_120
    assert positions(64) == 16 * 16 * 96 + 8 * 8 * 192 + 4 * 4 * 320 + 2 * 2 * 384


def test_shapes_from_stage_to_stage() -> None:
    x, shapes = torch.empty(2, 3, 224, 224, device="meta"), {}
    for name, layer in on_no_device().named_children():
        x = layer(x)
        assert x.is_contiguous(), f"{name}: it may be sent to another stage"
        shapes[name.split("_")[0]] = tuple(x.shape)
    assert shapes == {
        "stem": (2, 56, 56, 96), "stage1": (2, 56, 56, 96),
        "downsampling2": (2, 28, 28, 192), "stage2": (2, 28, 28, 192),
        "downsampling3": (2, 14, 14, 320), "stage3": (2, 14, 14, 320),
        "downsampling4": (2, 7, 7, 384), "stage4": (2, 7, 7, 384),
        "head": (2, 10),
    }  # fmt: skip


def test_work_of_one_image_is_the_papers_and_its_stages_have_unequal_shares() -> None:
    """4.8 G multiply-adds, as the paper says; 24, 21, 48 and 6.5 % of them in the stages (F16)."""
    x, work = torch.empty(1, 3, 224, 224, device="meta"), [0, 0, 0, 0]
    stage = 0
    for name, layer in on_no_device().named_children():
        stage += name.startswith("downsampling")
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            x = layer(x)
        work[stage] += counter.get_total_flops() // 2
    assert sum(work) == pytest.approx(4.8e9, rel=0.01)
    assert [100 * one / sum(work) for one in work] == pytest.approx([24, 21, 48, 6.5], abs=0.3)


@pytest.mark.parametrize("pool", [1, 2])
def test_a_mixer_by_the_plain_formulas(pool: int) -> None:
    """Attention written out head by head; each path touches its own channels only."""
    torch.manual_seed(0)
    mixer = Mixer(96, low=64, pool=pool).double()
    attend = mixer.attend
    low = torch.randn(2, 64, 4, 4, dtype=torch.float64)
    small = low if pool == 1 else low.reshape(2, 64, 2, 2, 2, 2).mean(dim=(3, 5))
    tokens = small.flatten(2).mT  # (2, tokens, 64)
    q, k, v = attend.qkv(tokens).split(64, dim=2)
    heads = []
    for part in (slice(0, 32), slice(32, 64)):
        weights = (q[..., part] @ k[..., part].mT / 32**0.5).softmax(dim=-1)
        heads.append(weights @ v[..., part])
    seen = torch.cat(heads, dim=2).mT.reshape(small.shape)
    whole = seen.repeat_interleave(pool, dim=2).repeat_interleave(pool, dim=3)
    torch.testing.assert_close(attend(low), whole)

    high = torch.randn(2, 32, 4, 4, dtype=torch.float64)
    mixed = torch.cat([mixer.convolve(high[:, :16]), mixer.pool(high[:, 16:]), whole], dim=1)
    expected = mixer.project(mixed + mixer.fuse(mixed))
    x = torch.cat([high, low], dim=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(mixer(x), expected.permute(0, 2, 3, 1))


def test_a_gradient_reaches_every_parameter() -> None:
    torch.manual_seed(0)
    model = InceptionTransformer(TINY, 10, 64).double()
    model(torch.randn(3, 3, 64, 64, dtype=torch.float64)).logsumexp(dim=1).sum().backward()
    # whatever a convolution adds to a channel, the BatchNorm behind it takes out again
    idle = {"stem.convolutions.0.bias", "stem.convolutions.3.bias"} | {
        f"downsampling{n}.convolution.0.bias" for n in (2, 3, 4)
    }
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.abs().max() > 1e-12) != (name in idle), name


# --- as a workload ---


def of_trial(memory_format: str) -> Workload:
    keys = {"data": "synthetic", "batch_per_worker": 4, "image_size": 32, "precision": "fp64"}
    return load(Trial(model="iformer_tiny", memory_format=memory_format, **keys), Ranks())


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_memory_format_reaches_the_batch_and_changes_no_number(memory_format: str) -> None:
    workload = of_trial(memory_format)
    pixels, labels = next(workload.batches)
    channels_last = pixels.is_contiguous(memory_format=torch.channels_last)
    assert channels_last == (memory_format == "channels_last")
    loss, plain = workload.loss(workload.model, (pixels, labels)), of_trial("contiguous")
    torch.testing.assert_close(loss, plain.loss(plain.model, (pixels, labels)))


def test_a_study_may_ask_for_a_tree_or_cifar10_and_for_no_text(
    plan_of: Callable[..., Plan], problems_of: Callable[[str], list[str]]
) -> None:
    study = "study: one\nsweeps:\n  - {framework: single, model: iformer_tiny, data: DATA}\n"
    for data in ("auto", "images", "cifar10", "synthetic"):
        assert plan_of(study.replace("DATA", data)).configurations[0].trial.data == data
    instead = {"images": DataSource("cifar10", "no DATA_PATH is set")}
    assert plan_of(study.replace("DATA", "auto"), data=instead).configurations[0].trial.data == "cifar10"
    said = "study.yaml:3: model iformer_tiny trains on images or cifar10, not on cola"
    assert problems_of(study.replace("DATA", "cola")) == [said]
