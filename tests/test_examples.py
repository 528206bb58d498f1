"""The shipped examples: small, listed, their pages whole, and made by one command."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from examples import render
from scaling_study.records import pack
from tests.net.examples import EXAMPLES, example, studies

MOST_FILES, MOST_BYTES, MOST_FIGURE_BYTES = 6, 15_000_000, 80_000
LINK = re.compile(r"\]\(<?([^)#>]+)")


def shipped(study: str) -> list[Path]:
    """The files of a study that are in the repository, also after an analysis of it."""
    page = EXAMPLES / study / "report.md"
    return [EXAMPLES / f"{study}{pack.SUFFIX}", page, *sorted((EXAMPLES / study / "figures").glob("*.png"))]


def test_examples_are_few_and_small_files() -> None:
    assert len(studies()) == 18
    assert sum(path.stat().st_size for study in studies() for path in shipped(study)) <= MOST_BYTES
    for study in studies():
        files = shipped(study)
        assert len(files) <= MOST_FILES and all(path.is_file() for path in files), study
        assert all(path.stat().st_size < MOST_FIGURE_BYTES for path in files[2:]), study


@pytest.mark.parametrize("study", studies())
def test_a_page_shows_the_figures_that_are_shipped_and_its_links_lead_somewhere(study: str) -> None:
    text = (EXAMPLES / study / "report.md").read_text(encoding="utf-8")
    links = {link for link in LINK.findall(text) if not link.startswith(("http://", "https://"))}
    assert {f"figures/{path.name}" for path in shipped(study)[2:]} == links
    assert {path.stem for path in shipped(study)[2:]} == set(render.FIGURES[study])


def test_every_example_is_listed_with_question_answer_and_command() -> None:
    rows = re.findall(r"^\| \[(.+?)\]\(\1/report\.md.*?\) \| .+\? \| .+ \| .+ \|$", listing(), re.MULTILINE)
    assert sorted(rows) == studies() == sorted(render.FIGURES)
    assert not [link for link in LINK.findall(listing()) if not (EXAMPLES / link).exists()]


def listing() -> str:
    return (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("study", studies())
def test_an_example_is_packed_from_what_it_unpacks_to(study: str, tmp_path: Path) -> None:
    again = pack.pack(example(study), tmp_path / "again.study.zip").file
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(EXAMPLES / f"{study}{pack.SUFFIX}") as other:
        assert one.namelist() == other.namelist()
        assert all(one.read(name) == other.read(name) for name in one.namelist()), "compressed, versions of zlib differ"


@pytest.mark.slow
def test_the_command_makes_a_page_with_a_few_small_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = "memory-of-sharding"
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    (tmp_path / f"{study}{pack.SUFFIX}").symlink_to(EXAMPLES / f"{study}{pack.SUFFIX}")
    (tmp_path / study / "figures").mkdir(parents=True)
    (tmp_path / study / "figures" / "older.png").write_bytes(b"")
    render.main([study])
    assert sorted(path.name for path in (tmp_path / study).rglob("*.*")) == ["report.md", "throughput.png"]
    page = (tmp_path / study / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[.*\]\((.*)\)", page) == ["figures/throughput.png"] and "Memory of mlp_wide" in page
