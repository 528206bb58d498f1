"""How right `python -m analysis predict` is: on simulated clusters, on held-out measurements, on published figures.

Claimed: 1. on simulated clusters of 1 to 64 workers, whose truth is known, the median error of throughput is at most
5 %, and where messages take the time that the probe finds, the 95 % interval covers the truth. 2. on measured
configurations that the prediction has not seen, the median error beyond the noise of the machine is at most 5 %.
Beside them, with no bar: what published inputs say of Horovod's published efficiencies on 128 and 512 GPUs.

Measured: 1. prediction_on_clusters.py; simulated_cluster.py is the truth, message by message. 2. every configuration
with several workers in the results folders that --held-out names, which must hold runs with one worker and a network
probe too; without any in those that the benchmark `links` left (over_links.py): models x batches x precisions on one
host, and on two whose link is held to a rate. 3. published_512.py, where each input stands with its source.

Not shown: that simulated clusters are like real ones. Their messages vary independently; real ones meet in switches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.frames import results
from analysis.frames.results import Results
from analysis.prediction import inputs
from analysis.prediction.network import CannotPredict
from analysis.prediction.predict import Asked, Checked, forecast
from analysis.text import file_name
from benchmarks import links, over_links, paired, published_512
from benchmarks.options import Options
from benchmarks.paired import Bar, Finding
from benchmarks.prediction_on_clusters import Case, case, drawn_for
from scaling_study.stats.intervals import Interval

CLUSTERS, QUICK_CLUSTERS = 140, 7
NORMAL_95 = 1.96
HELD_OUT = "held-out measurements: median error beyond the machine's noise"
LIKELY = "ring"  # of the algorithms, the one that the frameworks' CPU and GPU libraries use for what is large


def run(options: Options) -> list[Finding]:
    count = QUICK_CLUSTERS if options.quick else options.asked_pairs or CLUSTERS
    checked = held_out(options.held_out or left_by_links())
    return [*simulated(count), *checked, *published()]


def simulated(count: int) -> list[Finding]:
    """Errors and coverage, with messages that take their time exactly, and with messages that vary by 10 %."""
    findings = []
    for noise, words in ((0.0, "messages that do not vary"), (0.1, "messages that vary by 10 %")):
        made = [case(replace(drawn_for(index), message_noise=noise), index) for index in range(count)]
        evidence = {"cases": [one.said() for one in made], "message_noise": noise}
        title = f"{count} simulated clusters of 1 to 64 workers, {words}"
        show_errors(title, made)
        errors = {str(index): [(1 + one.error, 1.0)] for index, one in enumerate(made)}
        findings += [
            Finding(
                f"{title}: median error of predicted throughput", paired.median_deviation(errors), Bar(high=0.05), "%",
                evidence=evidence,
            ),
            Finding(
                f"{title}: how often the 95 % interval holds the truth", share(sum(one.covered for one in made), count),
                None if noise else Bar(low=0.9), "%",
            ),
        ]  # fmt: skip
    return findings


def left_by_links() -> list[Path]:
    return sorted(folder for folder in links.KEPT.glob("links-*") if folder.is_dir())


def held_out(folders: Sequence[Path]) -> list[Finding]:
    """The ring's predictions beside every measurement of several workers in results folders, and over all of them."""
    if not folders:
        print("  no held-out measurements: run links first, or name results by --held-out", flush=True)
        return []
    found, beyond = [], {}
    shared = crowding_of_one_host(folders)
    for folder in folders:
        read = results.read(folder)
        try:
            checked = held_against(read, folder, shared)
        except CannotPredict as error:
            nothing = Interval(math.nan, None, None, 0)
            found.append(Finding(f"{HELD_OUT}, {folder.name}", nothing, verdict=f"not run: {error}"))
            continue
        show_held_out(f"{read.study.name}, {LIKELY}", checked)
        mine = {f"{folder.name}: {one.configuration}": [(1 + one.beyond_noise, 1.0)] for one in checked}
        beyond |= mine
        if mine:
            evidence = {one.configuration: said(one) for one in checked}
            claim = f"{HELD_OUT}, {file_name(read.study.name)}, {len(mine)} configurations"
            found.append(Finding(claim, paired.median_deviation(mine), None, "%", evidence=evidence))
    if len(found) > 1 and beyond:
        claim = f"{HELD_OUT}, all {len(beyond)} configurations of {len(found)} studies"
        found.append(Finding(claim, paired.median_deviation(beyond), Bar(high=0.05), "%"))
    elif beyond:
        found = [replace(found[0], bar=Bar(high=0.05))]
    return found


