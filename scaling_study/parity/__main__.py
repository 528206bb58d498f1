"""All parity gates of a study, and nothing else: `python -m scaling_study.parity --study FILE`.

The same as `python run_sweep.py FILE --where find=parity`, with every check of every gate shown. Finished gates are
kept in results/<study> and not run again by the sweep.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scaling_study import records, study
from scaling_study.cli import app


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scaling_study.parity", description=__doc__.splitlines()[0])
    parser.add_argument("--study", type=Path, required=True, metavar="FILE")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--small", action="store_true", help="apply the study's `small:` overrides")
    asked = parser.parse_args()
    words = [str(asked.study), "--where", "find=parity", "--results", str(asked.results), "-q"]
    code = app([*words, *(["--small"] if asked.small else [])], standalone_mode=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
