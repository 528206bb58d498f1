"""Runs for MLflow: `mlflow ui --backend-store-uri sqlite:///DIR/mlflow.db`. The study is the experiment.

A database file, since MLflow no longer develops its store of plain files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from analysis.export.runs import AlreadyThere, Missing, Run
from scaling_study.quoting import shortened

NEEDS = ("mlflow-skinny", "sqlalchemy", "alembic")
MOST_AT_ONCE = 1000  # metrics that MLflow takes in one call
LONGEST, LONGEST_NAME = 5000, 250  # characters of a tag or parameter; of a name


def write(runs: Sequence[Run], study: str, folder: Path) -> Path:
    """Into folder/mlflow.db, which is made or added to; returns it. Raises Missing, AlreadyThere, OSError."""
    try:
        import alembic  # noqa: F401  # what mlflow-skinny leaves out, and a database needs
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise Missing(" ".join(NEEDS)) from error
    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    database = (folder / "mlflow.db").resolve()
    try:
        _add(runs, shortened(study.strip() or "study", LONGEST_NAME), folder, database)
    except (MlflowException, SQLAlchemyError) as error:  # such as a file that is no database
        raise OSError(shortened(" ".join(str(error).split()), LONGEST_NAME)) from error
    return database


def _add(runs: Sequence[Run], study: str, folder: Path, database: Path) -> None:
    """A new experiment in `database` with these runs."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    if client.get_experiment_by_name(study) is not None:
        raise AlreadyThere(f"experiment {study} of {database}")
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
