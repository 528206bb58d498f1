"""How often a study calls equal configurations different on this machine, and how often it finds 5 %.

    one study, three shared launches, eight rows of its table, a pair in each:

    one process          resnet8, resnet18    A | A again, or A delayed by 5 % of its step    same processes
    Horovod, 2 workers   resnet8, resnet18    A | A again, ...                                same processes
    Horovod, 1 worker    resnet8, resnet18    A | A again, ...                                processes of their own
    Horovod, 2 workers   resnet8, resnet18    A | A again, ...                                processes of their own

Claimed: of equal pairs at most 5 % have a 95 % interval of their ratio without 1. The interval of this rate holds 5 %
or lies below it, and ends at 12 % at most. How often the planted 5 % is found has no bar, nor has any rate by kind.

Measured: the two configurations of a pair differ in the seventh digit of a learning rate, or in a fusion threshold that
is beyond all gradients: in their ids, not in their work (delayed.py). The verdicts are the product's own: the interval
of a speed-up (`configurations.over`), and the tie in a row of the tables (`ranking.verdicts_of_rows`), corrected for
all rows of its study. Two of a study's pairs are delayed, others each time. Pairs of a study share its launches and its
estimates of spread, so the interval of a rate is over studies (paired.proportion).

Gathered over several runs: each study that is finished adds its pairs to data/verdicts.csv, an interrupted one goes on,
and `--minutes` bounds one run. Not shown: other machines, GPUs, models and launchers.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.frames import configurations, results
from analysis.statistics import ranking
from benchmarks import gathered, over_links
from benchmarks.delayed import DELAYED_RATE, PREFIX, SHARE
from benchmarks.options import Options, Unavailable
from benchmarks.paired import (
    FEWEST_PAIRS,
    MET,
    MISSED,
    NOT_COMPARED,
    NOT_RESOLVED,
    Bar,
    Finding,
    of_launches,
    proportion,
    ratio,
)
from scaling_study.settings import CACHE, CHECKOUT
from scaling_study.stats.intervals import Interval

DATA = Path(__file__).with_name("data") / "verdicts.csv"
KEPT = CACHE / "benchmarks" / "verdicts"
EQUAL_PAIRS, DELAYED_PAIRS = 100, 40
NOMINAL, MOST = 0.05, 0.12  # the rate that is claimed, and where its interval ends at the latest
FASTER, SLOWER, NOT_DIFFERENT, NOT_MEASURED = "faster", "slower", "not resolved", "not measured"
TIED, APART = "tied", "different"
RATE, RATE_AGAIN = 0.01, 0.0100001
FUSION = {"fusion_bytes": 2**27}
FUSION_AGAIN = {"fusion_bytes": 2**27 + 2**12}  # both hold all gradients of a step
SAME, OWN = "same processes", "own processes"
HOROVOD = {"framework": "horovod", "controller": "mpi"}
MODELS = ("resnet8", "resnet18")
MEASURE = {
    "warm": True, "rounds": 6, "block_seconds": 0.35, "warmup_steps": 4, "min_steps": 10, "min_seconds": 1,
    "repeats": 3, "max_repeats": 3,
}  # fmt: skip
QUICK = {"rounds": 2, "block_seconds": 0.05, "min_steps": 2, "min_seconds": 0}


@dataclass(frozen=True)
class Kind:
    """Two configurations of one model in a row of their own, which their batch size makes."""

    keys: Mapping[str, Any]
    workers: int
    batch: int
    processes: str  # SAME or OWN


KINDS = (
    Kind({"framework": "single"}, 1, 32, SAME),
    Kind(HOROVOD, 2, 48, SAME),
    Kind(HOROVOD, 1, 40, OWN),
    Kind(HOROVOD, 2, 56, OWN),
)


@dataclass(frozen=True)
class Pair:
    """One pair as it is kept. `first` and `second`: samples/s of each launch, separated by `;`."""

    study: int
    model: str
    framework: str
    workers: int
    processes: str
    delayed: int  # 1: the second configuration is
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str  # on the first over the second
    corrected: str
    first: str
    second: str
    commit: str
    date: str
    machine: str
    load: float  # of the machine before the study

    @property
    def kind(self) -> str:
        return f"{self.model}, {self.workers} worker{'s' * (self.workers != 1)}, {self.processes}"


def run(options: Options) -> list[Finding]:
    return gathered.findings(options, DATA, KEPT, gather, judged, Pair)


def gather(work: Path, data: Path, options: Options) -> None:
    """Run studies until there are enough pairs, or no time for another one."""
    patience = gathered.Patience(options.minutes)
    while not enough(pairs := gathered.read(data, Pair), options) and patience.for_another():
        number = max((pair.study for pair in pairs), default=0) + 1
        load = os.getloadavg()[0]
        path = os.pathsep.join([str(installed(work)), str(CHECKOUT)])
        asked = study(number, options.quick)
        try:
            over_links.swept(asked, work, before=["env", f"PYTHONPATH={path}"])
        except Unavailable as failed:
            if not (work / asked["study"]).exists():
                raise
            print(f"  {failed}: what is missing in it counts as not measured\n{failed.detail}", flush=True)
        taken = list(pairs_of(results.read(work / asked["study"]), number, load))
        if all(pair.verdict == NOT_MEASURED for pair in taken):
            raise Unavailable(f"no pair of {asked['study']} was measured")
        gathered.add(data, taken)
        patience.ended()
        at_most = f"{patience.longest / 60:.1f} min at most a study"
        print(f"  study {number}: {said([*pairs, *taken])}, {at_most}", flush=True)


def enough(pairs: Sequence[Pair], options: Options) -> bool:
    """True with as many pairs as were asked for; the quick form takes one study."""
    if options.quick:
        return bool(pairs)
    delayed = sum(pair.delayed for pair in pairs)
    if options.asked_pairs is not None:
        return len(pairs) >= options.asked_pairs
    return len(pairs) - delayed >= EQUAL_PAIRS and delayed >= DELAYED_PAIRS


def installed(work: Path) -> Path:
    """A folder for PYTHONPATH in which the models of delayed.py are installed as a user's package."""
    site = work / "site"
    about = site / "verdicts_models-1.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: verdicts-models\nVersion: 1\n", encoding="utf-8")
    points = [f"{named(model)} = benchmarks.delayed:load" for model in MODELS]
    text = "\n".join(["[scaling_study.workloads]", *points, ""])
    (about / "entry_points.txt").write_text(text, encoding="utf-8")
    return site


