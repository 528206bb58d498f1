"""Warm-up, timed window, instrumented window: in one order for every framework.                        [torch]"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scaling_study.measure import surroundings
from scaling_study.measure.inspected import inspect
from scaling_study.measure.memory import Memory
from scaling_study.measure.surroundings import PowerMeter, QuietMeter, SkippedSteps, described, with_backend
from scaling_study.measure.training import Loss, ParityRecorder, Step, Stopwatch, Training, now
from scaling_study.ranks import Ranks
from scaling_study.records import schema, store
from scaling_study.records.schema import RankReport
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch

if TYPE_CHECKING:
    from scaling_study.trial import Window


def next_block(steps: int, seconds: float, window: Window, expected_step_seconds: float | None = None) -> int:
    """Steps to run before asking again; 0 when the timed window is over.

    Rank 0 asks between blocks of steps, outside the timed ones, and tells the others: ranks that looked at their own
    clocks would stop after different numbers of steps and deadlock in the next collective.

    `steps` and `seconds` are those timed so far. The first block is min_steps; each later one is what the mean step so
    far says is missing of min_seconds, at most as many steps as were done already. Over when both minima are reached,
    or either maximum. No block is planned to end more than one step past max_seconds.

    `expected_step_seconds`, where the warm-up gave one, also holds the first block to max_seconds.
    """
    most = math.inf if window.max_steps is None else window.max_steps - steps
    max_seconds = math.inf if window.max_seconds is None else window.max_seconds
    if most <= 0 or seconds >= max_seconds or (steps >= window.min_steps and seconds >= window.min_seconds):
        return 0
    if steps == 0:
        step_seconds = expected_step_seconds or 0.0
        wanted: float = window.min_steps
    else:
        step_seconds = seconds / steps
        wanted = min(max(_steps_in(window.min_seconds - seconds, step_seconds), window.min_steps - steps), steps)
    affordable = _steps_in(max_seconds - seconds, step_seconds)
    return max(1, int(min(wanted, affordable, most)))


def _steps_in(seconds: float, step_seconds: float) -> float:
    """Steps that fill `seconds`, rounded up; infinite where steps take no time that the clock could see."""
    if seconds <= 0:
        return 0.0
    steps = seconds / step_seconds if step_seconds > 0 else math.inf
    return math.ceil(steps) if math.isfinite(steps) else math.inf


Steps = Callable[[Callable[[Batch], Any], Iterator[Batch], int], list[float]]  # step, batches, how many -> seconds


class Epochs:
    """Runs whole epochs of `steps` steps each, through the clock's own loop; `rows` has their seconds on this rank.

        epoch 1 (warm-up) | epoch 2 (warm-up) | epoch 3
        d t d t d t ...   |                   | d: waiting for a batch   t: in the step   running: the wall around both

    The three come from other clock readings than the steps' own seconds, so that they can be held against each other.
    """

    def __init__(self, steps: int, workload: Workload, devices: Sequence[torch.device]) -> None:
        self.steps, self.workload, self.devices = steps, workload, devices
        self.rows: list[schema.Epoch] = []

    def run(self, step: Callable[[Batch], Any], through: Steps, warmup: bool) -> list[float]:
        """One epoch; the seconds of its steps."""
        data, training, samples = 0.0, 0.0, 0

        def fetched() -> Iterator[Batch]:
            nonlocal data, samples
            while True:
                start = time.perf_counter()
                batch = next(self.workload.batches)
                data += time.perf_counter() - start
                samples += self.workload.samples_in(batch)
                yield batch

        def trained(batch: Batch) -> Any:
            nonlocal training
            start = time.perf_counter()
            loss = step(batch)
            training += time.perf_counter() - start
            return loss

        start = now(*self.devices)
        seconds = through(trained, fetched(), self.steps)
        handed_over = time.perf_counter()
        end = now(*self.devices)
        training += end - handed_over  # what a GPU was still computing when the host had launched all of it
        self.rows.append(schema.Epoch(warmup, self.steps, samples, data, training, running_seconds=end - start))
        return seconds


NO_TREND = 0.05  # relative: below, the trend of one run is not worth a line


class Console:
    """Prints lines as Horovod's own benchmark does: on rank 0 only, and never inside a timed block."""

    def __init__(self, trial: Trial, ranks: Ranks, workload: Workload) -> None:
        self.trial, self.ranks, self.workload = trial, ranks, workload
        self.unit = f"{workload.sample}s/sec"
        shared = {"pipeline": trial.stages, "replica": trial.tensor_parallel or trial.context_parallel}
        self.share = next(filter(shared.get, shared), "worker")  # what batch_per_worker is the batch of
        backend = ", ".join(f"{key} {value}" for key, value in ranks.backend.items())
        cores = f", {len(ranks.cores)} core(s) each" if ranks.cores else ""
        self._print(f"Model: {trial.model}, {workload.parameters:,} parameters, {trial.precision}")
        self._print(f"Batch size: {trial.batch_per_worker} per {self.share}, {trial.global_batch} in all")
        self._print(f"Data: {workload.data_source}")
        self._print(f"Number of workers: {ranks.world_size} on {ranks.device.type}{cores}; allreduce {trial.allreduce}")
        if backend:
            self._print(f"{trial.framework}: {backend}")

    def warming_up(self) -> None:
        self._print("Running warm-up...")

    def warmed_up(self, seconds: list[float]) -> None:
        if seconds:
            self._print(f"Warm-up: {len(seconds)} steps in {sum(seconds):.1f} s, the fastest {min(seconds):.3g} s")

    def block(self, step_seconds: list[float], block: int) -> None:
        samples = self.trial.global_batch / self.trial.data_parallel  # of a round of averaging, several batches
        rate = block * samples / sum(step_seconds[-block:])
        first = len(step_seconds) - block + 1
        self._print(f"Steps {first}-{len(step_seconds)}: {rate:.1f} {self.unit} per {self.share}")

    def result(self, report: RankReport) -> None:
        """The lines with throughput, as the record has it, and the interval that this one run supports.

        Every rank calls this: the slowest rank's window counts.
        """
        rank, size = self.ranks.rank, self.ranks.world_size
        own = [0.0] * (2 * size)
        own[rank], own[size + rank] = report.samples_seen, report.window_seconds
        both = self.ranks.total(own)
        samples, windows = both[:size], both[size:]
        slowest = windows.index(max(windows))
        step_seconds = self.ranks.total(report.step_seconds if rank == slowest else [0.0] * len(report.step_seconds))
        if rank != 0:
            return
        # Imports scipy: not before the clock has stopped.
        from scaling_study.stats.intervals import step_trend, throughput, within_run

        speed = schema.samples_per_second(samples, windows)
        interval = throughput(within_run(step_seconds), sum(samples) / len(step_seconds))
        n, shares = self.trial.workers, self.trial.data_parallel
        for title, share in ((f"{self.unit} per {self.share}", shares), (f"Total {self.unit} on {n} worker(s)", 1)):
            spread = f" +-{interval.half_width / share:.1f}" if interval.half_width is not None else ""
            self._print(f"{title[0].upper()}{title[1:]}: {speed / share:.1f}{spread}")
        short = f" ({interval.verdict} to rely on)" if interval.verdict else ""
        self._print(f"95 % interval within this run of {len(report.step_seconds)} steps{short}")
        if abs(trend := step_trend(step_seconds) or 0.0) > NO_TREND:
            faster = "slower" if trend > 0 else "faster: they may still have been warming up"
            changed = f"{100 * abs(trend):.0f} % {faster}"
            self._print(f"From the first third of these steps to the last they became {changed}")

    def _print(self, line: str) -> None:
        if self.ranks.rank == 0:
            print(line, flush=True)


