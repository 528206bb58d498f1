"""A model in stages: every weight in one of them, under the whole's names; shared ones named; shapes known unrun."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from scaling_study import workloads
from scaling_study.ranks import Ranks, as_pipelined
from scaling_study.stages import cut, micro_batches
from scaling_study.stages.stage import layer_seconds
from scaling_study.trial import Trial

CPU = torch.device("cpu")
MODELS = ("resnet8", "albert_tiny", "transformer_lm", "iformer_tiny", "vit_small_dataset_tiny")


def trial(model: str, **keys: object) -> Trial:
    asked = Trial(
        framework="torch_pipeline", model=model, batch_per_worker=4, workers=2, micro_batches=2, device="cpu",
        data="synthetic", find="parity", sequence_length=8 if "_lm" in model or "albert" in model else None,
        image_size=32 if "iformer" in model else None,
    )  # fmt: skip
    return as_pipelined(replace(asked, **keys))  # type: ignore[arg-type]


def the_cut(asked: Trial):
    workload = workloads.load(asked, Ranks())
    return workload, cut(workload, asked, CPU, lambda value: value)


@pytest.mark.parametrize("model", MODELS)
def test_the_stages_one_after_the_other_are_the_model(model):
    workload, made = the_cut(trial(model))
    batch = next(workload.batches)
    x, extras = made.inputs(batch), made.extras(batch)
    for index, stage in made.stages.items():
        part = x[: len(x) // 2]  # shapes are those of a micro-batch
        assert (part.shape, x.dtype) == (made.shapes[index].shape, made.shapes[index].dtype)
        x = stage(x, **extras)
    assert torch.equal(made.loss(x, made.target(batch)), workload.loss(workload.model, batch))
    assert [shape.requires_grad for shape in made.shapes] == [False, True, True]


@pytest.mark.parametrize("model", MODELS)
def test_every_weight_is_in_a_stage_under_its_own_name(model):
    workload, made = the_cut(trial(model))
    parts = [made.keep([index]).weights() for index in made.stages]
    whole = workload.model.state_dict()
    assert set().union(*parts) == set(whole)
    twice = {name for name in parts[0] if name in parts[1]}
    assert twice >= set(made.shared) and bool(made.shared) == (model == "albert_tiny")
    assert (
        sum(about.parameters - about.shared_parameters for about in made.about)
        + sum(dict(workload.model.named_parameters())[name].numel() for name in made.shared)
        == workload.parameters
    )


@pytest.mark.parametrize("model", [model for model in MODELS if model != "albert_tiny"])  # its layers are one
def test_what_a_rank_does_not_keep_is_freed(model):
    workload, made = the_cut(trial(model))
    dropped = [weakref.ref(parameter) for parameter in made.stages[0].parameters()]
    kept = made.keep([1])
    workload.model, workload.chain = kept.module(), None  # as place.hand_over does
    del made
    gc.collect()
    assert dropped and not [parameter for parameter in dropped if parameter() is not None]
    assert all(parameter.numel() for parameter in kept.module().parameters())


def test_a_weight_in_no_stage_stops_everything():
    asked = trial("resnet8")
    workload = workloads.load(asked, Ranks())
    workload.model.forgotten = nn.Parameter(torch.zeros(3))  # F15: moved about by hand, and lost
    with pytest.raises(RuntimeError, match=r"1 tensors of resnet8 are in no stage and would not be trained: \['forg"):
        cut(workload, asked, CPU, lambda value: value)


def test_a_cut_by_hand_must_name_every_layer():
    with pytest.raises(SystemExit, match="--stage-cut 1,9 is 10 layers in 2 stages, not 5 in 2"):
        the_cut(trial("resnet8", stage_cut="1,9"))
    _, made = the_cut(trial("resnet8", stage_cut="1,4"))
    assert [len(about.layers) for about in made.about] == [1, 4]


def test_measuring_layers_leaves_the_model_as_it_was():
    asked = trial("resnet8")
    workload = workloads.load(asked, Ranks())
    before = {name: value.clone() for name, value in workload.model.state_dict().items()}
    random = torch.get_rng_state()
    seconds = layer_seconds(workload.chain(workload.model), workload.batches.peek(), CPU, "fp32")
    assert len(seconds) == 5 and min(seconds) > 0
    assert all(torch.equal(value, before[name]) for name, value in workload.model.state_dict().items())
    assert all(p.grad is None for p in workload.model.parameters())
    assert torch.equal(random, torch.get_rng_state())


def test_batchnorm_of_micro_batches_is_named():
    resnet, norm_free = (workloads.load(trial(model), Ranks()) for model in ("resnet8", "resnet8_groupnorm"))
    assert micro_batches(resnet, 2) == ["BatchNorm sees micro-batches of 2 samples, not the batch of 4"]
    assert micro_batches(resnet, 1) == micro_batches(norm_free, 2) == []
