"""Which way to send less reaches a loss first over a slow link: 16 bits, low rank (PowerSGD), or seldom (DiLoCo).

    ways of studies/slow_links.yaml        DDP fp32, fp16, PowerSGD 1, 2, 4; local SGD, DiLoCo, 8 and 64 steps; Hivemind
    samples/s                              each way timed over each link, three launches
    samples to the loss                    each way trained once with three seeds, here: no link changes a loss
    seconds to the loss = samples to the loss / samples/s       derived, of each way and link

A loss is met at some time between two evaluations, so samples to it are a censored mean over the seeds
(analysis/statistics/estimates.py). Two ways are trained over the slowest link as well, directly: their seconds stand
beside the derived ones. Hosts and links are those of over_links.py: namespaces with a core each, traffic held by
`tc tbf`. Trainings have both cores too, one a worker. The page is slow_links.md beside the numbers; studies stay in
.cache/benchmarks/slow_links, where an interrupted run goes on (`--minutes 20`: for so long; `--fresh`: anew).

Not shown: latency and loss of a real line, more than two workers, larger models, GPUs.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.frames.training import before
from analysis.statistics.estimates import LogEstimate, censored_mean, of_censored, of_values
from benchmarks import decentralized, over_links, publish
from benchmarks.options import Options
from benchmarks.over_links import SPREAD, named
from benchmarks.paired import Finding
from scaling_study.records import schema, store
from scaling_study.records.schema import Record
from scaling_study.settings import CACHE, CHECKOUT
from scaling_study.stats.intervals import FEWEST_REPEATS, TOO_FEW, Interval, quotient, ratio
from scaling_study.trial import Trial

STUDY = CHECKOUT / "studies" / "slow_links.yaml"
KEPT = CACHE / "benchmarks" / "slow_links"
SLOWEST = over_links.RATES[0]
PLAIN = "DDP fp32"  # that the others are held against
DIRECT = (  # that are trained over the slowest link too
    {"framework": "torch_ddp", "allreduce": "fp32"},
    {"framework": "diloco", "outer": "nesterov", "sync_every": 64},
)
OUTER = {"average": "local SGD", "nesterov": "DiLoCo"}
Values = dict[str, list[float]]  # way -> one of each launch
Met = tuple[float, float]  # at the evaluation before the one that met the loss, and at that one


def way(trial: Trial) -> str:
    """`DDP fp16`, `PowerSGD 2`, `DiLoCo 64`, `Hivemind fp16`."""
    if trial.framework == "diloco":
        return f"{OUTER[trial.outer or 'nesterov']} {trial.sync_every}"
    if trial.allreduce.startswith("powersgd"):
        return f"PowerSGD {trial.allreduce.removeprefix('powersgd')}"
    return f"{'Hivemind' if trial.framework == 'hivemind' else 'DDP'} {trial.allreduce}"


@dataclass
class Measured:
    """Samples/s by link, samples to the loss, and seconds to it where a way was trained over the slowest link."""

    speeds: dict[str, Values] = field(default_factory=dict)
    samples: dict[str, dict[int, Met]] = field(default_factory=dict)  # way -> seed -> samples
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)  # way -> seed -> seconds, trained directly
    missed: dict[str, int] = field(default_factory=dict)  # seeds that did not reach the loss
    losses: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)  # (samples, loss) of each seed
    loss: str = ""

    def timed(self, link: str, records: Iterable[Record]) -> None:
        for record in good(records):
            ways = self.speeds.setdefault(link, {})
            ways.setdefault(way(record.trial), []).append(schema.throughput(record))

    def trained(self, records: Iterable[Record], directly: bool = False) -> None:
        for record in good(records):
            training, name = record.ranks[0].training, way(record.trial)
            assert training is not None
            self.loss = training.target
            if not directly:
                curve = [(float(row["samples"] or 0), float(row["loss"] or 0)) for row in training.rows]
                self.losses.setdefault(name, []).append(curve)
            if not (reached := training.reached):
                self.missed[name] = self.missed.get(name, 0) + 1
            elif directly:
                self.seconds.setdefault(name, {})[record.trial.seed] = float(reached["seconds"] or 0)
            else:
                met = float(before(training)["samples"] or 0), float(reached["samples"] or 0)
                self.samples.setdefault(name, {})[record.trial.seed] = met

    def to_loss(self, name: str) -> LogEstimate | None:
        """Samples to the loss; None where some seed did not reach it, or fewer than 3 did."""
        met = list(self.samples.get(name, {}).values())
        if self.missed.get(name) or len(met) < FEWEST_REPEATS:
            return None
        return of_censored(censored_mean(*zip(*met, strict=True)))

    def derived(self, link: str, name: str) -> LogEstimate | None:
        """Seconds to the loss; None where samples to it or samples/s are not known."""
        samples, speeds = self.to_loss(name), self.speeds.get(link, {}).get(name, [])
        return samples / of_values(speeds) if samples and len(speeds) >= FEWEST_REPEATS else None

    def longer(self, link: str, name: str) -> LogEstimate | None:
        """How many times as long to the loss as PLAIN takes."""
        ours, plain = self.derived(link, name), self.derived(link, PLAIN)
        return ours / plain if ours and plain and name != PLAIN else None

    def at_equal_samples(self) -> tuple[float, dict[str, float]]:
        """(samples, way -> mean loss at the last evaluation up to them), of as many samples as all trainings had."""
        shared = min((curve[-1][0] for curves in self.losses.values() for curve in curves if curve), default=0.0)
        found = {}
        for name, curves in self.losses.items():
            last = [[loss for samples, loss in curve if samples <= shared][-1:] for curve in curves]
            if all(last):
                found[name] = fmean(losses[0] for losses in last)
        return shared, found

    def checked(self, name: str) -> Interval | None:
        """Derived over direct seconds, over the slowest link, to the same evaluation of the same seed."""
        speeds, seconds, samples = (
            self.speeds.get(named(SLOWEST), {}).get(name), self.seconds.get(name, {}), self.samples.get(name, {}),
        )  # fmt: skip
        rates = [samples[seed][1] / took for seed, took in seconds.items() if seed in samples]
        return quotient([rates], [speeds]) if speeds and rates and not self.missed.get(name) else None


def interval(estimate: LogEstimate, n: int) -> Interval:
    """With its 95 % bounds; of an estimate that is open on a side, none."""
    low, high = estimate.bounds()
    known = low is not None and high is not None
    return Interval(estimate.value, low if known else None, high if known else None, n, "" if known else TOO_FEW)


def good(records: Iterable[Record]) -> Iterator[Record]:
    return (record for record in records if record.status == "ok" and not record.trial.find)


def run(options: Options) -> list[Finding]:
    over_links.require_hosts()
    over_links.require_cifar10()
    with tempfile.TemporaryDirectory(prefix="slow-links-") as made, options.work(KEPT, Path(made)) as work:
        measured = measure(options, Path(made), work)
    print(page(measured))
    if not options.quick:
        publish.write_page("slow_links", page(measured))
    return list(findings(measured))


def measure(options: Options, made: Path, work: Path) -> Measured:
    """Trainings first, then the links from the slowest on, then the two direct trainings; as far as time allows."""
    ends = time.monotonic() + 60 * options.minutes if options.minutes is not None else math.inf
    measured = Measured()

    def done(asked: dict[str, Any], rate: str | None = None, hosts: bool = True) -> Iterable[Record]:
        left = ends - time.monotonic()
        folder = work / str(asked["study"])
        if left > 0:
            seconds = None if math.isinf(left) else left
            if hosts:
                decentralized.over(rate, asked, made, work, seconds)
            else:
                over_links.swept(asked, work, seconds=seconds)
            print(f"  {asked['study']}: as far as there was time", flush=True)
        return store.read_study(folder) if folder.is_dir() else ()

    gated = not options.quick  # once: a gate says the same over any link
    measured.trained(done(over_links.trained_part(STUDY, "slow-links-to-loss", options.quick, gated), hosts=False))
    for rate in (SLOWEST,) if options.quick else over_links.RATES:
        name = f"slow-links-{rate or 'unlimited'}"
        asked = over_links.timed_part(STUDY, name, options.quick, options.pairs(3))
        measured.timed(named(rate), done(asked, rate))
    if not options.quick:
        measured.trained(done(direct(), SLOWEST), directly=True)
    return measured


def direct() -> dict[str, Any]:
    """The trainings of DIRECT, over two hosts."""
    asked, sweeps = over_links.trained_part(STUDY, "slow-links-direct", quick=False), []
    for keys in DIRECT:
        (sweep,) = (each for each in asked["sweeps"] if each["framework"] == keys["framework"])
        only = {key: [keys[key]] for key in sweep["matrix"] if key in keys}
        sweeps.append({**sweep, **SPREAD, "matrix": only})
    return {**asked, "sweeps": sweeps}


HEADERS = (
    *("way", "samples to the loss", "link", "samples/s", "seconds to the loss, derived"),
    f"times as long as {PLAIN}",
)


def page(measured: Measured) -> str:
    """A row for each way and link, and the derived seconds beside those of direct trainings; Markdown."""
    rows = []
    for link, ways in measured.speeds.items():
        for name, speeds in ways.items():
            seconds, behind = measured.derived(link, name), measured.longer(link, name)
            samples = measured.to_loss(name)
            missed = f"not reached by {measured.missed[name]}" if measured.missed.get(name) else ""
            rows.append((
                name, missed or figure(samples, 0), link, f"{fmean(speeds):,.0f}", figure(seconds), figure(behind)
            ))  # fmt: skip
    lines = publish.markdown(HEADERS, rows)
    for name, took in measured.seconds.items():
        seconds = f"{fmean(took.values()):,.0f} s; derived over direct {figure(measured.checked(name))}."
        lines += ["", f"{name} over {named(SLOWEST)}, trained directly: {seconds}"]
    shared, losses = measured.at_equal_samples()
    if losses:
        said = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        lines += ["", f"Validation loss at {shared:,.0f} samples: {said}."]
    return "\n".join([*lines, "", f"To {measured.loss or 'no loss'}; 95 % intervals."])


def figure(value: Interval | LogEstimate | None, digits: int = 2) -> str:
    """`12.30 (11.00 to 13.80)`; empty where it is not known."""
    if value is None:
        return ""
    if isinstance(value, LogEstimate):
        value = interval(value, FEWEST_REPEATS)
    mean = f"{value.mean:,.{digits}f}"
    known = value.low is not None and value.high is not None
    return f"{mean} ({value.low:,.{digits}f} to {value.high:,.{digits}f})" if known else mean


def findings(measured: Measured) -> Iterator[Finding]:
    """Of each way and link: samples/s over plain DDP's, and seconds to the loss over its; then derived over direct."""
    for link, ways in measured.speeds.items():
        for name, speeds in ways.items():
            if name == PLAIN or PLAIN not in ways:
                continue
            evidence: Mapping[str, Any] = {
                "link": link, "samples_per_second": {way: ways[way] for way in (name, PLAIN)}, "loss": measured.loss,
                "samples_to_loss": {way: list(measured.samples.get(way, {}).values()) for way in (name, PLAIN)},
                "missed": measured.missed.get(name, 0),
            }  # fmt: skip
            yield Finding(f"{link}: samples/s, {name} over {PLAIN}", ratio(speeds, ways[PLAIN]), evidence=evidence)
            if longer := measured.longer(link, name):
                claim = f"{link}: seconds to the loss (derived), {name} over {PLAIN}"
                yield Finding(claim, interval(longer, len(speeds)), evidence=evidence)
    for name, seconds in measured.seconds.items():
        if checked := measured.checked(name):
            claim = f"{named(SLOWEST)}: derived over direct seconds to the loss, {name}"
            yield Finding(claim, checked, evidence={"seconds": seconds, "samples": measured.samples[name]})