def measure(training: Training, trial: Trial, ranks: Ranks, record: str | None = None) -> RankReport:
    """Run the trial on this rank and return what it measured; leave it in the folder `record`, if there is one.

    Every rank calls this with the same trial.
    """
    measurement = Measurement(training, trial, ranks)
    measurement.warm_up()
    with surroundings.settled(), measurement.timed():
        measurement.run_window()
    report = measurement.report()
    if record:
        if measurement.parity:
            measurement.parity.write(Path(record))
        store.write_rank(Path(record), report)
    measurement.console.result(report)
    return report


class Measurement:
    """One configuration on this rank: `warm_up`, blocks of steps that are `timed`, and `inspect`, before or after them.

    All ranks call the same methods in the same order.
    """

    def __init__(self, training: Training, trial: Trial, ranks: Ranks) -> None:
        self.training, self.trial, self.ranks = training, trial, ranks
        self.workload, self.window = training.workload, trial.window
        self.console = Console(trial, with_backend(ranks, training), self.workload)
        self.epochs: Epochs | None = None
        if trial.epochs is not None:  # cut short by max_steps, as the record shows
            steps = min(self.workload.steps_per_epoch, self.window.max_steps or self.workload.steps_per_epoch)
            self.epochs = Epochs(steps, self.workload, ranks.devices)
        self.memory = Memory(self.workload.model, training.optimizer, ranks.device, training.held, ranks.further)
        self.parity: ParityRecorder | None = None
        step = training.step
        if trial.find == "parity":
            weights = training.weights or self.workload.model.state_dict
            self.parity = ParityRecorder(self.workload, trial, ranks, weights)
            step = self.parity.recorded(step)
        self.skipped = SkippedSteps(training.optimizer, trial)
        self.step = self.skipped.counting(step)
        self.stopwatch = Stopwatch(*ranks.devices)
        self.first_step_at = 0.0
        self.warmup_seconds: list[float] = []
        self.first: Loss = None  # of the warm-up's first step; unknown where nothing warmed up
        self.last: Loss = None
        self.warmup_skipped: int | None = None
        self.inspected: dict[str, Any] = {}  # fields of the report
        self.forget()

    def forget(self) -> None:
        """Begin anew, as if nothing had been timed."""
        self.step_seconds: list[float] = []
        self.blocks: list[schema.Block] = []
        self.timed_rounds: set[int] = set()  # of training.rounds, by number
        self.samples = 0
        self.tokens: int | torch.Tensor = 0
        self.skipped_steps: int | None = None
        gpus = [device.index for device in self.ranks.devices if device.type == "cuda"]
        self.meter, self.quiet = PowerMeter(gpus, self.ranks.local_rank), QuietMeter()

    def warm_up(self) -> None:
        """First-step costs (allocation, autotuning, the first negotiation) stay out of what is timed (F1)."""
        self.console.warming_up()
        self.first_step_at = time.time()
        while len(self.warmup_seconds) < self.window.warmup_steps or self._still_warming():
            start = now(*self.ranks.devices)
            loss = self.step(next(self.workload.batches))
            self.warmup_seconds.append(now(*self.ranks.devices) - start)
            self.first = loss if self.first is None else self.first
        self.last = self.first
        self.console.warmed_up(self.warmup_seconds)

    def _still_warming(self) -> bool:
        """True while another step has to warm up, by rank 0's clock; a trial that is not timed warms up as asked."""
        if self.trial.find is not None or not self.warmup_seconds:
            return False
        wanted = self.window.warmup(min(self.warmup_seconds))
        return bool(self.ranks.agree(len(self.warmup_seconds) < wanted))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Blocks of timed steps run in here, where power, peak memory and other processes are watched."""
        if self.epochs:
            for _ in range(self.trial.warmup_epochs or 0):
                self.warmup_seconds += self.epochs.run(self.step, self.block, warmup=True)
            self.samples = self.tokens = 0
        rounds, skipped = self.training.rounds, self.skipped.count
        over = len(rounds.over) if rounds else 0
        if not self.step_seconds:
            self.warmup_skipped = skipped
        self.memory.start()
        self.quiet.start()
        self.meter.start()  # next to the steps: looking at other processes takes a tenth of a short block
        yield
        self.meter.stop()
        self.quiet.stop()
        self.memory.stop()
        if skipped is not None and self.skipped.count is not None:
            self.skipped_steps = (self.skipped_steps or 0) + self.skipped.count - skipped
        self.timed_rounds |= set(range(over, len(rounds.over) if rounds else 0))

    def run_window(self) -> None:
        """As many blocks as the trial's window asks for, or its whole epochs."""
        if self.epochs:
            for _ in range(self.trial.epochs or 0):
                self.step_seconds += self.epochs.run(self.step, self.block, warmup=False)
                self.console.block(self.step_seconds, self.epochs.steps)
            return
        expected = min(self.warmup_seconds, default=None)  # keeps even the first block of slow steps within max_seconds
        while block := int(
            self.ranks.agree(next_block(len(self.step_seconds), sum(self.step_seconds), self.window, expected))
        ):
            steps = block if self.window.max_steps else self.training.whole_periods(block)
            self.step_seconds += self.block(self.step, self.workload.batches, steps)
            self.console.block(self.step_seconds, steps)

    def block(self, step: Step, batches: Iterator[Batch], count: int) -> list[float]:
        """So many steps, and the seconds of each; nothing but steps happens meanwhile."""
        self.stopwatch.start()
        for _ in range(count):
            batch = next(batches)
            self.last = step(batch)
            self.stopwatch.lap()
            self.samples += self.workload.samples_in(batch)
            self.tokens += self.workload.tokens(batch) if self.workload.tokens else 0
        return self.stopwatch.seconds()

    def timed_block(self, round: int, steps: int) -> list[float]:
        """A block of a launch that has others' between this one's: the seconds of its steps, which its report has.

        All ranks begin together: meters take some 10 ms to start, on each rank another time, and a rank that is ready
        would wait for the others within its first timed step.
        """
        with self.timed():
            self.ranks.total([0.0])  # a barrier
            at = time.time()
            seconds = self.block(self.step, self.workload.batches, steps)
        self.step_seconds += seconds
        self.blocks.append(schema.Block(round, steps, at))
        return seconds

    def inspect(self) -> None:
        """Look at some more steps, which are not timed."""
        fastest = self.ranks.agree(min([*self.warmup_seconds, *self.step_seconds], default=math.inf))
        steps = len(self.step_seconds) or (self.window.rounds or 0) * self.window.steps_in_block(fastest)  # to come
        is_long = self.window.is_long(fastest)
        self.inspected = inspect(self.training, self.trial, self.ranks, self.step, self.memory, steps, is_long)

    def describe(self) -> None:
        """Report what needs no more steps, of a configuration that another launch has inspected."""
        nothing: dict[str, Any] = {"phases": None, "allreduce_bytes": None, "communication_bytes": {}, "memory": {}}
        self.inspected = described(self.training, self.trial, self.ranks) | nothing

    def report(self) -> RankReport:
        """The report of all that this rank has measured so far."""
        training, workload = self.training, self.workload
        if not self.inspected:
            self.inspect()
        every = training.rounds.since(0) if training.rounds else []
        rounds = [each for number, each in enumerate(every) if number in self.timed_rounds]
        untimed = [each.failure for number, each in enumerate(every) if number not in self.timed_rounds]
        wrong = ["the loss is not finite"] if self.last is not None and finite(self.last) is None else []
        return RankReport(
            **self.inspected,
            first_step_at=self.first_step_at,
            warmup_seconds=self.warmup_seconds,
            step_seconds=self.step_seconds,
            samples_seen=sum(each.samples for each in rounds) if training.rounds else self.samples,
            tokens_seen=int(self.tokens) if workload.tokens and not training.rounds else None,
            rounds=rounds,
            untimed_rounds_failure=next(filter(None, untimed), ""),
            # On a CPU tensors are counted, by kind, in a step that is looked at.
            peak_memory_bytes=self.memory.peak_bytes() if self.memory.on_gpu or self.inspected["memory"] else None,
            setup_peak_memory_bytes=self.memory.setup_peak_bytes,
            warmup_skipped_steps=self.warmup_skipped,
            skipped_steps=self.skipped_steps,
            loss_first=finite(self.first),
            loss_last=finite(self.last),
            gpu_utilization_percent=self.meter.utilization_percent,
            energy_joules=self.meter.energy_joules,
            notes=[*workload.notes, *workload.batches.notes(), *wrong],
            timeline=training.timeline.events if training.timeline else [],
            epochs=self.epochs.rows if self.epochs else [],
            own_cpu_seconds=self.quiet.own_cpu_seconds,
            host_cpu_seconds=self.quiet.host_cpu_seconds,
            throttled_seconds=self.quiet.throttled_seconds,
            blocks=self.blocks,
        )


def finite(loss: Loss) -> float | None:
    value = math.nan if loss is None else float(loss)
    return value if math.isfinite(value) else None
