"""The schema of records: one rank's report (`RankReport`) and the outcome of one trial (`Record`).

docs/reference/record.md lists the keys. Those that older versions did not write have defaults; a later one's are passed
over. The comment behind a field is its meaning there.
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
STATUSES = (
    "ok",  # every rank left a whole report, and reports agree with each other and with what was asked
    "oom",  # out of memory: a rank reported it, or the kernel ended a process for it; `implied: ...`: not run
    "timeout",  # not finished after timeout_seconds
    "failed",  # anything else; also reports that contradict themselves or what was asked
    "unsupported",  # this machine or this framework cannot run it; nothing was started
    "cancelled",  # interrupted; it is run again
)
DOUBT = "doubt: "  # prefix of a note of a rank: why a command may not train as it seems (observe/checks.py)
IMPLIED = "implied: "  # prefix of the reason of an `oom` that was not run: a smaller batch was out of memory


@dataclass(frozen=True)
class Phases:
    """Mean seconds of one step's parts, from the instrumented window; None where a framework hides the phase."""

    __pydantic_config__ = STRICT | {"extra": "forbid"}

    steps: int  # instrumented steps
    step_seconds: float  # mean of the instrumented steps, to set beside the timed ones
    data_seconds: float | None = None  # getting the batch
    forward_seconds: float | None = None  # forward pass and loss
    backward_seconds: float | None = None  # backward pass, with the communication that it hides
    communication_seconds: float | None = None  # exposed communication: what the step waited for
    optimizer_seconds: float | None = None  # update of the weights
    unattributed_seconds: float | None = None  # step_seconds less all of the others
    matchmaking_seconds: float | None = None  # of decentralised training: what the step waited for peers
    averaging_seconds: float | None = None  # of decentralised training: what the step waited for gradients


@dataclass(frozen=True)
class Block:
    """Steps that a configuration took in one go, in a launch in which others had their turns between its blocks."""

    __pydantic_config__ = STRICT

    round: int  # number of the block, from 0
    steps: int  # timed steps
    at: float | None = None  # Unix time at which it began; older records have none


@dataclass(frozen=True)
class Epoch:
    """One whole epoch on one rank, timed by itself."""

    __pydantic_config__ = STRICT

    warmup: bool  # it was not timed, but ran before those that were
    steps: int  # timed steps
    samples: int  # of this rank
    data_seconds: float  # in which the step waited for batches
    training_seconds: float  # in the step, with what a GPU still computed afterwards
    running_seconds: float  # from the first batch to the last step's end


@dataclass(frozen=True)
class StageRecord:
    """One stage of a pipeline."""

    __pydantic_config__ = STRICT

    stage: int  # number of the stage, from 0
    of: int  # stages of the model
    layers: list[str]  # by the names of the workload's chain
    parameters: int  # trainable parameters in this stage
    shared_parameters: int = 0  # of these, those that other stages have too


@dataclass(frozen=True)
class Transfer:
    """The calls of one collective at one size, as a probe of the network timed them on one rank."""

    __pydantic_config__ = STRICT

    collective: str  # which one was called
    bytes: int  # size of a call; of all_gather and reduce_scatter the whole
    busy: bool  # all cores of the host computed meanwhile
    seconds: list[float]  # of each timed call
    correct: bool  # every result was right
    warmup_seconds: list[float] = field(default_factory=list)  # of each call before those
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
    averaging_blocked_seconds: float  # of these, in which the step did nothing else
    failure: str  # why not all peers took part in the whole of it; empty: they did
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

    name: str  # a part of the model, or what its weights are
    parameters: int  # trainable parameters in the group
    learning_rate: float  # of its weights
    asked: bool = False  # frozen because the trial says so


@dataclass(frozen=True)
class GradientNoise:
    """Squared norms of gradients at two batch sizes, step by step."""

    __pydantic_config__ = STRICT

    small_batch: int = 0  # samples of the smaller batch
    big_batch: int = 0  # samples of the larger batch
    every: int = 0  # steps from one reading to the next
    rows: list[tuple[int, float | None, float | None]] = field(default_factory=list)  # step, small, big
    unknown: str = ""  # why there is no reading


