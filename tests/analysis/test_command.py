"""python -m analysis: what it writes, replaces and leaves alone; its errors; what it does not import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, plant

import analysis
from analysis import text as file_names
from analysis.__main__ import main
from analysis.views import figures
from scaling_study.records import store

ONE = Planted()


@pytest.mark.slow
def test_a_second_run_replaces_what_the_first_made_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "write", lambda *_: [])
    plant(tmp_path, [ONE, replace(ONE, model="resnet50")])
    first = analysis.write(tmp_path)
    mine = tmp_path / "tables" / "my-notes.md"
    mine.write_text("mine")
    for path in (tmp_path / "trials").glob("*resnet50*/record.json"):
        path.unlink()
    second = analysis.write(tmp_path)
    gone = set(first) - set(second)
    assert {path.name for path in gone} == {"throughput-resnet50.md", "throughput-resnet50.csv"}
    assert not any(path.exists() for path in gone)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"), [(".", "is not a results folder"), ("nowhere", "does not exist"), ("file", "is not a folder")]
)
def test_what_is_no_results_folder_is_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / name} ") and said in error and error.count("\n") == 1


def test_a_folder_that_cannot_be_written_to_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, [ONE])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(store.tempfile, "mkstemp", refuse)
    assert main([str(tmp_path)]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def imported(code: str) -> set[str]:
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_help_needs_no_pandas_and_tables_and_figures_need_no_torch(tmp_path: Path) -> None:
    plant(tmp_path, [ONE])
    assert not imported("import analysis, analysis.__main__") & {"pandas", "seaborn", "matplotlib", "torch", "scipy"}
    write = f"analysis.write(pathlib.Path({str(tmp_path)!r}), rich.console.Console())"
    assert "torch" not in imported(f"import analysis, pathlib, rich.console; {write}")


@pytest.mark.parametrize(
    ("model", "name"),
    [("resnet18", "resnet18"), ("org/model v2", "org-model-v2"), ("../../etc", "etc"), ("…", "model"), (".x", "x")],
)
def test_file_names_cannot_leave_their_folder(model: str, name: str) -> None:
    assert file_names.file_name(model) == name
