"""Measurements of the ranks of one trial, folded into its row of results.csv: slowest, sum, mean or largest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.frames.rows import WHO, ConfigurationRow, grouped, numbers, whole
from scaling_study.errors import printable
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.schema import AveragingRound, GroupBytes, RankReport, Record, samples_per_second
from scaling_study.stats.intervals import step_trend, throughput, within_runs
from scaling_study.stats.network import sent_share

# Averaging rounds of decentralised training (scaling_study/measure/training.py): one row a run.
# A round is a step: the n-th round of every rank is the same one. Seconds are means over ranks and rounds, since each
# peer watches its own; those of an averaging that was still under way (peers: 0) when the run ended are not known.

SECONDS = tuple(f"{part}_{what}" for part in ("matchmaking", "averaging") for what in ("seconds", "blocked_seconds"))
NUMBERS = ("achieved_over_target", "achieved_most", "round_seconds", *SECONDS, "weights_share", "sent_bytes")
# `local`: rounds that some peer applied with its own gradients alone; `failure`: of the first that failed;
# `round_seconds`: of a timed round on the slowest rank; `weights_share`: of the rounds, those after which weights were
# averaged too, and `sent_bytes`: packed for other peers; both NaN in older records.
ROUNDS = WHO | {"ok": "bool"} | whole("rounds", "failed", "local", "peers") | {"failure": None} | numbers(*NUMBERS)
Row = tuple[Any, ...]


def who(record: Record) -> tuple[str, int]:
    """The first two cells of every row about a trial."""
    return printable(record.configuration), record.trial.repeat


def of_peers(framework: str) -> bool:
    """True where a step of the framework is a round of peers. It ends once they together have a target batch."""
    table = FRAMEWORKS.get(framework)
    return table is not None and table.has_rounds


def samples_of_step(row: Mapping[str, Any]) -> float:
    """That a configuration's workers take in one step: its global batch, or what a round really had."""
    achieved = row.get("achieved_over_target")
    return float(row["global_batch"]) * (1.0 if achieved is None or pd.isna(achieved) else float(achieved))


def failed(record: Record) -> int | None:
    """Rounds that some peer did not average with all others; None where there are no rounds."""
    return sum(bool(_failure(each)) for each in _whole(record)) if any(rank.rounds for rank in record.ranks) else None


def round_rows(record: Record) -> list[Row]:
    """A row of ROUNDS for a run that has rounds."""
    whole = _whole(record)
    if not whole:
        return []
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds)
    every = [each for rank in record.ranks for each in rank.rounds]
    over = [each for each in every if each.peers]
    failures = [why for each in whole if (why := _failure(each))]
    shares = _shares(record)
    return [
        (
            *who(record),
            record.status == "ok",
            len(whole),
            len(failures),
            sum(any(one.peers == 1 for one in each) for each in whole),
            min((each.peers for each in over), default=0),
            printable(failures[0]) if failures else "",
            mean_of_known(shares),
            max(shares),
            slowest.window_seconds / len(slowest.step_seconds) if slowest.step_seconds else None,
            *(mean_of_known(_seconds(each, name) for each in over) for name in SECONDS),
            # Averagings of 0 peers, still under way, count too.
            mean_of_known(each.weights_peers is not None for each in every if each.weights_seconds is not None),
            mean_of_known(each.sent_bytes for each in every),
        )
    ]


def _seconds(each: AveragingRound, name: str) -> float:
    """Seconds of a round. Time blocked in averaging includes that of the weights before, which its update waits for."""
    more = each.weights_blocked_seconds if name == "averaging_blocked_seconds" else 0.0
    return float(getattr(each, name)) + more


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """None where none is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _whole(record: Record) -> list[Sequence[AveragingRound]]:
    """Round by round what each rank says of it, as far as all say something."""
    return list(zip(*(rank.rounds for rank in record.ranks), strict=False))


def _shares(record: Record) -> list[float]:
    """Samples of all peers over the target, round by round. Raises ValueError where there is no target."""
    if not (whole := _whole(record)):
        return []
    if (target := record.trial.global_batch) < 1:
        raise ValueError(f"global_batch is {target}")
    return [sum(one.samples for one in each) / target for each in whole]


def _failure(each: Sequence[AveragingRound]) -> str:
    """Why not all peers took part, by the first that says it."""
    return next((one.failure for one in each if one.failure), "")


PHASES = ("data", "forward", "backward", "communication", "matchmaking", "averaging", "optimizer", "unattributed")
# Parts of these go on while batches compute: what blocks the step is the phase.
OF_A_ROUND = ("matchmaking", "averaging")
MEMORY = ("parameters", "gradients", "optimizer", "buffers", "activations", "resident")
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "all_to_all", "send", "other")
LIBRARIES = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
HOST = "host"
PHASE_COLUMNS = tuple(f"{name}_blocked_seconds" if name in OF_A_ROUND else f"{name}_seconds" for name in PHASES)
MEMORY_COLUMNS = tuple(f"{kind}_bytes" for kind in MEMORY)
COMMUNICATION_COLUMNS = tuple(f"communication_{kind}_bytes" for kind in COLLECTIVES)


def phase_seconds(row: ConfigurationRow) -> dict[str, float]:
    """Phase -> its seconds of a step, of the phases that were measured; in the order of PHASES."""
    seconds = {phase: float(row[name]) for phase, name in zip(PHASES, PHASE_COLUMNS, strict=True)}
    return {phase: value for phase, value in seconds.items() if not math.isnan(value)}


@dataclass(frozen=True)
class Timed:
    """The window of a trial's slowest rank, for the interval within it."""

    step_seconds: NDArray[np.float64]  # (n,)
    samples_per_step: float  # over all ranks


