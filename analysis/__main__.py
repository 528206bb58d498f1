"""python -m analysis RESULTS: the tables in the terminal, tables and figures on disk.

python -m analysis predict RESULTS --workers 4,8,64: what more workers would give (prediction/command.py).

Exit codes: 0 done; 2 not a results folder, or one that cannot be written to.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import analysis
from scaling_study.quoting import shown_in_any_locale


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["predict"]:  # a results folder of this name is ./predict
        from analysis.prediction import command

        return command.main(words[1:])
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Render a study's tables and figures from its records.",
        epilog="python -m analysis predict --help: what more workers would give.",
    )  # fmt: skip
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a results folder, such as results/<study>")
    parser.add_argument("-q", "--quiet", action="store_true", help="write the files, print no table")
    asked = parser.parse_args(words)

    from analysis.study import NotResults
    from analysis.trials import SkippedRecord

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SkippedRecord)
        try:
            made = analysis.write(asked.results)
        except NotResults as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"error: {asked.results} cannot be written to: {error}", file=sys.stderr)
            return 2
    for message in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, SkippedRecord)):
        print(f"warning: {message}", file=sys.stderr)
    if not asked.quiet:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkippedRecord)  # said already
            analysis.print_tables(asked.results)
    folders = ", ".join(sorted({str(path.parent) for path in made}))
    print(f"{len(made)} files in {folders}")
    return 0


if __name__ == "__main__":
    shown_in_any_locale()
    sys.exit(main())
