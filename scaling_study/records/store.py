"""The record on disk: what was asked, what came of it, written so that nothing half-written is ever believed.

    results/<study>/study.json                   the study's name, the machine it is for, the seed of the order
    results/<study>/trials/<trial id>/
        trial.json      what was asked            command.txt  a line that reproduces it by hand
        log.txt         output of the processes   ranks/rank-<n>.json  each rank's own report (`RankReport`)
        record.json     what came of it (`Record`): renamed into place last, after an fsync. Its presence is
                        the one sign that a trial is finished.

Ranks write JSON and the driver joins it; no log and no folder name is ever parsed (docs/record.md).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from scaling_study.records.reading import UnreadableRecord, contents, load, misfit, plainly

SCHEMA = 1
STRICT = {"strict": True, "allow_inf_nan": False}  # how pydantic reads them: no text is a number
STATUSES = ("ok", "oom", "timeout", "failed", "unsupported", "cancelled")
PROGRESS = "progress.json"  # of a training: how far it is, replaced every few seconds
BEST = "best.pt"  # of a training that keeps its best model: the weights
OF_A_TRAINING = ("checkpoints", PROGRESS, BEST, "training.csv", "tensorboard", "wandb")  # that it goes on from
IMPLIED = "implied: "  # prefix of the reason of an `oom` that was not run: a smaller batch was out of memory


@dataclass(frozen=True)
class Phases:
    """Mean seconds of one step's parts, from the instrumented window; None where a framework hides the phase."""

    __pydantic_config__ = STRICT | {"extra": "forbid"}

    steps: int  # how many steps were instrumented
    step_seconds: float  # mean of the instrumented steps, to set beside the timed ones
    data_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    communication_seconds: float | None = None  # exposed: what the step waited for
    optimizer_seconds: float | None = None
    unattributed_seconds: float | None = None  # step_seconds less all of the others
    matchmaking_seconds: float | None = None  # of decentralised training: what the step waited for peers
    averaging_seconds: float | None = None  # and for their gradients


@dataclass(frozen=True)
class RankReport:
    """What one rank measured. Times are seconds, sizes bytes."""

    __pydantic_config__ = STRICT | {"extra": "forbid"}

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
    network: list[dict[str, Any]] = field(default_factory=list)  # of a probe: a row for each size (measure/network.py)
    gradients: list[list[float]] = field(default_factory=list)  # [bytes, seconds into backward] (measure/arrivals.py)
    forward_flops_per_sample: float | None = None  # of the unsplit model (workloads/flops.py)
    peak_flops_per_second: float | None = None  # that this rank's device reached in a microbenchmark (measure/peak.py)
    peak_bytes_per_second: float | None = None  # likewise, of memory
    setup_peak_memory_bytes: int | None = None  # of a GPU's allocator, before the timed window
    gpu_uuids: list[str] = field(default_factory=list)  # of the GPUs that this rank computes on, sorted
    tf32: bool | None = None  # whether its fp32, and that of its peak, may be TF32
    warmup_skipped_steps: int | None = None  # before the window, that an fp16 loss scaler left out (measure/skipped.py)
    skipped_steps: int | None = None  # likewise, of the timed window
    transport: str = ""  # of the counted step: shared memory, TCP or RDMA; empty: not known (measure/carrier.py)
    overlap: float | None = None  # share of the time with a collective in flight that computed (measure/overlap.py)
    nccl_kernels: int | None = None  # that ran in one step, on GPUs of several workers
    training: dict[str, Any] = field(default_factory=dict)  # of a run that is trained to a result (docs/record.md)
    rounds: list[dict[str, Any]] = field(default_factory=list)  # of decentralised training (measure/rounds.py)
    untimed_rounds_failure: str = ""  # of the first that failed in the warm-up or after the window
    boot_id: str = ""  # of the kernel that it ran on: hosts that share one are namespaces or containers of a machine
    parameters_all: int | None = None  # with those that are not trained; null in older records
    blocks: list[dict[str, int | float]] = field(default_factory=list)  # of step_seconds: {"round", "at", "steps"}
    weights: dict[str, Any] = field(default_factory=dict)  # of the file that it began with (workloads/weights.py)

    @cached_property
    def window_seconds(self) -> float:
        """All timed steps together."""
        return sum(self.step_seconds)

    @cached_property
    def ordered_seconds(self) -> list[float]:
        """`step_seconds` by size, for statistics of their spread. Read-only."""
        return sorted(self.step_seconds)


