"""How right `python -m analysis predict` is: on simulated clusters, on held-out measurements, on published figures.

Claimed: 1. on simulated clusters of 1 to 64 workers, whose truth is known, the median error of throughput is at most
5 %, and where messages take the time that the probe finds, the 95 % interval covers the truth. 2. on measured
configurations that the prediction has not seen, the median absolute error is at most 10 %, and a fifth smaller than
that of two predictors that know nothing of networks: the mean of what was measured of the same model and batch, and one
worker's speed times the workers. Beside them, with no bar: the worst error, how many lie beyond the machine's noise,
and what published inputs say of Horovod's published efficiencies on 128 and 512 GPUs, and of ResNet-50's published
throughputs on 1 to 3,584 H100s, and of a row of Llama 3.1 8B the other five, on 8 and 128.

Measured: 1. prediction_on_clusters.py; simulated_cluster.py is the truth, message by message. 2. every configuration
with several workers in the results folders that --held-out names, which must hold runs with one worker and a network
probe too; without any in those that the benchmark `links` left (over_links.py): models x batches x precisions on one
host, and on two whose link is held to a rate. Where that left none, what results/prediction.json kept of the last time
is judged again. Intervals of a skill are by bootstrap over models and batches of a study, whose errors have causes in
common. 3. published_512.py and, blind, published_scaling.py, where each input stands with its source.

Not shown: that simulated clusters are like real ones. Their messages vary independently; real ones meet in switches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np

from analysis.frames import results
from analysis.frames.results import Results
from analysis.prediction import inputs
from analysis.prediction.network import CannotPredict
from analysis.prediction.predict import Asked, Checked, forecast
from analysis.text import file_name
from benchmarks import links, over_links, paired, published_512, published_llama, published_scaling
from benchmarks.options import Options
from benchmarks.paired import NOT_COMPARED, NOT_RUN, Bar, Finding, median_error, not_run
from benchmarks.prediction_on_clusters import Case, case, drawn_for
from benchmarks.publish import RESULTS, number, print_table
from scaling_study.records.store import load
from scaling_study.settings import utc_now
from scaling_study.stats.intervals import TOO_FEW, Interval

CLUSTERS, QUICK_CLUSTERS = 140, 7
DRAWS = 2000
HELD_OUT = "held-out measurements"
SIMULATED = (  # variation of messages, and of hosts from each other for good, which the prediction is told
    (0.0, 0.0, "messages that do not vary"),
    (0.1, 0.0, "messages that vary by 10 %"),
    (0.0, 0.03, "hosts that differ by 3 % for good"),
)
LIKELY = "ring"  # of the algorithms, the one that the frameworks' CPU and GPU libraries use for what is large
percent = partial(number, unit="%")


def run(options: Options) -> list[Finding]:
    count = QUICK_CLUSTERS if options.quick else options.asked_pairs or CLUSTERS
    checked = held_out(options.held_out or left_by_links())
    return [*simulated(count), *checked, *published(), *published_scaling.findings(), *published_llama.findings()]


def simulated(count: int) -> list[Finding]:
    """Errors and coverage: messages that take their time exactly, messages that vary, hosts that are slow for good."""
    findings = []
    for noise, hosts, words in SIMULATED:
        clusters = [replace(drawn_for(index), message_noise=noise, host_noise=hosts) for index in range(count)]
        made = [case(cluster, index) for index, cluster in enumerate(clusters)]
        evidence = {"cases": [one.said() for one in made], "message_noise": noise, "host_noise": hosts}
        title = f"{count} simulated clusters of 1 to 64 workers, {words}"
        show_errors(title, made)
        errors = [one.error for one in made]
        findings += [
            Finding(
                f"{title}: median error of predicted throughput", median_error(errors), Bar(high=0.05), "%",
                evidence=evidence, control=NOT_COMPARED,
            ),
            Finding(
                f"{title}: how often the 95 % interval holds the truth",
                paired.proportion([(int(one.covered), 1) for one in made]),
                None if noise or hosts else Bar(low=0.9), "%", control=NOT_COMPARED,
            ),
        ]  # fmt: skip
    return findings


def left_by_links() -> list[Path]:
    return sorted(folder for folder in links.KEPT.glob("links-*") if folder.is_dir())


@dataclass(frozen=True)
class HeldOut:
    """One prediction beside what was measured of it, in samples/s. `noise`: half a relative 95 % interval."""

    configuration: str
    alike: str  # its model and batch
    predicted: float
    measured: float
    noise: float | None
    linear: float | None  # one worker's speed times the workers; None: not kept

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


Studies = Mapping[str, Sequence[HeldOut]]


def held_out(folders: Sequence[Path]) -> list[Finding]:
    """The ring's predictions beside every measurement of several workers in results folders, and over all of them."""
    studies, findings, measured = dict[str, Sequence[HeldOut]](), [], utc_now()
    shared = crowding_of_one_host(folders)
    for folder in folders:
        read = results.read(folder)
        try:
            studies[read.study.name] = held_against(read, folder, shared)
        except CannotPredict as error:
            findings.append(not_run(f"{HELD_OUT}, {folder.name}", error))
    if not folders:
        measured, studies = kept(RESULTS / "prediction.json")
        print(f"  held-out measurements: those of {measured or 'nobody, run links first'}", flush=True)
    for name, ours in studies.items():
        show_held_out(f"{name}, {LIKELY}", ours)
        evidence = {"measured": measured, "configurations": {one.configuration: asdict(one) for one in ours}}
        claim = f"{HELD_OUT}, {file_name(name)}, {len(ours)} configurations: median absolute error"
        figure = median_error([one.error for one in ours])
        findings.append(Finding(claim, figure, None, "%", evidence=evidence, control=NOT_COMPARED))
    return [*findings, *judged(studies)] if studies else findings


