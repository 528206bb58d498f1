"""A row for each size of every network that was probed: seconds over the repeats, and the bandwidths they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from scaling_study.stats.collectives import COLLECTIVES, bus_factor
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats

BETWEEN, WITHIN = "between repeats", "within the run"
LIBRARIES: Mapping[str, str] = {"torchrun": "torch.distributed", "horovodrun": "Horovod", "mpirun": "mpi4py"}
COLUMNS = (
    *("configuration", "probe", "launcher", "controller", "device", "workers", "collective", "busy", "bytes"),
    *("repeats", "calls", "seconds", "seconds_low", "seconds_high", "seconds_error", "interval"),
    *("seconds_min", "seconds_max"),
    *("algorithm_bytes_per_second", "bus_bytes_per_second"),
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS of every probe that is ok, by probe, state of the cores, collective and size.

    Intervals are 95 %: between the repeats with three or more, else within the runs, as `interval` says.
    """
    trials = results.probes[results.probes.status == "ok"].drop_duplicates("configuration")
    about = {row["configuration"]: row for row in as_rows(trials)}
    names = _names(about)
    sizes = results.details.network
    measured = sizes[sizes.configuration.isin(about)]
    keys = ["configuration", "busy", "collective", "bytes"]
    groups = [ours for _, ours in measured.groupby(keys, sort=False)]
    rows = [_row(dict(ours.iloc[0][keys]), ours, about, names) for ours in groups]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).assign(
        order=[COLLECTIVES.index(row["collective"]) for row in rows]
    )
    order = ["probe", "configuration", "busy", "order", "bytes"]
    return frame.sort_values(order, kind="stable", ignore_index=True).drop(columns="order")


def _row(
    keys: dict[Any, Any], ours: pd.DataFrame, trials: Mapping[str, Mapping[Any, Any]], names: Mapping[str, str]
) -> dict[str, Any]:
    trial = trials[keys["configuration"]]
    workers, seconds = int(trial["workers"]), float(ours.seconds.mean())
    rate = keys["bytes"] / seconds
    return {
        **keys, "probe": names[keys["configuration"]], "workers": workers,
        **{key: trial[key] for key in ("launcher", "controller", "device")},
        "repeats": len(ours), "calls": int(ours.calls.sum()), "seconds": seconds, **_interval(ours, seconds),
        "seconds_min": ours.seconds_min.min(), "seconds_max": ours.seconds_max.max(),
        "algorithm_bytes_per_second": rate, "bus_bytes_per_second": bus_factor(keys["collective"], workers) * rate,
    }  # fmt: skip


def _interval(ours: pd.DataFrame, seconds: float) -> dict[str, Any]:
    """The 95 % interval of the mean over the repeats of one size, and its standard error."""
    n = len(ours)
    if n >= FEWEST_REPEATS:
        mean, error, kind = between_repeats(ours.seconds.to_numpy()), ours.seconds.std() / n**0.5, BETWEEN
        low, high = mean.low, mean.high
    else:  # of each run, independent of the others
        half, kind = ((ours.seconds_high - ours.seconds_low).pow(2).sum(skipna=False)) ** 0.5 / 2 / n, WITHIN
        low, high, error = max(0.0, seconds - half), seconds + half, half / 2
    return {"seconds_low": low, "seconds_high": high, "seconds_error": error, "interval": kind}


def _names(trials: Mapping[str, Mapping[Any, Any]]) -> dict[str, str]:
    """Configuration -> `Horovod (gloo), 2 workers`, with its hash's digits where two would be called alike."""
    names = {configuration: _name(trial) for configuration, trial in trials.items()}
    every = list(names.values())
    return {c: name if every.count(name) == 1 else f"{name}, {c.rpartition('-')[2]}" for c, name in names.items()}


def _name(trial: Mapping[Any, Any]) -> str:
    library = LIBRARIES.get(str(trial["launcher"]), str(trial["launcher"]))
    carrier = str(trial["controller"]) if known(trial["controller"]) else ""
    if library == "torch.distributed":
        carrier = "NCCL" if trial["device"] == "cuda" else "Gloo"
    cycle = f", cycle of {1000 * trial['cycle_seconds']:g} ms" if known(trial["cycle_seconds"]) else ""
    over = f" on {trial['hosts']} hosts" if known(trial["hosts"]) and trial["hosts"] > 1 else ""
    return f"{library}{f' ({carrier})' if carrier else ''}{cycle}, {trial['workers']} workers{over}"
