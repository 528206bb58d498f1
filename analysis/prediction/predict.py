"""Throughput, efficiency and exposed communication of n workers, each with what the measurements leave open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.configurations import over
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, grouped
from analysis.frames.study import workers_text
from analysis.prediction import inputs
from analysis.prediction.inputs import OneWorker, TrainingTarget
from analysis.prediction.network import ALGORITHMS, GPU_SHARE, CannotPredict, ModelledNetwork
from analysis.prediction.simulate import MESH, Fusion, SimulatedStep, slowdown
from analysis.statistics.network import Probe
from analysis.statistics.scaling_laws import hosts_of
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval

# The interval is by simulation over and over with other inputs, as likely as those that were measured: one worker's
# step from Student's t over its repeats, a link's alpha and beta from their fits, the same draws for every number of
# workers. They are spread evenly over each distribution and shuffled against each other (Latin hypercube: McKay,
# Beckman and Conover, Technometrics 21, 1979), so a few say as much as many that fall by chance. The interval is the
# doubt in the inputs of a prediction. It does not hold the error of the model itself, which `check` and `python -m
# benchmarks prediction` show.

FLAT = ("ring", "tree")  # hierarchical is the ring there, and halving and doubling nearly
DRAWS, SEED = 160, 0
INSIDE = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class Prediction:
    """A predicted step of `workers`: throughput in samples a second over all of them, efficiency against one worker."""

    target: TrainingTarget
    network: ModelledNetwork
    allreduce: str
    algorithm: str
    workers: int
    samples_per_second: Interval  # over the draws
    efficiency: Interval
    exposed_seconds: Interval
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


def predict(
    target: TrainingTarget,
    allreduce: str,
    algorithm: str,
    workers: int,
    network: ModelledNetwork,
    straggle: bool = True,
    crowding: float = 1.0,
    host_spread: float = 0.0,
) -> Prediction:
    """Raises CannotPredict for several hosts where the network was measured on one."""
    worker, per_host = target.alone, network.workers_per_host
    if network.one_host and network.hosts(workers) > 1:
        raise CannotPredict(ONE_HOST.format(workers=workers, per_host=workers_text(per_host), source=network.source))
    crowded = crowding if network.local(workers) > 1 else 1.0
    slowest = slowdown(workers, worker.variation, per_host, host_spread) if straggle else 1.0

    def ran(doubt: Doubt) -> SimulatedStep:
        links = network.scaled(doubt.latency, doubt.byte)
        step = worker.step.scaled(doubt.compute * crowded * slowest)
        return target.ran(step, workers, algorithm, links, allreduce)

    best = ran(Doubt())
    many = [(doubt, ran(doubt)) for doubt in doubts(worker, network)]
    samples = target.samples(workers)
    alone = worker.step.seconds * samples / workers / worker.samples  # of its share of the samples
    return Prediction(
        target,
        network,
        allreduce,
        algorithm,
        workers,
        _bounds(samples / best.step_seconds, [samples / o.step_seconds for _, o in many]),
        _bounds(alone / best.step_seconds, [alone * d.compute / o.step_seconds for d, o in many]),
        _bounds(best.exposed_seconds, [o.exposed_seconds for _, o in many]),
        best.step_seconds,
        alone * crowded * (slowest - 1.0),
        best.communication_seconds,
        best.calls,
    )


def doubts(worker: OneWorker, network: ModelledNetwork) -> tuple[Doubt, ...]:
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


def _bounds(mean: float, drawn: Sequence[float]) -> Interval:
    """A mean outside of its own draws would be no mean: the bounds hold it."""
    if not drawn:
        return Interval(mean, None, None, 0)
    low, high = np.percentile(drawn, INSIDE)
    return Interval(mean, min(float(low), mean), max(float(high), mean), len(drawn))


NO_NETWORK = (
    "{results} holds no measured network. Give one: --bandwidth 25Gbit --latency 5us; or measure it: add a sweep with "
    "framework: network_probe to the study"
)
ONE_HOST = (
    "{workers:,} workers need a network between hosts, and this one was {source}, of {per_host}. Measure it (a sweep "
    "with framework: network_probe, hosts: 2), give it (--bandwidth 400Gbit/host --latency 5us, or --machine NAME) or, "
    "if one host holds all of them, say --per-host {workers}"
)
NO_LINK = "hosts need a link between them: --bandwidth and --latency are missing"
NO_LOCAL_PROBE = (
    "--per-host: no network_probe of this study ran on one host alone, so the link within a host is not known"
)
NO_GPU = "--gpu-share has no effect here: it is for GPUs whose collectives were not timed beside computing"
ONLY_TRAINED = (
    "only trainings to a result, which time no part of a step. Add a sweep of one worker with the same model and batch "
    "and without `train`"
)


@dataclass(frozen=True)
class Asked:
    """The question asked on the command line; None and () leave it to the study."""

    workers: Sequence[int]
    algorithms: Sequence[str] = ()
    allreduce: Sequence[str] = ()
    network: ModelledNetwork | None = None
    per_host: int | None = None  # workers of one host, of a network that the study measured
    gpu_share: float | None = None
    host_spread: float | None = None
    fusion_bytes: int | None = None
    cycle_seconds: float | None = None
    straggle: bool = True
    crowding: float | None = None
    check: bool = False


@dataclass(frozen=True)
class Forecast:
    """`checked`: those that could be held against a measurement; `wrong`: what could not be predicted, and why."""

    asked: Asked
    predictions: tuple[Prediction, ...]
    checked: tuple[Checked, ...]
    wrong: tuple[str, ...]
    crowding: float
    crowding_pairs: int  # from which it was measured; 0: given, or none
    host_spread: float | None  # None: neither given nor measured

    @property
    def measured(self) -> dict[int, Checked]:
        """id() of a prediction -> the run that it is held against, on as many hosts."""
        return {id(check.prediction): check for check in self.checked if check.as_shown}


def forecast(results: Results, folder: Path, asked: Asked) -> Forecast:
    """Raises CannotPredict where the study has no step to predict from, or no network is known."""
    chosen, wrong = inputs.targets(results, folder, asked.allreduce)
    if not chosen:
        nothing = ONLY_TRAINED if len(results.details.trained) else "no finished trial"
        raise CannotPredict(f"{folder} has nothing to predict from: {'; '.join(wrong) or nothing}")
    probes = [] if asked.network else inputs.probes(results)
    if not asked.network and not probes:
        raise CannotPredict(NO_LINK if asked.per_host else NO_NETWORK.format(results=folder))
    chosen = [replace(target, fusion=tuned(target.fusion, asked)) for target in chosen]
    on = [(target, network_for(target, asked, probes)) for target in chosen]
    if asked.gpu_share is not None and not any(target.row["device"] == "cuda" for target, _ in on):
        raise CannotPredict(NO_GPU)
    rows = results.rows
    per_host = max(network.workers_per_host for _, network in on)

    def crowded(without: Sequence[str] = ()) -> float:
        return asked.crowding or inputs.crowding(inputs.crowding_ratios(rows, per_host, without))

    def spread(without: Sequence[str] = ()) -> float | None:
        return inputs.host_spread(results.trials, folder, without) if asked.host_spread is None else asked.host_spread

    def again(prediction: Prediction, run: ConfigurationRow) -> Prediction:
        placed = prediction.network.placed(prediction.workers, hosts_of(run))
        without = [str(run["configuration"])]
        way = (prediction.allreduce, prediction.algorithm, prediction.workers)
        return predict(prediction.target, *way, placed, asked.straggle, crowded(without), spread(without) or 0.0)

    shared, hosts_differ = crowded(), spread()
    predictions = tuple(
        predict(target, allreduce, algorithm, count, network, asked.straggle, shared, hosts_differ or 0.0)
        for target, network in on
        for allreduce in target.wires
        for algorithm in algorithms(target, network, asked)
        for count in asked.workers
        if not target.refused(count)
    )
    wrong += [f"{each.label}: {why}" for each, _ in on for n in asked.workers if (why := each.refused(n))]
    if not predictions:
        raise CannotPredict(f"{folder}: {'; '.join(wrong)}")
    checked = check(predictions, rows, again) if asked.check or not asked.network else []
    pairs = 0 if asked.crowding else len(inputs.crowding_ratios(rows, per_host))
    return Forecast(asked, predictions, tuple(checked), tuple(wrong), shared, pairs, hosts_differ)


def network_for(target: TrainingTarget, asked: Asked, probes: Sequence[Probe]) -> ModelledNetwork:
    """The network asked for, or the study's; on a GPU whose collectives were not timed beside computing, with the
    share of it that they take."""
    network = asked.network or inputs.network_of(target.row, probes)
    if asked.per_host and not asked.network:
        if network.within is None:
            raise CannotPredict(NO_LOCAL_PROBE)
        busy = network.busy and replace(network.busy, workers_per_host=asked.per_host)
        network = replace(network, workers_per_host=asked.per_host, busy=busy)
    if network.busy or target.row["device"] != "cuda":
        return network
    return replace(network, gpu_share=GPU_SHARE if asked.gpu_share is None else asked.gpu_share)


def algorithms(target: TrainingTarget, network: ModelledNetwork, asked: Asked) -> Sequence[str]:
    """Those asked for. A mesh has one for each kind of collective. NCCL's own choice is one on GPUs alone."""
    if target.fusion.kind == MESH:
        return [MESH]
    if asked.algorithms:
        return asked.algorithms
    if not network.within:
        return FLAT
    return [name for name in ALGORITHMS if name != "nccl" or target.row["device"] == "cuda"]