def kept(file: Path) -> tuple[str, dict[str, Sequence[HeldOut]]]:
    """When the held-out measurements in a file of results were taken, and they; empty where it has none."""
    if not file.exists():
        return "", {}
    found = [finding for finding in load(file)["findings"] if "configurations" in finding["evidence"]]
    studies: dict[str, Sequence[HeldOut]] = {
        finding["claim"].split(", ")[1]: [HeldOut(**one) for one in finding["evidence"]["configurations"].values()]
        for finding in found
    }
    return str(found[0]["evidence"]["measured"]) if found else "", studies


def judged(studies: Studies) -> list[Finding]:
    """Errors over all configurations, and against predictors that know nothing of networks."""
    every = [one for ours in studies.values() for one in ours]
    title = f"{HELD_OUT}, all {len(every)} of {len(studies)} studies"
    beyond = [(sum(abs(one.error) > (one.noise or 0.0) for one in ours), len(ours)) for ours in studies.values()]
    excess = [max(0.0, abs(one.error) - (one.noise or 0.0)) for one in every]
    worst = max((one.error for one in every), key=abs)
    findings = [
        Finding(f"{title}: median absolute error", median_error([one.error for one in every]), Bar(high=0.1), "%"),
        Finding(f"{title}: beyond the machine's noise", paired.proportion(beyond), unit="%"),
        Finding(f"{title}: the worst", Interval(worst, None, None, 1), unit="%"),
        Finding(f"{title}: median beyond the noise, 0 for times 1.3 too", median_error(excess), unit="%"),
    ]
    alike: dict[str, list[float]] = {}
    for one in every:
        alike.setdefault(one.alike, []).append(one.measured)
    means = {id(one): mean(alike[one.alike]) for one in every}
    linear = {id(one): one.linear for one in every}
    for name, naive in (("the mean of its model and batch", means), ("one worker times the workers", linear)):
        claim = f"{title}: by how much the median error is smaller than that of {name}"
        unknown = "" if all(naive.values()) else f"{NOT_RUN}that speed was not kept"
        findings.append(Finding(claim, skill(studies, naive), Bar(low=0.2), "%", unknown))
    return [replace(finding, control=NOT_COMPARED) for finding in findings]


