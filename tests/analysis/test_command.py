"""python -m analysis: what it writes, replaces and leaves alone; its errors; what it does not import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from planted import Planted, default_study, plant

import analysis
from analysis import text as file_names
from analysis.__main__ import main
from analysis.frames import columns
from analysis.views import figures
from scaling_study.records import store

ONE, TWO = Planted(), Planted("horovod", workers=2, allreduce="fp32", speed=160.0)


@pytest.mark.slow
def test_it_writes_everything_where_the_page_says(tmp_path: Path) -> None:
    planted, about = default_study()
    made = analysis.write(plant(tmp_path, planted, **about))
    kept = {str(path.relative_to(tmp_path)) for path in made}
    assert {"results.csv", "configurations.csv", "tables/throughput-resnet18.md", "tables/throughput-resnet18.csv",
            "tables/speedup-resnet8.md", "tables/allreduce-gain.csv", "figures/throughput.png",
            "figures/throughput.svg", "figures/speedup-resnet18.png", "figures/allreduce-gain.svg"} <= kept  # fmt: skip
    assert all(path.stat().st_size for path in made)
    assert not list(tmp_path.rglob(".*")), "no temporary file stays"
    csv = pd.read_csv(tmp_path / "results.csv")
    assert list(csv) == [column.name for column in columns.TRIALS]
    assert len(csv) == len(planted) * 3
    assert list(pd.read_csv(tmp_path / "configurations.csv")) == [c.name for c in columns.of_configurations()]


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


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def breaks(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.replaced(path, breaks)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a results folder"),
        ("{", "study.json"),
        ('{"schema": 2, "study": "s"}', "study.json"),
        ('{"schema": 1, "study": "s", "scaling": "up"}', "scaling"),
    ],
)
def test_what_is_no_results_folder_is_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "study.json").write_text(text)
    (tmp_path / "file").write_text("")
    wrong = {tmp_path: said, tmp_path / "nowhere": "does not exist", tmp_path / "file": "is not a folder"}
    for folder, why in wrong.items():
        assert main([str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and str(tmp_path) in error and why in error and error.count("\n") == 1


def test_a_folder_that_cannot_be_written_to_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, [ONE])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(store.tempfile, "mkstemp", refuse)
    assert main([str(tmp_path)]) == 2
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.slow
def test_skipped_records_are_warned_of_once_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "write", lambda *_: [])
    plant(tmp_path, [ONE, TWO], baseline={"framework": "single"})
    (tmp_path / "trials" / "broken").mkdir()
    (tmp_path / "trials" / "broken" / "record.json").write_text("{")
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err.count("warning: skipped: ") == 1
    assert "broken/record.json" in said.err
    assert "Throughput of resnet18" in said.out


def imported(code: str) -> set[str]:
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_help_needs_no_pandas_and_tables_and_figures_need_no_torch(tmp_path: Path) -> None:
    plant(tmp_path, [ONE])
    assert not imported("import analysis, analysis.__main__") & {"pandas", "seaborn", "matplotlib", "torch", "scipy"}
    assert "torch" not in imported(f"import analysis, pathlib; analysis.print_tables(pathlib.Path({str(tmp_path)!r}))")
    assert "torch" not in imported(f"import analysis, pathlib; analysis.write(pathlib.Path({str(tmp_path)!r}))")


@pytest.mark.parametrize(
    ("model", "name"),
    [("resnet18", "resnet18"), ("org/model v2", "org-model-v2"), ("../../etc", "etc"), ("…", "model"), (".x", "x")],
)
def test_file_names_cannot_leave_their_folder(model: str, name: str) -> None:
    assert file_names.file_name(model) == name
