"""python -m analysis RESULTS: the tables in the terminal, tables and figures on disk.

python -m analysis predict RESULTS --workers 4,8,64: what more workers would give (commands/predict.py).
python -m analysis compare A B: what became slower or faster from one to the other (commands/compare.py).
python -m analysis report RESULTS: the page that explains them (commands/report.py).
python -m analysis export RESULTS --tensorboard DIR: the numbers for other tools (commands/export.py).

Exit codes: 0 done; 1 but for a part that could not be made, which it names; 2 not a results folder,
or one that cannot be written to.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import analysis
from scaling_study.quoting import shown_in_any_locale

COMMANDS = {  # the first word of a command line -> the module whose main() runs the rest
    "predict": "analysis.commands.predict",
    "compare": "analysis.commands.compare",
    "export": "analysis.commands.export",
    "report": "analysis.commands.report",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:  # a results folder of this name is ./predict
        command = importlib.import_module(COMMANDS[words[0]])
        return int(command.main(words[1:]))
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Render a study's tables and figures from its records.",
        epilog=f"Other commands, each with a --help of its own: {', '.join(COMMANDS)}.",
    )  # fmt: skip
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a results folder, such as results/<study>")
    parser.add_argument("-q", "--quiet", action="store_true", help="write the files, print no table")
    asked = parser.parse_args(words)

    from analysis.execution import process_pool
    from analysis.execution.lost_parts import LostPart
    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    with warnings.catch_warnings(record=True) as caught:
        for kind in (SkippedRecord, LostPart):
            warnings.simplefilter("always", kind)
        try:
            made = analysis.write(asked.results, processes=process_pool.available_processes())
        except NotResults as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"error: {asked.results} cannot be written to: {error}", file=sys.stderr)
            return 2
    for message in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, SkippedRecord | LostPart)):
        print(f"warning: {message}", file=sys.stderr)
    if not asked.quiet:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkippedRecord)  # said already
            analysis.print_tables(asked.results)
    folders = ", ".join(sorted({str(path.parent) for path in made}))
    print(f"{len(made)} files in {folders}")
    return int(any(issubclass(w.category, LostPart) for w in caught))


if __name__ == "__main__":
    shown_in_any_locale()
    sys.exit(main())
