"""python -m analysis export RESULTS --tensorboard DIR | --mlflow DIR | --wandb DIR: the numbers for other tools.

Exit codes: 0 done; 2 not a results folder, the tool's library is missing, or it was exported there before.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.messages import OK, REFUSED, ResultsFolder, exit_code

TOOLS = ("tensorboard", "mlflow", "wandb")


def _folder(help: str) -> Any:
    return typer.Option(metavar="DIR", help=help)


def export(
    results: ResultsFolder,
    tensorboard: Annotated[Path | None, _folder("Write TensorBoard's event files there.")] = None,
    mlflow: Annotated[Path | None, _folder("Write an MLflow database there.")] = None,
    wandb: Annotated[Path | None, _folder("Write offline runs of W&B there.")] = None,
) -> int:
    """Write configurations as runs and their repeats as points, for another tool. Nothing is sent."""
    folders = zip(TOOLS, (tensorboard, mlflow, wandb), strict=True)
    chosen = [(tool, folder) for tool, folder in folders if folder is not None]
    if len(chosen) != 1:
        raise typer.BadParameter("give exactly one of --tensorboard, --mlflow, --wandb")
    ((tool, folder),) = chosen
    return exit_code(lambda: _export(results, tool, folder), f"{folder} cannot be written to")


def _export(results: Path, tool: str, folder: Path) -> int:
    """Raises NotResults, OSError."""
    from analysis.execution import process_pool
    from analysis.export.runs import AlreadyThere, Missing, runs
    from analysis.frames import results as frames
    from analysis.frames.source import opened

    with opened(results) as source:
        study = frames.read(source.folder, process_pool.available_processes())
    try:
        exported = runs(study)
        place = importlib.import_module(f"analysis.export.{tool}").write(exported, study.study.name, folder)
    except Missing as error:
        problem = f"--{tool} needs what is not installed here: pip install {error}"
    except AlreadyThere as error:
        problem = f"{error} is there already: remove it, or name another folder"
    else:
        print(f"{len(exported)} runs in {place}")
        return OK
    print(f"error: {problem}", file=sys.stderr)
    return REFUSED
