"""python -m analysis export RESULTS --tensorboard DIR | --mlflow DIR | --wandb DIR: the numbers for other tools.

Exit codes: 0 done; 2 not a results folder, the tool's library is missing, or it was exported there before.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

TOOLS = {"tensorboard": "TensorBoard's event files", "mlflow": "an MLflow database", "wandb": "offline runs of W&B"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m analysis export",
        description="Write a study's configurations as runs, and their repeats as points, for other tools. Offline.",
    )
    made.add_argument("results", type=Path, metavar="RESULTS", help="a results folder, such as results/<study>")
    one = made.add_mutually_exclusive_group(required=True)
    for tool, what in TOOLS.items():
        one.add_argument(f"--{tool}", type=Path, metavar="DIR", help=f"write {what} there")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(argv)
    tool, folder = next((tool, place) for tool in TOOLS if (place := getattr(asked, tool)) is not None)

    from analysis.execution import process_pool
    from analysis.export.runs import AlreadyThere, Missing, runs
    from analysis.frames import results
    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SkippedRecord)
        try:
            read = results.read(asked.results, process_pool.available_processes())
            made = runs(read)
            place = importlib.import_module(f"analysis.export.{tool}").write(made, read.study.name, folder)
        except NotResults as error:
            said = str(error)
        except Missing as error:
            said = f"--{tool} needs what is not installed here: pip install {error}"
        except AlreadyThere as error:
            said = f"{error} is there already: remove it, or name another folder"
        except OSError as error:
            said = f"{folder} cannot be written to: {error}"
        else:
            said = ""
    for message in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, SkippedRecord)):
        print(f"warning: {message}", file=sys.stderr)
    if said:
        print(f"error: {said}", file=sys.stderr)
        return 2
    print(f"{len(made)} runs in {place}")
    return 0
