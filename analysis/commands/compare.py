"""python -m analysis compare results/A results/B: what became slower or faster, configuration by configuration.

Exit codes, for CI: 0 no regression; 1 a regression was found; 2 refused, or no results to compare; 3 it cannot be
told: nothing could be tested, since no pair has 3 repeats on both sides, or what A measured is missing in B. A check
that could never fail is none.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

NO_REGRESSION, REGRESSION, REFUSED, CANNOT_TELL = 0, 1, 2, 3
EXIT_CODES = (
    "exit codes: 0 no regression; 1 a regression was found (slower, no longer runs, runs that fail now, or now fails "
    "parity); 2 refused, or no results to compare; 3 nothing could be tested (no pair has 3 repeats on both sides), "
    "or a configuration that A measured is missing in B: planned there without a record, or its records cannot be read"
)
EXPECTABLE = ("machine", "driver", "versions", "commit", "environment", "window", "backend", "data")  # for --help
THRESHOLD = "1%"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m analysis compare",
        description="Compare two results of a study: which configurations became slower or faster (B over A), of "
        "those in both.",
        epilog=EXIT_CODES,
    )
    made.add_argument("a", type=Path, metavar="A", help="a results folder: what was before")
    made.add_argument("b", type=Path, metavar="B", help="a results folder: what is now")
    made.add_argument(
        "--threshold", type=_share, default=_share(THRESHOLD), metavar="SHARE",
        help=f"smallest change of interest: 2%% or 0.02 (default: {THRESHOLD}%; 0: any)",
    )  # fmt: skip
    made.add_argument(
        "--expect", type=_words, default=(), metavar="WHAT,...",
        help=f"differences that are meant, and no reason to refuse: {', '.join(EXPECTABLE)}, or a name such as torch",
    )  # fmt: skip
    made.add_argument("--anyway", action="store_true", help="compare whatever differs; it is said under the table")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="also write a comment for a pull request")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(argv)

    from analysis.compare.compared import NothingToCompare
    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SkippedRecord)
        try:
            code = run(asked)
        except (NotResults, NothingToCompare) as error:
            print(f"error: {error}", file=sys.stderr)
            code = REFUSED
        except OSError as error:
            print(f"error: cannot read or write: {error}", file=sys.stderr)
            code = REFUSED
    for message in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, SkippedRecord)):
        print(f"warning: {message}", file=sys.stderr)
    return code


def run(asked: argparse.Namespace) -> int:
    """Compare and say so. Raises NotResults, NothingToCompare, OSError."""
    from rich.console import Console

    from analysis.compare import report
    from analysis.compare.compared import compare
    from analysis.execution import atomic_files

    made = compare(asked.a, asked.b, asked.threshold, asked.expect, asked.anyway)
    if asked.markdown:
        atomic_files.write_text(asked.markdown, report.to_markdown(made))
    if asked.json:
        print(report.to_json(made))
    if made.refused:
        print(report.refusal(made), file=sys.stderr)
        return REFUSED
    if not asked.json:
        report.to_terminal(made, Console(highlight=False))
    if made.regressed:
        return REGRESSION
    if made.says_nothing:
        print("nothing was tested: no pair has repeats enough on both sides", file=sys.stderr)
    if made.missing:
        print(f"not all was tested: {len(made.missing)} of A missing in B", file=sys.stderr)
    return CANNOT_TELL if made.says_nothing or made.missing else NO_REGRESSION


def _share(text: str) -> float:
    """`2%` or `0.02`, from 0 to below 1."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share from 0 to below 1, such as 2% or 0.02")
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
