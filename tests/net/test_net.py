"""Every table of the example studies and every id of a planned trial is exactly what it was; their pages are short."""

from __future__ import annotations

import re

import pytest

from analysis.report import rendering, sections
from analysis.report.page import Material, Picture
from scaling_study.settings import CHECKOUT
from tests.net import examples, frozen

SLOW = ("distributed_dl_tripnet", "framework-tax", "time-to-60-percent", "time-to-accuracy")
EXAMPLES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in examples.studies()]
SAME_VERSIONS = pytest.mark.skipif(
    frozen.versions() != frozen.held()["versions"],
    reason=f"the net was made with {frozen.held()['versions']}: last digits may differ",
)
HOW = "if that is meant: `python -m tests.net`, in a commit of its own that names each changed column and why"


def check(where: str, before: frozen.Texts, after: frozen.Texts) -> None:
    if before != after and (lines := list(frozen.differences(where, before, after))):
        pytest.fail("\n".join([*lines[:10], f"{len(lines)} differences; {HOW}"]), pytrace=False)


def test_the_net_was_made_with_the_pinned_versions_so_that_make_test_skips_none_of_it() -> None:
    pinned = dict(line.split("==") for line in (CHECKOUT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {name: pinned[name].split(";")[0].strip() for name in frozen.COMPUTE} == frozen.held()["versions"], HOW


def test_the_net_holds_every_example_and_every_study_file() -> None:
    assert sorted(frozen.held()["examples"]) == examples.studies()
    assert sorted(frozen.held()["plans"]) == sorted(frozen.STUDY_FILES)


@pytest.mark.parametrize("study", EXAMPLES)
@SAME_VERSIONS
def test_tables_of_an_example_are_what_they_were_and_its_page_is_read_in_a_minute(study: str) -> None:
    check(study, frozen.held()["examples"][study], frozen.tables(folder := examples.example(study)))
    names = [path.stem for path in (examples.EXAMPLES / study / "figures").glob("*.png")]
    read, origins = frozen.whole(folder)
    pictures = {name: Picture(name, name, name) for name in names}
    words = rendering.markdown(sections.report(Material(read, f"{study}.study.zip", pictures, origins)))
    assert len(words.splitlines()) <= 300 and len(examples.outside(words)) <= 120
    assert sorted(re.findall(r"\]\(figures/(.*?)\.png\)", words)) == sorted(names), "figures are shown, each once"
    assert not re.search(r"^(##[^\n]*|<details>.*)\n\n(?:##? |</details>|\Z)", words, re.MULTILINE), "none is empty"


@SAME_VERSIONS
def test_tables_of_older_records_are_what_they_were() -> None:
    check("older records", frozen.held()["folders"]["older"], frozen.older())


@pytest.mark.parametrize("study_file", frozen.STUDY_FILES)
def test_trials_of_a_study_file_are_what_they_were(study_file: str) -> None:
    check(study_file, frozen.held()["plans"][study_file], frozen.plans(study_file))


@pytest.mark.parametrize(
    "before, after, same",
    [
        ("23.966319649547838", "23.966319649547728", True),  # two kinds of processor
        ("1.2e-05", "1.2000000000000002e-05", True),
        ("23.96631964", "23.96631967", False),
        ("2", "2.0", False),  # a type
        ("2", "3", False),
        ("12345678901", "12345678902", False),
        ("0.5", "", False),
        ("nan", "0.5", False),
        ("resnet8", "resnet18", False),
    ],
)
def test_fractions_may_differ_in_their_last_digits_and_nothing_else_may(before: str, after: str, same: bool) -> None:
    assert frozen.same_value(before, after) is same


def test_another_text_with_the_same_cells_is_named() -> None:
    assert list(frozen.differences("s", {"a.csv": "x\n1\n"}, {"a.csv": 'x\n"1"\n'})) == [
        "s: a.csv: the text changed, no cell did"
    ]


def test_a_changed_cell_is_named_with_its_study_file_row_and_column() -> None:
    before = {"results.csv": "trial,workers\na,1\nb,2\n", "old.csv": "x\n"}
    after = {"results.csv": "trial,workers,n\na,1,0\nb,2.0,0\n"}
    assert list(frozen.differences("s", before, after)) == [
        "s: old.csv is gone",
        "s: results.csv: columns gone [], new ['n']",
        "s: results.csv: row 2 (b), workers: '2' before, '2.0' after",
    ]
