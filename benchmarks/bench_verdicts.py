"""How often `scaling-study bench` calls a command unlike itself, how often it finds a planted 5 %, and how soon.

    benchmarks/scripts     ResNet-18 by DDP | with DataLoader workers | accumulated | GPT-2 | a CNN by Horovod
    A                      python loader_workers.py --run-name a
    B                      the same as b | the same as b, which computes for another 5 % of its step

Claimed: (1) of equal pairs at most 5 % are called faster or slower. The interval of this rate holds 5 % or lies below
it, and ends at 12 % at most. (2) At `--margin 2%` at least 18 of 20 delays of 5 % are found. (3) Two equal commands of
a ResNet-18 with two workers are called as fast to 3 % within 3 minutes, in nine of ten runs.

Measured: the real command, from its start to its JSON. A round of six pairs is one of (3), three equal ones and two
delayed ones, whose scripts take turns: sixty are 10, 30 and 20. Both commands of a pair do the same work under another
name. The scripts print their own clock (pace.py): it says how large each delay was, and what the ratio is that bench
should find. Where these two disagree over all pairs, the verdicts are of something else.

Gathered over several runs: each pair that is finished is a row of data/bench_verdicts.csv, an interrupted one goes on,
and `--minutes` bounds one run. A pair that went on has no seconds. Not shown: other machines, GPUs, scripts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gathered, jobs
from benchmarks.options import Options, Unavailable
from benchmarks.paired import (
    FEWEST_PAIRS,
    MET,
    MISSED,
    NOT_COMPARED,
    NOT_RESOLVED,
    Bar,
    Control,
    Finding,
    proportion,
    ratio,
)
from benchmarks.verdicts import FASTER, MOST, NOT_DIFFERENT, NOT_MEASURED, SLOWER, of_rate
from scaling_study import datasets
from scaling_study.machine import installed
from scaling_study.settings import CACHE, data_root
from scaling_study.stats.intervals import Interval, between_repeats

DATA = Path(__file__).with_name("data") / "bench_verdicts.csv"
KEPT = CACHE / "benchmarks" / "bench_verdicts"
FOLDER = Path(__file__).with_name("scripts")
SHARP = "ddp_resnet18"  # of claim (3)
SCRIPTS = {
    SHARP: "torchrun --standalone --nproc-per-node 2 ddp_resnet18.py",
    "loader_workers": "python loader_workers.py",
    "transformer_wikitext": "python transformer_wikitext.py",
    "horovod_cifar": "horovodrun --gloo -np 2 python horovod_cifar.py",
    "accumulation": "python accumulation.py --out {run_dir}",
}
NEEDS = {"transformer_wikitext": "transformers", "horovod_cifar": "horovod"}
BENCH = [sys.executable, "-c", "import sys; from scaling_study.cli import main; sys.exit(main())", "bench"]
DELAY_PERCENT, MARGIN, SHARP_MARGIN = 5.0, "2%", "3%"
PAIRS, DELAYED_PAIRS, SHARE = 60, 20, 0.9
SHARP_SECONDS = 180.0
AS_FAST, EQUAL_LOSSES = "as fast", "equal bit for bit"
FAILURES = 3  # in a row, after which something is wrong with all of them
PACE = re.compile(r"\b([ab]): step (\d+): ([\d.]+) ms, delay ([\d.]+) ms")  # what pace.py prints
WARM = 15  # steps of a script that its median still remembers from before


@dataclass(frozen=True)
class Planned:
    """A pair to be measured."""

    number: int
    script: str
    delayed: int  # 1: B is
    margin: str

    @property
    def commands(self) -> tuple[str, str]:
        """A and B: other words for the same work, but for the delay."""
        each = f"{SCRIPTS[self.script]} --data {shlex.quote(str(data_root().resolve()))} --run-name"
        return f"{each} a", f"{each} b" + f" --delay-percent {DELAY_PERCENT:g}" * self.delayed


@dataclass(frozen=True)
class Pair:
    """One pair as it is kept. Ratios are B's speed over A's."""

    number: int
    script: str
    delayed: int
    margin: str
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    launches: int
    step_ms: float | None  # of A
    by_own_clocks: float | None  # the ratio
    own_delay: float | None  # share of B's step that the delay took, by its own clock
    seconds: float | None  # of the whole command; None where it went on
    commit: str
    date: str
    machine: str
    load: float  # of the machine before it
    caveats: str = ""  # that bench knows of the work of both
    why: str = ""  # it was not measured


def run(options: Options) -> list[Finding]:
    wanted = {"cifar10", *([] if options.quick else ["wikitext2"])}
    if missing := sorted(wanted - set(datasets.available())):
        raise Unavailable(f"{missing[0]} is not in DATA_ROOT")
    if not options.quick and (absent := [name for name in NEEDS.values() if not installed(name)]):
        raise Unavailable(f"{absent[0]} is not installed")
    return gathered.findings(options, DATA, KEPT, gather, judged, Pair)


def gather(work: Path, data: Path, options: Options) -> None:
    """Measure pairs until there are enough, or no time for another one. Raises Unavailable, KeyboardInterrupt."""
    enough = 1 if options.quick else options.asked_pairs or PAIRS
    patience = gathered.Patience(options.minutes)
    while len(pairs := gathered.read(data, Pair)) < enough and patience.for_another():
        asked = planned(max((pair.number for pair in pairs), default=0) + 1)
        if options.quick:
            asked = Planned(1, "accumulation", 1, "50%")
        taken = measured(asked, work)
        gathered.add(data, [taken])
        last = [pair.verdict for pair in (*pairs, taken)][-FAILURES:]
        if taken.verdict == NOT_MEASURED and (options.quick or last == [NOT_MEASURED] * FAILURES):
            raise Unavailable(f"pair {asked.number} ({asked.script}) was not measured", taken.why)
        patience.ended()
        print(f"  pair {asked.number}: {said(taken)}", flush=True)


def planned(number: int) -> Planned:
    """The pairs from 1 on: in each round of six one of claim (3), three equal ones and two delayed ones."""
    names = list(SCRIPTS)
    done, place = divmod(number - 1, 6)
    if place == 0:
        return Planned(number, SHARP, 0, SHARP_MARGIN)
    delayed = int(place in (3, 5))
    index = 2 * done + (place == 5) if delayed else 3 * done + {1: 0, 2: 1, 4: 2}[place]
    return Planned(number, names[index % len(names)], delayed, MARGIN)


def measured(asked: Planned, work: Path) -> Pair:
    """A pair through `scaling-study bench`; its results folder is removed once it has a verdict."""
    name = f"pair-{asked.number}"
    folder = work / f"bench-{name}"
    went_on, load = folder.exists(), os.getloadavg()[0]
    words = [*asked.commands, "--margin", asked.margin, "--name", name, "--results", str(work), "--json"]
    began = time.monotonic()
    code, out, told = ended([*BENCH, *words], jobs.environment())
    seconds = None if went_on else round(time.monotonic() - began, 1)
    about: dict[str, Any] = {"seconds": seconds, **gathered.here(load), **asdict(asked), **own_clocks(folder)}
    try:
        said = json.loads(out)
        pair = Pair(**about, **verdict_of(said))
    except (ValueError, LookupError, TypeError):
        said = {}
        pair = Pair(**about, **NOTHING, why="")
    if pair.verdict == NOT_MEASURED:
        failed = "; ".join(said.get("failed", {}).values()) or " ".join(told.split())[-400:]
        return replace(pair, why=f"exit code {code}: {failed}")
    shutil.rmtree(folder)
    return pair


NOTHING: Mapping[str, Any] = {
    "verdict": NOT_MEASURED, "ratio": None, "low": None, "high": None, "launches": 0, "step_ms": None,
}  # fmt: skip


def verdict_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """What bench says of B, as columns of a pair. Raises LookupError, TypeError for what is not its JSON."""
    if not said["ratios"]:
        return {**NOTHING}
    (found,) = said["ratios"]
    low, high = found["low"], found["high"]
    if low is None or high is None:
        return {**NOTHING}
    verdict = AS_FAST if found["resolved"] else NOT_DIFFERENT
    if not low <= 1 <= high:
        verdict = FASTER if low > 1 else SLOWER
    first = said["commands"][0]["step_seconds"]
    known = {name: found[name] for name in ("ratio", "low", "high", "launches")}
    return {"verdict": verdict, **known, "step_ms": round(1e3 * first, 3), "caveats": "; ".join(found["caveats"])}


def ended(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """(exit code, output, errors) of a program, which is asked to end where this one is interrupted."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    with subprocess.Popen(argv, cwd=FOLDER, env=environment, start_new_session=True, **pipes) as running:
        try:
            out, told = running.communicate()
        except KeyboardInterrupt:
            running.send_signal(signal.SIGTERM)  # not SIGINT, which a background job ignores
            running.communicate()
            raise
    return running.returncode, out, told


