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
from collections.abc import Iterator
from pathlib import Path

from benchmarks import links_figure, over_links
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Finding
from scaling_study.records import schema, store
from scaling_study.settings import CACHE
from scaling_study.stats.intervals import ratio
from tests.cluster.network import Network, why_not

KEPT = CACHE / "benchmarks" / "links"
QUICK = {"resnet8": (16,)}
DRAWN = {"resnet8": 64, "resnet18": 16}  # the batch of each model that the figure shows
Rates = dict[tuple[str, int], dict[str, list[float]]]  # (model, batch) -> allreduce -> samples/s of each repeat


def run(options: Options) -> list[Finding]:
    if why := why_not():
        raise Unavailable(f"hosts cannot be made here: {why}")
    findings = []
    models, repeats = QUICK if options.quick else over_links.MODELS, options.pairs(3)
    with tempfile.TemporaryDirectory(prefix="links-") as made, Network(2, Path(made), cores=("0", "1")) as network:
        folders = []
        for rate in ("1gbit",) if options.quick else over_links.RATES:
            folders.append(over_links.run(network, rate, models, repeats))
            findings += gains(folders[-1], rate)
            print(f"  {links_figure.named(rate)}: done", flush=True)
        if not options.quick:
            folders.append(over_links.run_on_one_host(Path(made), models, repeats))
            keep(folders)
            links_figure.write([f for f in findings if DRAWN[f.evidence["model"]] == f.evidence["batch_per_worker"]])
    return findings


def gains(folder: Path, rate: str | None) -> Iterator[Finding]:
    """Of each model and batch in a study's results."""
    found: Rates = {}
    for record in store.read_study(folder):
        if record.trial.framework == "horovod" and record.trial.workers > 1:
            wires = found.setdefault((record.trial.model, record.trial.batch_per_worker), {})
            wires.setdefault(record.trial.allreduce, []).append(schema.throughput(record))
    for (model, batch), rates in sorted(found.items()):
        claim = f"gain of fp16 over fp32 allreduce, {model}, batch {batch}, {links_figure.named(rate)}"
        evidence = {"model": model, "rate": rate, "samples_per_second": rates, "batch_per_worker": batch}
        yield Finding(claim, ratio(rates["fp16"], rates["fp32"]), evidence=evidence)


def keep(folders: list[Path]) -> None:
    """Whole: never some of this time's beside some of the last."""
    shutil.rmtree(KEPT, ignore_errors=True)
    for folder in folders:
        shutil.copytree(folder, KEPT / folder.name)