def named(model: str) -> str:
    return f"{PREFIX}{model}"


def study(number: int, quick: bool = False) -> dict[str, Any]:
    """A study file's content. Which pairs are delayed moves on with its number."""
    rows = [(kind, model) for model in MODELS for kind in KINDS]
    delayed = {number % len(rows), (number + len(KINDS)) % len(rows)}
    if quick:
        rows, delayed = [(KINDS[0], MODELS[0]), (KINDS[2], MODELS[0])], {1}
    sweeps = []
    for at, (kind, model) in enumerate(rows):
        fixed = {
            **kind.keys, "model": named(model), "workers": kind.workers, "batch_per_worker": kind.batch,
            "data": "synthetic", "cores_per_worker": 1, "allreduce": "fp32" if kind.workers > 1 else "none",
        }  # fmt: skip
        own = kind.processes == OWN
        again = DELAYED_RATE if at in delayed else RATE if own else RATE_AGAIN
        sweeps += [
            {**fixed, **(FUSION if own else {}), "learning_rate": RATE},
            {**fixed, **(FUSION_AGAIN if own else {}), "learning_rate": again},
        ]
    measure = MEASURE | (QUICK if quick else {})
    return {"study": f"verdicts-{number}", "parity": False, "measure": measure, "sweeps": sweeps}


def pairs_of(read_results: results.Results, number: int, load: float) -> Iterable[Pair]:
    """The pairs of a study, as its report judges them."""
    corrected = ranking.verdicts_of_rows(read_results)
    where = gathered.here(load)
    for kind, model in itertools.product(KINDS, MODELS):
        ours = {"model": named(model), "batch_per_worker": kind.batch}
        both = [row for row in read_results.rows if all(row[key] == value for key, value in ours.items())]
        if not both:
            continue  # of the quick form
        first, second = sorted(both, key=lambda row: (row["learning_rate"], row["fusion_bytes"]))
        about: dict[str, Any] = {
            "study": number, "model": model, "framework": kind.keys["framework"], "workers": kind.workers,
            "processes": kind.processes, "delayed": int(second["learning_rate"] == DELAYED_RATE),
        }  # fmt: skip
        yield Pair(**about, **_verdicts(first, second, corrected), **where)


