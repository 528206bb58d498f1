"""Throughput, efficiency and exposed communication of n workers, each with what the measurements leave open.

The interval is by simulation over and over with other inputs, as likely as those that were measured: one worker's step
from Student's t over its repeats, a link's alpha and beta from their fits, the same draws for every number of workers.
They are spread evenly over each distribution and shuffled against each other (Latin hypercube: McKay, Beckman and
Conover, Technometrics 21, 1979), so a few say as much as many that fall by chance.
It says how much of a prediction is the doubt in its inputs. That the model itself is right it does not say: against.py
and `python -m benchmarks prediction` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from analysis.prediction import stragglers
from analysis.prediction.collectives import ALGORITHMS
from analysis.prediction.measured import OneWorker
from analysis.prediction.network import Network
from analysis.prediction.simulate import Outcome, simulate
from analysis.prediction.targets import Target
from scaling_study.stats.intervals import FEWEST_REPEATS

FLAT = ("ring", "tree")  # hierarchical is the ring there, and halving and doubling nearly
DRAWS, SEED = 160, 0
INSIDE = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class Bounds:
    """A value and its 95 % interval; no bounds where none is claimed."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Prediction:
    """Of one step of `workers`. Throughput in samples a second over all of them; efficiency against one worker."""

    target: Target
    network: Network
    allreduce: str
    algorithm: str
    workers: int
    samples_per_second: Bounds
    efficiency: Bounds
    exposed_seconds: Bounds
    step_seconds: float
    waiting_seconds: float  # for the slowest worker
    communication_seconds: float
    calls: int


@dataclass(frozen=True)
class Doubt:
    """One draw of the inputs: factors on one worker's seconds, on alpha, and on beta."""

    compute: float = 1.0
    latency: float = 1.0
    byte: float = 1.0


def predictions(
    targets: Sequence[tuple[Target, Network]], workers: Sequence[int], algorithms: Sequence[str] = (),
    straggle: bool = True, crowding: float = 1.0,
) -> Iterator[Prediction]:  # fmt: skip
    """In the order of the arguments; without `algorithms`, of all that differ on a target's network.

    `crowding`: of workers that share a host with others (contention.py).
    """
    for target, network in targets:
        for allreduce in target.wires:
            for algorithm in algorithms or (ALGORITHMS if network.within else FLAT):
                for count in workers:
                    yield predict(target, allreduce, algorithm, count, network, straggle, crowding)


def predict(
    target: Target, allreduce: str, algorithm: str, workers: int, network: Network, straggle: bool = True,
    crowding: float = 1.0,
) -> Prediction:  # fmt: skip
    worker, wire = target.alone, target.wire(allreduce)
    crowded = crowding if network.local(workers) > 1 else 1.0
    slowest = stragglers.slowdown(workers, worker.variation) if straggle else 1.0

    def ran(doubt: Doubt) -> Outcome:
        links = network.scaled(doubt.latency, doubt.byte)
        step = worker.step.scaled(doubt.compute * crowded * slowest)
        return simulate(step, workers, algorithm, links, target.fusion, wire)

    best = ran(Doubt())
    many = [(doubt, ran(doubt)) for doubt in doubts(worker, network)]
    alone, samples = worker.step.seconds, workers * worker.samples
    return Prediction(
        target, network, allreduce, algorithm, workers,
        _bounds(samples / best.step_seconds, [samples / o.step_seconds for _, o in many]),
        _bounds(alone / best.step_seconds, [alone * d.compute / o.step_seconds for d, o in many]),
        _bounds(best.exposed_seconds, [o.exposed_seconds for _, o in many]),
        best.step_seconds, alone * crowded * (slowest - 1.0), best.communication_seconds, best.calls,
    )  # fmt: skip


def doubts(worker: OneWorker, network: Network) -> tuple[Doubt, ...]:
    """Draws of the inputs; none where one worker was measured too few times to say how sure its step is."""
    if worker.repeats < FEWEST_REPEATS:
        return ()
    between = network.between
    return _drawn(worker.repeats, worker.log_error, between.latency_spread, between.byte_spread)


@cache
def _drawn(repeats: int, log_error: float, latency_spread: float, byte_spread: float) -> tuple[Doubt, ...]:
    from scipy.special import ndtri, stdtrit

    generator, levels = np.random.default_rng(SEED), (np.arange(DRAWS) + 0.5) / DRAWS
    compute = np.exp(log_error * stdtrit(repeats - 1, generator.permutation(levels)))
    latency, byte = (np.exp(s * ndtri(generator.permutation(levels))) for s in (latency_spread, byte_spread))
    return tuple(Doubt(*map(float, drawn)) for drawn in zip(compute, latency, byte, strict=True))


def _bounds(mean: float, drawn: Sequence[float]) -> Bounds:
    """A mean outside of its own draws would be no mean: the bounds hold it."""
    if not drawn:
        return Bounds(mean, None, None)
    low, high = np.percentile(drawn, INSIDE)
    return Bounds(mean, min(float(low), mean), max(float(high), mean))
