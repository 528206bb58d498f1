"""Results that somebody else made: whatever words are in them, tables, figures and the terminal only show them."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from planted_hostile import CONTROL, WORDS, XML, results_of
from rich.console import Console

import analysis
from analysis import terminal
from analysis.__main__ import main
from analysis.frames import results


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("width", [60, 200])
def test_a_terminal_is_told_nothing_but_colours(tmp_path: Path, kind: str, width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system="standard", legacy_windows=False)
    terminal.show(results.read(results_of(tmp_path, WORDS[kind])), console)
    said = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert said and not CONTROL.search(said)
    if kind == "markup":
        assert "[red]" in said


@pytest.mark.slow
def test_words_of_others_are_only_words_in_figures_and_csv(tmp_path: Path) -> None:
    made = analysis.write(results_of(tmp_path, f"<script>alert(1)</script> {WORDS['mathematics']} {WORDS[XML]}"))
    assert all(path.parent in (tmp_path, tmp_path / "tables", tmp_path / "figures") for path in made)
    figures = [path for path in made if path.suffix == ".svg"]
    assert figures
    for path in figures:
        root = ElementTree.fromstring(path.read_bytes())
        assert not {element.tag.split("}")[-1] for element in root.iter()} & {"script", "a", "foreignObject"}
    assert any("$x_{$" in path.read_text(encoding="utf-8") for path in figures), "a dollar sign is one"
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 15 and not any(CONTROL.search(cell) for row in rows for cell in row.values())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", "[" * 100_000, '{"study": 1}', '{"schema": 1, "study": "a", "scaling": "\\u001b[2J"}',
     '{"schema": 1, "study": "a", "machine": [1]}', '{"schema": 1, "study": "a", "machine": {"gpus": 3}}',
     '{"schema": 1, "study": "a", "baseline": {"workers": "x"}}', '{"schema": 1, "study": "a", "target_interval": "x"}',
     '{"schema": 1, "study": "a", "configurations": 3}', '{"schema": 1, "study": "a", "target_interval": NaN}',
     '{"schema": 2, "study": "a"}', '{"schema": 1, "study": "a", "scaling": "up"}'],
)  # fmt: skip
def test_a_study_json_that_is_none_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "study.json").write_text(text, encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/study.json") and said.count("\n") == 1 and len(said) < 500
    assert not CONTROL.search(said)
