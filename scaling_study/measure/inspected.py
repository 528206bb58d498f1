"""Measurements of steps that are not timed, since they take time themselves.                               [torch]

    phases       each timed between two waits for the device                        up to ten, a fourth of the timed
    arrivals     when each gradient is there                                        one step
    counted      bytes given to collectives, sent by the host, held, and moved      one step, or period of steps
    overlap      of communication and computing, under torch's profiler             likewise

A long step is counted under the profiler, and where few are timed, phases are timed while gradients arrive: then two
steps show it all. What watching takes is nothing beside seconds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch.nn import Parameter

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure.memory import Memory
from scaling_study.measure.surroundings import Peak, described, may_round_to_tf32, measure_peak
from scaling_study.measure.training import Phase, Step, Stopwatch, Training, now
from scaling_study.measure.wire import Wire, sent_by_sockets
from scaling_study.ranks import Ranks
from scaling_study.records import schema
from scaling_study.settings import PROFILE
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch


class Arrivals:
    """Records when each parameter's gradient is there, while `watching` is entered: the timeline of backward.

        backward  |----fc----|--layer4--|----layer3----|---layer2---|--layer1--|conv1|
                  0         g g      g g g          g g g        g g         g g     g     [[bytes, seconds], ...]

    A data-parallel framework can send a gradient from this moment on (analysis/prediction). Of a step that accumulates,
    the last backward counts: only its gradients travel.
    """

    def __init__(self, device: torch.device) -> None:
        self.watch = Stopwatch(device)  # of the last backward
        self._begun, self._sizes = False, list[int]()  # bytes

    @contextmanager
    def watching(self, parameters: Iterable[Parameter], phase: Phase) -> Iterator[None]:
        """Around one whole step. Its `phase` is on meanwhile, since only that tells where backward begins."""
        hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in parameters if p.requires_grad]
        phase.on, phase.entered = True, self._entered
        try:
            yield
        finally:
            phase.on, phase.entered = False, None
            for hook in hooks:
                hook.remove()

    @property
    def gradients(self) -> list[list[float]]:
        """[[bytes, seconds since the beginning of backward], ...] in the order in which they came."""
        return [[*pair] for pair in zip(self._sizes, itertools.accumulate(self.watch.seconds()), strict=True)]

    def _entered(self, phase: str) -> None:
        if phase == "backward":
            self._begun, self._sizes = True, []
            self.watch.start()

    def _arrived(self, parameter: torch.Tensor) -> None:
        if self._begun:
            self._sizes.append(parameter.nbytes)
            self.watch.lap()


PARTED = {"tensor_parallel", "context_parallel", "sync_every"}  # matrices, sequences, or steps without communication


def watchable(trial: Trial) -> bool:
    """True where each worker sends whole gradients of plain parameters: no shards, stages, or replicas of one process.

    Only throughput is predicted, so nothing is watched where something else is looked for.
    """
    table = FRAMEWORKS[trial.framework]
    parts = table.shards or table.cuts_model or PARTED & table.axes.keys()
    plain = table.trains and not (parts or table.one_process or table.has_rounds)
    return plain and trial.find is None


def operators_are_seen(trial: Trial) -> bool:
    """True where a worker calls the operators of its step one by one, on one device: not inside a compiled model, by
    threads for several devices, or batch after batch of a round."""
    table = FRAMEWORKS[trial.framework]
    alone = not table.one_process or trial.workers == 1
    parts = table.cuts_model or trial.tensor_parallel
    return table.trains and alone and not (trial.compile or table.has_rounds or parts)


PORTS = Path("/sys/class/infiniband")
WORD = 4  # bytes: ports count words of so many
LEAST = 64 * 1024  # bytes: of less, what others send meanwhile would decide
SHARED_MEMORY, TCP, RDMA = "shared memory", "TCP", "RDMA"


class Traffic:
    """Bytes that all processes of this host send while it is entered as a context: they tell what carried gradients.
    Of these, `by_sockets` are what the TCP sockets of this process sent (None: not counted).

        shared memory   neither of the two below moved: ranks of one host (or GPUs of one, which may copy peer to peer)
        TCP             network interfaces, loopback included, sent at least half of what collectives were given
        RDMA            InfiniBand or RoCE ports did (their traffic passes the interfaces by)

    A library that was built with NCCL need not use it: on GPUs `observe` sees whether kernels of NCCL ran.
    """

    def __init__(self) -> None:
        self.by_interfaces = 0
        self.by_rdma = 0
        self.by_sockets: int | None = None
        self._sockets: int | None = None

    def __enter__(self) -> Traffic:
        self.by_interfaces, self.by_rdma = -sent_by_interfaces(), -sent_by_rdma()
        self._sockets = sent_by_sockets()
        return self

    def __exit__(self, *_: object) -> None:
        now_sent = sent_by_sockets()
        self.by_sockets = None if now_sent is None or self._sockets is None else max(0, now_sent - self._sockets)
        self.by_interfaces += sent_by_interfaces()
        self.by_rdma += sent_by_rdma()

    def carrier(self, handed_over: int) -> str:
        """The way that `handed_over` bytes of this rank's collectives went; empty where they were too few to tell."""
        if handed_over < LEAST:
            return ""
        if 2 * self.by_rdma >= handed_over:
            return RDMA
        return TCP if 2 * self.by_interfaces >= handed_over else SHARED_MEMORY


