"""A study's numbers for TensorBoard, MLflow and W&B. Nothing is sent anywhere: all of it is files."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.frames import columns
from analysis.frames.configurations import KEYS, known
from analysis.frames.measured import PHASE_COLUMNS
from analysis.frames.results import Results
from analysis.frames.rows import as_rows, grouped
from analysis.text import file_name
from scaling_study.errors import shortened
from scaling_study.targets import QUIET_WANDB

Row = Mapping[Any, Any]
Number = int | float
METRICS = (
    *("samples_per_second", "interval_low", "interval_high", "relative_half_width", "n"),
    *(f"{name}{end}" for name in ("speedup", "efficiency") for end in ("", "_low", "_high")),
    *columns.number_folds(),
)
OF_A_REPEAT = (
    *("samples_per_second", "interval_low", "interval_high", "tokens_per_second"),
    *("steps", "step_seconds_mean", "step_seconds_median", *PHASE_COLUMNS, "launch_seconds"),
    *("peak_memory_bytes", "gpu_utilization_percent", "energy_joules"),
    *("loss_first", "loss_last", "busy_elsewhere_cores"),
)
TAGS = (
    *("status", "reason", "failures", "parity", "not_comparable", "baseline", "speedup_reason"),
    *("data_source", "started_at", "configuration"),
)


THERE = "is there already: remove it, or name another folder"


class CannotExport(Exception):
    """A library is missing, or the study was exported to the same place before. The message says which or where."""


@dataclass(frozen=True)
class ExportedPoint:
    """The metrics of one repeat. `at`: Unix seconds."""

    repeat: int
    at: float
    metrics: Mapping[str, Number]


@dataclass(frozen=True)
class ExportedRun:
    """One configuration: `name` is its id, `title` how a person says it, `group` its model."""

    name: str
    title: str
    group: str
    ok: bool
    at: float
    parameters: Mapping[str, str | Number | bool]
    tags: Mapping[str, str]
    metrics: Mapping[str, Number]
    points: Sequence[ExportedPoint]


def runs(results: Results) -> list[ExportedRun]:
    """One for each configuration, also of those that failed: they have tags and no metrics."""
    trials = grouped(as_rows(results.runs), lambda trial: str(trial["configuration"]))
    about = {"study": results.study.name, "machine": results.study.machine_text}
    return [_run(row, trials[str(row["configuration"])], about) for row in results.rows]


def _run(row: Row, trials: Sequence[Row], about: Mapping[str, str]) -> ExportedRun:
    good = sorted((t for t in trials if t["status"] == "ok"), key=lambda trial: int(trial["repeat"]))
    return ExportedRun(
        name=str(row["configuration"]),
        title=f"{row['model']}, {row['series']}, batch {row['batch']}",
        group=str(row["model"]),
        ok=bool(row["n"]),
        at=seconds(row["started_at"]),
        parameters={key: row[key] for key in KEYS if known(row[key])},
        tags={**about, **{key: str(row[key]) for key in TAGS if known(row[key]) and row[key] != ""}},
        metrics=_numbers(row, METRICS),
        points=[ExportedPoint(int(t["repeat"]), seconds(t["started_at"]), _numbers(t, OF_A_REPEAT)) for t in good],
    )


def seconds(started_at: Any) -> float:
    """ISO 8601 -> Unix seconds; 0 of what is none."""
    try:
        moment = datetime.fromisoformat(str(started_at))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _numbers(row: Row, names: Sequence[str]) -> dict[str, Number]:
    return {name: float(row[name]) for name in names if known(row[name])}


def _new(folder: Path, study: str) -> Path:
    """The folder of a study in `folder`. Raises CannotExport where it is there."""
    place = folder / file_name(study)
    if place.exists():
        raise CannotExport(f"{place} {THERE}")
    return place


# Runs for TensorBoard: `tensorboard --logdir DIR`. The table of the HPARAMS tab has a row for each configuration.
#
# Event files are written by TensorBoard's own package, which needs neither TensorFlow nor torch.


def write_tensorboard(runs: Sequence[ExportedRun], study: str, folder: Path) -> Path:
    """A folder of its own for each run, in folder/<study>; returns that. Raises ImportError, CannotExport, OSError."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def scalars(metrics: Mapping[str, Number], step: int, at: float, under: str = "") -> event_pb2.Event:
        values = [summary_pb2.Summary.Value(tag=f"{under}{k}", simple_value=v) for k, v in metrics.items()]
        return event_pb2.Event(wall_time=at, step=step, summary=summary_pb2.Summary(value=values))

    place = _new(folder, study)
    for run in runs:
        writer = EventFileWriter(str(place / file_name(run.name)))
        asked = hparams.hparams_pb({**run.parameters, "status": run.tags["status"]}, trial_id=run.title)
        writer.add_event(event_pb2.Event(wall_time=run.at, summary=asked))
        writer.add_event(scalars(run.metrics, 0, run.at))
        for point in run.points:
            writer.add_event(scalars(point.metrics, point.repeat, point.at, "repeat/"))
        writer.close()
    return place


