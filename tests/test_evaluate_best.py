"""`python -m scaling_study.evaluate RUN`: what is said of a folder without a best model. What it prints of one that has
one is compared with the training's own test in train/test_deepspeed_vit.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_cifar import tiny_cifar

from scaling_study import evaluate
from scaling_study.models import FOLDERS
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load


def error_of(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert evaluate.main([str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def asked(run: Path, **keys: Any) -> Path:
    run.mkdir(parents=True)
    (run / "trial.json").write_text(json.dumps(Trial(**keys).to_dict()))
    return run


def test_a_folder_without_a_best_model_is_one_clear_line(tmp_path, capsys):
    said = {
        tmp_path / "no": "no such folder",
        asked(tmp_path / "timed"): "was timed, not trained to a result",
        asked(tmp_path / "trained", train_epochs=2): "has kept no model: its study needs train: {keep: best}",
        asked(tmp_path / "begun", train_epochs=2, train_keep="best"): "has no best model yet",
        tmp_path: "is no training's folder: it has no best.pt; give one like results/<study>/trials/<id>",
    }
    for run, text in said.items():
        assert error_of(run, capsys).startswith(f"error: {run}") and text in evaluate.nothing_in(run)
    trial = asked(tmp_path / "finished", train_epochs=2) / "trial.json"
    trial.with_name("record.json").write_text(json.dumps({"trial": json.loads(trial.read_text())}))
    trial.unlink()
    assert "has kept no model" in evaluate.nothing_in(trial.parent), "its record says what was asked"


def test_a_studys_folder_names_one_of_its_trials(tmp_path, capsys):
    run = asked(tmp_path / "trials" / "a", train_epochs=2, train_keep="best")
    assert "give one of its trials, none of which has kept a best model so far" in error_of(tmp_path, capsys)
    (run / "best.pt").write_bytes(b"PK")
    assert f"give one of its trials, like {run}" in error_of(tmp_path, capsys)
    assert f"{run / 'best.pt'} cannot be read" in error_of(run, capsys)


def test_an_error_that_says_nothing_is_named_by_its_kind(tmp_path, capsys, monkeypatch):
    def load(*_, **__):
        raise EOFError

    (tmp_path / "best.pt").touch()
    monkeypatch.setattr(torch, "load", load)
    assert error_of(tmp_path, capsys).endswith("best.pt cannot be read: EOFError")


def test_weights_of_another_model_and_code_in_a_file_are_refused(tmp_path, capsys):
    keys = {"train_epochs": 2, "train_keep": "best", "data": "cifar10", "device": "cpu"}
    with tiny_cifar(tmp_path / "data"):
        other = load(Trial(model="resnet8_groupnorm", **keys), Ranks()).model.state_dict()
        said = {"step": 3, "epoch": 0.5, "metric": "accuracy", "value": 0.3}
        torch.save({"trial": Trial(model="resnet8", **keys).to_dict(), **said, "weights": other}, tmp_path / "best.pt")
        assert "its weights are not those of resnet8" in error_of(tmp_path, capsys)
        unknown = {**Trial(model="resnet8", **keys).to_dict(), "no_such_key": 1}
        torch.save({"trial": unknown, **said, "weights": other}, tmp_path / "best.pt")
        assert "it was trained by another version" in error_of(tmp_path, capsys)
    torch.save({"trial": print}, tmp_path / "best.pt")
    assert "cannot be read" in error_of(tmp_path, capsys)


def test_a_model_of_a_file_is_found_where_its_training_found_it(tmp_path):
    assert evaluate.folders_of(tmp_path) == ""
    (tmp_path / "record.json").write_text(json.dumps({"environment": {FOLDERS: "/study:/here"}}))
    assert evaluate.folders_of(tmp_path) == "/study:/here"