def sent_by_interfaces() -> int:
    """Bytes that network interfaces sent since the host started; 0 where the system does not say."""
    counters = psutil.net_io_counters()
    return int(counters.bytes_sent) if counters else 0


def sent_by_rdma(ports: Path = PORTS) -> int:
    """Bytes that all ports sent since the host started; 0 without such hardware."""
    return WORD * sum(int(path.read_text()) for path in ports.glob("*/ports/*/counters/port_xmit_data"))


Spans = list[tuple[int, int]]  # [begin, end) in ns since 1970

BACKENDS = ("gloo:", "nccl:")  # what the names of their spans begin with
PAIRWISE = ("send", "recv")  # of a pipeline's stages: to wait for a neighbour is no collective
POLL_SECONDS = 0.0005


class Observed(NamedTuple):
    """Overlap and kernels of one step on this rank."""

    overlap: float | None  # 0 to 1; None where no collective was seen
    nccl_kernels: int | None  # None where no kernel was seen


def observe(step: Callable[[], object], wire: Wire, device: torch.device) -> Observed:
    """Run one step under torch's profiler: does communication overlap computing? Every rank calls this.

        collectives       |------ in flight ------|    |---|      from the call until it is complete
        computing      |--------|        |-------------|          on a CPU operators of torch, on a GPU kernels
                           both           both                     overlap: both / in flight

    The backends of torch.distributed leave spans of their own. A library with collectives of its own is seen through
    the functions that it names to `Wire.watch`.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it complains of every machine without a GPU
    from torch.autograd.profiler import profile

    on_gpu = device.type == "cuda"
    flights = Flights()
    with profile(use_device="cuda" if on_gpu else None, use_kineto=True) as profiler:
        with wire.around(flights.following):
            step()
        if on_gpu:
            torch.cuda.synchronize(device)
    flights.settle()
    kernels: list[tuple[str, int, int]] = []
    operators: list[tuple[str, int, int]] = []
    for event in profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CPU and event.is_user_annotation():
            continue  # the shadow of a range that somebody named, which no kernel is
        span = event.name(), event.start_ns(), event.start_ns() + event.duration_ns()
        (operators if event.device_type() == torch.autograd.DeviceType.CPU else kernels).append(span)
    nccl = [(begin, end) for name, begin, end in kernels if is_nccl(name)]
    torchs = [(begin, end) for name, begin, end in operators if is_collective(name)]
    computing = [(begin, end) for name, begin, end in kernels if not is_nccl(name)]
    if not on_gpu:
        computing = [(begin, end) for name, begin, end in operators if name.startswith("aten::")]
    return Observed(overlap(nccl or [*torchs, *flights.spans], computing), len(nccl) if kernels else None)


class Flights:
    """The collectives of a library of its own: when each was called, and when it was complete."""

    def __init__(self) -> None:
        self.spans: Spans = []
        self._pending: dict[tuple[int, Any], Callable[[Any], bool]] = {}  # (begin, handle) -> whether it is complete
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()

    def following(self, call: Callable[[], Any], done: Callable[[Any], bool] | None) -> Any:
        """The result of a call, whose span is noted; with `done`, until that says that its handle is complete."""
        begin = time.time_ns()
        result = call()
        if done is None:
            self.spans.append((begin, time.time_ns()))
            return result
        self._pending[begin, result] = done
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return result

    def settle(self) -> None:
        """Wait for the last one: the step is over, so all are complete."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        while self._pending or not self._ended.is_set():
            for (begin, handle), done in list(self._pending.items()):
                try:
                    complete = done(handle)
                except ValueError:  # Horovod: it was waited for, and its handle is gone
                    complete = True
                if complete:
                    self.spans.append((begin, time.time_ns()))
                    del self._pending[begin, handle]
            time.sleep(POLL_SECONDS)


def overlap(in_flight: Iterable[tuple[int, int]], computing: Iterable[tuple[int, int]]) -> float | None:
    """The share of the time with a collective in flight in which something was computed; None without any."""
    flights, computed = list(in_flight), list(computing)
    flying = covered(flights)
    return (flying + covered(computed) - covered([*flights, *computed])) / flying if flying else None


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """ns that lie in at least one of these spans."""
    total, until = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def is_nccl(kernel: str) -> bool:
    """`ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`."""
    return kernel.startswith("nccl")


def is_collective(operator: str) -> bool:
    """`gloo:all_reduce`; not `gloo:send`."""
    return operator.startswith(BACKENDS) and operator.partition(":")[2] not in PAIRWISE


STEPS = 3


