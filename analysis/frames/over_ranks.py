"""What the ranks of one trial measured, folded into its row of results.csv: slowest, sum, mean or largest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.frames import rounds
from analysis.frames.row_types import Means
from scaling_study.models import NO_MODEL
from scaling_study.quoting import printable
from scaling_study.records import store
from scaling_study.records.store import RankReport, Record
from scaling_study.records.throughput import samples_per_second
from scaling_study.stats.intervals import throughput, within_runs
from scaling_study.stats.trend import step_trend

PHASES = (*("data", "forward", "backward", "communication", "matchmaking", "averaging", "optimizer", "unattributed"),)
OF_A_ROUND = (
    "matchmaking",
    "averaging",
)  # parts of which go on while batches compute: what blocks the step is the phase
MEMORY = ("parameters", "gradients", "optimizer", "buffers", "activations", "resident")
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "all_to_all", "send", "other")
LIBRARIES = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
HOST = "host"
PHASE_COLUMNS = tuple(f"{name}_blocked_seconds" if name in OF_A_ROUND else f"{name}_seconds" for name in PHASES)
MEMORY_COLUMNS = tuple(f"{kind}_bytes" for kind in MEMORY)
COMMUNICATION_COLUMNS = tuple(f"communication_{kind}_bytes" for kind in COLLECTIVES)


def phase_seconds(row: Means) -> dict[str, float]:
    """Phase -> its seconds of a step, of the phases that were measured; in the order of PHASES."""
    seconds = {phase: float(row[name]) for phase, name in zip(PHASES, PHASE_COLUMNS, strict=True)}  # type: ignore[literal-required]
    return {phase: value for phase, value in seconds.items() if not math.isnan(value)}


@dataclass(frozen=True)
class Timed:
    """The window of a trial's slowest rank, for the interval within it."""

    step_seconds: NDArray[np.float64]  # (n,)
    samples_per_step: float  # over all ranks


def measured(record: Record) -> tuple[dict[str, Any], Timed | None]:
    """The columns of what was measured, over all ranks of a trial that is ok, and what its interval is made of
    (intervals). Of a probe: that it was alone."""
    ranks = record.ranks
    if record.trial.get("model") == NO_MODEL:
        return {"busy_elsewhere_cores": store.busy_elsewhere_cores(ranks)}, None
    slowest = max(ranks, key=lambda rank: rank.window_seconds)
    window_seconds = slowest.window_seconds
    if window_seconds <= 0:
        raise ValueError("the timed window lasted no time")
    samples = sum(rank.samples_seen for rank in ranks)
    if samples <= 0:
        raise ValueError("no rank saw a sample in the timed window")
    speed = samples_per_second((rank.samples_seen for rank in ranks), (rank.window_seconds for rank in ranks))
    if not 0 < speed < math.inf:
        raise ValueError(f"{samples} samples in {window_seconds:.2g} s are no speed")
    if min(min(rank.step_seconds) for rank in ranks) < 0:
        raise ValueError("a step took less than no time")
    steps = np.asarray(slowest.step_seconds, dtype=np.float64)
    tokens = over(sum, (rank.tokens_seen for rank in ranks))
    memory: list[dict[str, int]] = [rank.memory for rank in ranks]
    if record.trial.get("warm"):  # its process holds what others need too
        memory = [{kind: size for kind, size in kinds.items() if kind != "resident"} for kinds in memory]
    sent = [kinds for rank in ranks if (kinds := communication(rank)) is not None]
    columns = {
        "busy_elsewhere_cores": store.busy_elsewhere_cores(ranks),
        "samples_per_second": speed,
        "tokens_per_second": None if tokens is None else tokens / window_seconds,
        "steps": len(steps),
        "step_seconds_mean": window_seconds / len(steps),
        "step_seconds_median": statistics.median(slowest.ordered_seconds),
        "step_trend": step_trend(slowest.step_seconds),
        **{
            name: over(_mean, [getattr(rank.phases, f"{phase}_seconds", None) for rank in ranks])
            for phase, name in zip(PHASES, PHASE_COLUMNS, strict=True)
        },
        "parameters": over(max, (rank.parameters for rank in ranks)),
        "samples_seen": samples,
        "achieved_over_target": rounds.achieved(record),
        "allreduce_bytes": over(max, (rank.allreduce_bytes for rank in ranks)),
        "communication_bytes": over(max, [sum(kinds.values()) for kinds in sent]),
        **{
            name: over(max, [kinds[kind] for kinds in sent])
            for kind, name in zip(COLLECTIVES, COMMUNICATION_COLUMNS, strict=True)
        },
        "carrier": carrier(ranks),
        "overlap": over(_mean, (rank.overlap for rank in ranks)),
        "peak_memory_bytes": over(max, (rank.peak_memory_bytes for rank in ranks)),
        **{
            name: over(max, [kinds.get(kind) for kinds in memory])
            for kind, name in zip(MEMORY, MEMORY_COLUMNS, strict=True)
        },
        "gpu_utilization_percent": over(_mean, (rank.gpu_utilization_percent for rank in ranks)),
        "energy_joules": _energy_of_devices(ranks),
        "loss_first": over(_mean, (rank.loss_first for rank in ranks)),
        "loss_last": over(_mean, (rank.loss_last for rank in ranks)),
        "data_source": "; ".join(dict.fromkeys(rank.data_source for rank in ranks)),
    }
    return columns, Timed(steps, samples / len(steps))


