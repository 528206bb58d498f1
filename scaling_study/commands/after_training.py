"""`scaling-study evaluate` and `scaling-study maps`, each in a process that loads torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

# `scaling-study evaluate RUN`, which is `python -m scaling_study.evaluate RUN` in a process that loads torch.

HELP = "A trial's folder, like results/<study>/trials/<id>."


def evaluate(run: Annotated[Path, typer.Argument(metavar="RUN", help=HELP, show_default=False)]) -> int:
    """Loss and accuracy of a training's best model on the test set: of one that has `keep: best`, while it runs too."""
    return subprocess.run([sys.executable, "-m", "scaling_study.evaluate", str(run)], check=False).returncode


# `scaling-study maps RUN ...`, which is `python -m scaling_study.maps RUN ...` in a process that loads torch.

RUNS = "A trial's folder, like results/<study>/trials/<id>; or a study's results: every trial that kept its best model."
FRAMES = "Of each test video that are scored, evenly spaced; 0: all."
PICTURES = "Of each instrument, for the figures."
AGAIN = "Also where there are maps of this model already."


def maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help=RUNS, show_default=False)],
    frames: Annotated[int, typer.Option(help=FRAMES, min=0)] = 100,
    pictures: Annotated[int, typer.Option(help=PICTURES, min=0)] = 4,
    again: Annotated[bool, typer.Option("--again", help=AGAIN)] = False,
) -> int:
    """Class-activation maps of a training's best model on test frames, and whether they show the instrument."""
    options = ["--frames", str(frames), "--pictures", str(pictures), *(["--again"] if again else [])]
    command = [sys.executable, "-m", "scaling_study.maps", *map(str, runs), *options]
    return subprocess.run(command, check=False).returncode