def trace(step: Callable[[Batch], object], workload: Workload, ranks: Ranks) -> None:
    """Trace a few steps with torch's profiler, where `--profile` asks for it: torch-rank-<n>.json.gz, for
    ui.perfetto.dev. Every rank calls this, or none does: the variable goes with the trial."""
    if not (folder := os.environ.get(PROFILE)):
        return
    from torch.profiler import ProfilerActivity, profile, record_function

    watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ranks.device.type == "cuda" else [])]
    with profile(activities=watched) as profiler:
        for index in range(STEPS):
            with record_function(f"step {index}"):
                step(next(workload.batches))
    Path(folder).mkdir(parents=True, exist_ok=True)  # on whichever host
    profiler.export_chrome_trace(str(Path(folder) / f"torch-rank-{ranks.rank}.json.gz"))


MOST_STEPS = 10  # whose phases are timed


def inspect(
    training: Training, trial: Trial, ranks: Ranks, step: Step, memory: Memory, timed_steps: int, is_long: bool
) -> dict[str, Any]:
    """Look at more steps of a training, and then at the device's own peaks: the fields of a RankReport that come of it,
    with those that no measuring is needed for. All ranks call it alike.

    `timed_steps`: how many there are, before or after. `is_long`: as Window.is_long has it.
    """
    workload, wire, traffic, arrivals = training.workload, training.wire, Traffic(), Arrivals(ranks.device)
    period = training.period
    watched = list(workload.model.parameters()) if watchable(trial) else []
    steps = training.whole_periods(max(1, min(MOST_STEPS, timed_steps // 4)))
    overlaps, together = ranks.world_size > 1 and trial.find is None, is_long and steps == 1
    memory.note_setup()
    if training.timeline:
        training.timeline.begin(ranks.agree)
    with arrivals.watching(watched, training.phase) if together else contextlib.nullcontext():
        phases = instrument(step, training, steps, ranks.devices)
    if watched and not together:
        with arrivals.watching(watched, training.phase):
            step(next(workload.batches))

    def one_period() -> None:
        for _ in range(period):
            step(next(workload.batches))

    def counted() -> None:  # by now frameworks gather and reduce as always
        with memory.watching(), wire, traffic:
            one_period()

    if not (overlaps and is_long):
        counted()
    observed = Observed(None, None)
    if overlaps:
        observed = observe(counted if is_long else one_period, wire, ranks.device)
    trace(step, workload, ranks)

    def a_step(total: int | None) -> int | None:
        return None if total is None else round(total / period)

    fields = described(training, trial, ranks) | {
        "phases": phases,
        "gradients": arrivals.gradients,
        "allreduce_bytes": a_step(gradient_bytes(wire, trial, ranks)),
        "communication_bytes": {kind: a_step(size) for kind, size in wire.bytes.items()},
        "communication_groups": within_groups(wire, period, ranks.world_size),
        "transport": traffic.carrier(sum(wire.bytes.values())),
        "sent_bytes": a_step(traffic.by_sockets),
        "moved_bytes": a_step(wire.moved_bytes) if operators_are_seen(trial) else None,
        "overlap": observed.overlap,
        "nccl_kernels": observed.nccl_kernels,
        "memory": memory.by_kind(not trial.warm),
    }
    if trial.find is None:  # after all else; the ranks leave their last step together, so all do it at once
        tf32 = may_round_to_tf32(workload.model, trial.precision, ranks.device)
        peak = peak_of(ranks.device, trial.precision, tf32)
        fields["tf32"] = tf32
        fields["peak_flops_per_second"], fields["peak_bytes_per_second"] = peak.flops_per_second, peak.bytes_per_second
    return fields


def gradient_bytes(wire: Wire, trial: Trial, ranks: Ranks) -> int | None:
    """Bytes of gradients handed to reductions in the counted step; None where that is not known, as where workers that
    share matrices reduce activations in the same way."""
    return (
        None
        if trial.tensor_parallel
        else wire.reduced_bytes(ranks.world_size // (trial.workers // trial.data_parallel))
    )


def within_groups(wire: Wire, period: int, world_size: int) -> list[schema.GroupBytes]:
    """Bytes of a step by kind of collective and its ranks; empty where all collectives were of all ranks."""
    known = [(kind, group, round(size / period)) for (kind, group), size in wire.by_group.items()]
    if all(group.ranks in (0, world_size) for _, group, _ in known):
        return []
    return [schema.GroupBytes(kind, group.name, group.ranks or world_size, size) for kind, group, size in known]


@functools.cache
def peak_of(device: torch.device, precision: str, tf32: bool) -> Peak:
    """Measured once a process: all that is measured in it has the same."""
    return measure_peak(device, precision, tf32)


def instrument(step: Step, training: Training, steps: int, devices: Sequence[torch.device]) -> schema.Phases:
    """`steps` more steps with every phase timed."""
    phase = training.phase
    phase.on = True
    start = now(*devices)
    for index in range(steps):
        if training.timeline:
            training.timeline.step = index
        with phase("data"):
            batch = next(training.workload.batches)
        step(batch)
    seconds = now(*devices) - start
    phase.on = False
    return phase.means(steps, seconds)
