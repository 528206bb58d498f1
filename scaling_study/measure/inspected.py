"""What is seen of steps that are not timed, since seeing it takes time.                                 [torch]

    counted      bytes given to collectives, sent by the host, and of memory        one step
    phases       each timed between two waits for the device                        up to ten, a fourth of the timed
    arrivals     when each gradient is there                                        one step
    overlap      of communication and computing, under torch's profiler             one step

Of long steps two show it all: in one what counts is under the profiler too, in the other phases are timed while
gradients arrive. What these take of a step is nothing beside seconds of it.
"""

from __future__ import annotations

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
    phased = functools.partial(instrument, step, workload, training.phase, steps, ranks.devices, training.timeline)
    overlaps, observed = ranks.world_size > 1 and trial.find is None, Observed(None, None)
    memory.note_setup()

    def counted() -> None:  # by now frameworks gather and reduce as always
        with memory.watching(), wire, traffic:
            step(next(workload.batches))

    if overlaps and is_long:
        observed = observe(counted, wire, ranks.device)
    else:
        counted()
    if training.timeline:
        training.timeline.begin(ranks.agree)
    if steps == 1 and is_long:
        with arrivals.watching(watched, training.phase):
            phases = phased()
    else:
        phases = phased()
        if watched:
            with arrivals.watching(watched, training.phase):
                step(next(workload.batches))
    if overlaps and not is_long:
        observed = observe(lambda: step(next(workload.batches)), wire, ranks.device)
    trace(step, workload, ranks)
    transport = traffic.carrier(sum(wire.bytes.values()))
    about = described(training, trial, ranks)
    seen = Inspected(about, phases, transport, arrivals.gradients, observed, memory.by_kind(not trial.warm))
    if trial.find is None:  # after all else; the ranks leave their last step together, so all do it at once
        tf32 = may_round_to_tf32(workload.model, trial.precision, ranks.device)
        seen = replace(seen, tf32=tf32, peak=measure_peak(ranks.device, trial.precision, tf32))
    return seen


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
