"""Warm-up, timed window, instrumented window: one order of events for every framework.                 [torch]"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from scaling_study.measure import collector
from scaling_study.measure.arrivals import Arrivals, watchable
from scaling_study.measure.carrier import Traffic
from scaling_study.measure.console import Console
from scaling_study.measure.described import described, with_backend
from scaling_study.measure.epochs import Epochs
from scaling_study.measure.memory import Memory
from scaling_study.measure.overlap import Observed, observe
from scaling_study.measure.parity_recorder import ParityRecorder
from scaling_study.measure.peak import may_round_to_tf32, measure_peak
from scaling_study.measure.phases import Phase, now
from scaling_study.measure.power import PowerMeter
from scaling_study.measure.quiet import QuietMeter
from scaling_study.measure.skipped import SkippedSteps
from scaling_study.measure.stopwatch import Stopwatch
from scaling_study.measure.timeline import Timeline
from scaling_study.measure.tracing import trace
from scaling_study.measure.training import Loss, Step, Training
from scaling_study.measure.window import next_block
from scaling_study.measure.wire import Wire
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch


def measure(training: Training, trial: Trial, ranks: Ranks, record: str | None = None) -> RankReport:
    """Run the trial on this rank and return what it measured; leave it in the folder `record`, if there is one.

    Every rank calls this with the same trial: how many steps are run is agreed between the ranks, between
    blocks of steps and outside the timed ones. Ranks that stopped by a clock of their own would deadlock.
    """
    step, workload, optimizer = training.step, training.workload, training.optimizer
    phase, wire, timeline = training.phase, training.wire, training.timeline
    console = Console(trial, with_backend(ranks, training), workload)
    window, epochs = trial.window, whole_epochs(trial, workload, ranks.devices)
    memory = Memory(workload.model, optimizer, ranks.device, training.held, ranks.further)
    parity = None
    if trial.find == "parity":
        parity = ParityRecorder(workload, trial, ranks, training.weights or workload.model.state_dict)
        step = parity.recorded(step)
    traffic = Traffic()
    skipped = SkippedSteps(optimizer, trial)
    step = skipped.counting(step)
    gpus = [device.index for device in ranks.devices if device.type == "cuda"]
    meter, quiet = PowerMeter(gpus, ranks.local_rank), QuietMeter()

    # 1 warm-up: first-step costs (allocation, autotuning, the first negotiation) stay out of the window (F1).
    console.warming_up()
    first_step_at = time.time()
    warmup_seconds: list[float] = []
    first: Loss = None
    while len(warmup_seconds) < window.warmup_steps or still_warming(warmup_seconds, trial, ranks):
        start = now(*ranks.devices)
        loss = step(next(workload.batches))
        warmup_seconds.append(now(*ranks.devices) - start)
        first = loss if first is None else first
    console.warmed_up(warmup_seconds)

    # 2 the timed window, in blocks; nothing but steps happens inside a block.
    watch, last = Stopwatch(*ranks.devices), first  # loss_first stays unknown where nothing warmed up
    samples = 0
    tokens: int | torch.Tensor = 0

    def steps(step: Step, batches: Iterator[Batch], count: int) -> list[float]:
        nonlocal last, samples, tokens
        watch.start()
        for _ in range(count):
            batch = next(batches)
            last = step(batch)
            watch.lap()
            samples += workload.samples_in(batch)
            tokens += workload.tokens(batch) if workload.tokens else 0
        return watch.seconds()

    step_seconds: list[float] = []
    expected = min(warmup_seconds, default=None)  # keeps even the first block of slow steps within max_seconds
    with collector.settled():
        if epochs:
            for _ in range(trial.warmup_epochs or 0):
                warmup_seconds += epochs.run(step, steps, warmup=True)
            samples = tokens = 0
        before, rounds_before = skipped.count, len(training.rounds.over) if training.rounds else 0
        memory.start()
        meter.start()
        quiet.start()
        if epochs:
            for _ in range(trial.epochs or 0):
                step_seconds += epochs.run(step, steps, warmup=False)
                console.block(step_seconds, epochs.steps)
        else:
            while block := int(ranks.agree(next_block(len(step_seconds), sum(step_seconds), window, expected))):
                step_seconds += steps(step, workload.batches, block)
                console.block(step_seconds, block)
        quiet.stop()
        meter.stop()
        memory.stop()
        skipped_steps = skipped.since(before)
        rounds = training.rounds.since(rounds_before) if training.rounds else []
    # 3 the instrumented window: a quarter of the timed steps, at most ten.
    counted_step(step, workload, memory, wire, traffic)  # by now frameworks gather and reduce as in every step
    if timeline:
        timeline.begin(ranks.agree)
    instrumented = max(1, min(10, len(step_seconds) // 4))
    phases = instrument(step, workload, phase, instrumented, ranks.devices, timeline)
    arrivals = Arrivals(ranks.device)
    if watchable(trial):
        with arrivals.watching(workload.model.parameters(), phase):
            step(next(workload.batches))
    observed = Observed(None, None)
    if ranks.world_size > 1 and trial.find is None:
        observed = observe(lambda: step(next(workload.batches)), wire, ranks.device)
    trace(step, workload, ranks)

    report = RankReport(
        **described(training, trial, ranks),
        first_step_at=first_step_at, warmup_seconds=warmup_seconds, step_seconds=step_seconds,
        samples_seen=sum(each["samples"] for each in rounds) if training.rounds else samples,
        tokens_seen=int(tokens) if workload.tokens and not training.rounds else None, rounds=rounds,
        phases=phases,
        allreduce_bytes=wire.reduced_bytes(ranks.world_size // (trial.stages or 1)),
        communication_bytes=dict(wire.bytes),
        transport=traffic.carrier(sum(wire.bytes.values())), overlap=observed.overlap,
        nccl_kernels=observed.nccl_kernels,
        peak_memory_bytes=memory.peak_bytes(), memory=memory.by_kind(),
        setup_peak_memory_bytes=memory.setup_peak_bytes,
        warmup_skipped_steps=before, skipped_steps=skipped_steps,
        loss_first=finite(first), loss_last=finite(last),
        gpu_utilization_percent=meter.utilization_percent, energy_joules=meter.energy_joules,
        notes=notes(workload, last),
        timeline=timeline.events if timeline else [],
        epochs=epochs.rows if epochs else [],
        own_cpu_seconds=quiet.own_cpu_seconds, host_cpu_seconds=quiet.host_cpu_seconds,
        gradients=arrivals.gradients,
    )  # fmt: skip
    if trial.find is None:  # after all else; the ranks leave their last step together, so all do it at once
        tf32 = may_round_to_tf32(workload.model, trial.precision, ranks.device)
        peak = measure_peak(ranks.device, trial.precision, tf32)
        report = replace(
            report, tf32=tf32,
            peak_flops_per_second=peak.flops_per_second, peak_bytes_per_second=peak.bytes_per_second,
        )  # fmt: skip
    if record:
        if parity:
            parity.write(Path(record))
        store.write_rank(Path(record), report)
    console.result(report)
    return report


def still_warming(seconds: Sequence[float], trial: Trial, ranks: Ranks) -> bool:
    """Whether another step has to warm up, by rank 0's clock; what is not timed warms up as asked."""
    if trial.find is not None or not seconds:
        return False
    return bool(ranks.agree(len(seconds) < trial.window.warmup(min(seconds))))


