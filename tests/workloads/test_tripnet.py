"""Tripnets: their backbones and heads, their batches, losses and parts, and what a frozen backbone saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load, tripnet, weights
from scaling_study.workloads import workload as optimizers
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.surgical_scenes.triplets import TRIPLETS
from scaling_study.workloads.tripnet import FrozenFeatures, Tripnet, backbone, begin
from scaling_study.workloads.workload import Workload

TORCHVISIONS = ("resnet18", "squeezenet", "mobilenet_v2")


@pytest.mark.parametrize(
    ("name", "channels", "large", "small"),
    [
        ("resnet18", 512, (8, 2), (6, 3)),
        ("mobilenet_v2", 320, (8, 2), (6, 3)),
        ("efficientnet_lite0", 320, (8, 2), (6, 3)),
        ("squeezenet", 512, (15, 3), (5, 2)),
    ],
)
def test_small_frames_have_maps_as_fine_as_large_ones(
    name: str, channels: int, large: tuple[int, int], small: tuple[int, int]
) -> None:
    for (height, width), places in (((256, 64), large), ((96, 48), small)):
        made = backbone(name, height)
        with torch.no_grad():
            features = made.layers.eval()(torch.zeros(1, 3, height, width))
        assert features.shape == (1, channels, *places) and made.channels == channels
        assert tripnet.places_of_map(made.layers, height, width) == places[0] * places[1]
        assert any(isinstance(module, made.blocks) for module in made.layers.modules())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.mark.parametrize("name", TORCHVISIONS)
def test_a_classifiers_weights_are_taken_without_its_last_layers(folder: Path, name: str) -> None:
    from torchvision.models import get_model

    state = get_model(weights.TORCHVISION[name], weights=None).state_dict()
    old = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    torch.save(old, weights.imagenet_file(name))
    made = backbone(name, 96)
    said = begin(made.layers, name, "imagenet")
    assert (said["file"], said["classifier"]) == ("imagenet", "left out") and len(said["sha256"]) == 64
    ours = made.layers.state_dict()
    assert all(value.equal(state[key]) for key, value in ours.items() if not key.endswith("num_batches_tracked"))


def test_imagenets_weights_that_are_not_there_are_one_clear_error(folder: Path) -> None:
    made = backbone("resnet18", 96)
    with pytest.raises(SystemExit) as refused:
        begin(made.layers, "resnet18", "imagenet")
    assert str(refused.value) == (
        f"--weights imagenet: there is no {folder}/resnet18-f37072fd.pth; "
        "python -m scaling_study.workloads.weights tripnet_resnet18 fetches it"
    )


def test_a_trained_tripnets_backbone_is_taken_from_its_best_model(folder: Path) -> None:
    first = backbone("squeezenet", 96).layers.state_dict()
    held = {**{f"backbone.{key}": value for key, value in first.items()}, "verb.context.weight": torch.zeros(1)}
    torch.save({"trial": {}, "step": 3, "weights": held}, folder / "best.pt")
    made = backbone("squeezenet", 96)
    begin(made.layers, "squeezenet", "best.pt")
    assert all(value.equal(first[key]) for key, value in made.layers.state_dict().items())
    with pytest.raises(SystemExit, match="of another model than tripnet_mobilenet_v2: it has no features"):
        begin(backbone("mobilenet_v2", 96).layers, "mobilenet_v2", "best.pt")


def test_the_command_names_what_it_can_fetch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="there is no model 'tripnet_vgg'; it is one of tripnet_resnet18, "):
        weights.main(["tripnet_vgg"])
    torch.save({"a": torch.zeros(1)}, folder / "mobilenet_v2-b0353104.pth")
    weights.main(["tripnet_mobilenet_v2"])
    assert "In a study: {model: tripnet_mobilenet_v2, weights: imagenet}" in capsys.readouterr().out


WHICH = torch.tensor(TRIPLETS)


def small(frozen: bool = False) -> Tripnet:
    torch.manual_seed(1)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU())
    return Tripnet(backbone, 8, 4 * 6, WHICH, frozen)


@pytest.mark.parametrize(("normalised", "parameters"), [(True, 12_261_330), (False, 12_261_268)])
def test_parameter_counts_are_the_published_ones(normalised: bool, parameters: int) -> None:
    backbone = tripnet.backbone("resnet18", 256)
    model = Tripnet(backbone.layers, backbone.channels, 8 * 14, WHICH, normalised=normalised)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


def test_the_heads_columns_stand_in_the_order_of_the_labels() -> None:
    model = small().eval()
    frames = torch.randn(2, 3, 16, 24)
    features = model.features(frames)
    maps = model.class_maps(frames)
    logits = model(frames)
    assert maps.shape == (2, 6, 4, 6) and logits.shape == (2, 131)
    assert logits[:, :6].equal(maps.amax((2, 3)))
    assert logits[:, 6:16].equal(model.verb(features, maps)) and logits[:, 16:31].equal(model.target(features, maps))
    assert model(features).equal(logits), "features in the place of frames"


def test_a_triplet_is_scored_by_its_own_components() -> None:
    model = small()
    triplet = model.triplet.eval()
    with torch.no_grad():
        for matrix in triplet.matrices:
            matrix.copy_(torch.eye(len(matrix)))
        triplet.linear.weight.copy_(torch.eye(100))
        triplet.linear.bias.zero_()
    scores = [torch.arange(1.0, size + 1)[None] for size in (6, 10, 15)]
    expected = [(i + 1) * (v + 1) * (t + 1) for i, v, t in TRIPLETS]
    torch.testing.assert_close(triplet(*scores)[0], torch.tensor(expected, dtype=torch.float32), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_backbone_keeps_weights_and_statistics_and_the_heads_learn(frozen: bool) -> None:
    model = small(frozen)
    model.eval()
    model.train()  # as a training does after an evaluation
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    model(torch.randn(4, 3, 16, 24)).square().mean().backward()
    optimizer.step()
    moved = {name.split(".")[0] for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert moved == {"instrument", "verb", "target", "triplet"} | (set() if frozen else {"backbone"})
    assert model.backbone.training is not frozen and model.verb.training


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
