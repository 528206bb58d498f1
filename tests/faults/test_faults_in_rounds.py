"""Drivers, supervisors, launchers and ranks die while configurations are measured in rounds, by ranks that train.

A launch whose driver dies is one of fewer rounds: no more than the running round is lost. Whatever else dies ends its
own group; the one configuration that had its turn is run alone, and what the others had measured is theirs.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import faulted_studies as studies
import psutil
import pytest
import survivors
from forms import SEED, TIMES
from injection import Injection, injection
from ledger import Ledger
from namespace import Namespace, fill
from sweeping import Driver, Sweep

from scaling_study.records.store import Record
from scaling_study.settings import CHECKOUT

ROUNDS, CONFIGURATIONS = 8, 3
LATER = "in rounds"  # after a fault's name in the table
HANGS = "a rank that hangs (SIGSTOP)"
GARBAGE = ("", "{", "[]", "null", '{"rank": 0}', "\0" * 100)


def latest(sweep: Sweep) -> Path | None:
    """The launch with the highest number."""
    launches = [path for path in sweep.results.glob("launches/*") if path.name.isdecimal()]
    return max(launches, key=lambda path: int(path.name), default=None)


def blocks(launch: Path | None) -> Counter[str]:
    """Trial -> blocks that all of its ranks have timed."""
    counts: Counter[str] = Counter()
    for path in launch.glob("*/blocks.jsonl") if launch else ():
        whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        counts.update(json.loads(line)["trial"] for line in whole)
    return counts


def until_round(sweep: Sweep, driver: Driver, round: int, after: Path | None) -> Path:
    """Wait until a launch after this one is in a round; the launch."""

    found: list[Path] = []

    def there() -> bool:
        if (launch := latest(sweep)) in (None, after):
            return False
        counts = blocks(launch)
        found[:] = [launch] if launch else []
        return len(counts) == CONFIGURATIONS and min(counts.values()) >= round

    assert sweep.until(there, 300, driver), driver.said()
    return found[0]


def check_rounds(hit: Injection, sweep: Sweep, timed: Counter[str], why: str) -> None:
    """Each configuration has a record of the rounds that all had, or of one more that its ranks had just reported."""
    records, whole = sweep.outcomes(), min(timed.values())
    for trial in timed:
        record = records.get(trial)
        if hit.expect(record and record.status == "ok", f"{trial}: {record and (record.status, record.reason)}"):
            assert record
            kept = {len(rank.blocks) for rank in record.ranks}
            hit.expect(kept in ({whole}, {whole + 1}), f"{trial}: {kept} rounds are kept of {whole}")
            hit.expect(why in " ".join(record.notes), f"{trial}: {record.notes}")


ALL_AT_ONCE = "kill -9 of all at once"
DRIVER_FAULTS = {
    "SIGTERM to the driver": signal.SIGTERM,
    "SIGHUP to the driver": signal.SIGHUP,
    "kill -9 of the driver": signal.SIGKILL,
    "Ctrl-C": signal.SIGINT,
    ALL_AT_ONCE: signal.SIGKILL,
}
HITS = {name: [name] * TIMES for name in DRIVER_FAULTS}
if TIMES == 1:
    HITS = {"each in turn": [name for name in DRIVER_FAULTS if name != ALL_AT_ONCE], ALL_AT_ONCE: [ALL_AT_ONCE]}


def end_all(sweep: Sweep) -> None:
    """Nobody ends anything, and what lay in memory is gone, as when the machine restarts."""
    while processes := sweep.processes():
        survivors.end(processes)
        survivors.gone(processes, 3.0)
    for path in sweep.seen(Path("/dev/shm")).iterdir() if sweep.namespace else ():
        path.unlink()


@pytest.mark.parametrize("hits", HITS.values(), ids=HITS)
def test_a_launch_whose_driver_ends_keeps_its_rounds(
    hits: list[str], sweep_of: Callable[..., Sweep], ledger: Ledger
) -> None:
    chance = random.Random(f"{SEED}/{hits[0]}")
    repeats = len(hits) + 1
    sweep = sweep_of(studies.in_rounds(ROUNDS, repeats, launcher="horovodrun --mpi"), checkout=CHECKOUT)
    before = None
    for name in hits:
        driver, number = sweep.start("--no-report"), DRIVER_FAULTS[name]
        launch = until_round(sweep, driver, chance.randint(2, ROUNDS - 2), before)
        with injection(ledger, sweep, f"{name}, {LATER}") as hit:
            end_all(sweep) if name == ALL_AT_ONCE else driver.send(number)
            driver.wait(120)
            hit.all_gone()
            hit.kept()
            timed, before = blocks(launch), launch
            if number == signal.SIGKILL:
                hit.expect(driver.code == -number, f"exit code {driver.code}")
                again = sweep.run("--max-trials", "0", "--no-report")  # opens the folder, and runs nothing
                hit.expect("Traceback" not in again.said(), again.said()[-600:])
                check_rounds(hit, sweep, timed, "its driver ended")
            else:
                hit.expect(driver.code == 130, f"exit code {driver.code}: {driver.said()[-300:]}")
                hit.said(driver, f"Stopped by {number.name}", "To resume: python")
                check_rounds(hit, sweep, timed, "the study was stopped")
    with injection(ledger, sweep, f"what follows, {LATER}") as hit:
        hit.goes_on(CONFIGURATIONS * repeats)


OTHERS = [pytest.param(what, marks=pytest.mark.long) for what in ("launcher", "supervisor", HANGS)]


@pytest.mark.parametrize("what", ["rank", *OTHERS])
def test_what_dies_in_rounds_ends_its_own_group(what: str, sweep_of: Callable[..., Sweep], ledger: Ledger) -> None:
    chance = random.Random(f"{SEED}/{what}")
    repeats = TIMES + 1 + TIMES // 4  # some of which may be over before their ranks are found
    sweep = sweep_of(studies.in_rounds(ROUNDS, repeats, timeout=60 if what == HANGS else 120), checkout=CHECKOUT)
    driver, before = sweep.start(), None
    for _ in range(TIMES):
        ranks: list[psutil.Process] = []
        while len(ranks) < 2:
            before = until_round(sweep, driver, chance.randint(2, ROUNDS - 3), before)
            ranks = survivors.ranks(sweep.processes(), "in_blocks.py")  # of torchrun
        with injection(ledger, sweep, f"{what if what == HANGS else f'kill -9 of a {what}'}, {LATER}") as hit:
            launcher = ranks[0].parent()
            victim = {"launcher": launcher, "supervisor": launcher.parent()}.get(what, ranks[1])
            trials = set(blocks(before))
            if what == HANGS:
                hit.expect(hung(sweep, victim), "it was not ended at its time-out")
            else:
                victim.kill()
            hit.all_gone([victim, *ranks])
            hit.expect(finish(sweep, trials), f"its trials have no records: {driver.said()[-300:]}")
            hit.kept()
            check_groups(hit, [record for record in sweep.outcomes().values() if record.id in trials])
    with injection(ledger, sweep, f"what follows {what if what == HANGS else f'a {what}'}, {LATER}") as hit:
        hit.expect(driver.wait(300) == 0, f"exit code {driver.code}")
        hit.goes_on(CONFIGURATIONS * repeats)


def hung(sweep: Sweep, rank: psutil.Process) -> bool:
    """Stop a rank whenever its driver has it go on, until its group is ended. Whether that was in time."""

    def ended() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.suspend()
        return not survivors.living(rank)

    return sweep.until(ended, 120)


@pytest.mark.long
def test_garbage_for_a_report_is_a_failure_of_one_configuration(sweep_of: Callable[..., Sweep], ledger: Ledger) -> None:
    """Written over a rank's report whenever that is there."""
    chance, repeats = random.Random(f"{SEED}/garbage"), TIMES + 1
    sweep = sweep_of(studies.in_rounds(ROUNDS, repeats), checkout=CHECKOUT)
    driver, before, failed = sweep.start(), None, set[str]()
    for _ in range(TIMES):
        before = until_round(sweep, driver, 1, before)
        with injection(ledger, sweep, f"a report that is garbage, {LATER}") as hit:
            trials = set(blocks(before))
            victim, garbage = chance.choice(sorted(trials)), chance.choice(GARBAGE)
            failed.add(victim)
            report = sweep.results / "trials" / victim / "ranks" / "rank-0.json"
            hit.expect(spoilt(sweep, report, garbage, trials), f"its trials have no records: {driver.said()[-300:]}")
            hit.kept()
            for record in (record for record in sweep.outcomes().values() if record.id in trials):
                told = f"{record.id}: {record.status} {record.reason}, {len(record.ranks)} ranks, {garbage!r}"
                hit.expect(record.status == ("failed" if record.id == victim else "ok"), told)
                hit.expect(record.id != victim or "rank" in record.reason, told)
    with injection(ledger, sweep, f"what follows garbage, {LATER}") as hit:
        hit.expect(driver.wait(300) == 1, f"exit code {driver.code}")
        hit.runs_again("failed")
        hit.goes_on(CONFIGURATIONS * repeats, "--retry", "failed")


