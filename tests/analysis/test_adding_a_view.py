"""One class of view: what a view declares is in files, page and terminal, and nothing has to be said elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from planted import Planted, plant
from rich.console import Console

import analysis
from analysis import outputs
from analysis.findings import DOUBT, Evidence, Finding
from analysis.frames.results import Results
from analysis.show.layout import Listing
from analysis.views import catalog
from analysis.views.view import Drawing, Gap, ModelTable, StudyTable, View


def letters(results: Results) -> pd.DataFrame:
    return results.configurations[["configuration"]].assign(letters=results.configurations.configuration.str.len())


def table(results: Results) -> Listing | None:
    rows = tuple((str(row.configuration), str(row.letters)) for row in letters(results).itertuples())
    return Listing(f"Letters of names ({results.heading})", ("configuration", "letters"), rows, ("Counted.",))


def draw(results: Results) -> Figure:
    figure = Figure(figsize=(3, 2))
    figure.text(0.1, 0.5, f"longest: {letters(results).letters.max()}")
    return figure


def long_names(evidence: Evidence) -> Iterator[Finding]:
    yield Finding("long", "A long name", f"{len(evidence.rows)} names are long.", DOUBT)


VIEW = View(
    "How long are names?",
    (StudyTable("letters", table, letters),),
    (Drawing("letters", draw), Drawing("none", lambda _: None, gap=Gap("No figure of words", "names have none"))),
    (long_names,),
)


def test_a_view_of_one_file_is_in_tables_figures_page_and_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "VIEWS", (*catalog.VIEWS, VIEW))
    plant(tmp_path, [Planted()])
    said = io.StringIO()
    analysis.write(tmp_path, console=Console(file=said, width=100), page=True)
    assert "Counted." in (tmp_path / "tables" / "letters.md").read_text()
    assert pd.read_csv(tmp_path / "tables" / "letters.csv").letters.min() > 10
    assert "longest: " in (tmp_path / "figures" / "letters.svg").read_text()
    assert "warning: A long name. 1 names are long." in said.getvalue()
    for page in ((tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()):
        for text in ("Letters of names", "longest: ", "1 names are long.", "No figure of words: names have none"):
            assert text in page, text
    monkeypatch.undo()
    assert outputs.ours().fullmatch("letters.md") is None, "the file of nobody's view is left alone"


def test_views_name_their_questions_files_and_places_once() -> None:
    questions = [view.question for view in catalog.VIEWS]
    tables = [kind.name for view in catalog.VIEWS for kind in view.tables]
    figures = [drawing.name for view in catalog.VIEWS for drawing in view.figures]
    detectors = [detector for view in catalog.VIEWS for detector in view.detectors]
    for each in (questions, tables, figures, detectors):
        assert len(each) == len({*each})
    assert all(question.endswith("?") for question in questions)
    assert {drawing.beside for view in catalog.VIEWS for drawing in view.figures} - {""} <= {*tables}


def test_files_of_ours_are_told_from_others() -> None:
    ours = outputs.ours()
    of_models = [kind.name for view in catalog.VIEWS for kind in view.tables if isinstance(kind, ModelTable)]
    assert of_models == ["throughput", "speedup", "memory", "communication"]
    for name in ("throughput-resnet18.md", "cost.csv", "timelines-resnet18.svg", "timeline-gpipe.png", "drift.svg"):
        assert ours.fullmatch(name), name
    for name in ("cost-2026.csv", "throughput-resnet18.txt", "letters.md", "my-throughput.csv", "roofline-2.svg"):
        assert not ours.fullmatch(name), name
