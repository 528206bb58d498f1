"""The default study takes five minutes, and says what half an hour of the same would have said.

Claimed of sweeps.yaml, as it is: (1) `run_sweep.py sweeps.yaml` takes at most 300 s, (2) at least 30 % of them inside
timed steps; (3) half of its speed-ups' 95 % intervals, and of those of fp16 over fp32, are at most 4 % wide to each
side, and none more than 8 %; (4) of a long run's speed-ups at least 10 of 12 lie in the short one's intervals; (5) of
its pairs that differ by more than 10 %, the short run decides at least 80 %, and (6) none the wrong way; (7) of none of
its configurations it is said that it left something behind in its processes.

Measured: the study once, and once more with 20 launches instead of 6. What the long run says is taken for the truth,
though it has an interval too. A pair, of one model, is decided where its ratio's 95 % interval does not hold 1; by
chance one in twenty equal ones would be. Seconds are those of the whole command, tables and figures included, with the
data there.

Not shown: another machine; launches of another day. Interrupted, it goes on where it was, and then has no seconds of
the first run (`--fresh`: begin anew).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from analysis.frames import configurations, results
from analysis.frames.configurations import known
from analysis.views import allreduce_gain
from benchmarks import over_links
from benchmarks.options import Options
from benchmarks.paired import Bar, Finding, exact
from benchmarks.warm import leaks
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CACHE, CHECKOUT
from scaling_study.study.study import contents

KEPT = CACHE / "benchmarks" / "default_study"
LONG = 20  # launches
DIFFERENT = 0.10  # what a pair differs by, for the short run to be asked about it
Row = Mapping[Any, Any]


def run(options: Options) -> list[Finding]:
    with options.work(KEPT) as work:
        short = study("short", options.quick)
        new, start = not (work / "short").exists(), time.monotonic()
        folder = over_links.swept(short, work, words=())
        seconds = time.monotonic() - start if new else None
        said = truth = results.read(folder)
        if not options.quick:
            many = {"repeats": LONG, "max_repeats": LONG}
            truth = results.read(over_links.swept({**short, "study": "long", "measure": short["measure"] | many}, work))
        records = list(store.read_study(folder))
        timed = timed_seconds(records)
        if not options.quick:
            records += store.read_study(work / "long")
    findings = [*_widths(said), *_agreement(said.rows, truth.rows), leaks(records)]
    if seconds is not None:
        findings = [
            exact("seconds of run_sweep.py sweeps.yaml", seconds, Bar(high=300.0), "s"),
            exact("of them inside timed steps", timed / seconds, Bar(low=0.3), "%"),
            *findings,
        ]
    return findings


def study(name: str, quick: bool) -> dict[str, Any]:
    """The default study's content, under another name; in the quick form one launch of two configurations."""
    asked: dict[str, Any] = contents(CHECKOUT / "sweeps.yaml").value
    asked["study"] = name
    if quick:
        asked["measure"] |= {"rounds": 2, "block_seconds": 0.05, "min_seconds": 0, "repeats": 1, "max_repeats": 1}
        asked |= {"parity": False, "sweeps": [sweep for sweep in asked["sweeps"] if sweep["framework"] == "single"]}
        asked["sweeps"][0]["matrix"]["model"] = ["resnet8"]
    return asked


def timed_seconds(records: Iterable[Record]) -> float:
    """Inside timed steps, of the slowest rank of each trial."""
    return sum(max(rank.window_seconds for rank in record.ranks) for record in records if record.ranks)


def margins_of_speedups(said: results.Results) -> Any:
    """Half-widths of the speed-ups' 95 % intervals, relative to each, as a Series."""
    rows = said.configurations
    held = rows[rows.baseline != rows.configuration]
    return ((held.speedup_high - held.speedup_low) / 2 / held.speedup).dropna()


def _widths(said: results.Results) -> Iterator[Finding]:
    """Half-widths of speed-ups and of gains of fp16, each in the median and the widest."""
    gains = allreduce_gain.gains(said)
    of_gains = ((gains.gain_high - gains.gain_low) / 2 / gains.gain).dropna()
    for what, widths in (("speed-ups", margins_of_speedups(said)), ("gains of fp16", of_gains)):
        if len(widths):
            yield exact(f"margin of {what}, median of {len(widths)}", widths.median(), Bar(high=0.04), "%")
            yield exact(f"margin of {what}, the widest", widths.max(), Bar(high=0.08), "%")


def _agreement(said: Sequence[Row], truth: Sequence[Row]) -> Iterator[Finding]:
    """How the short run's intervals and verdicts compare with the long run's values."""
    by_name = {row["configuration"]: row for row in truth if row["n"]}
    both = [row for row in said if row["n"] and row["configuration"] in by_name]
    held = [row for row in both if row["baseline"] != row["configuration"] and known(row["speedup_low"])]
    inside = [row["speedup_low"] <= by_name[row["configuration"]]["speedup"] <= row["speedup_high"] for row in held]
    pairs: list[list[Any]] = []
    for a, b in itertools.combinations(both, 2):
        real = configurations.over(by_name[a["configuration"]], by_name[b["configuration"]]).mean
        seen = configurations.over(a, b)
        if a["model"] == b["model"] and abs(real - 1) > DIFFERENT and seen.low is not None and seen.high is not None:
            pairs.append([a["configuration"], b["configuration"], real, seen.low, seen.high])
    decided = [pair for pair in pairs if not pair[3] <= 1 <= pair[4]]
    wrong = [pair for pair in decided if (pair[2] > 1) != (pair[3] > 1)]
    if inside:
        title = f"of {len(inside)} speed-ups of the long run, in the intervals"
        yield exact(title, sum(inside) / len(inside), Bar(low=10 / 12), "%")
    if pairs:
        title = f"of {len(pairs)} pairs that differ by more than {DIFFERENT:.0%}"
        yield exact(f"{title}, decided", len(decided) / len(pairs), Bar(low=0.8), "%", pairs=pairs)
        yield exact(f"{title}, decided the wrong way", len(wrong) / len(pairs), Bar(high=0.0), "%")