def _verdicts(first: Mapping[Any, Any], second: Mapping[Any, Any], corrected: Mapping[str, str]) -> dict[str, Any]:
    speeds = {"first": str(first["repeat_values"]), "second": str(second["repeat_values"])}
    nothing = {"ratio": None, "low": None, "high": None, "verdict": NOT_MEASURED, "corrected": NOT_MEASURED}
    if not (first["n"] and second["n"]):
        return nothing | speeds
    over = configurations.over(first, second)
    row = {corrected.get(str(side["configuration"])) for side in (first, second)}
    if over.low is None or over.high is None or not row <= {ranking.BEST, ranking.ALIKE, ranking.WORSE}:
        return nothing | {"ratio": over.mean} | speeds
    verdict = NOT_DIFFERENT if over.low <= 1 <= over.high else FASTER if over.low > 1 else SLOWER
    tied = APART if ranking.WORSE in row else TIED
    bounds = {"ratio": over.mean, "low": over.low, "high": over.high}
    return {**bounds, "verdict": verdict, "corrected": tied, **speeds}


def said(pairs: Sequence[Pair]) -> str:
    delayed = sum(pair.delayed for pair in pairs)
    return f"{len(pairs) - delayed} equal pairs and {delayed} delayed ones"


def judged(pairs: Sequence[Pair]) -> list[Finding]:
    """Rates of both sorts of pairs; only that of false verdicts over all equal pairs has a bar."""
    known = [pair for pair in pairs if pair.verdict != NOT_MEASURED]
    equal, delayed = ([pair for pair in known if pair.delayed == number] for number in (0, 1))
    false = rate(equal, differs)
    evidence = {"data": DATA.name, "not_measured": len(pairs) - len(known), "studies": len({p.study for p in pairs})}
    findings = [
        Finding(
            "equal pairs called different by the 95 % interval of their ratio", false, Bar(high=MOST), "%",
            of_rate(false), evidence, NOT_COMPARED,
        ),
        counted("equal pairs not tied in their row, corrected for a study's rows", equal, apart),
        counted(f"delays of {SHARE:.0%} found by the 95 % interval", delayed, found),
        counted("the same not tied in their row, corrected for a study's rows", delayed, apart),
    ]  # fmt: skip
    for name, ours in (("equal pairs", equal), ("pairs with a delay", delayed)):
        studies = list(by_study(ours).values())
        ratios = of_launches([[(pair.ratio or math.nan, 1.0) for pair in study] for study in studies])
        if ratios:
            claim = f"the first over the second, a mean a study, {name}"
            findings.append(Finding(claim, ratio(ratios), control=NOT_COMPARED))
    for name, ours, test in (("equal pairs called different", equal, differs), ("delays found", delayed, found)):
        for kind in sorted({pair.kind for pair in ours}):
            findings.append(counted(f"{name}: {kind}", [pair for pair in ours if pair.kind == kind], test))
    return findings


def differs(pair: Pair) -> bool:
    return pair.verdict != NOT_DIFFERENT


def found(pair: Pair) -> bool:
    return pair.verdict == FASTER


def apart(pair: Pair) -> bool:
    return pair.corrected == APART


def by_study(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    studies: dict[int, list[Pair]] = {}
    for pair in pairs:
        studies.setdefault(pair.study, []).append(pair)
    return studies


def rate(pairs: Sequence[Pair], test: Callable[[Pair], bool]) -> Interval:
    """How many of the pairs the test holds of, with an interval over studies."""
    return proportion([(sum(map(test, ours)), len(ours)) for ours in by_study(pairs).values()])


def counted(claim: str, pairs: Sequence[Pair], test: Callable[[Pair], bool]) -> Finding:
    return Finding(claim, rate(pairs, test), unit="%", control=NOT_COMPARED)


def of_rate(false: Interval) -> str:
    """The verdict on a rate of false verdicts."""
    if false.low is None or false.high is None or false.n < FEWEST_PAIRS:
        return NOT_RESOLVED
    if false.low > NOMINAL:
        return MISSED
    return MET if false.high <= MOST else NOT_RESOLVED