def intervals(timed: Sequence[Timed], reasons: Iterable[str]) -> list[dict[str, Any]]:
    """`interval_low`, `interval_high` and `reason` of each: the verdict on the interval where there is none yet."""
    within = within_runs([rank.step_seconds for rank in timed])
    speeds = (throughput(seconds, rank.samples_per_step) for seconds, rank in zip(within, timed, strict=True))
    return [
        {"interval_low": speed.low, "interval_high": speed.high, "reason": reason or speed.verdict}
        for speed, reason in zip(speeds, reasons, strict=True)
    ]


def communication(rank: RankReport) -> Mapping[str, int] | None:
    """Bytes of one step of one worker, by kind of collective; None where the framework does not let us count."""
    counted = rank.communication_bytes or rank.allreduce_bytes is not None
    if not counted:
        return None
    kinds = dict.fromkeys(COLLECTIVES, 0)
    for kind, size in rank.communication_bytes.items():
        kinds[kind if kind in kinds else "other"] += size
    return kinds


def carrier(ranks: Sequence[RankReport]) -> str:
    """`MPI over shared memory`, `Gloo over TCP`: the library of the collectives, and which way bytes were seen to go.

    Empty where nothing was seen to go anywhere. Of several ways that by which most ranks sent.
    """
    ways = [rank.transport for rank in ranks if rank.transport]
    return f"{library(ranks)} over {statistics.mode(ways)}".removeprefix(" over ") if ways else ""


def library(ranks: Sequence[RankReport]) -> str:
    """MPI, Gloo or NCCL, by what the framework says of itself; empty where it says nothing.

    Horovod says NCCL where it was built with it. Where no kernel of NCCL ran, its controller carried the gradients.
    """
    about = ranks[0].backend
    named = communicator(ranks)
    return LIBRARIES.get(str(about.get("controller")) if named == HOST else named, named)


def communicator(ranks: Sequence[RankReport]) -> str:
    """`nccl`, `gloo`, `mpi`, `host` (Horovod's controller carries): empty where the framework says nothing."""
    named = str(ranks[0].backend.get("operations") or ranks[0].backend.get("backend") or "").lower()
    unused = named == "nccl" and 0 in {rank.nccl_kernels for rank in ranks}
    return HOST if unused else printable(named)


def over(fold: Callable[[list[Any]], Any], values: Iterable[Any]) -> Any:
    """`fold` over what is known of `values`; None where nothing is."""
    known = [value for value in values if value is not None]
    return fold(known) if known else None


def _energy_of_devices(ranks: Sequence[RankReport]) -> float | None:
    """Joules of all distinct devices: two ranks on one CPU read the same meter. None where one device's are unknown.

    A GPU is known by its UUID: where each rank sees its own one only, all ranks of a host have a `cuda:0`.
    """
    by_device: dict[tuple[str, ...], float | None] = {}
    for rank in ranks:
        on_gpu = rank.device.startswith("cuda")
        if on_gpu and not rank.gpu_uuids and len(ranks) > 1:
            return None
        key = tuple(rank.gpu_uuids) if on_gpu else (rank.host,)
        by_device[key] = over(max, (by_device.get(key), rank.energy_joules))
    joules = list(by_device.values())
    return None if None in joules else sum(value for value in joules if value is not None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
