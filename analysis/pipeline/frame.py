"""One row a pipeline: its speed, its bubble beside theory and replay, what its cut allows, what each stage holds.

bubble   = replay_equal + added_by_cut + added_by_transfers       what each of the three is, replay.py says
speed-up = workers x (1 - bubble) / computing, less what lies outside the makespan
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.pipeline import bubble, replay, shape, shares, theory

KEYS = ("schedule", "stages", "virtual_stages", "micro_batches", "replicas", "stage_cut")
SPEED = ("status", "n", "samples_per_second", "interval_low", "interval_high", "speedup", "efficiency")
BUBBLE = (
    *("bubble", "bubble_low", "bubble_high", "bubble_steps", "theory", "theory_formula", "theory_why"),
    *("replay_equal", "replay_measured", "added_by_cut", "added_by_transfers", "replay_why", "computing"),
)
STAGES = ("cap", "most_speedup", "busiest_worker", "time_shares", "parameter_shares", "layers", "activations_bytes")
COLUMNS = (
    *("configuration", "series", "series_order", "model", "framework", *KEYS, "workers", "batch_per_worker"),
    *("global_batch", *SPEED, *BUBBLE, *STAGES, "parity", "not_comparable"),
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS, for every configuration whose workers hold stages of one model, measured or not.

    Bubbles and shares are between 0 and 1, and None where the records have no timeline. `replicas`, `virtual_stages`
    and `schedule` are filled in where a framework has no such key. `cap` is the most that this schedule can gain over
    one process with this cut, `most_speedup` the most that any can; shares, layers and bytes are separated by `;`.
    """
    rows = [row for row in results.rows if shape.is_cut(row)]
    pipelines = [_row(row, results) for row in rows]
    frame = pd.DataFrame(pipelines, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["model", "global_batch", "series_order"], kind="stable", ignore_index=True)


def events_of(row: shape.Row, results: Results) -> pd.DataFrame:
    """The events (events.COLUMNS) of one configuration, over all its repeats."""
    events = results.details.events
    ours: pd.DataFrame = events[events.configuration == row["configuration"]]
    return ours


def _row(row: ConfigurationRow, results: Results) -> dict[Any, Any]:
    events, stages = events_of(row, results), results.details.stages
    stages = stages[stages.configuration == row["configuration"]]
    full = {
        "schedule": shape.schedule(row) or None,
        "stages": shape.workers(row),
        "virtual_stages": shape.virtual_stages(row),
        "micro_batches": shape.micro_batches(row),
        "replicas": shape.replicas(row),
    }
    return {**row, **full, **_holds(stages), **_bubble(row, events), **_time(row, events)}


def _holds(stages: pd.DataFrame) -> dict[str, Any]:
    """What each stage is made of."""
    layers = stages.drop_duplicates("stage").sort_values("stage").layers
    return {
        "parameter_shares": joined(shares.of_parameters(stages)),
        "layers": ";".join(layers),
        "activations_bytes": joined(shares.activations(stages)),
    }


def _bubble(row: ConfigurationRow, events: pd.DataFrame) -> dict[str, Any]:
    """The measured bubble, and the three parts that it falls into."""
    p, v = shape.workers(row), shape.virtual_stages(row)
    should = theory.bubble(shape.schedule(row), p, shape.micro_batches(row), v)
    columns = {"theory": should.bubble, "theory_formula": should.formula, "theory_why": should.why}
    if events.empty:
        return columns
    steps = bubble.of_steps(events, p)
    measured = bubble.mean(steps)
    columns["computing"] = _computing(row, steps)
    columns |= {
        "bubble": measured.mean,
        "bubble_low": measured.low,
        "bubble_high": measured.high,
        "bubble_steps": measured.steps,
    }
    try:
        order = replay.order_of(bubble.median_step(events))
        equal, real = (replay.bubble(order, how) for how in (replay.equal, replay.measured(events)))
    except ValueError as error:
        return columns | {"replay_why": str(error)}
    return columns | {
        "replay_equal": equal,
        "replay_measured": real,
        "added_by_cut": real - equal,
        "added_by_transfers": measured.mean - real,
    }


def _computing(row: ConfigurationRow, steps: pd.DataFrame) -> float | None:
    """Seconds that all workers compute for a sample, over those that the baseline takes; None without a baseline."""
    if not known(row["speedup"]) or not known(row["samples_per_second"]):
        return None
    busy = float(steps.busy_seconds.mean()) / int(row["batch_per_worker"])
    return busy * float(row["samples_per_second"]) / float(row["speedup"])


def _time(row: ConfigurationRow, events: pd.DataFrame) -> dict[str, Any]:
    """Each stage's share of the time, and what the busiest worker allows."""
    workers = shares.of_workers(events)
    if not workers:
        return {}
    each = [workers.get(worker, 0.0) for worker in range(shape.workers(row))]
    return {
        "time_shares": joined(shares.of_time(events)),
        "busiest_worker": max(workers, key=lambda worker: workers[worker]),
        "most_speedup": theory.most_speedup(each),
        "cap": theory.cap(shape.schedule(row), each, shape.micro_batches(row)),
    }


def joined(values: Mapping[int, float]) -> str | None:
    """`0.25;0.75`, in the order of the keys; None for nothing."""
    return ";".join(f"{values[key]:.6g}" if isinstance(values[key], float) else str(values[key])
                    for key in sorted(values)) or None  # fmt: skip


def parted(text: Any) -> list[float]:
    """What `joined` joined."""
    return [float(part) for part in str(text).split(";")] if known(text) and text else []
