"""python -m analysis compare results/A results/B: what became slower or faster, configuration by configuration.

For CI the exit code is the answer. A check that could never fail is none: where nothing could be tested, it is 3.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from analysis.commands.messages import exit_code, parsed

NO_REGRESSION, REGRESSION, REFUSED, CANNOT_TELL = 0, 1, 2, 3
# Of differences that --expect names, for --help.
EXPECTABLE = ("machine", "driver", "versions", "commit", "environment", "window", "backend", "data")
EXPECT = f"Differences that are meant, no reason to refuse: {', '.join(EXPECTABLE)}, or a name such as torch."


def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="A results folder or packed study: before.", show_default=False)
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="A results folder or packed study: now.", show_default=False)],
    threshold: Annotated[
        str, typer.Option(metavar="SHARE", help="Smallest change of interest: 2% or 0.02; 0: any.")
    ] = "1%",
    expect: Annotated[str, typer.Option(metavar="WHAT,…", help=EXPECT, show_default=False)] = "",
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare whatever differs; the table names it.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a comment for a pull request.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> int:
    """Compare two results of a study: which configurations became slower or faster from A to B.

    Exit codes: 0 no regression; 1 a regression was found (slower, no longer runs, runs that fail now, or now fails
    parity); 2 refused, or no results to compare; 3 nothing could be tested (no pair has 3 repeats on both sides), or a
    configuration that A measured is missing in B: planned there without a record, or its records cannot be read.
    """
    from analysis.compare.compared import NothingToCompare

    share = parsed("--threshold", _share, threshold) or 0.0
    expected = tuple(word.strip() for word in expect.split(",") if word.strip())
    return exit_code(
        lambda: _compare(a, b, share, expected, anyway, markdown, as_json), "cannot read or write",
        (NothingToCompare,), REFUSED,
    )  # fmt: skip


def _compare(
    a: Path, b: Path, threshold: float, expected: tuple[str, ...], anyway: bool, markdown: Path | None, as_json: bool
) -> int:
    """Raises NotResults, NothingToCompare, OSError."""
    from rich.console import Console

    from analysis.compare import compared, report
    from analysis.execution import atomic_files
    from analysis.frames.source import opened

    with opened(a) as before, opened(b) as now:
        comparison = compared.compare(before.folder, now.folder, threshold, expected, anyway)
    if markdown:
        atomic_files.write_text(markdown, report.to_markdown(comparison))
    if as_json:
        print(report.to_json(comparison))
    if comparison.refused:
        print(report.refusal(comparison), file=sys.stderr)
        return REFUSED
    if not as_json:
        report.to_terminal(comparison, Console(highlight=False))
    if comparison.regressed:
        return REGRESSION
    if comparison.says_nothing:
        print("nothing was tested: no pair has enough repeats on both sides", file=sys.stderr)
    if comparison.missing:
        print(f"not all was tested: {len(comparison.missing)} of A missing in B", file=sys.stderr)
    return CANNOT_TELL if comparison.says_nothing or comparison.missing else NO_REGRESSION


def _share(text: str) -> float:
    """`2%` or `0.02`, from 0 to below 1."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ValueError(f"{text} is no share from 0 to below 1, such as 2% or 0.02")
    return value