def tuned(fusion: Fusion, asked: Asked) -> Fusion:
    """With the knobs that were asked for."""
    if asked.fusion_bytes is not None:
        fusion = replace(fusion, most_bytes=float(asked.fusion_bytes), first_bytes=None)
    return fusion if asked.cycle_seconds is None else replace(fusion, cycle_seconds=asked.cycle_seconds)


def forecast_table(forecast: Forecast) -> pd.DataFrame:
    """A row a prediction. `baseline`: the one-worker configuration behind it; intervals as predict.py says; the last
    four where it was measured."""
    rows = [_row(prediction, forecast.measured.get(id(prediction))) for prediction in forecast.predictions]
    return pd.DataFrame(rows, dtype=object)


def _row(prediction: Prediction, checked: Checked | None) -> dict[str, Any]:
    target = prediction.target
    keys = {key: target.row[key] for key in ("model", "framework", "batch_per_worker")}
    return keys | {
        "series": target.label,
        "allreduce": prediction.allreduce,
        "algorithm": prediction.algorithm,
        "workers": prediction.workers,
        "hosts": prediction.network.hosts(prediction.workers),
        "network": prediction.network.source,
        "cards_per_host": prediction.network.cards_per_host,
        "gpu_share": prediction.network.gpu_share,
        "global_batch": target.samples(prediction.workers),
        "samples_per_second": prediction.samples_per_second.mean,
        "interval_low": prediction.samples_per_second.low,
        "interval_high": prediction.samples_per_second.high,
        "efficiency": prediction.efficiency.mean,
        "efficiency_low": prediction.efficiency.low,
        "efficiency_high": prediction.efficiency.high,
        "step_seconds": prediction.step_seconds,
        "exposed_seconds": prediction.exposed_seconds.mean,
        "exposed_low": prediction.exposed_seconds.low,
        "exposed_high": prediction.exposed_seconds.high,
        "waiting_seconds": prediction.waiting_seconds,
        "communication_seconds": prediction.communication_seconds,
        "calls": prediction.calls,
        "baseline": target.alone.configuration,
        "repeats": target.alone.repeats,
        "gradients_noted": target.alone.noted,
        "measured_samples_per_second": checked and checked.samples_per_second,
        "measured_configuration": checked and checked.configuration,
        "error": checked and checked.error,
        "noise": checked and checked.noise,
    }