def skill(studies: Studies, naive: Mapping[int, float | None]) -> Interval:
    """1 - median |log error| / that of a naive predictor, by id of each; no figure where it is not known of all."""
    clusters: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, ours in studies.items():
        for one in ours:
            if (other := naive[id(one)]) is None:
                return Interval(math.nan, None, None, 0)
            errors = (abs(math.log(guess / one.measured)) for guess in (one.predicted, other))
            clusters.setdefault((name, one.alike), []).append((next(errors), next(errors)))
    parts = [np.array(errors) for errors in clusters.values()]

    def gained(chosen: Sequence[np.ndarray]) -> float:
        ours, theirs = np.median(np.concatenate(chosen), axis=0)
        return float(1 - ours / theirs) if theirs else 0.0

    count = sum(map(len, parts))
    if len(parts) < paired.FEWEST_PAIRS:  # draws of one or a few, which have causes in common, vary too little
        return Interval(gained(parts), None, None, count, TOO_FEW)
    draw = np.random.default_rng(0)
    drawn = [gained([parts[at] for at in draw.integers(len(parts), size=len(parts))]) for _ in range(DRAWS)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(gained(parts), float(low), float(high), count)


def held_against(read: Results, folder: Path, shared: float | None) -> list[HeldOut]:
    """Each run of several workers once. Raises CannotPredict."""
    counts = sorted({int(workers) for workers in read.configurations.workers.dropna() if workers > 1})
    made = forecast(read, folder, Asked(counts, [LIKELY], crowding=shared if folder.name in on_two_hosts() else None))
    return [held(one) for one in {one.configuration: one for one in made.checked}.values()]


def held(one: Checked) -> HeldOut:
    target, workers = one.prediction.target, one.prediction.workers
    alike = f"{target.row['model']}, batch {target.row['batch_per_worker']}"
    linear = workers * target.alone.samples / target.alone.step.seconds
    predicted = one.samples_per_second * (1 + one.error)
    return HeldOut(one.configuration, alike, predicted, one.samples_per_second, one.noise, linear)


def on_two_hosts() -> list[str]:
    """Studies of over_links.py whose hosts are one machine: its memory and caches are shared as if they were one."""
    return [f"links-{rate or 'unlimited'}" for rate in over_links.RATES]


def crowding_of_one_host(folders: Sequence[Path]) -> float | None:
    """What two workers on this machine do to each other's computing, from the study that ran both on one host."""
    for folder in folders:
        if folder.name == f"links-{over_links.ONE_HOST}":
            return inputs.crowding(inputs.crowding_ratios(results.read(folder).rows, 2))
    return None


def published() -> list[Finding]:
    """Horovod's published efficiencies beside what their published inputs give."""
    findings, rows = [], []
    for (model, gpus), said in published_512.PUBLISHED.items():
        best, varied = published_512.efficiency(model, gpus), published_512.varied(model, gpus)
        bounds = f"{percent(varied.mean)} ({percent(varied.low)} to {percent(varied.high)})"
        rows.append((model, str(gpus), percent(said), percent(best), bounds))
        lossless = f"at line rate and with no stragglers {percent(best)}"
        claim = f"{model} on {gpus} GPUs: published {percent(said)}; {lossless}"
        evidence = {"published": said, "at_line_rate": best}
        findings.append(Finding(claim, varied, unit="%", evidence=evidence, control=NOT_COMPARED))
    columns = ("GPUs", "published", "at line rate, no stragglers", "what nobody published, varied")
    print_table("Horovod's published efficiencies, predicted from published inputs", columns, rows)
    return findings


def show_errors(title: str, made: Sequence[Case]) -> None:
    """By number of workers, since what goes wrong grows with it."""
    rows = []
    for workers in sorted({one.cluster.workers for one in made}):
        ours = [one for one in made if one.cluster.workers == workers]
        errors = sorted(abs(one.error) for one in ours)
        rows.append((
            f"{workers} workers", str(len(ours)), percent(errors[len(errors) // 2]), percent(errors[-1]),
            f"{100 * mean(one.error for one in ours):+.1f} %", f"{sum(one.covered for one in ours)}",
        ))  # fmt: skip
    print_table(title, ("clusters", "median error", "largest", "mean (signed)", "covered"), rows)


def show_held_out(title: str, checked: Sequence[HeldOut]) -> None:
    rows = []
    for one in checked:
        noise = "unknown" if one.noise is None else f"±{percent(one.noise)}"
        linear = "" if one.linear is None else f"{one.linear:,.1f}"
        speeds = (f"{one.predicted:,.1f}", f"{one.measured:,.1f}")
        rows.append((one.configuration, *speeds, f"{100 * one.error:+.1f} %", noise, linear))
    print_table(title, ("predicted", "measured", "error", "noise", "linear"), rows)
