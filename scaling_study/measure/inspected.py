"""What is seen of steps that are not timed, since seeing it takes time.                                 [torch]

    phases       each timed between two waits for the device                        up to ten, a fourth of the timed
    arrivals     when each gradient is there                                        one step
    counted      bytes given to collectives, sent by the host, and of memory        one step
    overlap      of communication and computing, under torch's profiler             one step

A long step is counted under the profiler, and where few are timed, phases are timed while gradients arrive: then two
steps show it all. What watching takes is nothing beside seconds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scaling_study.measure.arrivals import Arrivals, watchable
from scaling_study.measure.carrier import Traffic
from scaling_study.measure.described import described
from scaling_study.measure.memory import Memory
from scaling_study.measure.overlap import Observed, observe
from scaling_study.measure.peak import Peak, may_round_to_tf32, measure_peak
from scaling_study.measure.phases import Phase, now
from scaling_study.measure.timeline import Timeline
from scaling_study.measure.tracing import trace
from scaling_study.measure.training import Step, Training
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.trial import Trial
from scaling_study.workloads import Workload

MOST_STEPS = 10  # whose phases are timed


@dataclass(frozen=True)
class Inspected:
    """What was seen."""

    about: dict[str, Any]  # the rank (described.py)
    phases: store.Phases
    transport: str
    gradients: list[list[float]]
    observed: Observed
    memory: dict[str, int]
    tf32: bool | None = None
    peak: Peak | None = None


def inspect(
    training: Training, trial: Trial, ranks: Ranks, step: Step, memory: Memory, timed_steps: int, is_long: bool
) -> Inspected:
    """Look at more steps of a training, and then at the device's own peaks. All ranks call it alike.

    `timed_steps`: how many there are, before or after. `is_long`: whether a step is (window.py).
    """
    workload, wire, traffic, arrivals = training.workload, training.wire, Traffic(), Arrivals(ranks.device)
    watched = list(workload.model.parameters()) if watchable(trial) else []
    steps = max(1, min(MOST_STEPS, timed_steps // 4))
    overlaps, together = ranks.world_size > 1 and trial.find is None, is_long and steps == 1
    memory.note_setup()
    if training.timeline:
        training.timeline.begin(ranks.agree)
    with arrivals.watching(watched, training.phase) if together else contextlib.nullcontext():
        phases = instrument(step, workload, training.phase, steps, ranks.devices, training.timeline)
    if watched and not together:
        with arrivals.watching(watched, training.phase):
            step(next(workload.batches))

    def counted() -> None:  # by now frameworks gather and reduce as always
        with memory.watching(), wire, traffic:
            step(next(workload.batches))

    if not (overlaps and is_long):
        counted()
    observed = Observed(None, None)
    if overlaps:
        observed = observe(counted if is_long else lambda: step(next(workload.batches)), wire, ranks.device)
    trace(step, workload, ranks)
    transport = traffic.carrier(sum(wire.bytes.values()))
    about = described(training, trial, ranks)
    seen = Inspected(about, phases, transport, arrivals.gradients, observed, memory.by_kind(not trial.warm))
    if trial.find is None:  # after all else; the ranks leave their last step together, so all do it at once
        tf32 = may_round_to_tf32(workload.model, trial.precision, ranks.device)
        seen = replace(seen, tf32=tf32, peak=peak_of(ranks.device, trial.precision, tf32))
    return seen


@functools.cache
def peak_of(device: torch.device, precision: str, tf32: bool) -> Peak:
    """Measured once a process: all that is measured in it has the same."""
    return measure_peak(device, precision, tf32)


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