@dataclass(frozen=True)
class TrainingReport:
    """One rank's account of a training to a result. Seconds are of the whole training; empty: not known."""

    __pydantic_config__ = STRICT

    loop: str = ""  # training loop: ours, or native, the library's own
    ended_by: str = ""  # steps, target, patience, seconds, diverged
    target: str = ""  # like accuracy=0.6
    reached: Figures | None = None  # evaluation that met the target
    rows: list[Figures] = field(default_factory=list)  # each evaluation: steps, samples, epoch, seconds, rates, metrics
    best_step: int | None = None  # step of the best evaluation
    seconds: dict[str, float] = field(default_factory=dict)  # by part: train, evaluate, save, log, test
    steps: int = 0  # optimiser steps made in all
    resumed: int = 0  # how often it went on from a checkpoint
    lost_steps: int = 0  # steps made twice, after a checkpoint that it went on from
    groups: list[ParameterGroup] = field(default_factory=list)  # the optimiser's groups of weights
    moved: Figures = field(default_factory=dict)  # part of the model -> norm of its weights' change over their norm
    logged_loss: str = ""  # steps that a logged loss is the mean over: epoch, interval, last 1 of 40 batches
    splits: dict[str, dict[str, int]] = field(default_factory=dict)  # split -> set it was published in -> samples
    in_both: dict[str, int] = field(default_factory=dict)  # "validation/test" -> samples of the second in the first too
    selected_on: str = ""  # the split that chose the model
    layout: str = ""  # a digest of the names and shapes of the weights
    resumed_layout: str = ""  # the same of the checkpoint that it went on from
    data_seconds: float | None = None  # part of the training time until the host had its batches
    noise: GradientNoise | None = None  # squared norms of gradients at two batch sizes, of rank 0
    orders: list[str] = field(default_factory=list)  # digest of the samples of each epoch, in this rank's order
    one_order: str = ""  # why every epoch has the same order; empty: each has its own
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

    seconds: float  # in the median step
    low: float  # end of the 99 % interval
    high: float  # its other end


@dataclass(frozen=True)
class GroupBytes:
    """Bytes that a rank handed to collectives of one kind and of one group of ranks in one step."""

    __pydantic_config__ = STRICT

    kind: str  # as in communication_bytes
    group: str  # its dimension of a mesh, such as `shard`; empty: it has no name, or is of all ranks
    ranks: int  # in the group
    bytes: int  # handed over in one step