def spoilt(sweep: Sweep, report: Path, garbage: str, trials: set[str]) -> bool:
    """Keep a report spoilt until all of these trials have records."""

    def over() -> bool:
        with contextlib.suppress(OSError):  # set aside, or being renamed
            if report.read_text() != garbage:
                report.write_text(garbage)
        return trials <= set(sweep.finished())

    return sweep.until(over, 120)


@pytest.mark.long
def test_a_full_disk_costs_at_most_the_running_launch(
    sweep_of: Callable[..., Sweep], ledger: Ledger, namespace: Namespace
) -> None:
    sweep = sweep_of(studies.in_rounds(ROUNDS, 2), checkout=CHECKOUT, namespace=namespace)
    sweep.into.mkdir()
    namespace.memory_disk(sweep.into, "24m")
    driver = sweep.start()
    first = until_round(sweep, driver, 1, None)
    launch = until_round(sweep, driver, 3, first)
    with injection(ledger, sweep, f"disk full, {LATER}", "environment") as hit:
        ballast = fill(sweep.seen(sweep.into))
        hit.ended_by_a_full_disk(driver)
        ballast.unlink()
        hit.goes_on(2 * CONFIGURATIONS)
        second = [record for record in sweep.outcomes().values() if record.launch.startswith(f"{launch.name}/")]
        hit.expect(second, "nothing is kept of the launch that it ended, whose ranks had three rounds")


def finish(sweep: Sweep, trials: set[str]) -> bool:
    return sweep.until(lambda: trials <= set(sweep.finished()), 120)


def check_groups(hit: Injection, records: list[Record]) -> None:
    """The other group has all its rounds; those of its own that it had, as alone nothing is wrong with any."""
    for record in records:
        blocks, words = len(record.ranks[0].blocks) if record.ranks else 0, " ".join(record.notes)
        told = f"{record.id}: {record.status} {record.reason}, {blocks} rounds, {words!r}, {record.launch}"
        if record.trial.framework == "single":
            hit.expect(record.status == "ok" and blocks == ROUNDS and not words, f"another group: {told}")
        else:
            hit.expect(record.status == "ok" and 2 <= blocks < ROUNDS, told)
            hit.expect(words.startswith(f"its launch ended after {blocks} of {ROUNDS} blocks"), told)
            hit.expect(f"/0.{blocks}-" in record.launch, told)