def measured(record: Record) -> tuple[dict[str, Any], Timed]:
    """(values, `Timed`) of a trial that is ok. The values are those of columns.py that no plain fold of its ranks
    gives; `Timed` gives their interval. Raises ValueError for an impossible window."""
    ranks = record.ranks
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
    tokens = [rank.tokens_seen for rank in ranks if rank.tokens_seen is not None]
    columns = {
        "samples_per_second": speed,
        "tokens_per_second": sum(tokens) / window_seconds if tokens else None,
        "steps": len(steps),
        "step_seconds_mean": window_seconds / len(steps),
        "step_seconds_median": statistics.median(slowest.ordered_seconds),
        "step_trend": step_trend(slowest.step_seconds),
        "achieved_over_target": mean_of_known(_shares(record)),
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


def bytes_sent(rank: RankReport, kind: str = "") -> int | None:
    """Bytes of one step of one worker, by collectives of `kind` or of all; None where they cannot be counted."""
    counted = rank.communication_bytes
    if not counted and rank.allreduce_bytes is None:
        return None
    if kind == "other":
        return sum(size for name, size in counted.items() if name not in COLLECTIVES[:-1])
    return counted.get(kind, 0) if kind else sum(counted.values())


def algorithm_bytes(ranks: Sequence[RankReport]) -> float | None:
    """Bytes that a rank sends in one step by the algorithms of its library, mean over the ranks: the payload of each
    kind times `sent_share`, of the ranks that a mesh has in its group. None where the payload is not counted, or the
    algorithm not known, or which of a pipeline's workers reduce together."""
    if any(rank.allreduce_bytes is None and not any(rank.communication_bytes.values()) for rank in ranks):
        return None
    every = [each for rank in ranks for each in _by_group(rank, len(ranks))]
    shares = [sent_share(each.kind, each.ranks, library(ranks)) for each in every]
    of_some = ranks[0].stages and not ranks[0].communication_groups
    if None in shares or (of_some and any(each.kind != "send" for each in every)):
        return None
    return sum(each.bytes * (share or 0.0) for each, share in zip(every, shares, strict=True)) / len(ranks)


def _by_group(rank: RankReport, all_ranks: int) -> list[GroupBytes]:
    """What a rank handed to collectives in one step; where no group is known, as if each was of `all_ranks`."""
    counted = [GroupBytes(kind, "", all_ranks, size) for kind, size in rank.communication_bytes.items()]
    return [each for each in rank.communication_groups or counted if each.bytes]


def mesh_bytes(ranks: Sequence[RankReport]) -> str | None:
    """`shard (2): all_gather 1.2 MB, reduce_scatter 0.6 MB; replicate (2): allreduce 0.3 MB`, of the first rank; None
    where all collectives were of all ranks."""
    groups: dict[str, list[str]] = {}
    for each in ranks[0].communication_groups:
        name = f"{printable(each.group)} ({each.ranks})" if each.group else f"{each.ranks} ranks"
        groups.setdefault(name, []).append(f"{printable(each.kind)} {each.bytes / 1e6:.3g} MB")
    return "; ".join(f"{name}: {', '.join(parts)}" for name, parts in groups.items()) or None


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


def energy_of_devices(ranks: Sequence[RankReport]) -> float | None:
    """Joules of all distinct devices: two ranks on one CPU read the same meter. None where one device's are unknown.

    A GPU is known by its UUID: where each rank sees its own one only, all ranks of a host have a `cuda:0`.
    """
    devices = grouped(
        ranks, lambda rank: tuple(rank.gpu_uuids) if rank.device.startswith("cuda") else (f"host {rank.host}",)
    )
    if () in devices and len(ranks) > 1:
        return None
    known = [[rank.energy_joules for rank in ours if rank.energy_joules is not None] for ours in devices.values()]
    return sum(map(max, known)) if all(known) else None
