"""What the ranks of one trial measured, folded into its row of results.csv: slowest, sum, mean or largest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from scaling_study import records
from scaling_study.intervals import throughput, within_run
from scaling_study.models import NO_MODEL
from scaling_study.records import RankReport, Record

PHASES = ("data", "forward", "backward", "communication", "optimizer", "unattributed")
MEMORY = ("parameters", "gradients", "optimizer", "buffers", "activations", "resident")
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "all_to_all", "send", "other")
MEMORY_COLUMNS = tuple(f"{kind}_bytes" for kind in MEMORY)
COMMUNICATION_COLUMNS = tuple(f"communication_{kind}_bytes" for kind in COLLECTIVES)


def measured(record: Record) -> dict[str, Any]:
    """The columns of what was measured, over all ranks of a trial that is ok: of a probe, that it was alone."""
    ranks = record.ranks
    if record.trial.get("model") == NO_MODEL:
        return {"busy_elsewhere_cores": records.busy_elsewhere_cores(ranks)}
    slowest = max(ranks, key=lambda rank: sum(rank.step_seconds))
    window_seconds = sum(slowest.step_seconds)
    if window_seconds <= 0:
        raise ValueError("the timed window lasted no time")
    samples = sum(rank.samples_seen for rank in ranks)
    if samples <= 0:
        raise ValueError("no rank saw a sample in the timed window")
    interval = throughput(within_run(slowest.step_seconds), samples / len(slowest.step_seconds))
    tokens = over(sum, (rank.tokens_seen for rank in ranks))
    sent = [communication(rank) for rank in ranks]
    return {
        "reason": record.reason or interval.verdict,
        "busy_elsewhere_cores": records.busy_elsewhere_cores(ranks),
        "samples_per_second": samples / window_seconds,
        "tokens_per_second": None if tokens is None else tokens / window_seconds,
        "interval_low": interval.low,
        "interval_high": interval.high,
        "steps": len(slowest.step_seconds),
        "step_seconds_mean": window_seconds / len(slowest.step_seconds),
        "step_seconds_median": float(pd.Series(slowest.step_seconds).median()),
        **{
            f"{name}_seconds": over(_mean, (getattr(rank.phases, f"{name}_seconds", None) for rank in ranks))
            for name in PHASES
        },
        "parameters": over(max, (rank.parameters for rank in ranks)),
        "samples_seen": samples,
        "allreduce_bytes": over(max, (rank.allreduce_bytes for rank in ranks)),
        "communication_bytes": over(max, (None if kinds is None else sum(kinds.values()) for kinds in sent)),
        **{
            f"communication_{kind}_bytes": over(max, (None if kinds is None else kinds[kind] for kinds in sent))
            for kind in COLLECTIVES
        },
        "peak_memory_bytes": over(max, (rank.peak_memory_bytes for rank in ranks)),
        **{f"{kind}_bytes": over(max, (rank.memory.get(kind) for rank in ranks)) for kind in MEMORY},
        "gpu_utilization_percent": over(_mean, (rank.gpu_utilization_percent for rank in ranks)),
        "energy_joules": over(sum, _energy_of_devices(ranks)),
        "loss_first": over(_mean, (rank.loss_first for rank in ranks)),
        "loss_last": over(_mean, (rank.loss_last for rank in ranks)),
        "data_source": "; ".join(dict.fromkeys(rank.data_source for rank in ranks)),
    }


def communication(rank: RankReport) -> Mapping[str, int] | None:
    """Bytes of one step of one worker, by kind of collective; None where the framework does not let us count."""
    counted = rank.communication_bytes or rank.allreduce_bytes is not None
    if not counted:
        return None
    kinds = dict.fromkeys(COLLECTIVES, 0)
    for kind, size in rank.communication_bytes.items():
        kinds[kind if kind in kinds else "other"] += size
    return kinds


def over(fold: Callable[[list[Any]], Any], values: Iterable[Any]) -> Any:
    """`fold` over what is known of `values`; None where nothing is."""
    known = [value for value in values if value is not None]
    return fold(known) if known else None


def _energy_of_devices(ranks: Iterable[RankReport]) -> list[float | None]:
    """Joules of each distinct device: two ranks on one CPU read the same meter."""
    by_device: dict[tuple[str, str], float | None] = {}
    for rank in ranks:
        key = (rank.host, rank.device)
        by_device[key] = over(max, (by_device.get(key), rank.energy_joules))
    return list(by_device.values())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
