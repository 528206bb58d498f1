"""The network that a study runs on: seconds of every call of a collective, size by size.              [torch]

    idle, then busy  >  allreduce, broadcast, reduce_scatter, all_gather  >  1 KiB, 4 KiB, ... 256 MiB     a row each

On a CPU everything is done twice, the second time with the cores computing meanwhile. The trial's window is that of the
whole probe: min_seconds and max_seconds are shared out over the rows, so small sizes are called often and large ones
seldom; min_steps, max_steps and warmup_steps are of each row.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

import torch

from scaling_study.measure import surroundings
from scaling_study.measure.clock import next_block
from scaling_study.measure.surroundings import QuietMeter, about_process
from scaling_study.measure.training import now
from scaling_study.measure.wire import sent_by_sockets
from scaling_study.ranks import Ranks
from scaling_study.records import schema, store
from scaling_study.records.schema import RankReport
from scaling_study.stats import network as collectives
from scaling_study.stats.intervals import within_run
from scaling_study.stats.network import (
    ALL_GATHER,
    ALLREDUCE,
    BROADCAST,
    GLOO,
    REDUCE_SCATTER,
    Point,
    bus_bandwidth,
    part_elements,
    summary,
    table_header,
    table_row,
    whole_bytes,
)
from scaling_study.trial import Trial, Window

SIDE = 256  # of the matrices: a product takes a core under a millisecond, so Python is seldom what runs


@contextmanager
def cores_busy(on: bool) -> Iterator[None]:
    """Keep this worker's cores computing within it, if `on`: a thread multiplies matrices without a pause.

    On a CPU backward computes on the cores that carry its gradients too: a network that is measured while they idle is
    faster than training will ever see it.
    """
    if not on:
        yield
        return
    begun, stop = threading.Event(), threading.Event()

    def compute() -> None:
        matrix, product = torch.rand(SIDE, SIDE), torch.empty(SIDE, SIDE)
        while not stop.is_set():
            torch.mm(matrix, matrix, out=product)  # releases Python's lock: the thread that communicates can run
            begun.set()

    thread = threading.Thread(target=compute, name="cores-busy", daemon=True)
    thread.start()
    try:
        begun.wait()
        yield
    finally:
        stop.set()
        thread.join()


PERIOD = 251  # a prime: no two parts of a buffer begin alike
NOTHING = -1.0  # what the receiving buffer holds before the call: no correct result has it
WEIGHTS = 3


def pattern(elements: int, device: torch.device) -> torch.Tensor:
    """(elements,) of 1, 2, ..., 251, 1, 2, ... in fp32."""
    return torch.arange(1, PERIOD + 1, dtype=torch.float32, device=device).repeat(-(-elements // PERIOD))[:elements]


def weight(rank: int) -> int:
    return 1 + rank % WEIGHTS


class Payload:
    """Buffers of the calls of one collective and size, whose right result is known on every rank.

    Every rank has the same pattern of small whole numbers times a weight of its own. What comes out is the pattern
    times the weights' sum (allreduce, reduce_scatter), part by part times each rank's weight (all_gather), or the
    pattern itself (broadcast). Undo the weights, and every rank must hold the pattern, bit for bit: all sums are whole
    numbers below 2^24, which fp32 holds exactly.

    `whole` is a pattern at least as long as the size. `bytes` is the size as it is: a whole that `ranks` parts do not
    fill is cut short.
    """

    def __init__(self, collective: str, bytes: int, rank: int, ranks: int, whole: torch.Tensor) -> None:
        part = part_elements(collective, bytes, ranks)
        self.collective, self.rank, self.bytes = collective, rank, whole_bytes(collective, part, ranks)
        self.weights = [weight(other) for other in range(ranks)]
        parted = collective in (REDUCE_SCATTER, ALL_GATHER)
        self.pattern = whole[: part * (ranks if parted else 1)]
        self.parts = self.pattern.split(part)
        self.sent = torch.empty_like(self.parts[rank] if collective == ALL_GATHER else self.pattern)
        self.received = self.sent
        if parted:
            self.received = torch.empty_like(self.pattern if collective == ALL_GATHER else self.parts[rank])

    def fill(self) -> None:
        """Make ready for the next call: what this rank sends, and a buffer that holds no result."""
        if self.received is not self.sent:
            self.received.fill_(NOTHING)
        if self.collective == BROADCAST:
            self.sent.copy_(self.pattern) if self.rank == 0 else self.sent.fill_(NOTHING)
        else:
            own = self.parts[self.rank] if self.collective == ALL_GATHER else self.pattern
            torch.mul(own, self.weights[self.rank], out=self.sent)

    def is_correct(self, result: torch.Tensor) -> bool:
        """True where `result` is what the collective must give to this rank. The weights are undone in place."""
        if self.collective in (ALLREDUCE, REDUCE_SCATTER):
            result.div_(sum(self.weights))
        elif self.collective == ALL_GATHER and result.shape == self.pattern.shape:
            for part, factor in zip(result.split(len(self.parts[0])), self.weights, strict=True):
                part.div_(factor)
        return torch.equal(result, self.parts[self.rank] if self.collective == REDUCE_SCATTER else self.pattern)


Call = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]  # (collective, sent, received) -> the result
WARM_UP_SHARE = 0.2  # of a row's time, beyond which warming up ends early
TARGET = 0.05  # half of the mean's 95 % interval over the mean: more calls are spent on it while there is time
FEWEST_CALLS = 3  # of one row, however long they take: one call has no interval
MOST_CALLS = 1000  # of one row, unless min_steps or max_steps ask for more


@dataclass(frozen=True)
class Budget:
    """Time that is shared out among what is still to come: what small sizes leave over goes to the larger ones."""

    ends: float  # on the monotonic clock

    @classmethod
    def within(cls, seconds: float | None) -> Budget:
        return cls(math.inf if seconds is None else time.monotonic() + seconds)

    def share(self, left: int) -> float | None:
        """Seconds for each of `left`, which may be next to none; None where there is no limit."""
        return None if math.isinf(self.ends) else max(1e-3, (self.ends - time.monotonic()) / left)


class Calls:
    """The calls of one collective and size on this rank: warm-up, then as many as their share of the time allows.

        fill | barrier | CALL | check        every result is checked, also of timed calls
                        '----' timed

    The barrier makes all ranks begin together, so the slowest rank's seconds are the call's: of a broadcast the root
    would else run ahead. Rank 0 decides between blocks of calls, outside the timed ones, and tells the others.
    """

    def __init__(self, call: Call, barrier: Callable[[], object], payload: Payload, ranks: Ranks) -> None:
        self.call, self.barrier, self.payload, self.ranks = call, barrier, payload, ranks
        self.warmup_seconds: list[float] = []
        self.seconds: list[float] = []
        self.wrong = 0
        self.sent: int | None = None  # bytes, of one call, by this rank's TCP sockets; None: not known

    def run(self, window: Window) -> Calls:
        """Warm up, then call until the window is over; its max_seconds hold for both, barriers and checks included."""
        budget = Budget.within(window.max_seconds)
        warm = Budget.within(window.max_seconds and WARM_UP_SHARE * window.max_seconds)
        begun = time.monotonic()
        while self.ranks.agree(len(self.warmup_seconds) < window.warmup_steps and time.monotonic() < warm.ends):
            self.warmup_seconds.append(self.timed_call())
        expected = (time.monotonic() - begun) / len(self.warmup_seconds) if self.warmup_seconds else None
        before = sent_by_sockets()
        self.barrier()
        begin = sent_by_sockets()
        window, begun = replace(window, max_seconds=budget.share(1)), time.monotonic()
        while block := int(self.ranks.agree(next_block(len(self.seconds), self._since(begun), window, expected))):
            self.seconds += [self.timed_call() for _ in range(block)]
        took = self._since(begun)
        left = math.inf if window.max_seconds is None else (window.max_seconds - took) / took * len(self.seconds)
        more = missing(self.seconds, window.max_steps or MOST_CALLS, left)
        self.seconds += [self.timed_call() for _ in range(int(self.ranks.agree(more)))]
        self.sent = self._sent_by_a_call(before, begin)
        return self

    def _sent_by_a_call(self, before: int | None, begin: int | None) -> int | None:
        """`before` a barrier and after it, at the `begin` of the timed calls: each of these came with one barrier."""
        self.barrier()  # by its end the network has what the last call sent
        if before is None or begin is None or (end := sent_by_sockets()) is None:
            return None
        calls, barrier = len(self.seconds), begin - before
        return max(0, round((end - begin - (calls + 1) * barrier) / calls))

    def timed_call(self) -> float:
        """Seconds of one call on this rank, from the moment at which all ranks were ready."""
        self.payload.fill()
        now(self.ranks.device)
        self.barrier()
        start = now(self.ranks.device)
        result = self.call(self.payload.collective, self.payload.sent, self.payload.received)
        seconds = now(self.ranks.device) - start
        self.wrong += not self.payload.is_correct(result)
        return seconds

    def transfer(self, collective: str, busy: bool) -> schema.Transfer:
        """The row for the record, with times rounded to the nanosecond."""
        warmup, seconds = ([round(value, 9) for value in times] for times in (self.warmup_seconds, self.seconds))
        return schema.Transfer(collective, self.payload.bytes, busy, seconds, not self.wrong, warmup, self.sent)

    def of_all_ranks(self) -> tuple[list[float], int]:
        """(seconds of the slowest rank, call by call; how many results were wrong on any rank), on every rank.

        They travel by the collective that is measured first of all, an allreduce: where that is wrong, so are they.
        """
        ours = torch.tensor([*self.seconds, self.wrong], dtype=torch.float64, device=self.ranks.device)
        every = torch.zeros(self.ranks.world_size, len(ours), dtype=torch.float64, device=self.ranks.device)
        every[self.ranks.rank] = ours
        every = self.call("allreduce", every, every)
        *seconds, wrong = (*every[:, :-1].amax(0).tolist(), every[:, -1].sum().item())
        return (seconds, round(wrong)) if math.isfinite(sum(seconds) + wrong) else (self.seconds, self.wrong)

    def _since(self, begun: float) -> float:
        return time.monotonic() - begun if self.seconds else 0.0


def missing(seconds: Sequence[float], most: int, affordable: float) -> int:
    """How many more calls bring the mean to +-TARGET, of `most` in all and as many as are affordable.

    Decided once: to stop as soon as an interval looks narrow would favour samples that vary little by chance.
    FEWEST_CALLS come before what is affordable, not before `most`.
    """
    n = len(seconds)
    variation = stdev(seconds) / mean(seconds) if n > 1 else math.inf
    wanted = math.ceil((2 * variation / TARGET) ** 2) - n if n > 1 else most
    return max(0, min(most - n, max(FEWEST_CALLS - n, min(wanted, math.floor(min(affordable, most))))))


class ProbeTable:
    """Prints a table for each collective on rank 0, as nccl-tests and the OSU benchmarks do: a row for each size."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.name = ranks, ""
        self.library = GLOO if ranks.backend.get("backend") == "gloo" else ""
        self.rows: list[tuple[int, Sequence[float], int]] = []
        about = ", ".join(f"{key} {value}" for key, value in ranks.backend.items() if value)
        cores = f", {len(ranks.cores)} core(s) each" if ranks.cores else ""
        self._print(f"# {ranks.world_size} ranks on {ranks.device.type}{cores}; {about}")
        if ranks.rank == 0:
            within_run([1.0, 2.0])  # loads scipy now, not between two rows

    def begin(self, name: str, busy: bool) -> None:
        self.name, self.rows = name, []
        state = "busy: they multiply matrices meanwhile" if busy else "idle"
        self._print(f"#\n# {name}{f', cores {state}' if self.ranks.device.type == 'cpu' else ''}")
        for line in table_header():
            self._print(line)

    def row(self, bytes: int, seconds: Sequence[float], wrong: int, sent: int | None) -> None:
        """`seconds`: of each call, on its slowest rank; `sent`: bytes that this rank's sockets sent in one."""
        self.rows.append((bytes, seconds, wrong))
        if self.ranks.rank == 0:
            half = within_run(seconds).relative_half_width
            about = self.name, self.ranks.world_size, bytes, seconds, wrong, half, self.library, sent
            self._print(table_row(*about))

    def end(self) -> None:
        """Two lines as nccl-tests ends with, and the fit."""
        if self.ranks.rank != 0:
            return
        ranks, wrong = self.ranks.world_size, sum(wrong for _, _, wrong in self.rows)
        bandwidth = mean(
            bus_bandwidth(self.name, bytes, mean(seconds), ranks, self.library) for bytes, seconds, _ in self.rows
        )
        self._print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        self._print(f"# Avg bus bandwidth    : {bandwidth / 1e9:.4g}")
        self._print(f"# {summary([Point.of(bytes, seconds) for bytes, seconds, _ in self.rows])}")

    def _print(self, line: str) -> None:
        if self.ranks.rank == 0:
            print(line, flush=True)