# Predictions beside what was measured: the error, and the noise below which no error could be seen.
#
# Error: predicted / measured - 1 of the throughput. Noise: half of the 95 % interval of the measured speed-up over the
# one-worker run that the prediction was made from (Welch, on the logarithm): both runs are in the error. A prediction
# that uses measurements of several workers (inputs.crowding) is made again for its check, without the one it is held
# against.

Row = ConfigurationRow


@dataclass(frozen=True)
class Checked:
    """One prediction that could be checked, on as many hosts as the run had. `noise` is None with fewer than 3 repeats
    on either side."""

    prediction: Prediction
    hosts: int
    configuration: str
    samples_per_second: float
    error: float
    noise: float | None

    @property
    def beyond_noise(self) -> float:
        """The error less the noise; all of it where the noise is unknown."""
        return max(0.0, abs(self.error) - (self.noise or 0.0))

    @property
    def as_shown(self) -> bool:
        """True where the run's workers lay on hosts as those of the prediction do."""
        network = self.prediction.network
        return network.within is None or network.hosts(self.prediction.workers) == self.hosts


def check(
    predictions: Sequence[Prediction], rows: Sequence[Row], again: Callable[[Prediction, Row], Prediction]
) -> list[Checked]:
    """Each measurement among `rows` (configurations) of what was predicted for several workers, in their order.

    `again`: the same prediction, made without what this run says, and for its hosts.
    """
    by_name = {row["configuration"]: row for row in rows}
    checks = []
    for prediction in predictions:
        for measurement in measurements(prediction, rows):
            if prediction.network.one_host and hosts_of(measurement) > 1:
                continue  # of which its network knows nothing
            base, speed = by_name[prediction.target.alone.configuration], float(measurement["samples_per_second"])
            gain = over(measurement, base)
            noise = None if gain.high is None else gain.high / gain.mean - 1
            error = again(prediction, measurement).samples_per_second.mean / speed - 1
            name = str(measurement["configuration"])
            checks.append(Checked(prediction, hosts_of(measurement), name, speed, error, noise))
    return checks


