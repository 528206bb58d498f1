"""Tripnets as workloads: their batches, their losses by head, their parts, and what a frozen backbone saves."""

from __future__ import annotations

import pytest
import torch

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads import workload as optimizers
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.tripnet import FrozenFeatures
from scaling_study.workloads.workload import Workload

KEYS = {"model": "tripnet_squeezenet", "data": "synthetic", "batch_per_worker": 4, "image_size": 64}
HEADS = ["instrument", "verb", "target", "triplet"]


def loaded(**keys: object) -> Workload:
    return load(Trial(**{**KEYS, **keys}), Ranks())  # type: ignore[arg-type]


def test_frames_are_seven_quarters_as_wide_as_high_unless_their_width_is_given() -> None:
    frames, labels, video = next(loaded().batches)
    assert frames.shape == (4, 3, 64, 112) and frames.dtype == torch.float32
    assert labels.shape == (4, 131) and set(labels.unique().tolist()) <= {0.0, 1.0} and video.shape == (4,)
    assert next(loaded(image_width=80).batches)[0].shape == (4, 3, 64, 80)


def test_the_loss_is_the_sum_of_the_heads_own_and_each_is_noted() -> None:
    workload = loaded()
    assert workload.loss_parts is not None
    workload.loss_parts.forget()
    losses = [float(workload.loss(workload.model, next(workload.batches)).detach()) for _ in range(2)]
    means = workload.loss_parts.means(Ranks())
    assert list(means) == ["loss_i", "loss_v", "loss_t", "loss_ivt"]
    assert sum(means.values()) == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert workload.loss_parts.means(Ranks()) == {}, "each row has its own"


def test_parts_have_their_own_rates_and_groups_are_named_by_them() -> None:
    workload = loaded(part_learning_rates="backbone=0.0001,verb=0.1", learning_rate=0.01)
    optimizer = workload.optimizer(workload.model.parameters())
    groups = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert groups == {"instrument": 0.01, "verb": 0.1, "target": 0.01, "triplet": 0.01, "backbone": 0.0001}
    of_groups = workload.optimizer(workload.grouped(workload.model.parameters()))
    assert {group["name"]: group["lr"] for group in of_groups.param_groups} == groups
    frozen = loaded(freeze="backbone")
    assert [group["name"] for group in frozen.optimizer(frozen.model.parameters()).param_groups] == HEADS


def test_a_framework_that_makes_other_parameters_of_a_models_is_refused() -> None:
    flat = torch.nn.Parameter(torch.zeros(7))
    with pytest.raises(SystemExit, match="this framework flattens weights"):
        optimizers.grouped(loaded().model, [flat])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {"model": "resnet8", "image_size": None, "freeze": "backbone"},
            "model resnet8 has no parts that can be frozen",
        ),
        ({"freeze": "backbone", "part_learning_rates": "backbone=1"}, "freeze=backbone trains no backbone"),
        ({"part_learning_rates": "instrument=0"}, "a part at learning rate 0 does not train"),
        ({"image_size": 8}, "--model tripnet_squeezenet: frames of 8 x 14 pixels are too small"),
    ],
)
def test_what_would_not_train_is_refused(keys: dict[str, object], why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        loaded(**keys)


def test_features_are_computed_once_and_equal_what_the_model_makes_of_frames() -> None:
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3, 4), torch.nn.BatchNorm2d(5))
    features = FrozenFeatures(backbone, "fp32", Ranks())
    read: list[list[int]] = []

    def fetch(ids: torch.Tensor) -> Batch:
        read.append(ids.tolist())
        return torch.stack([torch.full((3, 16, 16), float(id)) for id in ids]), ids.double()

    first = features.batch(torch.tensor([3, 1]), fetch)
    again = features.batch(torch.tensor([1, 3]), fetch)
    assert read == [[3, 1]] and features.computed == 2
    assert first[0].equal(backbone.eval()(fetch(torch.tensor([3, 1]))[0])) and not first[0].requires_grad
    assert again[0].equal(first[0].flip(0)) and again[1].tolist() == [1.0, 3.0]
    features.batch(torch.tensor([3, 9]), fetch)
    assert read[-1] == [3, 9] and features.computed == 3, "one that is missing: the whole batch is read"
    assert features.notes()[0].startswith("features of the frozen backbone: of 3 frames, computed once")


def test_what_does_not_fit_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling_study.workloads.tripnet.MOST_BYTES", 1)
    features = FrozenFeatures(torch.nn.Identity(), "fp32", Ranks())
    for _ in range(2):
        features.batch(torch.tensor([0, 1]), lambda ids: (torch.zeros(len(ids), 3, 2, 2),))
    assert features.computed == 3 and "2 times of frames that were not kept" in features.notes()[0]