@dataclass(frozen=True)
class Network:
    """A library's collectives."""

    call: Call  # runs a collective, in place where it can
    barrier: Callable[[], object]  # returns once every rank has come to it


def probe(network: Network, trial: Trial, ranks: Ranks, record: str | None = None) -> RankReport:
    """Measure on this rank; leave the report in the folder `record`, if there is one. All ranks call it alike. Raises
    SystemExit where there is no size to measure, or nobody to send it to."""
    names = (trial.collective,) if trial.collective else collectives.COLLECTIVES
    if ranks.world_size == 1:
        raise SystemExit("a network probe needs two or more ranks: for example, start it with mpirun -np 2")
    if none := collectives.no_size(trial.min_bytes, trial.max_bytes):
        raise SystemExit(none)
    least, most = trial.min_bytes or collectives.MIN_BYTES, trial.max_bytes or collectives.MAX_BYTES
    sizes = list(collectives.sizes(least, most, trial.size_factor or collectives.SIZE_FACTOR))
    groups = [(busy, name) for busy in ((False, True) if ranks.device.type == "cpu" else (False,)) for name in names]
    most = trial.window.max_steps or max(MOST_CALLS, trial.window.min_steps)
    a_row = trial.window.min_seconds / (len(groups) * len(sizes))
    window = replace(trial.window, min_seconds=a_row, max_steps=most)  # of a row, but for its max_seconds
    parts = [(name, part_elements(name, sizes[-1], ranks.world_size)) for name in names]
    longest = max(whole_bytes(name, part, ranks.world_size) for name, part in parts)
    whole = pattern(longest // collectives.ELEMENT_BYTES, ranks.device)
    table, quiet = ProbeTable(ranks), QuietMeter()
    rows: list[schema.Transfer] = []
    row_seconds: list[float] = []
    first_step_at, budget = time.time(), Budget.within(trial.window.max_seconds)
    quiet.start()
    with surroundings.settled():
        for index, (busy, name) in enumerate(groups):
            group = Budget.within(budget.share(len(groups) - index))
            table.begin(name, busy)
            for size in sizes:
                begun, share = time.monotonic(), group.share(sum(larger >= size for larger in sizes))
                payload = Payload(name, size, ranks.rank, ranks.world_size, whole)
                with cores_busy(busy):
                    calls = Calls(network.call, network.barrier, payload, ranks).run(replace(window, max_seconds=share))
                table.row(payload.bytes, *calls.of_all_ranks(), calls.sent)
                rows.append(calls.transfer(name, busy))
                row_seconds.append(time.monotonic() - begun)
            table.end()
    quiet.stop()
    report = network_report(rows, row_seconds, first_step_at, quiet, ranks)
    if record:
        store.write_rank(Path(record), report)
    return report


def network_report(
    rows: list[schema.Transfer], row_seconds: list[float], first_step_at: float, quiet: QuietMeter, ranks: Ranks
) -> RankReport:
    """A report whose steps are the rows, each with its barriers and checks; nothing was trained in them."""
    return RankReport(
        **about_process(ranks),
        first_step_at=first_step_at,
        warmup_seconds=[],
        step_seconds=row_seconds,
        samples_per_step=0,
        samples_seen=0,
        tokens_seen=None,
        phases=None,
        parameters=0,
        allreduce_bytes=None,
        communication_bytes={},
        peak_memory_bytes=None,
        memory={},
        loss_first=None,
        loss_last=None,
        data_source="none",
        steps_per_epoch=0,
        gpu_utilization_percent=None,
        energy_joules=None,
        own_cpu_seconds=quiet.own_cpu_seconds,
        host_cpu_seconds=quiet.host_cpu_seconds,
        throttled_seconds=quiet.throttled_seconds,
        network=rows,
    )