def counted_step(step: Step, workload: Workload, memory: Memory, wire: Wire, traffic: Traffic) -> Loss:
    """One step in which bytes given to collectives, sent by the host, and of memory are counted. Returns its loss."""
    with memory.watching(), wire, traffic:
        return step(next(workload.batches))


def instrument(
    step: Step, workload: Workload, phase: Phase, steps: int, devices: Sequence[torch.device], timeline: Timeline | None
) -> store.Phases:
    """`steps` more steps with every phase timed."""
    phase.on = True
    start = now(*devices)
    for index in range(steps):
        if timeline:
            timeline.step = index
        with phase("data"):
            batch = next(workload.batches)
        step(batch)
    seconds = now(*devices) - start
    phase.on = False
    return phase.means(steps, seconds)


def whole_epochs(trial: Trial, workload: Workload, devices: Sequence[torch.device]) -> Epochs | None:
    """The epochs that were asked for in place of a window; cut short by max_steps, as the record shows."""
    if trial.epochs is None:
        return None
    steps = min(workload.steps_per_epoch, trial.window.max_steps or workload.steps_per_epoch)
    return Epochs(steps, workload, devices)


def finite(loss: Loss) -> float | None:
    value = math.nan if loss is None else float(loss)
    return value if math.isfinite(value) else None


def notes(workload: Workload, last: Loss) -> list[str]:
    read = workload.batches.notes()
    return [*workload.notes, *read, *(["the loss is not finite"] if last is not None and finite(last) is None else [])]
