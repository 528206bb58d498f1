"""Runs for TensorBoard: `tensorboard --logdir DIR`. The table of the HPARAMS tab has a row for each configuration.

Event files are written by TensorBoard's own package, which needs neither TensorFlow nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.export.runs import AlreadyThere, Missing, Number, Run
from analysis.text.file_names import file_name

NEEDS = ("tensorboard",)


def write(runs: Sequence[Run], study: str, folder: Path) -> Path:
    """A folder of its own for each run, in folder/<study>; returns that. Raises Missing, AlreadyThere, OSError."""
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise Missing(" ".join(NEEDS)) from error

    def scalars(metrics: Mapping[str, Number], step: int, at: float, under: str = "") -> event_pb2.Event:
        values = [summary_pb2.Summary.Value(tag=f"{under}{k}", simple_value=v) for k, v in metrics.items()]
        return event_pb2.Event(wall_time=at, step=step, summary=summary_pb2.Summary(value=values))

    place = folder / file_name(study)
    if place.exists():
        raise AlreadyThere(str(place))
    for run in runs:
        writer = EventFileWriter(str(place / file_name(run.name)))
        asked = hparams.hparams_pb({**run.parameters, "status": run.tags["status"]}, trial_id=run.title)
        writer.add_event(event_pb2.Event(wall_time=run.at, summary=asked))
        writer.add_event(scalars(run.metrics, 0, run.at))
        for point in run.points:
            writer.add_event(scalars(point.metrics, point.repeat, point.at, "repeat/"))
        writer.close()
    return place
