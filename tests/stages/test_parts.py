"""A model in parts, as one: the norm of all its gradients, and checkpoints that another cut can load."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scaling_study import workloads
from scaling_study.ranks import Ranks, as_pipelined
from scaling_study.stages import Parts, Place, cut
from scaling_study.trial import Trial

CPU = torch.device("cpu")


class Alone(Place):
    """A place in a pipeline whose other workers are not there to add anything up."""

    def added_up(self, value: torch.Tensor) -> torch.Tensor:
        return value


def pipeline_of(model: str, **keys: object) -> tuple[workloads.Workload, list[Parts]]:
    """Both stages of a model, in one process, after one step of which the gradients are left."""
    asked = as_pipelined(replace(Trial(
        framework="torch_pipeline", model=model, batch_per_worker=4, workers=2, device="cpu", data="synthetic",
        find="parity", sequence_length=8 if model == "albert_tiny" else None,
    ), **keys))  # type: ignore[arg-type]  # fmt: skip
    workload = workloads.load(asked, Ranks())
    whole = cut(workload, asked, CPU, lambda value: value)
    parts = []
    for worker in range(2):
        kept = whole.keep([worker])
        adam = torch.optim.Adam(kept.module().parameters(), lr=0.01)
        parts.append(Parts(asked, Alone(Ranks(worker, 2), 0, worker, (worker,), worker == 1), None, kept, adam))
    workload.loss(workload.model, next(workload.batches)).backward()
    for part in parts:
        part.optimizer.step()
    return workload, parts


MODELS = ["resnet8", *(["albert_tiny"] if importlib.util.find_spec("transformers") else [])]


@pytest.mark.parametrize("model", MODELS)
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
