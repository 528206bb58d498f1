"""The record on disk: what was asked, what came of it, written so that nothing half-written is ever believed.

    results/<study>/study.json                   the study's name, the machine it is for, the seed of the order
    results/<study>/trials/<trial id>/
        begun.json      until it is finished: what was asked, as a `Record` without an outcome
        log.txt         output of the processes   ranks/rank-<n>.json  each rank's own report (`RankReport`)
        record.json     takes the place of begun.json: what was asked and what came of it (`Record`), renamed into
                        place last, after an fsync. Its presence is the one sign that a trial is finished.

Ranks write JSON and the driver joins it; no log and no folder name is ever parsed (docs/record.md). A file that is
half-written, changed by hand or another program's becomes an UnreadableRecord that names it; never a traceback, never a
NaN, never a number that no column could hold.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from scaling_study.errors import printable, shortened
from scaling_study.trial import STRICT, Trial, Window

MOST_BYTES = 1 << 30  # of one file: a hundred ranks of 100,000 steps are a fifth of it
MOST = 2**63  # whole numbers beyond fit no column of a table
NO_NUMBERS = (str, bool, type(None))
BOUNDED = (
    *NO_NUMBERS,
    float,
    float | None,
    str | None,
    bool | None,
    list[str],
    dict[str, str],
    list[float],
    list[list[float]],
)  # types whose numbers pydantic has looked at
LONGEST = 200  # characters of what is wrong
Made = TypeVar("Made")


class UnreadableRecord(Exception):
    """A file that is not whole, or not ours. The message names it."""


class MissingRecord(UnreadableRecord):
    """A file that is not there."""


def load(path: Path) -> Any:
    """A JSON file. Raises UnreadableRecord, naming it."""
    return _value(contents(path), path)


def contents(path: Path) -> bytes:
    """The bytes of a file. Raises UnreadableRecord, naming it. A link is not followed: it may lead to another trial."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise ValueError("it is no file")
            if about.st_size > MOST_BYTES:
                raise ValueError(f"{about.st_size:,} bytes")
            parts = [os.read(handle, about.st_size + 1)]
            while len(parts[-1]) > about.st_size:  # it grows meanwhile; less than was asked for is the end of a file
                parts.append(os.read(handle, about.st_size + 1))
            return b"".join(parts)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise MissingRecord(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        why = "it is a link" if path.is_symlink() else str(error)
        raise UnreadableRecord(f"{path} cannot be read: {why}") from error


def parsed(text: bytes, kind: type[Made], path: Path) -> Made:
    """The JSON of `path` as a dataclass, each field of its type. Raises UnreadableRecord, naming file and field."""
    from pydantic import ValidationError

    hashable: Any = kind
    try:
        made: Made = _adapter(hashable).validate_json(text)
    except ValidationError as error:
        _value(text, path)  # which raises what is wrong with the JSON itself
        first = error.errors(include_url=False, include_input=False)[0]
        what = ": ".join([".".join(map(str, first["loc"])), first["msg"]])
        raise UnreadableRecord(f"{path} is not whole: {shortened(printable(what), LONGEST)}") from error
    if not _plain_numbers([made]):
        _value(text, path)
    return made


@functools.cache
def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter  # here: scripts write records and read none

    return TypeAdapter(cls)


def _value(text: bytes, path: Path) -> Any:
    """JSON -> its value. Numbers that no column could hold are for Python's own parser to turn down, and so is all
    that the fast one does not take: it knows what is wrong, or accepts it. Raises UnreadableRecord."""
    from pydantic_core import from_json

    try:
        value = from_json(text, allow_inf_nan=False)
        if _plain_numbers([value]):
            return value
    except ValueError:
        pass
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error


def _plain_numbers(values: list[Any]) -> bool:
    """True where every number inside is surely within bounds; an infinite one is not."""
    left: list[Any] = [values]
    while left:
        many = left.pop()
        if type(many) is list:
            try:  # a thousand step times at once
                if max(many) < MOST and min(many) > -MOST:
                    continue
                return False
            except TypeError:  # they are not all numbers
                pass
        for value in many.values() if type(many) is dict else many:
            kind: Any = type(value)
            if kind is int or kind is float:
                if not -MOST < value < MOST:
                    return False
            elif kind is list or kind is dict:
                if value:
                    left.append(value)
            elif kind not in NO_NUMBERS:
                held = vars(value)
                left.append([held[name] for name in _unbounded(kind)])
    return True


@functools.cache
def _unbounded(cls: type) -> list[str]:
    """The fields of a dataclass whose type does not say that their numbers are finite floats."""
    hints = get_type_hints(cls)
    return [field.name for field in fields(cls) if hints[field.name] not in BOUNDED]


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number that we write")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is too large for a number")
    return number


