"""`scaling-study maps`: what it leaves beside a training, that it is done once, and what it refuses in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from scaling_study.maps import __main__ as command
from scaling_study.maps import scored
from scaling_study.ranks import Ranks
from scaling_study.records import maps
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads.cholect45 import read
from scaling_study.workloads.surgical_scenes import Scenes, write

SCENES = Scenes(frames=40, videos=10, height=64, width=112)
TRAINED = {"train_epochs": 1, "train_keep": "best", "device": "cpu"}
TRIPNET = {"model": "tripnet_squeezenet", "data": "surgical_scenes", "image_size": 64, "freeze": "backbone",
           "batch_per_worker": 4, **TRAINED}  # fmt: skip
SAID = {"step": 3, "epoch": 0.5, "metric": "ap_heads", "value": 0.3}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("drawn") / "scenes"
    write(folder, SCENES, processes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_PATH", str(folder))
        yield folder


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial's folder with the weights that its model began with."""
    folder = tmp_path_factory.mktemp("results") / "trials" / "one"
    folder.mkdir(parents=True)
    trial = Trial(**TRIPNET)
    torch.manual_seed(0)
    weights = load(trial, Ranks()).model.state_dict()
    torch.save({"trial": trial.to_dict(), **SAID, "weights": weights}, folder / "best.pt")
    return folder


@pytest.mark.slow
def test_maps_of_a_frozen_tripnet_are_scored_once_for_each_instrument(
    run: Path, scenes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(run), "--frames", "1", "--pictures", "1"]) == 0
    assert "points at the instrument: own 0." in capsys.readouterr().out
    about, scores, pictures = maps.read_about(run), maps.read_scores(run), maps.read_panels(run)
    surgery = read(scenes)
    test = np.flatnonzero(np.isin(surgery.video, about["videos"]))
    assert about["videos"] == list(surgery.folds[1]) and about["frames"] == len(set(scores[:, 0])) <= 2
    assert about["shown"] == {"channels": "class", "class": "most likely"} and about["size"] == [64, 112]
    for frame in set(scores[:, 0]):
        ours = scores[scores[:, 0] == frame]
        assert int(frame) in test and sorted(ours[:, 2]) == surgery.labels[int(frame), :6].nonzero()[0].tolist()
    column = {name: scores[:, place] for place, name in enumerate(maps.COLUMNS)}
    seen = ~np.isnan(column["own_mask"])
    assert seen.any() and (column["chance_energy"][seen] > 0).all() and (column["own_energy"][seen] <= 1).all()
    count = len(pictures["frame"])
    assert pictures["own"].shape == (count, 6, *about["grid"]) and pictures["grad_cam"].max() <= 1
    assert 0 < count == len({*zip(pictures["frame"], strict=True)}), "of each frame one"
    hits = dict(zip(zip(scores[:, 0], scores[:, 2], strict=True), column["own_mask"], strict=True))
    drawn = [hits[frame, kind] for frame, kind in zip(pictures["frame"], pictures["instrument"], strict=True)]
    np.testing.assert_allclose(pictures["hits"][:, 0], drawn, rtol=1e-3)
    # Once more: nothing is computed, unless another number of frames is asked for.
    before = (run / "maps" / maps.SCORES).stat().st_mtime_ns
    assert command.main([str(run.parent.parent), "--frames", "1", "--pictures", "1"]) == 0
    assert "has its maps already" in capsys.readouterr().out
    assert (run / "maps" / maps.SCORES).stat().st_mtime_ns == before


def test_a_model_without_class_maps_and_a_folder_without_a_model_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'no'}: no such folder\n"
    (tmp_path / "trial.json").write_text(json.dumps(Trial(train_epochs=2).to_dict()))
    assert command.main([str(tmp_path)]) == 2
    assert "its study needs train: {keep: best}" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main([str(tmp_path), "--frames", "-1"])


def test_a_model_that_is_no_tripnet_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tiny_cifar import tiny_cifar

    trial = Trial(model="resnet8", data="cifar10", **TRAINED)
    with tiny_cifar(tmp_path / "data"):
        weights = load(trial, Ranks()).model.state_dict()
        torch.save({"trial": trial.to_dict(), **SAID, "weights": weights}, tmp_path / "best.pt")
        assert command.main([str(tmp_path)]) == 2
    assert "resnet8 has no class maps: only the Tripnets have" in capsys.readouterr().err


def test_frames_and_pictures_depend_on_the_data_alone() -> None:
    class Surgery:
        labels = np.zeros((40, 131), np.uint8)
        video = np.repeat([2, 5], 20)

    Surgery.labels[np.arange(40), np.arange(40) % 3] = 1
    Surgery.labels[17, :6] = 0  # nothing is in it
    ids = np.arange(40)
    chosen = scored.of_each_video(Surgery, ids, 6)
    assert len(chosen) == 12 and 17 not in chosen and (Surgery.video[chosen] == 2).sum() == 6
    pictures = scored.pictured(Surgery, chosen, 2)
    assert len(pictures) == 6 and len({frame for frame, _ in pictures}) == 6
    assert all(Surgery.labels[frame, instrument] for frame, instrument in pictures)
    assert scored.pictured(Surgery, chosen, 0) == set() and len(scored.of_each_video(Surgery, ids, 0)) == 39