@dataclass(frozen=True)
class RankReport:
    """Measurements of one rank. Times are seconds, sizes bytes."""

    __pydantic_config__ = STRICT | {"extra": "forbid"}

    rank: int  # number of the process, from 0
    world_size: int  # processes of the trial
    local_rank: int  # number of the process on its host
    host: str  # on which it ran
    pid: int  # of the process
    device: str  # cpu, cuda:0
    device_name: str  # the CPU's or GPU's model
    cores: list[int]  # CPU cores that this process is pinned to; empty: not pinned
    threads: int  # of torch's pool
    first_step_at: float  # Unix time at which the first warm-up step began
    warmup_seconds: list[float]  # of every warm-up step
    step_seconds: list[float]  # of every timed step, in order
    samples_per_step: int  # of this rank, of a command in most steps; 0 on ranks of a pipeline without its last stage
    samples_seen: int  # of this rank in the timed window, counted in the batches that it took; likewise 0
    tokens_seen: int | None  # of this rank in the timed window; null: samples have no tokens
    phases: Phases | None  # parts of a step; null: not instrumented, as by later interleaved launches
    parameters: int  # trainable parameters of the unsplit model; of a command those seen, 0: not known
    allreduce_bytes: int | None  # gradients handed to reductions in one step, counted at the call; null: not counted
    communication_bytes: dict[str, int]  # handed to collectives in one step, by kind; send: between pipeline stages
    peak_memory_bytes: int | None  # GPU: the allocator's peak in the timed window; CPU: sum of `memory` but resident
    memory: dict[str, int]  # bytes by kind: parameters, gradients, optimizer, buffers, activations, resident, ...
    loss_first: float | None  # loss of the first warm-up step; null: not finite, or elsewhere in a pipeline
    loss_last: float | None  # loss of the last timed step; likewise
    data_source: str  # name of the data set, or synthetic with the reason
    steps_per_epoch: int  # steps that one pass over the data takes
    gpu_utilization_percent: float | None  # mean of NVML's samples in the timed window
    energy_joules: float | None  # of this rank's GPUs, or of all CPU packages on a host's first rank, in the window
    backend: dict[str, str | int | float | bool | None]  # report of the framework about itself, by keys of its own
    versions: dict[str, str]  # of Python and the libraries
    notes: list[str] = field(default_factory=list)  # remarks in words
    learning_rate: float | None = None  # of the optimiser itself
    own_cpu_seconds: float | None = None  # CPU time of this process over the timed window
    host_cpu_seconds: float | None = None  # CPU time of all cores of its host over the same time
    throttled_seconds: float | None = None  # of the window, in which a CPU quota stopped processes; null: not counted
    stages: list[StageRecord] = field(default_factory=list)  # stages of a pipeline that this rank holds
    timeline: list[Event] = field(default_factory=list)  # step, kind, stage, micro-batch, start and end in seconds
    epochs: list[Epoch] = field(default_factory=list)  # each epoch, where epochs were asked for
    network: list[Transfer] = field(default_factory=list)  # each size of each collective of a network probe
    gradients: list[list[float]] = field(default_factory=list)  # bytes, and seconds into backward, of each gradient
    forward_flops_per_sample: float | None = None  # one forward pass of the unsplit model; two a multiply-add
    step_flops_per_sample: float | None = None  # of a command: counted in all of one step; null: 3 x forward is taken
    peak_flops_per_second: float | None = None  # fastest matrix product on this device in the precision of compute
    peak_bytes_per_second: float | None = None  # fastest copy of a buffer larger than caches, read and written
    moved_bytes: int | None = None  # read and written by the operators of one step, as if nothing were cached
    setup_peak_memory_bytes: int | None = None  # GPU: the allocator's peak before the timed window
    gpu_uuids: list[str] = field(default_factory=list)  # NVML's names of the GPUs that this rank computes on
    tf32: bool | None = None  # fp32 was allowed to be TF32 in some layer of the model
    warmup_skipped_steps: int | None = None  # before the window, left out by the scaler of fp16 losses
    skipped_steps: int | None = None  # in the window, left out by the scaler of fp16 losses
    transport: str = ""  # of the counted step: shared memory, TCP or RDMA; empty: not known
    sent_bytes: int | None = None  # by its TCP sockets in the counted step, without retransmissions; null: not counted
    overlap: float | None = None  # share of the time with a collective in flight in which this rank computed
    nccl_kernels: int | None = None  # kernels of NCCL in one step, on GPUs of several workers
    training: TrainingReport | None = None  # of a run to a target or an end
    rounds: list[AveragingRound] = field(default_factory=list)  # timed rounds of decentralised training
    untimed_rounds_failure: str = ""  # why a round failed in the warm-up or after the window
    boot_id: str = ""  # of the kernel since it was started: hosts that share it are containers of one machine
    parameters_all: int | None = None  # parameters with those that are not trained; null in older records
    blocks: list[Block] = field(default_factory=list)  # blocks of step_seconds in an interleaved launch
    weights: dict[str, str] = field(default_factory=dict)  # file that the model began with: file, sha256, classifier
    first_losses: list[float | None] = field(default_factory=list)  # of the first eight steps of an observed command
    first_learning_rates: list[float | None] = field(default_factory=list)  # of the same steps
    late: Lateness | None = None  # lateness of this rank of a command on several workers
    communication_groups: list[GroupBytes] = field(default_factory=list)  # communication_bytes by dimension of a mesh

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

    uuid: str  # NVML's name of it
    name: str  # a part of the model, or what its weights are
    used_bytes: int  # by all processes; without what the driver keeps for itself
    total_bytes: int  # of its memory
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

    study: str  # name of the study
    id: str  # of the trial: its configuration and the number of its repeat
    configuration: str  # framework, model, batch, gradients, workers, and a hash of every key that is given
    trial: Trial  # every trial key; its framework and model may be unknown to this installation
    status: str  # ok, oom, timeout, failed, unsupported or cancelled
    reason: str = ""  # one short clause: why not ok
    error: str = ""  # the message behind it, at most some 4,000 characters
    started_at: str = ""  # ISO 8601, UTC
    launch_seconds: float | None = None  # from starting the launcher to rank 0's first step
    total_seconds: float | None = None  # from starting the launcher to its exit; of a search, of all its starts
    exit_code: int | None = None  # of the launcher; negative: the signal
    command: str = ""  # one shell line that runs the trial again
    commit: str = ""  # of this project, with +changes if the tree was not clean
    machine: dict[str, Any] = field(default_factory=dict)  # cores, cpu, memory_bytes, gpus, libraries, fingerprint
    environment: dict[str, str] = field(default_factory=dict)  # variables that decide speed; secrets only by name
    removed_variables: list[str] = field(default_factory=list)  # variables that its launcher did not get
    planned_repeats: int | None = None  # repeats asked for before any was seen
    notes: list[str] = field(default_factory=list)  # remarks in words
    ranks: list[RankReport] = field(default_factory=list)  # reports of all ranks; empty unless each left a whole one
    parity: str = ""  # of a parity check: passed, or the first fault
    found: dict[str, Any] = field(default_factory=dict)  # of find: max_batch, and tries (batch -> status)
    attempts: int = 1  # starts: more than one after a port was taken or ranks did not meet
    job: dict[str, Any] = field(default_factory=dict)  # Slurm job that it ran in: job, name, cluster, partition, hosts
    hosts: list[str] = field(default_factory=list)  # hosts with their workers, like h1:2; empty: this machine
    machine_file: dict[str, Any] = field(default_factory=dict)  # keys given by a machine file
    launch: str = ""  # shared launch as number/batch-group, like 3/0-1-horovod; empty: a separate launch
    gpus_before: list[GpuUse] = field(default_factory=list)  # GPUs that this host showed before the trial began
    model_code: str = ""  # of a model of your own: first digits of the SHA-256 of its code; empty: another model
    schema: int = SCHEMA  # version of this format
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

    rank: int  # number of the process, from 0
    at: float  # Unix time
    type: str  # class of the exception
    message: str  # of the exception
    traceback: str  # of the exception
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

    rank: int  # number of the process, from 0
    host: str  # on which it ran
    late: Lateness  # its lateness
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
