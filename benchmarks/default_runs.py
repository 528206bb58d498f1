"""The default study, run again and again at different hours: how sharp it is, and how long it takes.

    python -m benchmarks default_runs              one more run, and what all runs so far say
    python -m benchmarks default_runs --pairs 3    three more

Claimed of sweeps.yaml, as it is: in nine of ten runs (1) half of the speed-ups' 95 % intervals are at most 4 % wide to
each side, (2) none is more than 8 %; (3) each run takes at most 300 s.

Measured: the whole command, tables and figures included, with the data there. A run is one row of
benchmarks/data/default_runs.csv, appended when it has ended; one that is interrupted leaves none, and begins anew. Only
runs of the same study count together: the column `study` is the hash of what its file asks for.

The records of a run that misses a bar are kept, packed, in .cache/benchmarks/default_runs/: its report says why.

Runs of one hour share its conditions: spread them over days. The column `processor` tells machines apart, whose starts
and steps may take twice as long; all of them count together.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.frames import results
from benchmarks import default_study, over_links
from benchmarks.options import Options
from benchmarks.paired import MET, MISSED, NOT_COMPARED, NOT_RESOLVED, Bar, Finding
from scaling_study.machine import this_machine
from scaling_study.records import pack, store
from scaling_study.settings import CACHE, commit, utc_now
from scaling_study.stats.intervals import Interval

DATA = Path(__file__).with_name("data") / "default_runs.csv"
KEPT = CACHE / "benchmarks" / "default_runs"
FEWEST = 10  # runs, for a verdict
SHARE = 0.9  # of the runs, that are to be within a bar
BARS = {"seconds": Bar(high=300.0), "median_margin": Bar(high=0.04), "largest_margin": Bar(high=0.08)}
WORDS = {
    "seconds": "seconds of run_sweep.py sweeps.yaml",
    "median_margin": "margin of its speed-ups, median",
    "largest_margin": "margin of its speed-ups, the widest",
}
Row = Mapping[str, Any]


def run(options: Options) -> list[Finding]:
    of_study = asked()
    with tempfile.TemporaryDirectory(prefix="default-") as made:
        data = Path(made) / DATA.name if options.quick else DATA
        for number in range(options.pairs(1)):
            append(data, {"study": of_study, **measured(Path(made) / str(number), options.quick)})
        rows = [row for row in read(data) if row["study"] == of_study]
    return [finding(rows, name) for name in BARS if any(row[name] for row in rows)]


def asked() -> str:
    """12 characters of what sweeps.yaml asks for, whatever its comments and however its keys are spelt."""
    content = json.dumps(default_study.study("default", quick=False), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def measured(work: Path, quick: bool) -> dict[str, Any]:
    """One run of the study in an empty folder: its row, without what names the study."""
    work.mkdir()
    about = {"date": utc_now(), "commit": commit(), "processor": this_machine().cpu}
    about |= {"load_before": round(os.getloadavg()[0], 2)}
    start = time.monotonic()
    folder = over_links.swept(default_study.study("default", quick), work, words=())
    seconds = time.monotonic() - start
    timed = default_study.timed_seconds(store.read_study(folder))
    margins = default_study.margins_of_speedups(results.read(folder))
    row = about | {
        "seconds": round(seconds, 1),
        "timed_share": round(timed / seconds, 3),
        "speedups": len(margins),
        "median_margin": round(float(margins.median()), 5) if len(margins) else "",
        "largest_margin": round(float(margins.max()), 5) if len(margins) else "",
    }
    if any(row[name] and row[name] > bar.high for name, bar in BARS.items()):
        KEPT.mkdir(parents=True, exist_ok=True)
        pack.pack(folder, KEPT / f"{about['date'].replace(':', '')}{pack.SUFFIX}")
    shutil.rmtree(work)
    return row


def append(data: Path, row: Row) -> None:
    data.parent.mkdir(exist_ok=True)
    new = not data.exists()
    with data.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def read(data: Path) -> list[dict[str, str]]:
    with data.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def finding(rows: Sequence[Row], name: str) -> Finding:
    """Of all runs, in words: the value that nine of ten do not exceed, and how many are within the bar."""
    values, bar = sorted(float(row[name]) for row in rows if row[name]), BARS[name]
    within = sum(bar.low <= value <= bar.high for value in values)
    most = values[max(0, -(-len(values) * 9 // 10) - 1)] if values else float("nan")
    missing = max(0, FEWEST - len(values))
    missed = within + missing < SHARE * (len(values) + missing)  # whatever those that are missing will be
    verdict = MISSED if missed else NOT_RESOLVED if missing else MET
    claim = f"{WORDS[name]}: of {len(values)} runs {within} within the bar; nine of ten at most"
    unit = "s" if name == "seconds" else "%"
    evidence = {"runs": [dict(row) for row in rows]}
    figure = Interval(most, None, None, len(values))
    return Finding(claim, figure, bar, unit, verdict, evidence, control=NOT_COMPARED)
