"""The schema of records: one rank's report (`RankReport`) and the outcome of one trial (`Record`).

docs/record.md has the keys. Keys that older versions did not write have defaults; keys of a later one are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

from scaling_study.machine import LEAST_CONTEXT_BYTES
from scaling_study.trial import STRICT, Trial, Window

SCHEMA = 1
STATUSES = ("ok", "oom", "timeout", "failed", "unsupported", "cancelled")
DOUBT = "doubt: "  # prefix of a note of a rank: why a command may not train as it seems (observe/checks.py)
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
class StageRecord:
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
    sent_bytes: int | None = None  # that this rank's TCP sockets sent in one call; None: not counted


@dataclass
class AveragingRound:
    """One averaging round of a peer, from the update before it to its own. Seconds are this peer's."""

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
    sent_bytes: int | None = None  # that this peer packed for others meanwhile; None: older record


Figures = dict[str, int | float | None]  # by name, of which each workload has its own; null: no number
Event = tuple[int, str, int, int, float, float]  # step, kind, stage, micro-batch, when it began and ended


@dataclass(frozen=True)
class ParameterGroup:
    """One group of an optimiser's weights."""

    __pydantic_config__ = STRICT

    name: str
    parameters: int
    learning_rate: float
    asked: bool = False  # it is frozen because the trial says so


@dataclass(frozen=True)
class GradientNoise:
    """Squared norms of gradients at two batch sizes, step by step."""

    __pydantic_config__ = STRICT

    small_batch: int = 0  # samples
    big_batch: int = 0
    every: int = 0  # so many steps
    rows: list[tuple[int, float | None, float | None]] = field(default_factory=list)  # step, small, big
    unknown: str = ""  # why there are none


@dataclass(frozen=True)
class TrainingReport:
    """One rank's account of a training to a result. Seconds are of the whole training; empty: not known."""

    __pydantic_config__ = STRICT

    loop: str = ""  # "ours", or "native": the library's own
    ended_by: str = ""
    target: str = ""
    reached: Figures | None = None  # the evaluation that met the target
    rows: list[Figures] = field(default_factory=list)  # of each evaluation
    best_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # of each part of a training (train/log.py)
    steps: int = 0
    resumed: int = 0  # how often it went on from a checkpoint
    lost_steps: int = 0  # made after one that it went on from
    groups: list[ParameterGroup] = field(default_factory=list)
    moved: Figures = field(default_factory=dict)  # part of the model -> norm of its change over its own norm
    logged_loss: str = ""  # what a logged loss is the mean over: "epoch", "last batch"
    splits: dict[str, dict[str, int]] = field(default_factory=dict)  # split -> set it was published in -> samples
    in_both: dict[str, int] = field(default_factory=dict)  # "validation/test" -> samples that are in both
    selected_on: str = ""  # the split that chose the model
    layout: str = ""  # a digest of the names and shapes of the weights
    resumed_layout: str = ""  # of the checkpoint that it went on from
    data_seconds: float | None = None  # of those of training, until the host had its batches
    noise: GradientNoise | None = None
    orders: list[str] = field(default_factory=list)  # a digest of each epoch's samples, in this rank's order
    one_order: str = ""  # why every epoch is to have the same
    evaluated: dict[str, str | int | float | None] = field(default_factory=dict)  # Figures on the test set, and "split"
    validated: dict[str, str | int | float | None] = field(default_factory=dict)  # likewise, of the last evaluation
    shown_maps: dict[str, str] = field(default_factory=dict)  # of class activation: whose "channels", which "class"

    def __post_init__(self) -> None:
        for what in ("evaluated", "validated"):
            for name, value in getattr(self, what).items():
                if isinstance(value, str) != (name == "split"):
                    raise ValueError(f"{what}.{name} is {'no number' if isinstance(value, str) else 'no text'}")

    @property
    def data_share(self) -> float | None:
        """Share of the seconds of training until the host had its batches; None: not known."""
        seconds = self.seconds.get("train", 0.0)
        return self.data_seconds / seconds if self.data_seconds is not None and seconds > 0 else None


