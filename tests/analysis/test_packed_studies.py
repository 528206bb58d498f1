"""Every command of the analysis takes a packed study as it takes its folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from planted import Planted, plant

from analysis.__main__ import main
from analysis.views import figures
from scaling_study.records import pack

ONE, TWO = Planted(noise=0.01), Planted("horovod", workers=2, allreduce="fp32", speed=160.0, noise=0.01)
NETWORK = ("--bandwidth", "25Gbit", "--latency", "5us")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder with a study file, X.study.zip beside it, and a folder of its own for what is temporary."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    folder = plant(tmp_path / "folder" / "X", [ONE, TWO], baseline={"framework": "single"})
    (folder / "study.yaml").write_text("study: planted\n")
    pack.pack(folder, tmp_path / "packed" / "X.study.zip")
    return folder


@pytest.fixture
def packed(results: Path) -> Path:
    return results.parents[1] / "packed" / "X.study.zip"


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "write", lambda *_: [])


def made(folder: Path) -> dict[str, bytes]:
    """What an analysis wrote there."""
    files = (path for path in folder.rglob("*") if path.is_file() and "trials" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if not path.name.startswith("study.")}


@pytest.mark.slow
def test_a_packed_study_gives_the_same_tables_figures_and_page(results: Path, packed: Path) -> None:
    assert main(["report", str(results)]) == main(["report", str(packed)]) == 0
    of_folder, of_file = made(results), made(packed.parent / "X")
    assert of_folder.keys() == of_file.keys() and {"report.md", "figures/throughput.png"} <= of_file.keys()
    pages = {"report.md", "report.html"}
    assert {name for name in of_file if of_file[name] != of_folder[name]} == pages, "which name what they are made of"
    lines = of_file["report.md"].decode().splitlines()
    assert any(line.startswith("- This page") and f"`scaling-study report {packed}`" in line for line in lines)
    again = f"`scaling-study unpack {packed}`, then `scaling-study run {packed.parent / 'X'}/study.yaml`"
    assert f"- Every trial: {again} (finished trials are skipped)" in lines
    assert not list((packed.parents[1] / "temporary").iterdir())


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("command", [["tables"], ["report"], ["predict", "--workers", "4", *NETWORK]])
def test_a_command_writes_beside_the_file_or_where_it_is_told(
    packed: Path, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    assert main([name, str(packed), *options]) == 0
    beside = packed.parent / "X"
    assert (beside / "tables").is_dir() and not (beside / "study.json").exists()
    said = capsys.readouterr().out
    assert main([name, str(packed), *options, "--out", str(tmp_path / "there")]) == 0
    assert made(tmp_path / "there") == made(beside)
    assert said == capsys.readouterr().out.replace(str(tmp_path / "there"), str(beside))
    assert {path.name for path in packed.parent.iterdir()} == {"X", packed.name}


def test_compare_takes_two_of_either_kind(results: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for a, b in ((results, results), (packed, packed), (results, packed)):
        assert main(["compare", str(a), str(b), "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]


def test_export_takes_a_packed_study(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from analysis import export

    exported = []
    monkeypatch.setitem(export.WRITERS, "tensorboard", lambda runs, study, _: exported.append((len(runs), study)))
    assert main(["export", str(packed), "--tensorboard", str(tmp_path / "there")]) == 0
    assert exported == [(2, "planted")]


@pytest.mark.usefixtures("without_figures")
def test_messages_name_the_file_and_no_temporary_folder(
    results: Path, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next((results / "trials").iterdir())
    (first / "record.json").write_text("{")
    pack.pack(results, packed)
    assert main(["report", str(packed)]) == 0
    place = f"{packed}/trials/{first.name}/record.json"
    assert capsys.readouterr().err.startswith(f"warning: skipped: {place} cannot be read")
    assert "temporary" not in made(packed.parent / "X")["report.md"].decode()
    assert main(["predict", str(packed), "--workers", "4"]) == 2
    assert f"error: {packed} holds no measured network" in capsys.readouterr().err


@pytest.mark.parametrize("spoil", [lambda whole: b"", lambda whole: whole[:-40]])
@pytest.mark.parametrize("command", [["tables"], ["report"], ["compare"], ["predict", "--workers", "4"], ["export"]])
def test_what_is_no_packed_study_is_one_sentence_and_exit_2(
    packed: Path, command: list[str], spoil: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    packed.write_bytes(spoil(packed.read_bytes()))
    name, *options = command
    more = {"compare": [str(packed)], "export": ["--tensorboard", "there"]}.get(name, [])
    assert main([name, str(packed), *more, *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {packed} is not a folder, and no packed study") and said.count("\n") == 1
    assert [path.name for path in packed.parent.iterdir()] == [packed.name]
