"""Backbones of Tripnets: features of the right size, and weights of the right model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scaling_study.workloads import tripnet, weights
from scaling_study.workloads.tripnet import backbone, begin

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
