"""`scaling-study command RESULTS TRIAL`: the line that runs a trial again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaling_study import cli
from scaling_study.records import pack, store
from scaling_study.records.manifest import Manifest
from scaling_study.records.schema import Record
from scaling_study.trial import Trial, Window

FIRST, SECOND = Trial(window=Window(min_steps=7)), Trial(framework="torch_ddp", workers=2, launcher="torchrun")


def record(trial: Trial) -> Record:
    return Record("a", trial.id, trial.configuration, trial, "cancelled", command=f"python {trial.framework}.py")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """One trial that is finished, and one that is under way."""
    folder = tmp_path / "a"
    Manifest(schema_version=1, study="a").write(folder)
    store.write_begun(folder / "trials" / FIRST.id, record(FIRST))
    store.write_record(folder / "trials" / FIRST.id, record(FIRST))
    store.write_begun(folder / "trials" / SECOND.id, record(SECOND))
    return folder


def test_an_id_or_its_beginning_names_a_trial(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for trial in (FIRST, SECOND):
        for name in (trial.id, trial.framework):
            assert cli.main(["command", str(results), name]) == 0
            assert capsys.readouterr().out == f"python {trial.framework}.py\n"


def test_of_a_packed_study_too(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pack.pack(results).file
    assert cli.main(["command", str(file), "single"]) == 0
    assert capsys.readouterr().out == "python single.py\n"
    assert cli.main(["command", str(file), "torch"]) == 2
    assert capsys.readouterr().err == f"error: {file} has no trial torch; the nearest is {FIRST.id}\n"


def test_what_an_older_program_has_begun_is_known(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = results / "trials" / SECOND.id
    (folder / "begun.json").unlink()
    (folder / "trial.json").write_text(json.dumps({**SECOND.to_dict(), "window": vars(SECOND.window)}))
    (folder / "command.txt").write_text("python older.py\n")
    assert store.asked_of(folder) == SECOND
    assert cli.main(["command", str(results), SECOND.id]) == 0
    assert capsys.readouterr().out == "python older.py\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [("singel-resnet18", f"no trial singel-resnet18; the nearest is {FIRST.id}"), ("", "2 trials that begin with")],
)
def test_no_trial_or_several_are_one_clear_line(results, capsys, name, said):
    assert cli.main(["command", str(results), name]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