def measurements(prediction: Prediction, rows: Sequence[Row]) -> list[Row]:
    """The configurations that were really run with these workers, one for each number of hosts."""
    timed = [row for row in rows if row["workers"] == prediction.workers > 1 and row["n"]]
    runs = [row for row in timed if prediction.target.is_run(row, prediction.allreduce)]
    return [ours[0] for ours in grouped(runs, hosts_of).values() if len(ours) == 1]


def summary(checked: Sequence[Checked]) -> str:
    """`median error 3.1 % of 4 configurations, 0.4 % beyond the noise; 1 of 4 beyond it; worst: ...`; empty for none.

    A median near nothing says little of the configurations above it, so they are counted and the worst is named.
    """
    if not checked:
        return ""
    errors, known = median(abs(c.error) for c in checked), [c for c in checked if c.noise is not None]
    count = len({c.configuration for c in checked})
    unknown = count - len({c.configuration for c in known})
    beyond = len({c.configuration for c in known if c.beyond_noise > 0})
    counted = [f"{beyond} of {count - unknown} beyond it"] if known else []
    counted += [f"the noise of {unknown} is unknown (fewer than 3 repeats)"] if unknown else []
    return (
        f"median error {100 * errors:.1f} % of {count} configuration{'s' * (count != 1)}"
        + (f", {100 * median(c.beyond_noise for c in known):.1f} % beyond the noise" if known else "")
        + f"; {', '.join(counted)}; worst: {_worst(checked)}"
    )


def _worst(checked: Sequence[Checked]) -> str:
    """`horovod, batch 32, fp32, 2 workers, +41.0 % (28.4 points beyond the noise)`: of those with a noise, if any."""
    fit = [c for c in checked if c.noise is not None] or checked
    worst = max(fit, key=lambda c: (c.beyond_noise, abs(c.error)))
    forecast, models = worst.prediction, {c.prediction.target.row["model"] for c in checked}
    model = [str(forecast.target.row["model"])] if len(models) > 1 else []
    name = ", ".join([*model, forecast.target.label, forecast.allreduce, workers_text(forecast.workers)])
    points = 100 * worst.beyond_noise
    noise = (
        "noise unknown" if worst.noise is None else f"{points:.1f} points beyond the noise" if points else "within it"
    )
    return f"{name}, {100 * worst.error:+.1f} % ({noise})"
