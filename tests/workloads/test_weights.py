"""A model begins with the weights of a file: the right ones, or one clear error."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import pytest
import torch

from scaling_study.machine import installed
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load, weights
from scaling_study.workloads.workload import Workload

if not installed("timm"):
    pytest.skip("timm is not installed", allow_module_level=True)
from safetensors.torch import save_file

from scaling_study.workloads.timm_classifier import TINY


def a_model(classes: int = 10, **other: int) -> torch.nn.Module:
    from timm.models.vision_transformer import VisionTransformer  # seconds, of every process that collects tests

    torch.manual_seed(7)
    return VisionTransformer(**{**TINY, **other}, num_classes=classes)


def loaded(file: str) -> Workload:
    return load(Trial(model="timm_vit_tiny", batch_per_worker=2, data="synthetic", weights=file), Ranks())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.mark.parametrize("name", ["ours.safetensors", "ours.pt", "nested.pt"])
def test_a_file_of_the_same_model_is_taken_whole_and_its_hash_recorded(folder: Path, name: str) -> None:
    state = a_model().state_dict()
    if name.endswith("safetensors"):
        save_file(state, folder / name)
    else:
        torch.save({"state_dict": state, "epoch": 3} if name == "nested.pt" else state, folder / name)
    workload = loaded(name)
    assert all(value.equal(state[key]) for key, value in workload.model.state_dict().items())
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert workload.weights == {"file": name, "sha256": digest, "classifier": "of the file"}
    assert loaded(str(folder / name)).weights["sha256"] == digest, "by its whole path too"


@pytest.mark.parametrize(
    ("classes", "why"), [(1000, "its head.weight is (1000, 96), not (10, 96)"), (0, "it has no head.weight")]
)
def test_a_head_of_other_classes_is_made_new_and_that_is_said(folder: Path, classes: int, why: str) -> None:
    state = a_model(classes).state_dict()
    torch.save(state, folder / "a.pt")
    workload, fresh = loaded("a.pt"), load(Trial(model="timm_vit_tiny", batch_per_worker=2, data="synthetic"), Ranks())
    assert workload.weights["classifier"] == f"new: {why}" and why in workload.notes[-1]
    assert workload.model.head.weight.equal(fresh.model.head.weight)
    assert workload.model.blocks[1].mlp.fc1.weight.equal(state["blocks.1.mlp.fc1.weight"])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"depth": 1}, "it has no blocks.1.norm1.weight"),
        ({"depth": 3}, "it has blocks.2.norm1.weight, which the model does not have"),
        ({"embed_dim": 48}, "its cls_token is (1, 1, 48), not (1, 1, 96)"),
        ({"img_size": 64}, "its pos_embed is (1, 65, 96), not (1, 17, 96)"),
    ],
)
def test_a_file_of_another_model_is_refused_by_the_first_key_that_differs(
    folder: Path, other: dict[str, int], why: str
) -> None:
    torch.save(a_model(**other).state_dict(), folder / "a.pt")
    with pytest.raises(SystemExit) as refused:
        loaded("a.pt")
    assert str(refused.value) == f"--weights a.pt is of another model than timm_vit_tiny: {why}"


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("under", ["", "state_dict", "model_state_dict"])
def test_weights_of_a_wrapped_model_are_taken_with_a_note(folder: Path, wrapper: str, under: str) -> None:
    state = a_model().state_dict()
    wrapped = {f"{wrapper}{key}": value for key, value in state.items()}
    torch.save({under: wrapped, "epoch": 3} if under else wrapped, folder / "a.pt")
    workload = loaded("a.pt")
    assert all(value.equal(state[key]) for key, value in workload.model.state_dict().items())
    assert workload.weights["unwrapped"] == wrapper
    assert any(wrapper in note for note in weights.notes(workload.weights))


def test_another_object_beside_the_weights_is_named_in_one_plain_line(folder: Path) -> None:
    torch.save({"state_dict": a_model().state_dict(), "args": argparse.Namespace(lr=0.1)}, folder / "a.pt")
    with pytest.raises(SystemExit) as refused:
        loaded("a.pt")
    assert "argparse.Namespace" in str(refused.value) and "model.state_dict()" in str(refused.value)
    assert str(refused.value).isprintable()


def test_what_is_no_file_of_weights_is_one_line(folder: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"--weights no.pt: there is no .*weights/no.pt; python -m .*weights NAME fetches"
    ):
        loaded("no.pt")
    for name in ("a.pt", "a.safetensors"):
        (folder / name).write_bytes(b"no weights at all")
        with pytest.raises(SystemExit, match=f"^--weights {name} cannot be read as weights: .+$"):
            loaded(name)
    torch.save([1, 2], folder / "list.pt")
    with pytest.raises(SystemExit, match=r"--weights list\.pt holds no state_dict"):
        loaded("list.pt")


def test_without_a_network_it_is_said_where_to_put_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def create_model(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable\nand more")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(SystemExit) as failed:
        weights.main(["vit_base_patch32_224"])
    assert "could not be fetched (Network is unreachable). Where there is a network" in str(failed.value)
    assert f"and put it at {folder}/vit_base_patch32_224.safetensors" in str(failed.value)
    with pytest.raises(SystemExit, match="the installed timm has no model 'no_such'"):
        weights.main(["no_such"])


def test_what_was_fetched_is_there_for_trials(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import timm

    state = a_model(1000)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: state)
    weights.main(["vit_tiny_patch16_224"])
    assert "{model: 'timm:vit_tiny_patch16_224', weights: vit_tiny_patch16_224.safetensors}" in capsys.readouterr().out
    assert loaded("vit_tiny_patch16_224.safetensors").model.norm.weight.equal(state.norm.weight)
