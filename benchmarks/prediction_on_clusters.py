"""Predictions for simulated clusters of 1 to 64 workers, from what one worker and a probe of two measured there.

Everything is measured as a study would: three repeats of one worker, each with its own luck; a probe of two workers,
calls of 1 KB to 64 MB, fitted; then the throughput of n workers is predicted and held against the cluster's own.
Models, networks and ways of sharing gradients are drawn at random, over what machines have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.prediction import inputs
from analysis.prediction.inputs import OneWorker, TrainingTarget
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.predict import Prediction, predict
from analysis.prediction.simulate import BUCKETS, CYCLES, WHOLE, Fusion
from analysis.statistics.network import Probe
from benchmarks.simulated_cluster import Cluster, Run, Wire, alone, true_step
from scaling_study.records.schema import Phases, RankReport
from scaling_study.stats import network as alpha_beta

REPEATS, STEPS, INSTRUMENTED = 3, 60, 10
TRUE_STEPS = 240
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SIZES = tuple(4**k * 1024 for k in range(9))  # 1 KB to 64 MB
CALLS = 20
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One cluster: what it really does with its workers, and what was predicted."""

    cluster: Cluster
    true_samples_per_second: float
    prediction: Prediction

    @property
    def error(self) -> float:
        return self.prediction.samples_per_second.mean / self.true_samples_per_second - 1

    @property
    def covered(self) -> bool:
        low, high = self.prediction.samples_per_second.low, self.prediction.samples_per_second.high
        return low is not None and high is not None and low <= self.true_samples_per_second <= high

    def said(self) -> dict[str, Any]:
        c, p = self.cluster, self.prediction
        return {
            "workers": c.workers, "workers_per_host": c.workers_per_host, "algorithm": c.algorithm, "policy": c.policy,
            "bytes": sum(size for size, _ in c.gradients), "gradients": len(c.gradients),
            "step_seconds_alone": c.forward + c.backward + c.after, "gbit_per_second": 8e-9 / c.between.beta,
            "latency_seconds": c.between.alpha, "true": self.true_samples_per_second,
            "predicted": p.samples_per_second.mean, "error": self.error, "covered": self.covered,
            "efficiency": p.efficiency.mean,
        }  # fmt: skip


def drawn_for(index: int) -> Cluster:
    """The index-th of the clusters: worker counts in turn, all else by chance."""
    return drawn(WORKERS[index % len(WORKERS)], index)


def drawn(workers: int, seed: int) -> Cluster:
    """A cluster by chance: 20 to 200 gradients of 2 to 500 MB, 20 to 500 ms a step, 1 to 100 Gbit/s, 2 to 50 us."""
    random = np.random.default_rng(seed)
    count, total = int(random.integers(20, 200)), log_uniform(random, 2e6, 500e6)
    sizes = random.lognormal(0, 1.5, count)
    shares = np.cumsum(random.exponential(1.0, count))
    step, policy = log_uniform(random, 0.02, 0.5), str(random.choice([CYCLES, BUCKETS, WHOLE]))
    per_host = int(random.choice([1, 4]))
    algorithm = str(random.choice(["ring", "halving_doubling", "hierarchical"][: 3 if per_host > 1 else 2]))
    between = Wire(log_uniform(random, 2e-6, 50e-6), 8e-9 / log_uniform(random, 1, 100))
    within = Wire(between.alpha / 2, between.beta / 4)
    backward = 0.6 * step
    return Cluster(
        workers, 0.3 * step, backward, 0.1 * step,
        tuple(zip(map(float, sizes / sizes.sum() * total), map(float, shares / shares[-1] * backward), strict=True)),
        between, within, per_host, algorithm, policy, {CYCLES: 128, BUCKETS: 25, WHOLE: 64}[policy] * MIB,
    )  # fmt: skip


def case(cluster: Cluster, seed: int) -> Case:
    samples = 32 * cluster.workers
    return Case(cluster, samples / true_step(cluster, TRUE_STEPS, seed + 10_000), predicted(cluster, seed))


def predicted(cluster: Cluster, seed: int) -> Prediction:
    """From what one worker and a probe of two measured there."""
    one = measured_alone(cluster, seed)
    fusion = Fusion(cluster.policy, cluster.most_bytes, cycle_seconds=cluster.cycle)
    row = {"precision": "fp32", "batch_per_worker": 32}
    network = measured_network(cluster, seed)
    target, spread = TrainingTarget(row, "", one, fusion, ("fp32",)), cluster.host_noise  # which a study would measure
    return predict(target, "fp32", cluster.algorithm, cluster.workers, network, host_spread=spread)


def measured_alone(cluster: Cluster, seed: int) -> OneWorker:
    """What REPEATS runs of one worker leave, phases and arrivals with the noise of the steps they were taken in."""
    reports = []
    for repeat in range(REPEATS):
        run = Run(alone(cluster), 100 * seed + repeat)
        timed, phases = run.steps(STEPS), run.steps(INSTRUMENTED)
        mean, pace = float(np.mean(phases)), float(run.process[0] * run.factor(cluster.step_noise, 1)[0])
        share = mean / (cluster.forward + cluster.backward + cluster.after)
        forward, backward, after = (share * part for part in (cluster.forward, cluster.backward, cluster.after))
        parts = Phases(INSTRUMENTED, mean, 0.0, forward, backward, None, after, 0.0)
        reports.append(report(timed, parts, [[size, seconds * pace] for size, seconds in cluster.gradients]))
    one = inputs.of_reports("simulated", reports)
    assert isinstance(one, OneWorker), one
    return one


def measured_network(cluster: Cluster, seed: int) -> ModelledNetwork:
    """Both links as probes of two workers find them."""
    between = measured_link(replace(cluster, workers_per_host=1), cluster.between, 100 * seed + 50)
    if cluster.workers_per_host == 1:
        return ModelledNetwork(between)
    within = measured_link(replace(cluster, workers_per_host=1), cluster.within, 100 * seed + 51)
    return ModelledNetwork(between, within, cluster.workers_per_host)


def measured_link(cluster: Cluster, wire: Wire, seed: int) -> Link:
    pair = Run(replace(cluster, workers=2, between=wire), seed)
    points = [
        alpha_beta.Point.of(size, [float(pair.ring(np.zeros(2), size).max()) for _ in range(CALLS)]) for size in SIZES
    ]
    fits = {inputs.IDLE: alpha_beta.fit(points)}
    return inputs.link(Probe("", "", "mpirun", None, workers=2, hosts=2, device="cpu", fits=fits), inputs.IDLE)


def report(step_seconds: Sequence[float], phases: Phases, gradients: list[list[float]]) -> RankReport:
    return RankReport(
        rank=0, world_size=1, local_rank=0, host="", pid=0, device="cpu", device_name="", cores=[], threads=1,
        first_step_at=0.0, warmup_seconds=[], step_seconds=list(step_seconds), samples_per_step=32,
        samples_seen=32 * len(step_seconds), tokens_seen=None, phases=phases, parameters=0, allreduce_bytes=0,
        communication_bytes={}, peak_memory_bytes=None, memory={}, loss_first=None, loss_last=None, data_source="",
        steps_per_epoch=1, gpu_utilization_percent=None, energy_joules=None, backend={}, versions={},
        gradients=gradients,
    )  # fmt: skip


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(random.uniform(math.log(low), math.log(high))))