def _whole(word: str) -> int:
    number = int(word)
    if abs(number) >= MOST:
        raise ValueError(f"{word[:20]}... is too large for a number")
    return number


def samples_per_second(samples: Iterable[float], window_seconds: Iterable[float]) -> float:
    """Over all workers, from what each rank saw and how long its timed window took.

    Raises ValueError without ranks, ZeroDivisionError for a window of no time.
    """
    return sum(samples) / max(window_seconds)


SCHEMA = 1
STATUSES = ("ok", "oom", "timeout", "failed", "unsupported", "cancelled")
BEGUN = "begun.json"  # of a trial that is not finished
ASKED, COMMAND = "trial.json", "command.txt"  # what older programs left of every trial: its keys, and its command
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
class Block:
    """Steps that a configuration took in one go, in a launch in which others had their turns between its blocks."""

    __pydantic_config__ = STRICT

    round: int  # counted from 0
    steps: int
    at: float | None = None  # Unix time at which it began; older records have none


@dataclass(frozen=True)
class Epoch:
    """One whole epoch on one rank, timed by itself."""

    __pydantic_config__ = STRICT

    warmup: bool  # it was not timed, but ran before those that were
    steps: int
    samples: int  # of this rank
    data_seconds: float  # in which the step waited for batches
    training_seconds: float
    running_seconds: float  # from the first batch to the last step's end


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline."""

    __pydantic_config__ = STRICT

    stage: int  # counted from 0
    of: int  # how many stages the model has
    layers: list[str]
    parameters: int
    shared_parameters: int = 0  # of these, those that other stages have too


@dataclass(frozen=True)
class Transfer:
    """The calls of one collective at one size, as a probe of the network timed them on one rank."""

    __pydantic_config__ = STRICT

    collective: str
    bytes: int
    busy: bool  # all cores of the host computed meanwhile
    seconds: list[float]  # of each timed call
    correct: bool  # every result was
    warmup_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class AveragingRound:
    """One round of a peer of decentralised training, from the update before it to its own. Seconds are this peer's."""

    __pydantic_config__ = STRICT

    samples: int  # that this peer gave
    peers: int  # whose gradients (updates=local: weights) were averaged; 1: it went on by its own; 0: under way
    matchmaking_seconds: float  # in which peers looked for each other, computing or not
    averaging_seconds: float  # in which they exchanged tensors, likewise
    matchmaking_blocked_seconds: float  # of these, in which the step did nothing else
    averaging_blocked_seconds: float
    failure: str  # why not all peers took part; empty: they did
    weights_peers: int | None = None  # whose weights were averaged after it; 0: under way; None: none were to be
    weights_seconds: float | None = None  # in which that looked for peers and exchanged tensors; None: older record
    weights_blocked_seconds: float = 0.0  # that this round's update waited for the weights of the round before


