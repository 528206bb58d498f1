"""A cluster whose truth is known: data-parallel training simulated message by message, to hold predictions against.

Written apart from analysis/prediction, and otherwise: there one slowest worker and closed forms, here every worker with
a clock of its own and every message with a time of its own.

    worker 0   forward | g  g g   g |......| optimiser | forward ...      computing: mean x a factor of process and host
    worker 1   forward  | g g  g   g|......| optimiser | forward ...                 x a factor of the step
    messages   in each step of a ring a worker waits for its own last one and its neighbour's; each takes
               (alpha + bytes beta) x a factor of its own

Factors are log-normal with mean 1. Nobody waits at the end of a step but for gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]  # (workers,) seconds on one clock


@dataclass(frozen=True)
class Wire:
    """alpha in seconds, beta in seconds a byte."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class Cluster:
    """`gradients`: (bytes, seconds into backward). `policy`: cycles, buckets, or whole, as in analysis/prediction."""

    workers: int
    forward: float
    backward: float
    after: float
    gradients: tuple[tuple[float, float], ...]
    between: Wire
    within: Wire
    workers_per_host: int = 1
    algorithm: str = "ring"
    policy: str = "cycles"
    most_bytes: float = 128 * 2**20
    cycle: float = 1e-3
    host_noise: float = 0.0  # of a host's mean, for good
    process_noise: float = 0.01  # of a process's mean, from start to start
    step_noise: float = 0.02
    message_noise: float = 0.1


