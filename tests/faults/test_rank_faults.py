"""A rank misbehaves, one way each, alone and as one of two under mpirun: what it did is the outcome of its own trial.

Nobody hits these from outside. A book tells each trial's seed what its rank is to do, after a random part of its time
(planted_rank.py). Then the book is closed, and what had failed is run again.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import faulted_studies as studies
import psutil
from injection import Inject, Injection
from ledger import TIMES
from planted_rank import KINDS_OF_GARBAGE
from sweeping import Running, SweepOf, each_trial

from scaling_study.records import store
from scaling_study.records.schema import Record

GIB, MIB = 2**30, 2**20
FLOOD_BYTES = 2 * GIB if TIMES > 1 else GIB
MOST_BYTES = 16 * MIB  # that a flooded trial's folder may hold at any time; the log keeps 8 MiB
ENDLESS_SECONDS = 2  # time-out of ranks that never end
PATIENCE_SECONDS = 240  # with others: on a busy machine 2 GiB take their time through mpirun


@dataclass(frozen=True)
class Act:
    """What a rank does, and what its trial has come to then. In the short form each is done under one launcher."""

    name: str
    word: str  # in the book
    status: str
    launcher: str
    reason: str = ""  # how it begins


OVERDUE = f"not finished after {ENDLESS_SECONDS} s"
ACTS = [
    Act("a rank that hangs (SIGSTOP)", "hang", "timeout", "mpirun", OVERDUE),
    Act("a rank that loops", "loop", "timeout", "python", OVERDUE),
    Act("a rank that floods its log", "flood", "ok", "python"),
    Act("a rank that writes garbage for its report", "garbage", "failed", "python"),
    Act("a rank that writes NaN into its report", "not_a_number", "failed", "mpirun"),
    Act("a rank that exits 0 without a report", "silence", "failed", "python", "exited with 0"),
    Act("a rank whose grandchild outlives it", "grandchild", "ok", "mpirun"),
]
if TIMES == 1:  # every kind of garbage once, instead of chance's
    (garbage,) = (act for act in ACTS if act.word == "garbage")
    ACTS += [replace(garbage, word=f"garbage:{kind}") for kind in range(KINDS_OF_GARBAGE)]
    ACTS.remove(garbage)


def test_what_a_rank_does_is_the_outcome_of_its_own_trial(sweep_of: SweepOf, inject: Inject) -> None:
    acts, repeats = dict(enumerate(ACTS, start=1)), max(1, TIMES // 2)
    groups = [
        (launcher, [s for s, a in acts.items() if (a.status == "timeout") == endless and launcher in under(a)], seconds)
        for launcher in ("python", "mpirun")
        for endless, seconds in ((True, ENDLESS_SECONDS), (False, PATIENCE_SECONDS))
    ]
    trials = repeats * sum(len(seeds) for _, seeds, _ in groups)
    sweep = sweep_of(studies.told(groups, repeats), PLANTED_FLOOD_BYTES=str(FLOOD_BYTES))
    sweep.book.write_text(json.dumps({seed: act.word for seed, act in acts.items()}))
    driver, hits = sweep.start(), list[Injection]()
    for running in each_trial(sweep, driver):
        act = acts[store.asked_of(sweep.results / "trials" / running.trial).seed]
        with inject(sweep, act.name, "rank", f"{act.word} {running.kind}") as hit:
            hits.append(hit)
            seen, most = watched(running)
            hit.all_gone(seen)
            hit.kept()
            hit.expect(most < MOST_BYTES, f"{most / MIB:.0f} MiB on disk")
            judge(hit, act, running.kind, sweep.outcomes().get(running.trial))
            log = (sweep.results / "trials" / running.trial / "log.txt").stat().st_size
            hit.expect(log < 9 * MIB, f"the log has {log} bytes")
    assert hits, driver.said()
    hit = hits[-1]
    hit.ends(driver, 1, "its log: ", seconds=PATIENCE_SECONDS + 120)
    hit.expect(len(sweep.finished()) == trials, f"{len(sweep.finished())} of {trials} trials")
    sweep.book.unlink()
    patient = sweep.file.read_text().replace(f"timeout_seconds: {ENDLESS_SECONDS},", "timeout_seconds: 240,")
    sweep.file.write_text(patient)  # on a busy machine a launcher alone takes longer than ranks that never end may
    hit.goes_on(trials, "failed", "timeout")


def under(act: Act) -> tuple[str, ...]:
    return (act.launcher,) if TIMES == 1 else ("python", "mpirun")


def judge(hit: Injection, act: Act, launcher: str, record: Record | None) -> None:
    if hit.expect(record, "no record") and record:
        said = f"{record.id}: {record.status} {record.reason!r} instead of {act.status}"
        its_own = launcher == "python" or act.status == "timeout"  # else mpirun may have words of its own first
        hit.expect(record.status == act.status and record.reason.startswith(act.reason if its_own else ""), said)
        hit.expect(record.status == "ok" or record.reason, "no reason is given")


def watched(running: Running) -> tuple[list[psutil.Process], int]:
    """Every process that the trial was seen to have, and the most bytes that its folder took, until its record."""
    seen: dict[int, psutil.Process] = {}
    most = 0

    def ended() -> bool:
        nonlocal most
        seen.update({process.pid: process for process in running.processes() if running.names(process)})
        most = max(most, bytes_under(running.sweep.results / "trials" / running.trial))
        return running.trial in running.sweep.finished()

    running.sweep.until(ended, PATIENCE_SECONDS + 30, running.driver, every=0.05)
    return list(seen.values()), most


def bytes_under(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # renamed meanwhile
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
