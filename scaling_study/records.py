"""The record on disk: what was asked, what came of it, written so that nothing half-written is ever believed.

    results/<study>/study.json                   the study's name, the machine it is for, the seed of the order
    results/<study>/trials/<trial id>/
        trial.json      what was asked            command.txt  a line that reproduces it by hand
        log.txt         what the processes said   ranks/rank-<n>.json  each rank's own report (`RankReport`)
        record.json     what came of it (`Record`): renamed into place last, after an fsync. Its presence is
                        the one sign that a trial is finished.

Ranks write JSON and the driver joins it; no log and no folder name is ever parsed (docs/record.md).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA = 1
STATUSES = ("ok", "oom", "timeout", "failed", "unsupported", "cancelled")


@dataclass(frozen=True)
class Phases:
    """Mean seconds of one step's parts, from the instrumented window; None where a framework hides the phase."""

    steps: int  # how many steps were instrumented
    step_seconds: float  # mean of the instrumented steps, to set beside the timed ones
    data_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    communication_seconds: float | None = None  # exposed: what the step waited for
    optimizer_seconds: float | None = None
    unattributed_seconds: float | None = None  # step_seconds less all of the above


@dataclass(frozen=True)
class RankReport:
    """What one rank measured. Times are seconds, sizes bytes."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    device: str  # cpu, cuda:0
    device_name: str  # the CPU's or GPU's model
    cores: list[int]  # the cores this process is pinned to; empty: not pinned
    threads: int  # of torch's intra-op pool
    first_step_at: float  # Unix time at which the first warm-up step began
    warmup_seconds: list[float]
    step_seconds: list[float]  # of every timed step, in order
    samples_per_step: int  # of this rank
    samples_seen: int  # by this rank in the timed window
    tokens_seen: int | None  # likewise, where a sample has tokens
    phases: Phases | None
    parameters: int
    allreduce_bytes: int | None  # of one optimiser step, counted at the call
    communication_bytes: dict[str, int]  # by kind of collective
    peak_memory_bytes: int | None
    memory: dict[str, int]  # tensor bytes by kind, resident set beside them
    loss_first: float | None  # of the first warm-up step
    loss_last: float | None  # of the last timed step
    data_source: str  # "cifar10" or "synthetic", with where it came from
    steps_per_epoch: int
    gpu_utilization_percent: float | None
    energy_joules: float | None  # of this rank's device over the timed window
    backend: dict[str, Any]  # what the framework itself reports (controller, versions it was built with)
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)
    learning_rate: float | None = None  # that the optimiser really had
    own_cpu_seconds: float | None = None  # CPU time of this process over the timed window
    host_cpu_seconds: float | None = None  # CPU time of all cores of its host over the same time
    stages: list[dict[str, Any]] = field(default_factory=list)  # of a pipeline, on this rank (stages/stage.py)
    timeline: list[list[Any]] = field(default_factory=list)  # its instrumented steps' events (measure/timeline.py)
    epochs: list[dict[str, Any]] = field(
        default_factory=list
    )  # whole epochs, where they were asked for (measure/epochs.py)


@dataclass(frozen=True)
class Record:
    """What came of one trial. `ranks` is empty unless every rank left a whole report."""

    study: str
    id: str
    configuration: str
    trial: dict[str, Any]  # every trial key (Trial.to_dict)
    window: dict[str, Any]  # Trial.window
    status: str  # one of STATUSES
    reason: str = ""  # one short clause: why not ok
    error: str = ""  # the message behind it, at most some 4,000 characters
    started_at: str = ""  # ISO 8601, UTC
    launch_seconds: float | None = None  # from starting the launcher to rank 0's first step
    total_seconds: float | None = None  # from starting the launcher to its exit
    exit_code: int | None = None
    command: str = ""  # one shell line
    commit: str = ""  # of this project, "+changes" if the tree was not clean
    machine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # variables that decide speed (provenance.py)
    planned_repeats: int | None = None  # how many repeats were asked for before any was seen
    notes: list[str] = field(default_factory=list)
    ranks: list[RankReport] = field(default_factory=list)
    parity: str = ""  # of a parity trial: "passed", or the first fault
    found: dict[str, Any] = field(default_factory=dict)  # of find: {"max_batch": 208, "tries": {"32": "ok", ...}}
    schema: int = SCHEMA


BUSY_CORES = 0.2  # of others, beyond which a run is said to be disturbed; a launcher that waits takes about 0.05


def busy_elsewhere_cores(ranks: list[RankReport]) -> float | None:
    """Cores that others kept busy during the timed window, on the busiest host; None if it was not recorded."""
    worst = None
    for host in {rank.host for rank in ranks}:
        ours = [rank for rank in ranks if rank.host == host]
        if any(rank.own_cpu_seconds is None or rank.host_cpu_seconds is None for rank in ours):
            return None
        window = max(sum(rank.step_seconds) for rank in ours)
        others = max(rank.host_cpu_seconds or 0.0 for rank in ours) - sum(rank.own_cpu_seconds or 0.0 for rank in ours)
        worst = max(worst or 0.0, others / window)
    return worst


class UnreadableRecord(Exception):
    """A record.json or rank report that is not whole, or not ours. The message names the file."""


def write_json(path: Path, value: Any) -> None:
    """Write atomically and durably: a temporary file, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(handle, 0o644)  # mkstemp's own mode would hide results from everybody else
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=1, allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        if os.path.exists(name):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_rank(folder: Path, report: RankReport) -> None:
    """Leave one rank's report in `folder`/ranks/."""
    write_json(folder / "ranks" / f"rank-{report.rank}.json", asdict(report))


def read_ranks(folder: Path, world_size: int) -> list[RankReport]:
    """Every rank's report, by rank. Raises UnreadableRecord if one is missing or not whole."""
    return [rank_from(load(folder / "ranks" / f"rank-{rank}.json"), folder) for rank in range(world_size)]


def write_record(folder: Path, record: Record) -> None:
    """Finish a trial: from here on it will not be run again."""
    write_json(folder / "record.json", asdict(record))


def read_record(path: Path) -> Record:
    """Raises UnreadableRecord, naming the file, if it is not a whole record of this schema."""
    value = load(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnreadableRecord(f"{path} is not a record of schema {SCHEMA}")
    known = {f.name for f in fields(Record)}
    if not isinstance(value.get("ranks", []), list):
        raise UnreadableRecord(f"{path} is not whole: its ranks are no list")
    ranks = [rank_from(rank, path) for rank in value.get("ranks", [])]
    try:
        return Record(**{**{k: v for k, v in value.items() if k in known}, "ranks": ranks})
    except TypeError as error:
        raise UnreadableRecord(f"{path} is not whole: {error}") from error


def read_study(results: Path) -> Iterator[Record]:
    """Every finished trial under results/<study>, by id."""
    for path in sorted((results / "trials").glob("*/record.json")):
        yield read_record(path)


def rank_from(value: Any, where: Path) -> RankReport:
    """A RankReport from its JSON. Raises UnreadableRecord."""
    try:
        phases = value["phases"]
        return RankReport(**{**value, "phases": None if phases is None else Phases(**phases)})
    except (TypeError, KeyError) as error:
        raise UnreadableRecord(f"{where}: a rank's report is not whole: {error}") from error


def load(path: Path) -> Any:
    """A JSON file. Raises UnreadableRecord, naming it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError as error:
        raise UnreadableRecord(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number that we write")
