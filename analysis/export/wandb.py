"""Runs for Weights & Biases, offline: nothing leaves this machine before `wandb sync DIR/<study>/wandb/offline-run-*`.

A run's id is made from the study's and the configuration's name, so that syncing twice makes no second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from analysis.export.runs import AlreadyThere, Missing, Run
from analysis.text.file_names import file_name
from scaling_study.quoting import shortened

NEEDS = ("wandb",)
LONGEST = 128  # characters of a name


def write(runs: Sequence[Run], study: str, folder: Path) -> Path:
    """Offline runs in folder/<study>/wandb; returns that. Raises Missing, AlreadyThere, OSError."""
    try:
        import wandb
    except ImportError as error:
        raise Missing(" ".join(NEEDS)) from error
    place = folder / file_name(study)
    if place.exists():
        raise AlreadyThere(str(place))
    place.mkdir(parents=True)
    try:
        _leave(runs, study, place)
    except wandb.Error as error:
        raise OSError(str(error)) from error
    finally:
        wandb.teardown()  # its own process writes the files: they are whole once it has ended
    return place / "wandb"


def _leave(runs: Sequence[Run], study: str, place: Path) -> None:
    """An offline run for each, under `place`."""
    import wandb

    quiet = wandb.Settings(
        silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True,
        x_save_requirements=False,
    )  # fmt: skip
    for run in runs:
        wandb_run = wandb.init(
            project=shortened(file_name(study), LONGEST), name=shortened(run.title, LONGEST), id=_id(study, run.name),
            group=shortened(run.group, LONGEST), config={**run.parameters, **run.tags}, dir=str(place), mode="offline",
            settings=quiet,
        )  # fmt: skip
        for point in run.points:
            wandb_run.log({f"repeat/{name}": value for name, value in point.metrics.items()}, step=point.repeat)
        wandb_run.summary.update(dict(run.metrics))
        wandb_run.finish(exit_code=0 if run.ok else 1)


def _id(study: str, name: str) -> str:
    return hashlib.sha256(f"{study}\n{name}".encode()).hexdigest()[:16]
