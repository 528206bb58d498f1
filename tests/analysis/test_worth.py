"""A page is short whatever a study has: the question's tables open, the rest by its worth, and all with --full."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import rendering, worth
from analysis.report.headline import Facts, Way
from analysis.report.page import Bullets, Fold, Grid, Report, Section, Text
from analysis.show.layout import Cell
from analysis.views import catalog
from analysis.views.view import ModelTable
from tests.net.examples import outside

NOTES = [f"{sign}note {index}" for index, sign in enumerate(("", "", "", "", "† "))]


def table(title: str, rows: int, notes: Sequence[str] = ()) -> Grid:
    return Grid(title, ("name",), tuple((Cell(f"{title} row {row}"),) for row in range(rows)), tuple(notes))


def fold(key: str, rows: int, notes: Sequence[str] = (), full: bool = False) -> Fold:
    title = f"{key or 'other'} {rows}"
    return Fold(title, (table(title, rows, notes),), full, key=key)


def report(folds: Sequence[Fold], texts: int = 5) -> Report:
    answer = Section("answer", "The answer", "It is 42.", (Bullets(("one",) * texts), Text("trust it")))
    half = len(folds) // 2
    first, second = (Section(name, name, "Means.", tuple(part), True) for name, part in
                     (("Tables", folds[:half]), ("Why", folds[half:])))  # fmt: skip
    return Report("study", ("a machine",), (answer, first, second))


FOLDS = st.lists(
    st.builds(
        fold,
        st.sampled_from(worth.WORTH[4:]),
        st.integers(1, 90),
        st.lists(st.sampled_from(NOTES), unique=True),
        st.booleans(),
    ),
    max_size=25,
)


@given(FOLDS, st.lists(st.sampled_from(worth.WORTH[4:]), unique=True, max_size=6), st.integers(1, 60))
def test_a_page_is_never_longer_than_a_minute_and_the_full_one_has_everything(
    folds: list[Fold], asked: list[str], texts: int
) -> None:
    made = worth.fitted(report(folds, texts), asked)
    words, full = rendering.markdown(made), rendering.markdown(made, full=True)
    assert len(words.splitlines()) <= worth.MOST_LINES and len(outside(words)) <= worth.MOST_OPEN
    placed = [part for section in made.sections[1:] for part in section.parts if isinstance(part, Fold)]
    opened = {part.key for part in placed if part.shown}
    assert opened <= {*asked} and len(opened) <= worth.MOST_TABLES
    assert all(part.shown for part, before in zip(placed, folds, strict=True) if part.key in opened and not before.full)
    for before in folds:
        last = f"{before.summary} row {min(len(before.parts[0].rows), rendering.MOST_ROWS_IN_ALL) - 1}"
        assert f"| {last} |" in full
    for note in {note for each in folds for note in each.parts[0].notes}:
        under = sum(note in each.parts[0].notes for each in folds)
        assert full.count(f"- {note}\n") == (under if note.startswith("†") else 1), "a note stands once"


def test_what_is_worth_most_is_kept_and_what_a_page_leaves_out_is_named() -> None:
    many = [fold(key, 38) for key in ("flaws", "memory", "speedup", "letters", "gaps", "parity", "target", "numbers")]
    words = rendering.markdown(worth.fitted(report(many), ()))
    kept = ["memory", "speedup", "letters", "parity", "target", "numbers"]
    assert re.findall(r"<details><summary>(\w+) 38", words) == kept
    assert "Only with `--full`, and in the HTML page: flaws 38; gaps 38." in words
    asked = rendering.markdown(worth.fitted(report(many), ["memory", "gaps"]))
    assert "### memory 38" in asked and "### gaps 38" in asked
    assert "Only with `--full`, and in the HTML page: flaws 38; letters 38." in asked
    assert not re.search(r"^## (Tables|Why)", rendering.markdown(worth.fitted(report([fold("a", 9, full=True)]), ())))


def test_a_long_table_says_how_much_of_it_is_left() -> None:
    made = worth.fitted(report([fold("target", 500)]), ["target"])
    assert "460 more rows with `--full`." in rendering.markdown(made)
    assert "\n100 more rows.\n" in rendering.markdown(made, full=True)


def test_a_note_waits_for_the_table_that_nobody_has_to_unfold() -> None:
    closed, opened = fold("parity", 3, ["said"]), fold("speedup", 2, ["said"])
    words = rendering.markdown(worth.fitted(report([closed, opened]), ["speedup"]))
    assert words.count("- said\n") == 1 and "- said" in "\n".join(outside(words))


LESS = Way("resnet8", "torch_ddp", 2, 2, 0.9, 0.8, 1.0)
MORE = Way("resnet8", "horovod", 2, 1, 1.8, 1.7, 1.9)


@pytest.mark.parametrize(
    ("facts", "keys"),
    [
        (Facts(ended=["resnet8 ends ..."]), ["transfer", "target", "batch"]),
        (Facts(ways=[MORE]), ["speedup", "gain", "attribution"]),
        (Facts(ways=[LESS] * 3, several=True), ["timelines", "verdicts", "attribution"]),
        (Facts(held={"a": 1.0, "b": 2.0}), ["memory", "verdicts"]),
        (Facts(), ["throughput", "references", "bottleneck"]),
        (Facts(ways=[Way("a", "b", 2, 1, 7.8, 7.7, 7.9, unlike=True)]), ["throughput", "references", "bottleneck"]),
        (
            Facts(ended=["one"], ways=[MORE] * 3, several=True),
            ["transfer", "target", "batch", "timelines", "verdicts", "attribution", "speedup", "gain"],
        ),
    ],
)
def test_what_a_reader_looks_for_next_follows_from_what_the_study_asks(facts: Facts, keys: list[str]) -> None:
    assert worth.asked(facts) == keys and worth.questions(facts)[-1] == worth.SPEED


def test_every_table_of_a_page_has_a_worth() -> None:
    from analysis.report import sections

    on_page = [
        kind.name
        for view in catalog.VIEWS
        for kind in view.tables
        if isinstance(kind, ModelTable) or (kind.section and kind.listing)
    ]
    assert {*on_page} - {*sections.LEFT_OUT} <= {*worth.WORTH} and {*sections.GROUPS} <= {*worth.WORTH}
    assert len(worth.WORTH) == len({*worth.WORTH})