def own_clocks(folder: Path) -> dict[str, float | None]:
    """What the scripts of a pair printed of their steps, from the logs of its launches."""
    steps: dict[str, list[float]] = {"a": [], "b": []}
    delays: list[float] = []
    for log in folder.rglob("log.txt"):
        if "looks" in log.relative_to(folder).parts:
            continue
        for name, step, took, delay in PACE.findall(log.read_text(encoding="utf-8", errors="replace")):
            if int(step) >= WARM:
                steps[name].append(float(took))
                delays += [float(delay)] if name == "b" else []
    if not (steps["a"] and steps["b"]):
        return {"by_own_clocks": None, "own_delay": None}
    a, b, delay = fmean(steps["a"]), fmean(steps["b"]), fmean(delays)
    return {"by_own_clocks": round(a / (b + delay), 5), "own_delay": round(delay / b, 5)}


def said(pair: Pair) -> str:
    what = f"{pair.script}{', delayed' * pair.delayed}"
    if pair.ratio is None:
        return f"{what}: {pair.verdict}: {pair.why}"
    took = "went on" if pair.seconds is None else f"{pair.seconds:.0f} s"
    return f"{what}: {pair.verdict}, {pair.ratio:.3f} [{pair.low:.3f}, {pair.high:.3f}], {took}"