class Run:
    """One process group: some steps of a cluster."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.random = cluster, np.random.default_rng(seed)
        hosts = self.factor(cluster.host_noise, -(-cluster.workers // cluster.workers_per_host))
        of_host = np.repeat(hosts, cluster.workers_per_host)[: cluster.workers]
        self.process = of_host * self.factor(cluster.process_noise, cluster.workers)

    def steps(self, count: int) -> list[float]:
        """Seconds of each step, between the moments at which the last worker ended two of them."""
        clock, ended = np.zeros(self.cluster.workers), [0.0]
        for _ in range(count):
            clock = self.step(clock)
            ended.append(float(clock.max()))
        return [b - a for a, b in itertools.pairwise(ended)]

    def step(self, start: Times) -> Times:
        c = self.cluster
        pace = self.process * self.factor(c.step_noise, c.workers)
        begun = start + pace * c.forward
        ready = begun[None, :] + np.array([seconds for _, seconds in c.gradients])[:, None] * pace[None, :]
        computed = begun + pace * c.backward
        if c.workers == 1:
            return computed + pace * c.after
        done = {"cycles": self.cycles, "buckets": self.buckets, "whole": self.whole}[c.policy](ready, computed)
        return np.maximum(computed, done) + pace * c.after

    def cycles(self, ready: NDArray[np.float64], computed: Times) -> Times:
        """All workers' threads wake together, look what everybody has, say so up and down a tree, and reduce it."""
        c, everywhere = self.cluster, ready.max(axis=1)
        sizes = [size for size, _ in c.gradients]
        wake, place = float(ready.min()) - self.random.uniform(0, c.cycle), 0
        clock = np.zeros(c.workers)
        while place < len(sizes):
            missing = everywhere[place] - wake
            if missing > 0:
                wake += c.cycle * math.ceil(missing / c.cycle)
            first = place
            while place < len(sizes) and everywhere[place] <= wake:
                place += 1
            clock = np.full(c.workers, wake + self.agreed())
            for size in joined(sizes[first:place], c.most_bytes):
                clock = self.reduced(clock, size)
            wake = max(wake + c.cycle, float(clock.max()))
        return clock

    def buckets(self, ready: NDArray[np.float64], computed: Times) -> Times:
        """A worker's bucket goes once it is full there and the one before has come back."""
        c, clock, held, there = self.cluster, np.zeros(self.cluster.workers), 0.0, np.zeros(self.cluster.workers)
        for index, (size, _) in enumerate(c.gradients):
            held, there = held + size, np.maximum(there, ready[index])
            if held >= c.most_bytes or index == len(c.gradients) - 1:
                clock, held = self.reduced(np.maximum(clock, there), held), 0.0
        return clock

    def whole(self, ready: NDArray[np.float64], computed: Times) -> Times:
        clock = computed
        for size in joined([size for size, _ in self.cluster.gradients], self.cluster.most_bytes):
            clock = self.reduced(clock, size)
        return clock

    def reduced(self, clock: Times, size: float) -> Times:
        return {"ring": self.ring, "halving_doubling": self.halving, "hierarchical": self.hierarchical}[
            self.cluster.algorithm
        ](clock, size)

    def ring(self, clock: Times, size: float) -> Times:
        n = len(clock)
        host = np.arange(n) // self.cluster.workers_per_host
        local = host == np.roll(host, 1)  # the message from the worker before
        for _ in range(2 * (n - 1)):
            clock = np.maximum(clock, np.roll(clock, 1)) + self.messages(local, size / n)
        return clock

    def halving(self, clock: Times, size: float) -> Times:
        """Powers of two only: halves to the neighbour, quarters to the next but one, ..., and back."""
        n, p = len(clock), self.cluster.workers_per_host
        rounds = [(2**k, size / 2 ** (k + 1)) for k in range(int(math.log2(n)))]
        for distance, part in [*rounds, *reversed(rounds)]:
            partner = np.arange(n) ^ distance
            local = np.full(n, distance < p)
            share = 1 if distance < p else min(n, p)  # a host's workers use its link at the same time
            clock = np.maximum(clock, clock[partner]) + self.messages(local, part * share)
        return clock

    def hierarchical(self, clock: Times, size: float) -> Times:
        n, p = len(clock), min(len(clock), self.cluster.workers_per_host)
        hosts, grid = n // p, clock.reshape(-1, p)
        for half in range(2):
            for _ in range(p - 1):
                waits = np.maximum(grid, np.roll(grid, 1, axis=1))
                grid = waits + self.messages(np.ones(grid.shape, dtype=bool), size / p)
            for _ in range(2 * (hosts - 1) if half == 0 else 0):  # p rings over one link a host
                waits = np.maximum(grid, np.roll(grid, 1, axis=0))
                grid = waits + self.messages(np.zeros(grid.shape, dtype=bool), size / hosts)
        return grid.reshape(-1)

    def messages(self, local: NDArray[np.bool_], size: float) -> NDArray[np.float64]:
        a, b = self.cluster.within, self.cluster.between
        seconds = np.where(local, a.alpha + size * a.beta, b.alpha + size * b.beta)
        return np.asarray(seconds * self.factor(self.cluster.message_noise, local.shape))

    def agreed(self) -> float:
        """A few bytes up a binary tree and down again; the slower of two children is waited for."""
        rounds = math.ceil(math.log2(self.cluster.workers))
        local = np.zeros((2 * rounds, 2), dtype=bool) if self.cluster.workers_per_host == 1 else None
        if local is None:
            local = np.tile((2 ** np.arange(rounds) < self.cluster.workers_per_host)[:, None], (2, 2))
        return float(self.messages(local, 0.0).max(axis=1).sum())

    def factor(self, noise: float, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        return np.asarray(np.exp(self.random.normal(-(noise**2) / 2, noise, shape) if noise else np.zeros(shape)))


def joined(sizes: Sequence[float], most: float) -> Iterator[float]:
    """Neighbours together, as long as they fit."""
    held = 0.0
    for size in sizes:
        if held and held + size > most:
            yield held
            held = 0.0
        held += size
    if held:
        yield held


def true_step(cluster: Cluster, steps: int, seed: int) -> float:
    """The mean step of many process groups: what repeats without end would find."""
    groups = 8
    runs = [Run(cluster, seed + group).steps(steps // groups + 1)[1:] for group in range(groups)]
    return float(np.mean([seconds for run in runs for seconds in run]))


def alone(cluster: Cluster) -> Cluster:
    """The same with one worker, on a host of mean speed."""
    return replace(cluster, workers=1, host_noise=0.0)