# Runs for MLflow: `mlflow ui --backend-store-uri sqlite:///DIR/mlflow.db`. The study is the experiment.
#
# A database file, since MLflow no longer develops its store of plain files.

MOST_AT_ONCE = 1000  # metrics that MLflow takes in one call
LONGEST, LONGEST_NAME = 5000, 250  # characters of a tag or parameter; of a name


def write_mlflow(runs: Sequence[ExportedRun], study: str, folder: Path) -> Path:
    """Into folder/mlflow.db, which is made or added to; returns it. Raises ImportError, CannotExport, OSError."""
    import alembic  # noqa: F401  # what mlflow-skinny leaves out, and a database needs
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    database = (folder / "mlflow.db").resolve()
    try:
        _add(runs, shortened(study.strip() or "study", LONGEST_NAME), folder, database)
    except (MlflowException, SQLAlchemyError) as error:  # such as a file that is no database
        raise OSError(shortened(" ".join(str(error).split()), LONGEST_NAME)) from error
    return database


def _add(runs: Sequence[ExportedRun], study: str, folder: Path, database: Path) -> None:
    """A new experiment in `database` with these runs."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    if client.get_experiment_by_name(study) is not None:
        raise CannotExport(f"experiment {study} of {database} {THERE}")
    experiment = client.create_experiment(study, artifact_location=(folder / "artifacts").resolve().as_uri())
    for run in runs:
        begun = int(1000 * run.at)
        title = shortened(run.title, LONGEST_NAME)
        run_id = client.create_run(experiment, start_time=begun, run_name=title).info.run_id
        tags = [RunTag(name, value[:LONGEST]) for name, value in {**run.tags, "model": run.group}.items()]
        params = [Param(name, str(value)[:LONGEST]) for name, value in run.parameters.items()]
        metrics = [Metric(name, value, begun, 0) for name, value in run.metrics.items()]
        for point in run.points:
            at = int(1000 * point.at)
            metrics += [Metric(f"repeat/{name}", value, at, point.repeat) for name, value in point.metrics.items()]
        client.log_batch(run_id, metrics=metrics[:MOST_AT_ONCE], params=params, tags=tags)
        for start in range(MOST_AT_ONCE, len(metrics), MOST_AT_ONCE):
            client.log_batch(run_id, metrics=metrics[start : start + MOST_AT_ONCE])
        client.set_terminated(run_id, status="FINISHED" if run.ok else "FAILED", end_time=begun)


# Runs for Weights & Biases, offline: nothing leaves this machine before `wandb sync DIR/<study>/wandb/offline-run-*`.
#
# A run's id is made of what was measured, when and on which machine: syncing twice makes no second one, and two results
# folders of one study do not overwrite each other.

WANDB_LONGEST = 128  # characters of a name


def write_wandb(runs: Sequence[ExportedRun], study: str, folder: Path) -> Path:
    """Offline runs in folder/<study>/wandb; returns that. Raises ImportError, CannotExport, OSError."""
    import wandb

    place = _new(folder, study)
    place.mkdir(parents=True)
    try:
        _leave(runs, study, place)
    except wandb.Error as error:
        raise OSError(str(error)) from error
    finally:
        wandb.teardown()  # its own process writes the files: they are whole once it has ended
    return place / "wandb"


def _leave(runs: Sequence[ExportedRun], study: str, place: Path) -> None:
    """An offline run for each, under `place`."""
    import wandb

    for run in runs:
        wandb_run = wandb.init(
            project=shortened(file_name(study), WANDB_LONGEST),
            name=shortened(run.title, WANDB_LONGEST),
            id=wandb_id(study, run),
            group=shortened(run.group, WANDB_LONGEST),
            config={**run.parameters, **run.tags},
            dir=str(place),
            mode="offline",
            settings=wandb.Settings(**QUIET_WANDB),
        )
        for point in run.points:
            wandb_run.log({f"repeat/{name}": value for name, value in point.metrics.items()}, step=point.repeat)
        wandb_run.summary.update(dict(run.metrics))
        wandb_run.finish(exit_code=0 if run.ok else 1)


def wandb_id(study: str, run: ExportedRun) -> str:
    """16 characters. `study`: its name."""
    return hashlib.sha256("\n".join([study, run.name, run.tags["machine"], repr(run.at)]).encode()).hexdigest()[:16]


NEEDS = {  # what to install for a tool
    "tensorboard": "tensorboard",
    "mlflow": "mlflow-skinny sqlalchemy alembic",
    "wandb": "wandb",
}
WRITERS = {"tensorboard": write_tensorboard, "mlflow": write_mlflow, "wandb": write_wandb}
