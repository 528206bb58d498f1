"""The reference pages are what the declarations say: a line a key, each with its meaning."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from environment import reference
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.schema import RankReport, Record
from scaling_study.study.study import KEYS, Measure, StudyModel
from scaling_study.trial import RENAMED
from tests.net import frozen

PAGES = ("study-file.md", "record.md", "columns.md", "commands.md", "settings.md")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(pages: dict[str, str], name: str) -> None:
    assert sorted(pages) == sorted(PAGES)
    text = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert text == pages[name], "`python -m environment.reference` writes it anew"


def rows(page: str) -> list[dict[str, str]]:
    """The cells of every row of every table, by their headings."""
    found, header = [], list[str]()
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif set(cells) != {"---"}:
            found.append(dict(zip(header, cells, strict=True)))
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_key_has_a_meaning(pages: dict[str, str], name: str) -> None:
    for row in rows(pages[name]):
        first, *_ = row.values()
        assert first and row.get("meaning", "-"), row


def test_every_key_is_there_by_its_name(pages: dict[str, str]) -> None:
    study = {row.get("key") for row in rows(pages["study-file.md"])}
    for name in {*KEYS, *Measure.model_fields, *StudyModel.model_fields}:
        shown = RENAMED.get(name, name).removeprefix("train_")
        assert f"`{shown}`" in study, name
    record = {row.get("field") for row in rows(pages["record.md"])}
    assert {f"`{field.name}`" for kind in (Record, RankReport) for field in fields(kind)} <= record


def test_settings_are_of_every_framework_and_say_what_library_settings_change(pages: dict[str, str]) -> None:
    told = rows(pages["settings.md"])
    assert {name for row in told for name in re.findall(r"`(\w+)`", row["framework"])} == set(FRAMEWORKS)
    tuned = {name for name, entry in FRAMEWORKS.items() if len(entry.axes.get("tuned_for", ())) > 1}
    changed = [row["framework"] for row in told if "library_settings: memory" in row.get("here", "")]
    assert {name for name in tuned if f"`{name}`" in changed} == tuned


def test_columns_of_other_tables_are_those_of_the_shipped_examples() -> None:
    seen: dict[str, set[str]] = {}
    for example in frozen.held()["examples"].values():
        for name, text in example.items():
            seen.setdefault(name, set()).update(text.partition("\n")[0].split(","))
    told = [(line["table"], column) for line in reference.data("tables.csv") for column in line["columns"].split()]
    assert not [(table, column) for table, column in told if "<" not in column and column not in seen[table]]