@dataclass(frozen=True)
class RankReport:
    """Measurements of one rank. Times are seconds, sizes bytes."""

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
    stages: list[Stage] = field(default_factory=list)  # of a pipeline, on this rank
    timeline: list[list[Any]] = field(default_factory=list)  # its instrumented steps' events (measure/training.py)
    epochs: list[Epoch] = field(default_factory=list)  # where whole ones were asked for
    network: list[Transfer] = field(default_factory=list)  # of a probe of the network
    gradients: list[list[float]] = field(default_factory=list)  # [bytes, seconds into backward] (measure/inspected.py)
    forward_flops_per_sample: float | None = None  # of the unsplit model (workloads/workload.py)
    peak_flops_per_second: float | None = None  # that its device reached in a microbenchmark (measure/inspected.py)
    peak_bytes_per_second: float | None = None  # likewise, of memory
    setup_peak_memory_bytes: int | None = None  # of a GPU's allocator, before the timed window
    gpu_uuids: list[str] = field(default_factory=list)  # of the GPUs that this rank computes on, sorted
    tf32: bool | None = None  # whether its fp32, and that of its peak, may be TF32
    warmup_skipped_steps: int | None = None  # before the window, that an fp16 loss scaler left out
    skipped_steps: int | None = None  # likewise, of the timed window
    transport: str = ""  # of the counted step: shared memory, TCP or RDMA; empty: not known (measure/inspected.py)
    overlap: float | None = None  # share of the time with a collective in flight that computed (measure/inspected.py)
    nccl_kernels: int | None = None  # that ran in one step, on GPUs of several workers
    training: dict[str, Any] = field(default_factory=dict)  # of a run that is trained to a result (docs/record.md)
    rounds: list[AveragingRound] = field(default_factory=list)  # of decentralised training
    untimed_rounds_failure: str = ""  # of the first that failed in the warm-up or after the window
    boot_id: str = ""  # of the kernel that it ran on: hosts that share one are namespaces or containers of a machine
    parameters_all: int | None = None  # with those that are not trained; null in older records
    blocks: list[Block] = field(default_factory=list)  # of step_seconds, in their order
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
    """The outcome of one trial. `ranks` is empty unless every rank left a whole report.

    Its JSON has the keys of `trial` and, beside them, those of its `window` (to_dict).
    """

    __pydantic_config__ = STRICT  # other keys are a later version's, and passed over

    study: str
    id: str
    configuration: str
    trial: Trial  # its framework and model may be ones that this installation does not have
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
    environment: dict[str, str] = field(default_factory=dict)  # variables that decide speed (settings.py)
    planned_repeats: int | None = None  # how many repeats were asked for before any was seen
    notes: list[str] = field(default_factory=list)
    ranks: list[RankReport] = field(default_factory=list)
    parity: str = ""  # of a parity trial: "passed", or the first fault
    found: dict[str, Any] = field(default_factory=dict)  # of find: {"max_batch": 208, "tries": {"32": "ok", ...}}
    attempts: int = 1  # how often it was started: more than once after a transient failure (decisions.py)
    job: dict[str, Any] = field(default_factory=dict)  # of Slurm, in which it ran (hosts/hosts.py): {"job": "41", ...}
    hosts: list[str] = field(default_factory=list)  # that it ran over, with their workers: ["h1:2", "h2:2"]
    machine_file: dict[str, Any] = field(default_factory=dict)  # what was given of one (machine_file.py)
    launch: str = ""  # that it shared with others: number/batch-group, "3/0-1-horovod" (stats/launches.py)
    schema: int = SCHEMA
    window: InitVar[Window | None] = None  # only of the JSON, where it lies beside the other keys of the trial

    def __post_init__(self, window: Window | None) -> None:
        if window is not None:
            object.__setattr__(self, "trial", replace(self.trial, window=window))

    def to_dict(self) -> dict[str, Any]:
        """The JSON of record.json."""
        keys = asdict(self)
        first = {name: keys.pop(name) for name in ("study", "id", "configuration")}
        del keys["trial"]
        return {**first, "trial": self.trial.to_dict(), "window": asdict(self.trial.window), **keys}


LAST_KEY = re.compile(rb'"schema":\s*%d\s*\}\s*\Z' % SCHEMA)  # of records, as we write them


def implied(status: str, reason: str) -> bool:
    """True where a trial was not run because a smaller batch of the same was out of memory."""
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
    """Write atomically and durably."""
    replaced(path, lambda beside: beside.write_bytes(content))


def replaced(path: Path, write_to: Callable[[Path], object], durable: bool = True) -> Path:
    """Have a file written beside `path` and rename it: a reader meets it whole or not at all.

    `durable`: it is on the disk, under its name, when this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(handle, 0o644)  # mkstemp's own mode would hide results from everybody else
        write_to(Path(name))
        if durable:
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path


def encoded(value: Any) -> bytes:
    """JSON as we write it. Raises ValueError for what is no number."""
    return json.dumps(value, indent=1, allow_nan=False).encode()


def write_rank(folder: Path, report: RankReport) -> None:
    """Leave one rank's report in `folder`/ranks/."""
    write_json(folder / "ranks" / f"rank-{report.rank}.json", asdict(report))


def read_ranks(folder: Path, world_size: int) -> list[RankReport]:
    """Every rank's report, by rank. Raises UnreadableRecord if one is missing or not whole."""
    paths = [folder / "ranks" / f"rank-{rank}.json" for rank in range(world_size)]
    return [parsed(contents(path), RankReport, path) for path in paths]


def write_record(folder: Path, record: Record) -> None:
    """Finish a trial: from here on it will not be run again."""
    write_json(folder / "record.json", record.to_dict())
    (folder / BEGUN).unlink(missing_ok=True)


def write_begun(folder: Path, record: Record) -> None:
    """Leave what is asked of a trial, as its record without an outcome."""
    write_json(folder / BEGUN, record.to_dict())


def asked_of(folder: Path) -> Trial:
    """The trial that is under way in a folder, of this program or an older one. Raises UnreadableRecord."""
    if (folder / BEGUN).exists():
        return read_record(folder / BEGUN).trial
    return parsed(contents(folder / ASKED), Trial, folder / ASKED)


def read_record(path: Path) -> Record:
    """Raises UnreadableRecord, naming the file, if it is not a whole record of this schema."""
    text = contents(path)
    if not LAST_KEY.search(text[-40:]):
        value = _value(text, path)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise UnreadableRecord(f"{path} is not a record of schema {SCHEMA}")
    return parsed(text, Record, path)


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
