"""Where decentralised training wins in seconds to a loss: Hivemind, DDP and Horovod over links x target batches.

Two machines at home have a slow link. Hivemind is made for that; so is a larger batch, by which DDP and Horovod send
gradients less often too. What wins where is a map of links x target batches (crossover.py says how it is worked out).

Measured: studies/decentralized.yaml, its timed trials once for each link, its trainings once, on this machine alone.
Hosts and links are those of over_links.py. A repeat is a fresh launch of all processes. The results are
decentralized.md, .png and .svg beside the numbers; the studies stay in .cache/benchmarks/decentralized, where an
interrupted run goes on. A study that is whole in examples/results is taken from there, as nothing in the map compares
one cell with another: hours need not be found at once (`--fresh`: measure everything anew).

    python -m benchmarks decentralized --minutes 20     # goes on with the next cells for so long, then draws the map

Studies in examples/results that are older than a way to train (weights in 16 bits, or averaged seldom) lack it. It is
then measured cell by cell, beside what was the fastest to the loss: first where Hivemind was nearest to winning, last
where it was farthest. A cell that is measured so is compared by these launches alone.

Not shown: latency and loss of a real line, peers that come and go, more than two peers, GPUs. A core computes, packs
and sends in turn here, and Hivemind's own processes share it.
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks import crossover, crossover_figure, crossover_text, over_links, publish
from benchmarks.crossover import Cell, Measured, Way
from benchmarks.options import Options
from benchmarks.over_links import named
from benchmarks.paired import Finding
from scaling_study.records import pack, store
from scaling_study.settings import CACHE, CHECKOUT
from scaling_study.study.study import contents
from scaling_study.trial import NAMES, Trial
from tests.cluster.network import Network

STUDY = CHECKOUT / "studies" / "decentralized.yaml"
KEPT = CACHE / "benchmarks" / "decentralized"
EXAMPLES = CHECKOUT / "examples" / "results"
ARMS = tuple(  # as Hivemind's documentation recommends
    Trial("hivemind", allreduce="fp16", state_allreduce="fp16", average_state_every=every) for every in (1, 10)
)
QUICK_RATES = ("100mbit",)


def run(options: Options) -> list[Finding]:
    over_links.require_hosts()
    over_links.require_cifar10()
    with tempfile.TemporaryDirectory(prefix="decentralized-") as folder, options.work(KEPT, Path(folder)) as work:
        made = Path(folder)
        measured = measure(options, made, work)
        if not options.quick and not options.fresh:
            measure_arms(measured, options, made, work)
    found = crossover.cells(measured)
    if not options.quick:
        text = crossover_text.page(measured)
        publish.write_page("decentralized", text)
        publish.write_figure("decentralized", lambda: crossover_figure.draw(found, measured.loss))
        print(text)
    return list(findings(measured, found))


def measure(options: Options, made: Path, work: Path) -> Measured:
    """Rounds per second over each link, and rounds to the loss."""
    measured, repeats = Measured(), options.pairs(3)
    anew = options.quick or options.fresh
    for rate in QUICK_RATES if options.quick else over_links.RATES:
        gated = not options.quick and rate == over_links.RATES[0]  # a gate says the same over any link
        asked = over_links.timed_part(STUDY, f"decentralized-{rate or 'unlimited'}", options.quick, repeats, gated)
        folder = None if anew else kept(asked, repeats)
        if folder is None:
            folder = over(rate, asked, made, work)
        measured.add(named(rate), store.read_study(folder))
        print(f"  {named(rate)}: done", flush=True)
    asked = over_links.trained_part(STUDY, "decentralized-to-loss", options.quick)
    folder = None if anew else kept(asked, len(asked["sweeps"][0]["train"]["seeds"]))
    measured.add("", store.read_study(folder or over_links.swept(asked, work)))
    return measured


def over(rate: str | None, asked: dict[str, Any], made: Path, work: Path, seconds: float | None = None) -> Path:
    """The results of a study over a link of this rate, as far as it comes within so many seconds."""
    shutil.rmtree(made / "network", ignore_errors=True)  # of the link before
    with Network(2, made, cores=("0", "1")) as network:
        return over_links.swept_over(network, rate, asked, work, seconds)


def measure_arms(measured: Measured, options: Options, made: Path, work: Path) -> None:
    """What older studies lack, cell by cell, for as long as `options.minutes` allows (None: to the end)."""
    ends = time.monotonic() + 60 * options.minutes if options.minutes is not None else math.inf
    repeats = options.pairs(3)
    arms = {Way.of(each) for each in ARMS}
    lacking = [cell for cell in crossover.cells(measured) if not arms <= {one.way for one in cell.timed}]
    for cell in sorted(lacking, key=_behind):
        rate = next(rate for rate in over_links.RATES if named(rate) == cell.link)
        asked = arms_study(rate, cell, repeats)
        folder = kept(asked, repeats) or work / str(asked["study"])
        seconds = ends - time.monotonic()
        if not whole(folder, asked["sweeps"], repeats) and seconds > 0:
            over(rate, asked, made, work, None if math.isinf(seconds) else seconds)
        if whole(folder, asked["sweeps"], repeats):
            measured.replace(cell.link, cell.target, store.read_study(folder))
            print(f"  {cell.link}, target batch {cell.target:,}: done", flush=True)


def _behind(cell: Cell) -> float:
    """How many times as long as the fastest Hivemind took."""
    peers = cell.best(decentralised=True)
    return peers.behind.mean if peers else math.inf


def arms_study(rate: str | None, cell: Cell, repeats: int) -> dict[str, Any]:
    """The ways that an older study lacks in one cell, beside what was the fastest there but for Hivemind."""
    other = cell.best(decentralised=False)
    ways = [Way.of(each) for each in ARMS] + ([other.way] if other else [])
    asked = over_links.timed_part(STUDY, f"decentralized-{rate or 'unlimited'}-{cell.target}", False, repeats)
    sweeps = []
    for sweep in asked["sweeps"]:
        fixed = {key: value for key, value in sweep.items() if key not in ("matrix", "include")}
        there = []
        for keys in _combinations(sweep):
            trial = Trial(**{key: value for key, value in {**fixed, **keys}.items() if key in NAMES[Trial]})
            if Way.of(trial) in ways and trial.global_batch == cell.target:
                there.append(keys)
        sweeps += [{**fixed, "include": there}] if there else []
    return {**asked, "baseline": {"framework": other.way.framework if other else "hivemind"}, "sweeps": sweeps}


def _combinations(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    if "include" in sweep:
        return list(sweep["include"])
    return [dict(zip(sweep["matrix"], values, strict=True)) for values in itertools.product(*sweep["matrix"].values())]


def kept(asked: dict[str, Any], repeats: int) -> Path | None:
    """The results of a study in examples/results, if all that it asked for is there and still asked for alike. It may
    lack ways to train that are younger, and have timed fewer rounds."""
    file = EXAMPLES / f"{asked['study']}{pack.SUFFIX}"
    if not file.is_file():
        return None
    folder = KEPT / "examples" / str(asked["study"])
    shutil.rmtree(folder, ignore_errors=True)
    pack.unpack(file, folder)
    before = contents(folder / "study.yaml").value
    now = yaml.safe_load(yaml.safe_dump(asked))
    changed = {"hosts", "measure", "sweeps"}
    alike = all(before.get(key) == now.get(key) for key in (before.keys() | now.keys()) - changed)
    among = all(sweep in now["sweeps"] for sweep in before["sweeps"])
    return folder if alike and among and whole(folder, before["sweeps"], repeats) else None


def whole(folder: Path, sweeps: list[dict[str, Any]], repeats: int) -> bool:
    """True where all configurations of these sweeps have so many repeats that are ok."""
    if not folder.is_dir():
        return False
    counts = Counter(
        record.configuration for record in store.read_study(folder) if record.status == "ok" and not record.trial.find
    )
    return len(counts) == sum(len(_combinations(sweep)) for sweep in sweeps) and min(counts.values()) >= repeats


def findings(measured: Measured, found: list[Cell]) -> Iterator[Finding]:
    """Of each cell: how many times as long as the faster Hivemind the fastest other takes; above 1 Hivemind wins."""
    for cell in found:
        peers, other = cell.best(decentralised=True), cell.best(decentralised=False)
        if not peers or not other:
            continue
        by_loss = peers.seconds is not None and other.seconds is not None
        what = "time to the loss" if by_loss else "time a sample"
        claim = f"{cell.link}, target batch {cell.target:,}: {what}, {other.way} over {peers.way}"
        evidence = {
            "link": cell.link, "target_batch_size": cell.target, "loss": measured.loss,
            "rounds_per_second": {str(way): v for way, v in measured.rates[cell.link][cell.target].items()},
            "samples_a_round": {str(timed.way): timed.samples for timed in cell.timed},
            "rounds_to_loss": measured.rounds.get(cell.target, []), "missed": measured.missed.get(cell.target, 0),
            "decentralised": cell.decentralised,
        }  # fmt: skip
        places = ((cell.link, cell.target, way) for way in (other.way, peers.way))
        yield Finding(claim, crossover.longer(measured, *places, by_loss=by_loss), evidence=evidence)
