"""A configuration that waits among others, warm, is as fast as one that has a launch to itself, cold.

Claimed, for every framework that one launch can keep several configurations of: (1) images/s of a warm launch over
those of a cold one lie within 0.95 to 1.05, on resnet8 and on resnet18; (2) of no such configuration, as these leave
nothing behind, it is said that it did.

Measured: the same study in rounds (`measure: {warm: true}`) and trial by trial, a repeat of the one, a repeat of the
other, in turn. In rounds the processes of all frameworks are alive; half a second of one configuration's steps is
timed while the others are stopped. Both warm up and time equally long. The ratio is paired by repeat (paired.py).

Not shown: GPUs, several hosts, larger models. Interrupted, it goes on where it was (`--fresh`: begin anew).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import over_links
from benchmarks.options import Options
from benchmarks.paired import MET, MISSED, Bar, Finding, ratio
from scaling_study.records import store, summary
from scaling_study.records.store import Record
from scaling_study.settings import CACHE
from scaling_study.stats.intervals import Interval

KEPT = CACHE / "benchmarks" / "warm"
BAR = Bar(0.95, 1.05)
ROUNDS, BLOCK_SECONDS = 6, 0.5
WINDOW = {"min_steps": ROUNDS, "min_seconds": ROUNDS * BLOCK_SECONDS, "max_seconds": 60, "timeout_seconds": 300}
MODELS = ("resnet8", "resnet18")
SWEEPS: tuple[Mapping[str, Any], ...] = (
    {"framework": "single"},
    {"framework": "torch_ddp", "workers": 2},
    {"framework": "torch_fsdp2", "workers": 2},
    {"framework": "mpi_allreduce", "workers": 2},
    {"framework": "horovod", "workers": 2, "controller": "mpi"},
    {"framework": "horovod", "workers": 2, "controller": "gloo"},
)
LEAK = re.compile("its steps change|leaves behind")  # left_behind.py, shared_launch.py
NAMED_BY = ("framework", "controller", "model")


def run(options: Options) -> list[Finding]:
    pairs = options.pairs(20)
    with tempfile.TemporaryDirectory(prefix="warm-") as made:
        work = Path(made) if options.quick else KEPT
        if options.fresh and not options.quick:
            shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        for number in range(1, pairs + 1):
            for warm in (True, False) if number % 2 else (False, True):
                over_links.swept(study(warm, number, options.quick), work)
            print(f"  repeat {number}: done", flush=True)
        warm_rates, cold_rates = (rates(work / str(study(warm, 1, False)["study"])) for warm in (True, False))
        records = list(store.read_study(work / str(study(True, 1, False)["study"])))
    findings = []
    for name in sorted(warm_rates.keys() & cold_rates.keys()):
        taken = [(warm_rates[name][number], cold_rates[name][number]) for number in range(1, pairs + 1)]
        evidence = {"images_per_second": taken}
        findings.append(Finding(f"{name}: images/s, warm over cold", ratio(taken), BAR, evidence=evidence))
    no_leaks = leaks(records)
    return [*findings, replace(no_leaks, verdict="") if options.quick else no_leaks]


def study(warm: bool, repeats: int, quick: bool) -> dict[str, Any]:
    """A study file's content."""
    sweeps, models = (SWEEPS[:1], MODELS[:1]) if quick else (SWEEPS, MODELS)
    each = [{**sweep, "data": "synthetic", "matrix": {"model": list(models)}} for sweep in sweeps]
    asked = {"warm": warm, "rounds": ROUNDS, "block_seconds": BLOCK_SECONDS, "repeats": repeats, "max_repeats": repeats}
    measure = {**WINDOW, **asked} | ({"min_seconds": 0.5, "block_seconds": 0.1} if quick else {})
    return {"study": "warm" if warm else "cold", "parity": False, "measure": measure, "sweeps": each}


def leaks(records: Sequence[Record]) -> Finding:
    """Of how many starts of processes that configurations shared, in how many one was said to leave something."""
    warm = [record for record in records if record.launch and record.trial.get("warm")]
    shared = {(record.study, record.launch) for record in warm}
    said = {(r.study, r.launch) for r in warm if LEAK.search(f"{r.notes} {r.reason} {r.error}")}
    leaking = Interval(float(len(said)), None, None, len(shared), 1.0)
    evidence = {"groups_started": len(shared), "said_of": sorted(said)}
    claim = f"of {len(shared)} groups that were started, those with a leak that is none"
    return Finding(claim, leaking, Bar(high=0.0), verdict=MISSED if said else MET, evidence=evidence)


def rates(results: Path) -> dict[str, dict[int, float]]:
    """Name -> repeat -> images/s."""
    found: dict[str, dict[int, float]] = {}
    for record in store.read_study(results):
        if record.status == "ok":
            name = ", ".join(str(record.trial[key]) for key in NAMED_BY if record.trial[key])
            found.setdefault(name, {})[record.trial["repeat"]] = summary.throughput(record) or 0.0
    return found
