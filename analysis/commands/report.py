"""python -m analysis report RESULTS: the tables and figures anew, and the page that explains them.

Exit codes: 0 done; 1 written, but a part could not be made, which the page and the last lines
name; 2 not a results folder, or one that cannot be written to.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

DONE, PARTLY, NOT_DONE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis report",
        description="Write report.html, one file that opens anywhere, report.md with the same words, and what they "
        "rest on: tables/, figures/ and samples.npz.",
    )
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a results folder, such as results/<study>")
    asked = parser.parse_args(argv)

    from analysis import outputs
    from analysis.execution import process_pool
    from analysis.execution.lost_parts import LostPart
    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    with warnings.catch_warnings(record=True) as caught:
        for kind in (SkippedRecord, LostPart):
            warnings.simplefilter("always", kind)
        try:
            made = outputs.write(asked.results, page=True, processes=process_pool.available_processes())
        except NotResults as error:
            print(f"error: {error}", file=sys.stderr)
            return NOT_DONE
        except OSError as error:
            print(f"error: {asked.results} cannot be written to: {error}", file=sys.stderr)
            return NOT_DONE
    for message in _said(caught, SkippedRecord):
        print(f"warning: {message}", file=sys.stderr)
    page = next(path for path in made if path.suffix == ".html")
    print(f"{page} ({page.stat().st_size / 1e6:.1f} MB), and {len(made) - 1} files beside it")
    lost = _said(caught, LostPart)
    for message in lost:
        print(f"error: {message}", file=sys.stderr)
    return PARTLY if lost else DONE


def _said(caught: Iterable[warnings.WarningMessage], kind: type[Warning]) -> list[str]:
    """Each once."""
    return list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, kind)))


if __name__ == "__main__":
    sys.exit(main())
