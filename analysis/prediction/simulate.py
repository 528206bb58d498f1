"""One training step of n workers, event by event, from one worker's measured step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from analysis.prediction.network import ModelledNetwork, seconds

# Which gradients travel together, and when they may leave.
#
#     gradients     g1 g2   g3 g4 g5     g6 | backward is over
#     cycles        . . . (g1 g2) . . (g3 g4 g5) . (g6)     Horovod looks every cycle and fuses what it finds
#     buckets       (g1 g2 g3)    (g4 g5 g6)                DDP fills buckets in the order of arrival; a full one
# leaves
#     whole                                  (g1 ... g6)    nothing leaves before backward is over
#
# Sergeev and Del Balso, arXiv 1802.05799; Li et al., arXiv 2006.15704.

MIB = 2**20
CYCLES, BUCKETS, WHOLE, MESH = "cycles", "buckets", "whole", "mesh"

Gradient = tuple[float, float]  # bytes, seconds since the beginning of backward


@dataclass(frozen=True)
class Fusion:
    """`most_bytes`: of one call. Horovod compresses before it fuses, DDP after: `counts_wire_bytes` says which."""

    kind: str = CYCLES
    most_bytes: float = 128 * MIB
    first_bytes: float | None = None  # of DDP's first bucket, so that something leaves early
    cycle_seconds: float = 0.001
    counts_wire_bytes: bool = True


HOROVOD = Fusion()  # the defaults of 0.28.1: 128 MiB, 1 ms; until 2019 they were 64 MiB and 5 ms
DDP = Fusion(BUCKETS, 25 * MIB, first_bytes=MIB, counts_wire_bytes=False)
AFTERWARDS = Fusion(WHOLE, 64 * MIB)  # horovod_runs/mpi_allreduce.py
MESHES = Fusion(MESH)  # collectives of each layer, which meshes.py times


def fused(sizes: Iterable[float], most_bytes: float) -> list[float]:
    """Bytes of the calls that neighbours are fused into: at most `most_bytes`, or one that is larger by itself."""
    calls: list[float] = []
    for size in sizes:
        if calls and calls[-1] + size <= most_bytes:
            calls[-1] += size
        else:
            calls.append(size)
    return calls


def buckets(gradients: Sequence[Gradient], fusion: Fusion, wire: float = 1.0) -> list[Gradient]:
    """(bytes on the wire, when the last of its gradients is there) of each bucket, in order.

    A bucket is closed once it holds its limit or more: by its last gradient it may be larger. `wire`: bytes on the wire
    for each byte of a gradient, a half with 16-bit allreduce.
    """
    joined: list[Gradient] = []
    limit, held, there = fusion.first_bytes or fusion.most_bytes, 0.0, 0.0
    for size, arrival in gradients:
        held, there = held + size * wire, max(there, arrival)
        if held >= limit * (1.0 if fusion.counts_wire_bytes else wire):
            joined.append((held, there))
            limit, held = fusion.most_bytes, 0.0
    return [*joined, (held, there)] if held else joined


# The slowest of n workers: in every step all wait for it.
#
# Steps of one worker vary about their mean, with the standard deviation that its timed steps show. Workers are taken as
# independent and alike, and their step times as normal: then the slowest of n is expected E[max] standard deviations
# above the mean, 0.56 for n = 2, 1.54 for 10, 3.24 for 1,000, 4.4 for 100,000 (order statistics: David and Nagaraja,
# Order Statistics, 3rd ed., 2003). Hiccups rarer and longer than a normal tail cost more than this says.
#
# Hosts that are slow for good are waited for in every step. Their speeds are taken as normal too, with a deviation
# `host_spread` over the mean; all workers of a host share its speed. A step takes h + e of each worker, h of its host
# for good and e anew in each step: the largest over all of them is expected, over clusters drawn at random.

POINTS = 20_000  # of the midpoint rule; the largest error, at n = 100,000, is below 0.001


@cache
def expected_maximum(workers: int) -> float:
    """Mean of the largest of `workers` standard normal variables.

    With F(x)**n uniform on (0, 1): the mean over u of the normal quantile of u**(1/n).
    """
    from scipy.special import ndtri

    u = (np.arange(POINTS) + 0.5) / POINTS
    return float(np.mean(-ndtri(-np.expm1(np.log(u) / workers)))) if workers > 1 else 0.0


def slowdown(workers: int, variation: float, workers_per_host: int = 1, host_spread: float = 0.0) -> float:
    """How many times the mean step the slowest worker's is expected to take.

    `variation`: deviation / mean of one worker's step from step to step; `host_spread`: of hosts from each other, for
    good.
    """
    hosts = -(-workers // workers_per_host)
    if host_spread <= 0 or hosts == 1:
        return 1.0 + max(0.0, variation) * expected_maximum(workers)
    if variation <= 0:
        return 1.0 + host_spread * expected_maximum(hosts)
    return 1.0 + host_spread * slowest_of_hosts(hosts, min(workers, workers_per_host), variation / host_spread)


@cache
def slowest_of_hosts(hosts: int, workers_per_host: int, ratio: float) -> float:
    """Mean of the largest h + ratio e, with one standard normal h a host and one e a worker.

    The chance that all of a host's are below x is the mean over h of F((x - h) / ratio)**workers.
    """
    from scipy.special import log_ndtr

    h = np.linspace(-8, 8, 801)
    weight = np.exp(-(h**2) / 2)
    x = np.linspace(-8 * (1 + ratio), 8 * (1 + ratio), 1601)
    below = np.exp(workers_per_host * log_ndtr((x[:, None] - h) / ratio)) @ (weight / weight.sum())
    every = below**hosts
    return float(x[-1] - np.trapezoid(every, x))


# One training step of n workers, event by event: what backward hides of its reductions, and what it does not.
#
#     wall      0          |backward           |                 |after
#     compute   forward    |----g--g----g---gg-|                 |optimiser|
#     wire                          [ A ]  [ B    ][ C          ]
#                                              exposed <-------->
#
# All workers are alike but for the slowest, and that one is meant here: a collective begins when it has its gradients.
# One collective is on the wire at a time, as in Horovod and in a process group of torch. Where communication takes some
# of the cores' time, backward goes on more slowly meanwhile (network.py: busy), and the collective itself takes the
# time it takes on idle cores once backward is over.


@dataclass(frozen=True)
class Step:
    """The computing of one worker in a step, without waiting. Gradients in order of arrival."""

    before_seconds: float  # data and forward
    backward_seconds: float
    after_seconds: float  # the optimiser, and what no phase covers
    gradients: tuple[Gradient, ...]

    @property
    def seconds(self) -> float:
        return self.before_seconds + self.backward_seconds + self.after_seconds

    def scaled(self, factor: float) -> Step:
        """The step on a worker that takes `factor` times as long."""
        arrivals = tuple((size, factor * arrival) for size, arrival in self.gradients)
        return Step(factor * self.before_seconds, factor * self.backward_seconds, factor * self.after_seconds, arrivals)


@dataclass(frozen=True)
class SimulatedStep:
    """One simulated step. `exposed_seconds`: what communication adds; `communication_seconds`: the wire was in use."""

    step_seconds: float
    exposed_seconds: float
    communication_seconds: float
    calls: int  # collectives on gradients


class Backward:
    """How far backward has come at which time on the wall, while collectives come and go."""

    def __init__(self, seconds: float) -> None:
        self.total, self.done, self.wall, self.communicated = seconds, 0.0, 0.0, 0.0

    def when(self, done: float) -> float:
        """The time on the wall at which so much is done, if nothing is on the wire until then."""
        return self.wall + max(0.0, done - self.done)

    def wait_until(self, wall: float) -> None:
        self.done = min(self.total, self.done + max(0.0, wall - self.wall))
        self.wall = max(self.wall, wall)

    def reduce(self, idle: float, busy: float, gpu_share: float = 0.0) -> None:
        """One collective, from now on: it takes `busy` seconds while backward runs, `idle` when that is over."""
        began, left = self.wall, self.total - self.done
        taken = max(gpu_share, min(idle, busy - idle) / busy) if busy > 0 else 0.0
        pace = 1.0 - taken  # of computing meanwhile: network.py
        if left >= pace * busy:
            self.done, self.wall = self.done + pace * busy, self.wall + busy
        else:
            ended = left / pace
            self.done, self.wall = self.total, self.wall + ended + (1 - ended / busy) * idle
        self.communicated += self.wall - began


def simulate(
    step: Step, workers: int, algorithm: str, network: ModelledNetwork, policy: Fusion, wire: float = 1.0
) -> SimulatedStep:
    """One step of `workers`; `wire`: bytes on the wire for each byte of gradients."""
    if workers == 1:
        return SimulatedStep(step.seconds, 0.0, 0.0, 0)
    backward = Backward(step.backward_seconds)

    @cache
    def idle(size: float) -> float:
        return seconds(algorithm, workers, size, network)

    @cache
    def busy(size: float) -> float:
        slow = seconds(algorithm, workers, size, network.busy) if network.busy else 0.0
        return max(idle(size), slow)

    agree, calls = agreeing(workers, network), 0
    for sizes in departures(backward, step.gradients, policy, wire):
        if policy.kind == CYCLES:
            backward.reduce(agree, agree)
        for size in sizes:
            backward.reduce(idle(size), busy(size), network.gpu_share)
        calls += len(sizes)
    ended = max(backward.wall, backward.when(backward.total))
    exposed = ended - step.backward_seconds
    return SimulatedStep(step.seconds + exposed, exposed, backward.communicated, calls)


def agreeing(workers: int, network: ModelledNetwork) -> float:
    """Seconds in which all workers find out what all of them have: a few bytes, up a binary tree and down again."""
    return 2 * math.ceil(math.log2(workers)) * network.across(workers).latency_seconds


def departures(
    backward: Backward, gradients: Sequence[Gradient], policy: Fusion, wire: float
) -> Iterator[Sequence[float]]:
    """Bytes of the calls that leave together, each time when backward has come so far that they may.

    DDP: the order of buckets is the same on all workers, so nothing has to be agreed on. WHOLE: buffers of gradients
    one after the other, when all of them are there.
    """
    if policy.kind == CYCLES:
        yield from found_in_cycles(backward, gradients, policy, wire)
    elif policy.kind == BUCKETS:
        for size, there in buckets(gradients, policy, wire):
            backward.wait_until(backward.when(there))
            yield [size]
    else:
        backward.wait_until(backward.when(backward.total))
        yield fused((size * wire for size, _ in gradients), policy.most_bytes)


def found_in_cycles(
    backward: Backward, gradients: Sequence[Gradient], policy: Fusion, wire: float
) -> Iterator[Sequence[float]]:
    """Horovod's background thread: wake, agree on what everybody has, fuse it, reduce it, sleep until the next cycle.

    When the first cycle falls is chance; it is taken as half of one after backward begins.
    """
    place, wake = 0, policy.cycle_seconds / 2
    while place < len(gradients):
        there = backward.when(gradients[place][1])
        if there > wake and policy.cycle_seconds:
            wake += policy.cycle_seconds * math.ceil((there - wake) / policy.cycle_seconds)
        backward.wait_until(max(wake, there))
        began, first, place = backward.wall, place, place + 1
        while place < len(gradients) and gradients[place][1] <= backward.done:
            place += 1
        yield fused((size * wire for size, _ in gradients[first:place]), policy.most_bytes)
        wake = max(began + policy.cycle_seconds, backward.wall)
