"""When a 16-bit allreduce pays: the gain of fp16 over fp32 against the bandwidth of the link between two hosts.

A published study concluded from single runs that fp16 nearly doubles throughput. Halving what is sent is worth what
sending costs, and costs the casts: on a fast link it loses, on a slow one it approaches two. Where the two meet depends
on the model: how many bytes it sends for how much computing.

Measured: the studies of over_links.py. The interval is that of a ratio of two independent means over repeats. The
figure is links.png beside the numbers. The results stay in .cache/benchmarks/links: `prediction` is held against them.

Not shown: NICs, switches, GPUs, latency. A core computes, casts and sends in turn here; where a GPU casts, fp16 loses
less on fast links.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import over_links, publish
from benchmarks.options import Options
from benchmarks.over_links import named
from benchmarks.paired import Finding
from scaling_study.records import schema, store
from scaling_study.settings import CACHE
from scaling_study.stats.intervals import ratio
from tests.cluster import network

KEPT = CACHE / "benchmarks" / "links"
QUICK = {"resnet8": (16,)}
DRAWN = {"resnet8": 64, "resnet18": 16}  # the batch of each model that the figure shows
UNLIMITED_BITS = 100e9  # where "unlimited" stands on the figure's axis
Rates = dict[tuple[str, int], dict[str, list[float]]]  # (model, batch) -> allreduce -> samples/s of each repeat


def run(options: Options) -> list[Finding]:
    over_links.require_hosts()
    findings = []
    models, repeats = QUICK if options.quick else over_links.MODELS, options.pairs(3)
    with tempfile.TemporaryDirectory(prefix="links-") as made, network.Network(2, Path(made), ("0", "1")) as hosts:
        folders = []
        for rate in ("1gbit",) if options.quick else over_links.RATES:
            folders.append(over_links.run(hosts, rate, models, repeats))
            findings += gains(folders[-1], rate)
            print(f"  {named(rate)}: done", flush=True)
        if not options.quick:
            folders.append(over_links.run_on_one_host(Path(made), models, repeats))
            keep(folders)
            shown = [f for f in findings if DRAWN[f.evidence["model"]] == f.evidence["batch_per_worker"]]
            publish.write_figure("links", lambda: draw(shown))
    return findings


def gains(folder: Path, rate: str | None) -> Iterator[Finding]:
    """Of each model and batch in a study's results."""
    found: Rates = {}
    for record in store.read_study(folder):
        if record.trial.framework == "horovod" and record.trial.workers > 1:
            wires = found.setdefault((record.trial.model, record.trial.batch_per_worker), {})
            wires.setdefault(record.trial.allreduce, []).append(schema.throughput(record))
    for (model, batch), rates in sorted(found.items()):
        claim = f"gain of fp16 over fp32 allreduce, {model}, batch {batch}, {named(rate)}"
        evidence = {"model": model, "rate": rate, "samples_per_second": rates, "batch_per_worker": batch}
        yield Finding(claim, ratio(rates["fp16"], rates["fp32"]), evidence=evidence)


def keep(folders: list[Path]) -> None:
    """Whole: never some of this time's beside some of the last."""
    shutil.rmtree(KEPT, ignore_errors=True)
    for folder in folders:
        shutil.copytree(folder, KEPT / folder.name)


def draw(findings: Sequence[Finding]) -> Any:
    """One axes: bandwidth on a log scale, gain as a ratio, and the line at which fp16 neither gains nor loses."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from analysis.show import style

    def bits(finding: Finding) -> float:
        rate = finding.evidence["rate"]
        return network.bits(rate) if rate else UNLIMITED_BITS

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color=style.DARK, linewidth=0.8, linestyle="--")
    for text, side, down in (("fp16 pays", "bottom", 3), ("fp16 costs", "top", -3)):
        axes.annotate(text, (1.0, 1.0), xycoords=axes.get_yaxis_transform(), xytext=(3, down), va=side,
                      textcoords="offset points", fontsize=style.SMALL, color=style.GREY)  # fmt: skip
    for place, model in enumerate(dict.fromkeys(finding.evidence["model"] for finding in findings)):
        mine = sorted((finding for finding in findings if finding.evidence["model"] == model), key=bits)
        x = [bits(finding) * (1 + 0.06 * place) for finding in mine]  # side by side, so that intervals are seen
        publish.draw_line(axes, x, [finding.figure for finding in mine], model, place)
    ticks = dict(sorted((bits(finding), named(finding.evidence["rate"])) for finding in findings))
    axes.set(
        xscale="log", xlabel="bandwidth of the link between two hosts", ylabel="throughput, fp16 over fp32 allreduce"
    )
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(ticks) / 2, max(ticks) * 2.2)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, title="model")
    axes.set_title("Horovod over Gloo, one worker on each of two hosts; 95 % intervals", fontsize=style.SMALL,
                   loc="left")  # fmt: skip
    return figure