def judged(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """The claims over all pairs that were measured, then rates and minutes of each script."""
    known = [pair for pair in pairs if pair.verdict != NOT_MEASURED]
    equal, delayed = ([pair for pair in known if pair.delayed == number] for number in (0, 1))
    sharp = [pair for pair in equal if pair.margin == SHARP_MARGIN and pair.seconds is not None]
    if equal:
        false, evidence = rate(equal, differs), {"data": DATA.name, "not_measured": len(pairs) - len(known)}
        claim = "equal commands called faster or slower by bench"
        yield Finding(claim, false, Bar(high=MOST), "%", of_rate(false), evidence, NOT_COMPARED)
    if delayed:
        claim = f"delays of {DELAY_PERCENT:g} % found by bench at a margin of {MARGIN}"
        hits = rate(delayed, found)
        yield Finding(claim, hits, Bar(low=SHARE), "%", of_share(hits, DELAYED_PAIRS), control=NOT_COMPARED)
    if sharp:
        claim = f"two equal commands of ResNet-18, two workers, as fast to {SHARP_MARGIN} in {SHARP_SECONDS:.0f} s"
        hits = rate(sharp, in_time)
        yield Finding(claim, hits, Bar(low=SHARE), "%", of_share(hits), control=NOT_COMPARED)
        seconds = between_repeats([pair.seconds or 0.0 for pair in sharp])
        yield Finding("seconds of these", seconds, Bar(high=SHARP_SECONDS), "s", control=NOT_COMPARED)
        widths = between_repeats([half_width(pair) for pair in sharp])
        yield Finding("margin of their intervals", widths, Bar(high=0.03), "%", control=NOT_COMPARED)
    if known:
        claim = f"pairs whose first losses are {EQUAL_LOSSES} as bench says, and nothing else of their work"
        yield Finding(claim, rate(known, works_alike), unit="%", control=NOT_COMPARED)
    yield from by_clocks(equal, delayed)
    yield from by_script(equal, delayed)


def by_clocks(equal: Sequence[Pair], delayed: Sequence[Pair]) -> Iterator[Finding]:
    """Was the delay what it should be, and does bench agree with the clocks of the scripts?"""
    planted = [pair.own_delay for pair in delayed if pair.own_delay is not None]
    if planted:
        bar, share = Bar(0.9 * DELAY_PERCENT / 100, 1.1 * DELAY_PERCENT / 100), between_repeats(planted)
        yield Finding("delays over steps, by the scripts' own clocks", share, bar, "%", control=NOT_COMPARED)
    both = [(p.ratio, p.by_own_clocks) for p in (*equal, *delayed) if p.ratio and p.by_own_clocks]
    alike = [(p.ratio, 1.0) for p in equal if p.ratio]
    if both:
        control = Control(ratio(alike)) if alike else None
        yield Finding(
            "ratio by bench over that by the scripts' own clocks", ratio(both), Bar(0.98, 1.02), control=control
        )


def by_script(equal: Sequence[Pair], delayed: Sequence[Pair]) -> Iterator[Finding]:
    for name, pairs, test in (("called unlike", equal, differs), ("delays found", delayed, found)):
        for script in SCRIPTS:
            if ours := [pair for pair in pairs if pair.script == script]:
                yield Finding(f"{script}: {name}", rate(ours, test), unit="%", control=NOT_COMPARED)
    for script in SCRIPTS:
        took = [pair.seconds / 60 for pair in (*equal, *delayed) if pair.script == script and pair.seconds]
        if took:
            yield Finding(f"{script}: minutes a pair", between_repeats(took), unit="min", control=NOT_COMPARED)


def differs(pair: Pair) -> bool:
    return pair.verdict in (FASTER, SLOWER)


def found(pair: Pair) -> bool:
    return pair.verdict == SLOWER


def in_time(pair: Pair) -> bool:
    return pair.verdict == AS_FAST and (pair.seconds or 0.0) <= SHARP_SECONDS


def works_alike(pair: Pair) -> bool:
    """No doubt of like work: the one caveat is that losses are equal."""
    return EQUAL_LOSSES in pair.caveats and "; " not in pair.caveats


def half_width(pair: Pair) -> float:
    assert pair.low is not None and pair.high is not None
    return (pair.high - pair.low) / 2


def rate(pairs: Iterable[Pair], test: Callable[[Pair], bool]) -> Interval:
    """How many of the pairs the test holds of: no two share a launch, so each counts by itself."""
    return proportion([(int(test(pair)), 1) for pair in pairs])


def of_share(hits: Interval, fewest: int = FEWEST_PAIRS) -> str:
    """The verdict on a share that is counted: at least SHARE of so many."""
    if hits.n < fewest:
        return NOT_RESOLVED
    return MET if hits.mean >= SHARE else MISSED
