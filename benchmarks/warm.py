"""An interleaved configuration (warm) is as fast as one with separate launches (cold).

Claimed, for `single` and what reduces gradients (the others: warm_others.py): (1) samples/s interleaved over those of
separate launches lie within 0.95 to 1.05, on resnet8 and on resnet18; on a GPU of `single` only, on resnet18 and on
vit_small_dataset; (2) so do speed-ups over `single`, which a study compares; (3) no such configuration is reported to
leave something behind.

On a GPU peak memory and energy are compared too: a process has one allocator, a GPU one counter.

Measured: the same study interleaved and in separate launches, one launch of each alternating: W C | C W | W C ... The
control is the ratio of separate launches next to each other. Interleaved, the processes of all frameworks are alive;
half a second of one configuration's steps is timed while the others are stopped. Both warm up and time equally long.
The ratio is paired by launch (paired.py); intervals of (2) hold all at once.

Not shown: several GPUs, several hosts, larger models. Interrupted, it goes on where it was (`--fresh`: begin anew).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import over_links
from benchmarks.options import Options
from benchmarks.paired import Bar, Control, Finding, Pairs, exact, ratio
from scaling_study.machine import this_machine
from scaling_study.records import schema, store
from scaling_study.records.schema import Record
from scaling_study.settings import CACHE

KEPT, KEPT_OF_A_GPU = CACHE / "benchmarks" / "warm", CACHE / "benchmarks" / "warm-on-a-gpu"
RATIO = "interleaved over separate launches"
BAR, BASELINE = Bar(0.95, 1.05), "single"
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
ON_A_GPU = {"device": "cuda", "batch_per_worker": 256}
MODELS_ON_A_GPU = ("resnet18", "vit_small_dataset")
LEAK = re.compile("its steps change|leaves behind")  # left_behind.py, shared_launch.py
NAMED_BY = ("framework", "controller", "model")


def run(options: Options) -> list[Finding]:
    return compared(options, SWEEPS[:1], KEPT_OF_A_GPU) if this_machine().gpus else compared(options, SWEEPS, KEPT)


def compared(options: Options, sweeps: Sequence[Mapping[str, Any]], kept: Path) -> list[Finding]:
    """Of these sweeps, each with every model; `kept`: the folder of what was measured, to go on with."""
    pairs = options.pairs(20)
    with options.work(kept) as work:
        for number in range(1, pairs + 1):
            for warm in (True, False) if number % 2 else (False, True):
                over_links.swept(study(warm, number, options.quick, sweeps), work)
            print(f"  repeat {number}: done", flush=True)
        return of_studies(work, COMPARED_ON_A_GPU if this_machine().gpus else COMPARED)


def of_studies(work: Path, quantities: Mapping[str, Callable[[Record], float]]) -> list[Finding]:
    """Of the two studies that were measured in this folder, and of leaks."""
    in_rounds = [record for record in store.read_study(work / "warm") if record.trial.warm]
    alone = list(store.read_study(work / "cold"))
    findings = []
    for what, value in quantities.items():
        warm_values, cold_values = by_name(in_rounds, value), by_name(alone, value)
        for name in sorted(warm_values.keys() & cold_values.keys()):
            both = sorted(warm_values[name].keys() & cold_values[name].keys())
            taken = [(warm_values[name][number], cold_values[name][number]) for number in both]
            evidence = {what: taken, "launches": both}
            claim, control = f"{name}: {what}, {RATIO}", control_of(both, taken)
            findings.append(Finding(claim, ratio(taken), BAR, evidence=evidence, control=control))
    return [*findings, *speedups(findings), leaks(in_rounds)]


def control_of(launches: Sequence[int], taken: Pairs) -> Control | None:
    """Cold launches over the cold ones beside them, 1 over 2, 4 over 3, 5 over 6, ...; None where there is no pair."""
    cold = dict(zip(launches, (alone for _, alone in taken), strict=True))
    firsts = [number for number in cold if number % 2 and number + 1 in cold]
    neighbours = [(number, number + 1) if number % 4 == 1 else (number + 1, number) for number in firsts]
    return Control(ratio([(cold[a], cold[b]) for a, b in neighbours])) if neighbours else None


def speedups(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The same of speed-ups over `single`, which are what a study compares; their intervals hold all at once."""
    (what, *_), pairs = COMPARED, dict[tuple[str, str], dict[int, tuple[float, float]]]()
    for finding in findings:
        if what in finding.evidence:
            name, _, model = finding.claim.partition(":")[0].rpartition(", ")
            pairs[name, model] = dict(zip(finding.evidence["launches"], finding.evidence[what], strict=True))
    compared = {key: ours for key, ours in pairs.items() if key[0] != BASELINE and (BASELINE, key[1]) in pairs}
    for (name, model), ours in compared.items():
        baseline = pairs[BASELINE, model]
        both = sorted(ours.keys() & baseline.keys())
        over = [(ours[n][0] / baseline[n][0], ours[n][1] / baseline[n][1]) for n in both]
        claim = f"{name}, {model}: speed-up over {BASELINE}, {RATIO}, corrected for {len(compared)}"
        yield Finding(claim, ratio(over, len(compared)), BAR, control=control_of(both, over))


def study(warm: bool, repeats: int, quick: bool, sweeps: Sequence[Mapping[str, Any]] = SWEEPS) -> dict[str, Any]:
    """A study file's content."""
    models, gpu = MODELS, dict[str, Any]()
    if this_machine().gpus:
        models, gpu = MODELS_ON_A_GPU, ON_A_GPU
    if quick:
        sweeps, models = sweeps[:1], models[:1]
    each = [{**gpu, "data": "synthetic", "matrix": {"model": list(models)}, **sweep} for sweep in sweeps]
    asked = {"warm": warm, "rounds": ROUNDS, "block_seconds": BLOCK_SECONDS, "repeats": repeats, "max_repeats": repeats}
    measure = {**WINDOW, **asked} | ({"min_seconds": 0.5, "block_seconds": 0.1} if quick else {})
    return {"study": "warm" if warm else "cold", "parity": False, "measure": measure, "sweeps": each}


def leaks(records: Sequence[Record]) -> Finding:
    """Of how many starts of processes that configurations shared, in how many one was said to leave something."""
    warm = [record for record in records if record.launch and record.trial.warm]
    shared = {(record.study, record.launch) for record in warm}
    said = {(r.study, r.launch) for r in warm if LEAK.search(f"{r.notes} {r.reason} {r.error}")}
    claim = f"of {len(shared)} groups that were started, those with a leak that is none"
    evidence = {"groups_started": len(shared), "said_of": sorted(said)}
    return exact(claim, float(len(said)), Bar(high=0.0), n=len(shared), **evidence)


def by_name(records: Sequence[Record], value: Callable[[Record], float]) -> dict[str, dict[int, float]]:
    """Name -> repeat -> value, where it is known."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if record.status == "ok" and value(record):
            name = ", ".join(str(named) for key in NAMED_BY if (named := getattr(record.trial, key)))
            found.setdefault(name, {})[record.trial.repeat] = value(record)
    return found


def joules_a_sample(record: Record) -> float:
    (rank,) = record.ranks
    return (rank.energy_joules or 0.0) / rank.samples_seen


COMPARED: Mapping[str, Callable[[Record], float]] = {"samples/s": lambda record: schema.throughput(record) or 0.0}
COMPARED_ON_A_GPU: Mapping[str, Callable[[Record], float]] = {
    **COMPARED,
    "peak memory": lambda record: max(rank.peak_memory_bytes for rank in record.ranks),
    "joules a sample": joules_a_sample,
}
