"""A model in stages: where it is cut, every weight in one of them under its name, and the parts as one again."""

from __future__ import annotations

import gc
import itertools
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from scaling_study import workloads
from scaling_study.ranks import Ranks, in_full
from scaling_study.stages import Parts, Place, cut, micro_batches
from scaling_study.stages.stage import balanced, even, layer_seconds, shared_out, stages_of
from scaling_study.trial import Trial

CPU = torch.device("cpu")


COSTS = st.lists(st.floats(0.01, 10), min_size=1, max_size=8)


def worst(costs, sizes):
    edges = [0, *itertools.accumulate(sizes)]
    return max(sum(costs[a:b]) for a, b in itertools.pairwise(edges))


@given(COSTS, st.integers(1, 8))
def test_a_balanced_cut_is_as_good_as_any(costs, stages):
    if stages > len(costs):
        with pytest.raises(ValueError, match="cannot be cut into"):
            balanced(costs, stages)
        return
    sizes = balanced(costs, stages)
    assert len(sizes) == stages and sum(sizes) == len(costs) and min(sizes) > 0
    every = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(worst(costs, [b - a for a, b in itertools.pairwise((0, *inner, len(costs)))]) for inner in every)
    assert worst(costs, sizes) == pytest.approx(best)


@given(st.integers(1, 40), st.integers(1, 40))
def test_an_even_cut_differs_by_one_layer_at_most(layers, stages):
    if stages > layers:
        with pytest.raises(ValueError, match=f"{layers} layers cannot be cut into {stages} stages"):
            even(layers, stages)
        return
    sizes = even(layers, stages)
    assert sum(sizes) == layers and len(sizes) == stages and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(COSTS)
def test_stages_that_run_in_the_same_round_are_alike(costs):
    if len(costs) < 4:
        with pytest.raises(ValueError, match="cannot be cut into"):
            shared_out(costs, 2, 2)
        return
    sizes = shared_out(costs, 2, 2)
    assert len(sizes) == 4 and sum(sizes) == len(costs) and min(sizes) > 0
    assert rounds(costs, sizes) <= rounds(costs, balanced(costs, 4)) + 1e-9


def rounds(costs, sizes):
    edges = [0, *itertools.accumulate(sizes)]
    a, b, c, d = (sum(costs[start:end]) for start, end in itertools.pairwise(edges))
    return max(a, b) + max(c, d)


def test_who_holds_which_stages():
    assert [stages_of(worker, 2, 1, "1f1b") for worker in range(2)] == [(0,), (1,)]
    assert [stages_of(worker, 2, 2, "interleaved_1f1b") for worker in range(2)] == [(0, 2), (1, 3)]
    assert [stages_of(worker, 4, 2, "zbv_zero_bubble") for worker in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]


MODELS = ("resnet8", "albert_tiny", "transformer_lm", "iformer_tiny", "vit_small_dataset_tiny")


def trial(model: str, **keys: object) -> Trial:
    asked = Trial(
        framework="torch_pipeline", model=model, batch_per_worker=4, workers=2, micro_batches=2, device="cpu",
        data="synthetic", find="parity", sequence_length=8 if "_lm" in model or "albert" in model else None,
        image_size=32 if "iformer" in model else None,
    )  # fmt: skip
    return in_full(replace(asked, **keys))  # type: ignore[arg-type]


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


class Alone(Place):
    """A place in a pipeline whose other workers are not there to add anything up."""

    def added_up(self, value: torch.Tensor) -> torch.Tensor:
        return value


def pipeline_of(model: str, **keys: object) -> tuple[workloads.Workload, list[Parts]]:
    """Both stages of a model, in one process, after one step of which the gradients are left."""
    asked = trial(model, **keys)
    workload, whole = the_cut(asked)
    parts = []
    for worker in range(2):
        kept = whole.keep([worker])
        adam = torch.optim.Adam(kept.module().parameters(), lr=0.01)
        parts.append(Parts(asked, Alone(Ranks(worker, 2), 0, worker, (worker,), worker == 1), None, kept, adam))
    workload.loss(workload.model, next(workload.batches)).backward()
    for part in parts:
        part.optimizer.step()
    return workload, parts


@pytest.mark.parametrize("model", ["resnet8", "albert_tiny"])
def test_every_gradient_is_in_the_norm_once(model: str) -> None:
    """Both stages of ALBERT have its one layer, with the gradient of all its uses."""
    workload, parts = pipeline_of(model)
    assert bool(parts[0].cut.shared) == (model == "albert_tiny")
    right = torch.nn.utils.get_total_norm([p.grad for p in workload.model.parameters() if p.grad is not None])
    norms = [part.norm(list(part.cut.module().parameters())) for part in parts]
    assert all(norm > 0 for norm in norms)
    torch.testing.assert_close(torch.stack(norms).square().sum().sqrt(), right)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [("4,1", "4,1"), ("4,1", "2,3")])
def test_what_one_cut_saved_another_loads(tmp_path: Path, saved_by: str, loaded_by: str) -> None:
    workload, parts = pipeline_of("resnet8", stage_cut=saved_by)
    for part in parts:
        part.save(tmp_path, part.place.ranks)
    other, empty = pipeline_of("resnet8", stage_cut=loaded_by, seed=7)
    assert not torch.equal(other.model.classifier.weight, workload.model.classifier.weight)
    for part in empty:
        part.load(tmp_path, part.place.ranks)
    right = workload.model.state_dict()
    assert all(torch.equal(value, right[name]) for name, value in other.model.state_dict().items())
    moments, ours = moments_of(workload, parts), moments_of(other, empty)
    assert moments.keys() == ours.keys() == {name for name, _ in workload.model.named_parameters()}
    assert all(torch.equal(value, ours[name]) for name, value in moments.items())


def moments_of(workload: workloads.Workload, parts: list[Parts]) -> dict[str, torch.Tensor]:
    names = {id(parameter): name for name, parameter in workload.model.named_parameters()}
    return {names[id(p)]: state["exp_avg_sq"] for part in parts for p, state in part.optimizer.state.items()}
