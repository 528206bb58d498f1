"""`scaling-study evaluate RUN`, which is `python -m scaling_study.evaluate RUN` in a process that loads torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

HELP = "A trial's folder, like results/<study>/trials/<id>."


def evaluate(run: Annotated[Path, typer.Argument(metavar="RUN", help=HELP, show_default=False)]) -> int:
    """Loss and accuracy of a training's best model on the test set: of one that has `keep: best`, while it runs too."""
    return subprocess.run([sys.executable, "-m", "scaling_study.evaluate", str(run)], check=False).returncode