@dataclass(frozen=True)
class Lateness:
    """Seconds by which a rank comes to its last backward pass after the last of the others, in the median step, with a
    99 % interval; negative: before it. From there on ranks wait for each other."""

    __pydantic_config__ = STRICT

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupBytes:
    """Bytes that a rank handed to collectives of one kind and of one group of ranks in one step."""

    __pydantic_config__ = STRICT

    kind: str  # as in communication_bytes
    group: str  # its dimension of a mesh, such as `shard`; empty: it has no name, or is of all ranks
    ranks: int
    bytes: int


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
    backend: dict[str, str | int | float | bool | None]  # what its framework reports: each has keys of its own
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)
    learning_rate: float | None = None  # that the optimiser really had
    own_cpu_seconds: float | None = None  # CPU time of this process over the timed window
    host_cpu_seconds: float | None = None  # CPU time of all cores of its host over the same time
    throttled_seconds: float | None = None  # of that time, in which a CPU quota stopped processes (control_groups.py)
    stages: list[StageRecord] = field(default_factory=list)  # of a pipeline, on this rank
    timeline: list[Event] = field(default_factory=list)  # of its instrumented steps (measure/training.py)
    epochs: list[Epoch] = field(default_factory=list)  # where whole ones were asked for
    network: list[Transfer] = field(default_factory=list)  # of a probe of the network
    gradients: list[list[float]] = field(default_factory=list)  # [bytes, seconds into backward] (measure/inspected.py)
    forward_flops_per_sample: float | None = None  # of the unsplit model (workloads/workload.py)
    peak_flops_per_second: float | None = None  # that its device reached in a microbenchmark (measure/inspected.py)
    peak_bytes_per_second: float | None = None  # likewise, of memory
    moved_bytes: int | None = None  # that the operators of the counted step read and wrote (measure/wire.py)
    setup_peak_memory_bytes: int | None = None  # of a GPU's allocator, before the timed window
    gpu_uuids: list[str] = field(default_factory=list)  # of the GPUs that this rank computes on, sorted
    tf32: bool | None = None  # whether its fp32, and that of its peak, may be TF32
    warmup_skipped_steps: int | None = None  # before the window, that an fp16 loss scaler left out
    skipped_steps: int | None = None  # likewise, of the timed window
    transport: str = ""  # of the counted step: shared memory, TCP or RDMA; empty: not known (measure/inspected.py)
    sent_bytes: int | None = None  # that its TCP sockets sent in the counted step; None: not counted (measure/wire.py)
    overlap: float | None = None  # share of the time with a collective in flight that computed (measure/inspected.py)
    nccl_kernels: int | None = None  # that ran in one step, on GPUs of several workers
    training: TrainingReport | None = None  # of a run that is trained to a result
    rounds: list[AveragingRound] = field(default_factory=list)  # of decentralised training
    untimed_rounds_failure: str = ""  # of the first that failed in the warm-up or after the window
    boot_id: str = ""  # of the kernel that it ran on: hosts that share one are namespaces or containers of a machine
    parameters_all: int | None = None  # with those that are not trained; null in older records
    blocks: list[Block] = field(default_factory=list)  # of step_seconds, in their order
    weights: dict[str, str] = field(default_factory=dict)  # about the file that it began with (workloads/weights.py)
    first_losses: list[float | None] = field(default_factory=list)  # of its first steps, where a command was observed
    first_learning_rates: list[float | None] = field(default_factory=list)  # likewise
    late: Lateness | None = None  # of a command on several workers (launch/observed.py)
    communication_groups: list[GroupBytes] = field(default_factory=list)  # communication_bytes of meshes, by dimension

    def __post_init__(self) -> None:
        if self.training == TrainingReport():  # {} of records before this one was a type
            object.__setattr__(self, "training", None)

    @cached_property
    def window_seconds(self) -> float:
        """All timed steps together."""
        return sum(self.step_seconds)

    @cached_property
    def ordered_seconds(self) -> list[float]:
        """`step_seconds` by size, for statistics of their spread. Read-only."""
        return sorted(self.step_seconds)


