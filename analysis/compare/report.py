"""A comparison for the terminal, for a pull request, for a program. Each escapes the words of others in its own way."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from analysis.compare import tables
from analysis.compare.compared import Comparison
from analysis.compare.verdicts import GAINS, REGRESSIONS
from analysis.frames.rows import as_rows
from analysis.tables import layout
from analysis.tables.layout import Listing

STYLES = dict.fromkeys(REGRESSIONS, "bold red") | dict.fromkeys(GAINS, "bold green")
P_VALUE = tables.HEADER.index("p, corrected")
WIDE = 110  # characters, from which on there is room for it
NO_MENTION = "@&#8203;"  # an @ that tells nobody
MOST_OF_A_COMMENT = 60_000  # characters; GitHub takes 65,536


def refusal(comparison: Comparison) -> str:
    """What differs and what to do about it, a line each; empty if nothing stands in the way."""
    if not comparison.refused:
        return ""
    lines = ["not compared: A and B differ in what affects speed"]
    lines += [f"  {difference.kind}: {difference}" for difference in comparison.refused[: tables.MOST_DIFFERENCES]]
    if (more := len(comparison.refused) - tables.MOST_DIFFERENCES) > 0:
        lines.append(f"  and {more} more")
    kinds = ",".join(dict.fromkeys(difference.kind for difference in comparison.refused))
    lines.append(f"--expect {kinds} if these are what is compared; --anyway to compare whatever differs")
    return "\n".join(lines)


def to_terminal(comparison: Comparison, console: Console) -> None:
    """The table, what came out of it, and what it rests on."""
    listing = tables.listing(comparison)
    shown = [index for index in range(len(listing.header)) if index != P_VALUE or console.width >= WIDE]
    table = Table(title=escape(listing.title), title_justify="left", title_style="bold", box=None)
    for index in shown:
        words = index in (0, len(listing.header) - 1)
        table.add_column(listing.header[index], justify="left" if words else "right", no_wrap=not words)
    for row in listing.rows:
        style = next((style for verdict, style in STYLES.items() if row[-1].startswith(verdict)), "")
        table.add_row(*(escape(row[index]) for index in shown), style=style)
    console.print(table)
    console.print(Text(tables.headline(comparison), style="bold"))
    for sentence in listing.notes:
        console.print(Text(f"  {sentence.replace('**', '')}", style="dim"))


def to_markdown(comparison: Comparison) -> str:
    """A comment for a pull request: what changed, and all the rest folded away."""
    title = tables.title(comparison)
    if comparison.refused:
        differs = tuple(
            (difference.kind, difference.name, difference.a, difference.b) for difference in comparison.refused
        )
        return _commented(
            Listing(f"Not compared: {title}", ("differs", "in", "A", "B"), differs, ()), MOST_OF_A_COMMENT
        )
    whole = tables.listing(comparison)
    changed = tables.listing(comparison, tables.WORTH_SHOWING).rows
    sentences = (*tables.absent(comparison), *tables.overall(comparison), *tables.detectable(comparison))
    short = Listing(f"{tables.headline(comparison)}: {title}", whole.header, changed, sentences)
    opened = f"<details><summary>All {len(whole.rows)} pairs</summary>"
    shown = _commented(short, MOST_OF_A_COMMENT // 2)
    folded = _commented(Listing("All pairs", whole.header, whole.rows, whole.notes), MOST_OF_A_COMMENT - len(shown))
    return f"{shown}\n{opened}\n\n{folded}\n</details>\n"


def to_json(comparison: Comparison) -> str:
    """One object: `headline`, `refused`, `regressed`, `differences`, `overall`, `pairs` (verdicts.COLUMNS), `missing`,
    `only_a`, `only_b`."""
    overall, table = comparison.verdicts.overall, comparison.verdicts.table.astype(object)
    pairs: list[dict[str, Any]] = [
        {str(key): value for key, value in row.items()} for row in as_rows(table.where(table.notna(), None))
    ]
    content = {
        "a": comparison.a.study.name, "b": comparison.b.study.name, "headline": tables.headline(comparison),
        "threshold": comparison.threshold, "refused": bool(comparison.refused),
        "regressed": comparison.regressed, "regressions": len(comparison.verdicts.having(*REGRESSIONS)),
        "gains": len(comparison.verdicts.having(*GAINS)), "noise": comparison.verdicts.noise,
        "detectable": comparison.verdicts.detectable, "says_nothing": comparison.says_nothing,
        "overall": None if overall is None else vars(overall),
        "differences": [vars(difference) for difference in comparison.differences],
        "doubts": list(comparison.doubts), "pairs": pairs, "missing": [vars(absent) for absent in comparison.missing],
        "only_a": [str(row["configuration"]) for row in comparison.pairing.only_a],
        "only_b": [str(row["configuration"]) for row in comparison.pairing.only_b],
    }  # fmt: skip
    return json.dumps(content, indent=1, allow_nan=False)


def _commented(table: Listing, most: int) -> str:
    """As Markdown of at most about `most` characters: the last rows are left out, and their number said."""
    text, kept = _quiet(table), len(table.rows)
    while len(text) > most and kept:
        kept = min(kept - 1, int(kept * most / len(text)))
        left_out = f"{len(table.rows) - kept} more rows are left out: the limit of a comment."
        text = _quiet(Listing(table.title, table.header, table.rows[:kept], (left_out, *table.notes)))
    return text


def _quiet(table: Listing) -> str:
    """As Markdown that calls nobody; a table without rows is only its title and notes."""
    text = layout.markdown(table)
    if not table.rows:
        text = "\n".join(line for line in text.splitlines(keepends=False) if not line.startswith("|"))
        text = text.replace("\n\n\n", "\n\n") + "\n"
    return text.replace("@", NO_MENTION)
