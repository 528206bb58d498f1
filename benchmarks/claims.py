"""The table of docs/internals/claims.md, from data/claims.csv: one row a case, with control, bar and verdict.

    python -m benchmarks.claims        writes it into the page

Other text of the page is written by hand.
"""

from __future__ import annotations

import csv
from pathlib import Path

from scaling_study.settings import CHECKOUT

DATA = Path(__file__).with_name("data") / "claims.csv"
PAGE = CHECKOUT / "docs" / "internals" / "claims.md"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"


def table() -> str:
    """The rows of the CSV as a Markdown table; benchmark and claim stand once."""
    with DATA.open(encoding="utf-8", newline="") as stream:
        names, *rows = csv.reader(stream)
    lines, before = [names, ["---"] * len(names)], names[:2]
    for row in rows:
        lines.append(["", "", *row[2:]] if row[:2] == before else row)
        before = row[:2]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def page(text: str) -> str:
    """The text of the page with its table made anew; the other text stays."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
