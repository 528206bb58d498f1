"""Configurations as runs: what was asked as parameters, what came of it as metrics, each repeat as a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analysis.frames.baseline import known
from analysis.frames.configurations import KEYS, MAXIMA, MEANS
from analysis.frames.over_ranks import PHASE_COLUMNS
from analysis.frames.results import Results
from analysis.frames.rows import as_rows

Row = Mapping[Any, Any]
Number = int | float
METRICS = (
    *("samples_per_second", "interval_low", "interval_high", "relative_half_width", "n"),
    *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high", *MAXIMA, *MEANS),
)
OF_A_REPEAT = (
    *("samples_per_second", "interval_low", "interval_high", "tokens_per_second", "steps", "step_seconds_mean"),
    *("step_seconds_median", *PHASE_COLUMNS, "launch_seconds", "peak_memory_bytes"),
    *("gpu_utilization_percent", "energy_joules", "loss_first", "loss_last", "busy_elsewhere_cores"),
)
TAGS = (
    *("status", "reason", "failures", "parity", "not_comparable", "baseline", "speedup_reason", "data_source"),
    *("started_at", "configuration"),
)


class Missing(Exception):
    """The library of a tool is not installed. The message says which to install."""


class AlreadyThere(Exception):
    """This study was exported to the same place before. The message names it."""


@dataclass(frozen=True)
class Point:
    """What one repeat measured. `at`: Unix seconds."""

    repeat: int
    at: float
    metrics: Mapping[str, Number]


@dataclass(frozen=True)
class Run:
    """One configuration: `name` is its id, `title` how a person says it, `group` its model."""

    name: str
    title: str
    group: str
    ok: bool
    at: float
    parameters: Mapping[str, str | Number | bool]
    tags: Mapping[str, str]
    metrics: Mapping[str, Number]
    points: Sequence[Point]


def runs(results: Results) -> list[Run]:
    """One for each configuration, also of those that failed: they have tags and no metrics."""
    trials: dict[str, list[Row]] = {}
    for trial in as_rows(results.runs):
        trials.setdefault(str(trial["configuration"]), []).append(trial)
    about = {"study": results.study.name, "machine": results.study.machine_text}
    return [_run(row, trials[str(row["configuration"])], about) for row in results.rows]


def _run(row: Row, trials: Sequence[Row], about: Mapping[str, str]) -> Run:
    good = sorted((t for t in trials if t["status"] == "ok"), key=lambda trial: int(trial["repeat"]))
    return Run(
        name=str(row["configuration"]),
        title=f"{row['model']}, {row['series']}, batch {row['batch']}",
        group=str(row["model"]),
        ok=bool(row["n"]),
        at=seconds(row["started_at"]),
        parameters={key: _plain(row[key]) for key in KEYS if known(row[key])},
        tags={**about, **{key: str(row[key]) for key in TAGS if known(row[key]) and row[key] != ""}},
        metrics=_numbers(row, METRICS),
        points=[Point(int(t["repeat"]), seconds(t["started_at"]), _numbers(t, OF_A_REPEAT)) for t in good],
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


def _plain(value: Any) -> str | Number | bool:
    """As Python has it: numpy's own types mean nothing to these libraries."""
    return value.item() if hasattr(value, "item") else value if isinstance(value, str | int | float) else str(value)