@dataclass(frozen=True)
class GpuUse:
    """A GPU, or a part of one (MIG), before a trial began."""

    __pydantic_config__ = STRICT

    uuid: str
    name: str
    used_bytes: int  # by all processes; without what the driver keeps for itself
    total_bytes: int
    processes: int | None = None  # that have a context on it; None: not known, as in some containers
    utilization_percent: float | None = None  # in the last second or less

    def __str__(self) -> str:
        """`3.0 GiB of NVIDIA H100, by 2 processes, 97 % busy`."""
        by = "" if not self.processes else f", by {self.processes} process{'es' * (self.processes > 1)}"
        busy = "" if self.utilization_percent is None else f", {self.utilization_percent:.0f} % busy"
        return f"{self.used_bytes / 2**30:.1f} GiB of {self.name}{by}{busy}"


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
    environment: dict[str, str] = field(default_factory=dict)  # variables that decide speed (variables.py)
    removed_variables: list[str] = field(default_factory=list)  # that its launcher did not get (variables.py)
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
    gpus_before: list[GpuUse] = field(default_factory=list)  # those of this host that it could see, as it began
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


@dataclass(frozen=True)
class RankError:
    """The exception that ended a rank, as it leaves it beside the reports."""

    __pydantic_config__ = STRICT

    rank: int
    at: float  # Unix time
    type: str
    message: str
    traceback: str
    oom: bool = False  # it ran out of memory, on the host or on the device
    stepping: bool = True  # it failed once the clock had begun, and not on the way there; older ranks do not say


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


def gpus_in_use(record: Record) -> list[GpuUse]:
    """The GPUs of a trial that others used before it began; all that it could see, where its ranks do not say which
    ones they had. NVML and torch name a part of a GPU (MIG) differently."""
    mine = {uuid for rank in record.ranks for uuid in rank.gpu_uuids}
    known = mine & {use.uuid for use in record.gpus_before}
    seen = [use for use in record.gpus_before if not known or use.uuid in known]
    return [use for use in seen if use.used_bytes > LEAST_CONTEXT_BYTES]


LEAST_LATENESS = 0.02  # of a step: ranks that are nearer to each other count as equal, whatever the interval says


@dataclass(frozen=True)
class WaitedFor:
    """The one rank of a trial that the others wait for."""

    rank: int
    host: str
    late: Lateness
    step_seconds: float  # of its median step


def waited_for(ranks: Iterable[RankReport]) -> WaitedFor | None:
    """The rank that comes last beyond chance, and by more than LEAST_LATENESS; None: there is none, or it is not known
    which."""
    late = [(rank.late, rank) for rank in ranks if rank.late and rank.step_seconds]
    if not late:
        return None
    behind, last = max(late, key=lambda pair: pair[0].seconds)
    found = WaitedFor(last.rank, last.host, behind, median(last.ordered_seconds))
    return found if behind.low > 0 and behind.seconds > LEAST_LATENESS * found.step_seconds else None


def samples_per_second(samples: Iterable[float], window_seconds: Iterable[float]) -> float:
    """Over all workers, from what each rank saw and how long its timed window took.

    Raises ValueError without ranks, ZeroDivisionError for a window of no time.
    """
    return sum(samples) / max(window_seconds)


def throughput(record: Record) -> float:
    """Samples per second over all workers. Raises ValueError or ArithmeticError where a rank was not timed.

    Each step must have taken time, also where their sum is positive.
    """
    if not all(seconds > 0 for rank in record.ranks for seconds in rank.step_seconds):
        raise ValueError("a step took no time")
    return samples_per_second((r.samples_seen for r in record.ranks), (r.window_seconds for r in record.ranks))
