"""Numbers with the places they deserve; Markdown of what is no grid."""

from __future__ import annotations

import pytest

from analysis.show import layout
from analysis.show.layout import FAILED, Cell, Listing
from analysis.text import number


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (4657.18, 12.3, "4,657 ± 12"),
        (71.25, 0.44, "71.2 ± 0.4"),
        (1.618, None, "1.62"),
        (0.05, 0.01, "0.05 ± 0.01"),
        (109.04, 0.41, "109.0 ± 0.4"),
        (200.0, 0.0, "200 ± 0"),
        (0.0314, None, "0.031"),
        (0.00228, 0.00011, "0.0023 ± 0.0001"),
        (0.0, None, "0.00"),
        (1.2e-9, 1e-11, "1.2e-09 ± 1.0e-11"),
        (-3.5e13, None, "-3.5e+13"),
    ],
)
def test_numbers_have_the_places_they_deserve(value: float, half: float | None, text: str) -> None:
    assert number(value, half) == text


def test_a_listing_in_markdown_with_words_set_left_and_numbers_right() -> None:
    rows = (("a", "1,208 ± 17", "slower (12 %)", "0.99 [0.96, 1.02], 99 %"), ("b", "oom", "fastest", "~22.5"))
    text = layout.markdown(Listing("T", ("name", "speed", "verdict", "ratio"), (*rows, rows[0]), ("a note",)))
    first, second = (f"| {' | '.join(row)} |" for row in rows)
    rule = "| :--- | ---: | :--- | ---: |"
    assert text.splitlines() == [
        "# T", "", "| name | speed | verdict | ratio |", rule, first, second, first, "", "- a note"
    ]  # fmt: skip
    assert layout._marked(Cell("oom", FAILED, "†")) == "*oom* †"
