"""Any classifier of timm: its size and layers, its images, its gate; and a study names it without loading it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from scaling_study.machine import installed
from scaling_study.models import MODEL_NAMES, MODELS

if not installed("timm"):
    pytest.skip("timm is not installed", allow_module_level=True)
from scaling_study.workloads.timm_classifier import blocks, chain_of, network, renormalising

VIT_B = "timm:vit_base_patch32_224"


def described(name: str, image_size: int | None = None) -> tuple[torch.nn.Module, int]:
    """The network with shapes and no numbers."""
    with torch.device("meta"):
        return network(name, image_size)


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# --- the network ---


def test_the_published_model_has_the_published_parameters() -> None:
    model, side = described(VIT_B)
    assert (parameters(model), side) == (87_462_922, 224)
    assert list(chain_of(model)) == ["embedding", *(f"block{number}" for number in range(1, 13)), "head"]


@pytest.mark.parametrize(
    ("name", "layers"),
    [(VIT_B, {"Block"}), ("timm:resnet18", {"BasicBlock"}), ("timm:convnext_atto", {"ConvNeXtBlock"})],
)
def test_it_is_wrapped_by_the_layers_that_stand_in_a_row(name: str, layers: set[str]) -> None:
    assert {kind.__name__ for kind in blocks(described(name)[0])} == layers


def test_an_image_size_is_one_that_the_model_takes() -> None:
    assert described(VIT_B, 64)[1] == described("timm:resnet18", 64)[1] == 64
    with pytest.raises(SystemExit, match=f"^--model {VIT_B} --image-size 40: image size 40: it must be .* of 32"):
        described(VIT_B, 40)
    with pytest.raises(SystemExit, match="--model timm_vit_tiny: image size 36: it must be a multiple of 8"):
        described("timm_vit_tiny", 36)
    with pytest.raises(SystemExit, match=r"^--model timm:no_such_model: .*no_such_model"):
        described("timm:no_such_model")


def test_images_have_the_mean_and_deviation_that_the_model_wants() -> None:
    usual = torch.tensor([(0.0 - 0.485) / 0.229, (1.0 - 0.456) / 0.224, (0.5 - 0.406) / 0.225]).view(1, 3, 1, 1)
    images, labels = renormalising((0.5, 0.5, 0.5), (0.5, 0.25, 0.5), torch.device("cpu"))((usual, torch.tensor([3])))
    assert images.flatten().tolist() == pytest.approx([-1.0, 2.0, 0.0], abs=1e-6) and labels.tolist() == [3]


# --- its name in a study ---


def test_any_name_of_timm_is_one_of_a_model_and_nothing_else_is() -> None:
    assert VIT_B in MODEL_NAMES and "timm:vit_base_patch32_224.augreg_in1k" in MODEL_NAMES
    assert "timm:" not in MODEL_NAMES and "timm:../x" not in MODEL_NAMES and "timm:hf-hub:a/b" not in MODEL_NAMES
    assert MODELS[VIT_B].workload == MODELS["timm_vit_tiny"].workload and VIT_B not in list(MODELS)
    with pytest.raises(KeyError):
        MODELS["timm:"]


def test_every_name_that_is_read_is_one_that_timm_has() -> None:
    import timm

    from scaling_study.models import timm_names

    assert timm_names() == {name.partition(".")[0] for name in timm.list_models()}


SWEEP = "study: a\nparity: false\nsweeps:\n  - {framework: %s, model: '%s', workers: 2%s}\n"


def test_a_wrong_name_is_one_line_when_the_study_is_read(problems_of: Callable[..., list[str]]) -> None:
    assert problems_of(SWEEP % ("torch_ddp", "timm:resnet19", "")) == [
        "study.yaml:4: the installed timm has no model 'resnet19'; did you mean 'resnet18'?"
    ]
    assert problems_of(SWEEP % ("torch_ddp", VIT_B, ", sequence_length: 8"))[0].startswith(
        f"study.yaml:4: model {VIT_B} has no 'sequence_length': its samples have image_size"
    )
    (problem,) = problems_of(SWEEP % ("torch_ddp", "resnet8", ", weights: a.pt"))
    assert problem == "study.yaml:4: model resnet8 cannot load weights: models of timm (timm:NAME) and tripnet_... can"
    (problem,) = problems_of(SWEEP % ("torch_ddp", "timm:", ""))
    assert "'timm:' is not right" in problem