@dataclass(frozen=True)
class Record:
    """What came of one trial. `ranks` is empty unless every rank left a whole report."""

    __pydantic_config__ = STRICT  # other keys are a later version's, and passed over

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
    total_seconds: float | None = None  # from starting the launcher to its exit; of a search, of all its starts
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
    attempts: int = 1  # how often it was started: more than once after a transient failure (transient.py)
    job: dict[str, Any] = field(default_factory=dict)  # of Slurm, in which it ran (allocation.py): {"job": "41", ...}
    hosts: list[str] = field(default_factory=list)  # that it ran over, with their workers: ["h1:2", "h2:2"]
    machine_file: dict[str, Any] = field(default_factory=dict)  # what was given of one (machine_file.py)
    launch: str = ""  # that it shared with others: number/batch-group, "3/0-1-horovod" (stats/launches.py)
    schema: int = SCHEMA


KNOWN = {f.name for f in fields(Record)}
LAST_KEY = re.compile(rb'"schema":\s*%d\s*\}\s*\Z' % SCHEMA)  # of records, as we write them


def implied(status: str, reason: str) -> bool:
    """Whether a trial was not run because a smaller batch of the same was out of memory."""
    return status == "oom" and reason.startswith(IMPLIED)


BUSY_CORES = 0.2  # of others, beyond which a run counts as disturbed; a launcher that waits takes about 0.05


def busy_elsewhere_cores(ranks: list[RankReport]) -> float | None:
    """Cores that others kept busy during the timed window, on the busiest machine; None if it was not recorded."""
    worst = None
    for machine in {rank.boot_id or rank.host for rank in ranks}:
        ours = [rank for rank in ranks if machine in (rank.boot_id, rank.host)]
        if any(rank.own_cpu_seconds is None or rank.host_cpu_seconds is None for rank in ours):
            return None
        window = max(rank.window_seconds for rank in ours)
        others = max(rank.host_cpu_seconds or 0.0 for rank in ours) - sum(rank.own_cpu_seconds or 0.0 for rank in ours)
        worst = max(worst or 0.0, others / window)
    return worst


def write_json(path: Path, value: Any) -> None:
    """Write atomically and durably."""
    write_bytes(path, encoded(value))


def write_bytes(path: Path, content: bytes) -> None:
    """Likewise: a temporary file, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(handle, 0o644)  # mkstemp's own mode would hide results from everybody else
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
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


def encoded(value: Any) -> bytes:
    """JSON as we write it. Raises ValueError for what is no number."""
    return json.dumps(value, indent=1, allow_nan=False).encode()


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
    text = contents(path)
    if LAST_KEY.search(text[-40:]) and (plain := plainly(text, Record)) is not None:
        return plain
    value = load(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnreadableRecord(f"{path} is not a record of schema {SCHEMA}")
    if not isinstance(value.get("ranks", []), list):
        raise UnreadableRecord(f"{path} is not whole: its ranks are no list")
    ranks = [rank_from(rank, path) for rank in value.get("ranks", [])]
    try:
        record = Record(**{**{k: v for k, v in value.items() if k in KNOWN}, "ranks": ranks})
    except TypeError as error:
        raise UnreadableRecord(f"{path} is not whole: {error}") from error
    if wrong := misfit(record):
        raise UnreadableRecord(f"{path} is not whole: {wrong}")
    return record


def read_trial(folder: Path) -> Record:
    """The record in the folder of a trial, which is named by its id. Raises UnreadableRecord also for another's."""
    record = read_record(folder / "record.json")
    if folder.is_symlink() or record.id != folder.name:
        raise UnreadableRecord(f"{folder / 'record.json'} is that of trial {record.id[:200]}")
    return record


def read_study(results: Path) -> Iterator[Record]:
    """Every finished trial under results/<study>, by id."""
    for path in sorted((results / "trials").glob("*/record.json")):
        yield read_trial(path.parent)


def rank_from(value: Any, where: Path) -> RankReport:
    """A RankReport from its JSON. Raises UnreadableRecord."""
    try:
        phases = value["phases"]
        report = RankReport(**{**value, "phases": None if phases is None else Phases(**phases)})
    except (TypeError, KeyError) as error:
        raise UnreadableRecord(f"{where}: a rank's report is not whole: {error}") from error
    if wrong := misfit(report) or (report.phases is not None and misfit(report.phases)):
        raise UnreadableRecord(f"{where}: a rank's report is not whole: {wrong}")
    return report