def held_against(read: Results, folder: Path, shared: float | None) -> list[Checked]:
    """Each run of several workers once. Raises CannotPredict."""
    counts = sorted({int(workers) for workers in read.configurations.workers.dropna() if workers > 1})
    made = forecast(read, folder, Asked(counts, [LIKELY], crowding=shared if folder.name in on_two_hosts() else None))
    return list({one.configuration: one for one in made.checked}.values())


def on_two_hosts() -> list[str]:
    """Studies of over_links.py whose hosts are one machine: its memory and caches are shared as if they were one."""
    return [f"links-{rate or 'unlimited'}" for rate in over_links.RATES]


def crowding_of_one_host(folders: Sequence[Path]) -> float | None:
    """What two workers on this machine do to each other's computing, from the study that ran both on one host."""
    for folder in folders:
        if folder.name == f"links-{over_links.ONE_HOST}":
            return inputs.crowding(inputs.crowding_ratios(results.read(folder).rows, 2))
    return None


def said(one: Checked) -> dict[str, float | None]:
    predicted = one.samples_per_second * (1 + one.error)
    return {"predicted": predicted, "measured": one.samples_per_second, "error": one.error, "noise": one.noise}


def published() -> list[Finding]:
    """Horovod's published efficiencies beside what their published inputs give."""
    findings, table = [], titled("Horovod's published efficiencies, predicted from published inputs")
    for name in ("GPUs", "published", "at line rate, no stragglers", "what nobody published, varied"):
        table.add_column(name, justify="right")
    for (model, gpus), said in published_512.PUBLISHED.items():
        best, varied = published_512.efficiency(model, gpus), published_512.varied(model, gpus)
        table.add_row(model, str(gpus), percent(said), percent(best),
                      f"{percent(varied.mean)} ({percent(varied.low)} to {percent(varied.high)})")  # fmt: skip
        claim = (
            f"{model} on {gpus} GPUs: published {percent(said)}; at line rate and with no stragglers {percent(best)}"
        )
        findings.append(Finding(claim, varied, unit="%", evidence={"published": said, "at_line_rate": best}))
    Console(highlight=False).print(table)
    return findings


def show_errors(title: str, made: Sequence[Case]) -> None:
    """By number of workers, since what goes wrong grows with it."""
    table = titled(title)
    for name in ("clusters", "median error", "largest", "mean (signed)", "covered"):
        table.add_column(name, justify="right")
    for workers in sorted({one.cluster.workers for one in made}):
        ours = [one for one in made if one.cluster.workers == workers]
        errors = sorted(abs(one.error) for one in ours)
        table.add_row(
            f"{workers} workers", str(len(ours)), percent(errors[len(errors) // 2]), percent(errors[-1]),
            f"{100 * sum(one.error for one in ours) / len(ours):+.1f} %", f"{sum(one.covered for one in ours)}",
        )  # fmt: skip
    Console(highlight=False).print(table)


def show_held_out(title: str, checked: Sequence[Checked]) -> None:
    table = titled(title)
    for name in ("predicted", "measured", "error", "noise"):
        table.add_column(name, justify="right")
    for one in checked:
        noise = "unknown" if one.noise is None else f"±{percent(one.noise)}"
        name = f"{one.configuration}, {one.hosts} host{'s' * (one.hosts != 1)}"
        speeds = (one.samples_per_second * (1 + one.error), one.samples_per_second)
        table.add_row(name, *(f"{speed:,.1f}" for speed in speeds), f"{100 * one.error:+.1f} %", noise)
    Console(highlight=False).print(table)


def titled(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    return table


def share(held: int, of: int) -> Interval:
    """A proportion with its interval (Agresti and Coull, Am. Stat. 52, 1998)."""
    n = of + NORMAL_95**2
    middle = (held + NORMAL_95**2 / 2) / n
    half = NORMAL_95 * math.sqrt(middle * (1 - middle) / n)
    return Interval(held / of, max(0.0, middle - half), min(1.0, middle + half), of)


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
