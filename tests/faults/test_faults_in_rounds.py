"""Drivers, supervisors, launchers and ranks die while configurations are measured in rounds, by ranks that train.

A launch whose driver dies is one of fewer rounds: no more than the running round is lost. Whatever else dies ends its
own group; the one configuration that had its turn is run alone, and what the others had measured is theirs.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import eventually
import faulted_studies as studies
import psutil
import pytest
import survivors
from driver_faults import IN_ROUNDS, check_last_words
from injection import Inject, Injection
from ledger import FORM, SEED, TIMES
from namespace import Namespace, fill
from sweeping import Driver, Sweep, SweepOf

from scaling_study.commands.doctor import cases
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.warm_group import WarmGroup
from scaling_study.machine import Machine, installed, this_machine
from scaling_study.records import outcome, store
from scaling_study.settings import CHECKOUT
from scaling_study.study import groups
from scaling_study.trial import Trial, Window

ROUNDS, CONFIGURATIONS = 8, 3
LATER = "in rounds"  # after a fault's name in the table
GARBAGE = ("", "{", "[]", "null", '{"rank": 0}', "\0" * 100)


def blocks(launch: Path) -> Counter[str]:
    """Trial -> blocks that all of its ranks have timed."""
    lines = [line for path in launch.glob("*/blocks.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return Counter(json.loads(line)["trial"] for line in lines if line.endswith("\n"))


def until_round(sweep: Sweep, driver: Driver, round: int, after: Path | None) -> Path:
    """Wait until a launch after this one is in a round; the launch."""
    found: list[Path] = []

    def there() -> bool:
        launches = [path for path in sweep.results.glob("launches/*") if path.name.isdecimal()]
        found[:] = [max(launches, key=lambda path: int(path.name), default=after or Path())]
        counts = blocks(found[0])
        return found[0] != after and len(counts) == CONFIGURATIONS and min(counts.values()) >= round

    assert sweep.until(there, 300, driver), driver.said()
    return found[0]


def finish(sweep: Sweep, trials: set[str], meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Wait until all of these have records, and do something again and again."""

    def over() -> bool:
        meanwhile()
        return trials <= set(sweep.finished())

    return sweep.until(over, 120)


def of_frameworks(sweep_of: SweepOf, repeats: int, timeout: float = 120, launcher: str = "torchrun") -> Sweep:
    """Ranks that train in torch: one process, and two whose configurations share them."""
    return sweep_of(studies.in_rounds(ROUNDS, repeats, timeout, launcher), checkout=CHECKOUT)


def of_commands(sweep_of: SweepOf, repeats: int, timeout: float = 120, launcher: str = "") -> Sweep:
    """Commands of a user's own: two of one process, with loaders and an orphan that ignores SIGTERM; one by mpirun."""
    acts = {studies.ALONE: ["have_loaders", "train"], studies.BY_MPIRUN: ["train"]}
    sweep = sweep_of(studies.commands(acts, ROUNDS, repeats, timeout), checkout=CHECKOUT)
    studies.put_training(sweep.folder)
    sweep.book.touch()
    return sweep


KINDS = {LATER: of_frameworks, f"{LATER} of commands": of_commands}
WORDS = {of_frameworks: "in_blocks.py", of_commands: "train.py"}  # of the command line of ranks that a launcher started


# --- the driver


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


HITS = {name: [name] * TIMES for name in IN_ROUNDS}
if TIMES == 1:  # signals that are obeyed are obeyed alike: test_driver_faults.py sends each
    HITS = {"obeyed and not": list(IN_ROUNDS)[:2], "all at once": list(IN_ROUNDS)[-1:]}


@pytest.mark.parametrize("later", KINDS)
@pytest.mark.parametrize("hits", HITS.values(), ids=HITS)
def test_a_launch_whose_driver_ends_keeps_its_rounds(
    hits: list[str], later: str, sweep_of: SweepOf, inject: Inject
) -> None:
    chance, repeats, launch = random.Random(f"{SEED}/{hits[0]}"), len(hits) + 1, None
    sweep = KINDS[later](sweep_of, repeats, launcher="horovodrun --mpi")
    for name in hits:
        fault = IN_ROUNDS[name]
        driver = sweep.start("--no-report", terminal=fault.terminal)
        launch = until_round(sweep, driver, chance.randint(2, ROUNDS - 2), launch)
        with inject(sweep, f"{name}, {later}") as hit:
            fault.hit(driver, sweep)
            driver.wait(120)
            hit.all_gone()
            hit.kept()
            timed = blocks(launch)
            check_last_words(hit, driver, fault, begun=True)
            if not fault.stops:
                again = sweep.run("--max-trials", "0", "--no-report")  # opens the folder, and runs nothing
                hit.expect("Traceback" not in again.said(), again.said()[-600:])
            check_rounds(hit, sweep, timed, "the study was stopped" if fault.stops else "its driver ended")
    with inject(sweep, f"what follows, {later}") as hit:
        hit.goes_on(CONFIGURATIONS * repeats)


# --- what it has started


def hung(sweep: Sweep, rank: psutil.Process) -> bool:
    """Stop a rank whenever its driver has it go on, until its group is ended. False if that was not in time."""

    def ended() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.suspend()
        return not eventually.living(rank)

    return sweep.until(ended, 120)


@pytest.mark.parametrize("later", [LATER, pytest.param(f"{LATER} of commands", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "what", ["rank", *(pytest.param(what, marks=pytest.mark.long) for what in ("launcher", "supervisor", "hang"))]
)
def test_what_dies_in_rounds_ends_its_own_group(what: str, later: str, sweep_of: SweepOf, inject: Inject) -> None:
    name = "a rank that hangs (SIGSTOP)" if what == "hang" else f"kill -9 of a {what}"
    chance, launch = random.Random(f"{SEED}/{what}"), None
    repeats = TIMES + 1 + TIMES // 4  # some of which may be over before their ranks are found
    kind = KINDS[later]
    sweep = kind(sweep_of, repeats, timeout=60 if what == "hang" else 120)
    driver = sweep.start()
    for _ in range(TIMES):
        ranks: list[psutil.Process] = []
        while len(ranks) < 2:
            launch = until_round(sweep, driver, chance.randint(2, ROUNDS - 3), launch)
            ranks = survivors.ranks(sweep.processes(), WORDS[kind])  # of torchrun, of mpirun
        with inject(sweep, f"{name}, {later}") as hit:
            launcher = ranks[0].parent()
            supervisor = survivors.supervisors(launcher.parents())[0]
            victim = {"launcher": launcher, "supervisor": supervisor}.get(what, ranks[1])
            trials = set(blocks(launch))
            if what == "hang":
                hit.expect(hung(sweep, victim), "it was not ended at its time-out")
            else:
                victim.kill()
            hit.all_gone([victim, *ranks])
            hit.expect(finish(sweep, trials), f"its trials have no records: {driver.said()[-300:]}")
            hit.kept()
            check_groups(hit, sweep, trials)
    with inject(sweep, f"what follows {name}, {later}") as hit:
        hit.ends(driver, 0, seconds=300)
        hit.goes_on(CONFIGURATIONS * repeats)


def check_groups(hit: Injection, sweep: Sweep, trials: set[str]) -> None:
    """The other group has all its rounds; those of its own that it had, as alone nothing is wrong with any."""
    for record in (record for record in sweep.outcomes().values() if record.id in trials):
        count, words = len(record.ranks[0].blocks) if record.ranks else 0, " ".join(record.notes)
        told = f"{record.id}: {record.status} {record.reason}, {count} rounds, {words!r}, {record.launch}"
        hit.expect(record.status == "ok", told)
        if record.trial.workers == 1:
            hit.expect(count == ROUNDS and not words, f"another group: {told}")
        else:
            hit.expect(2 <= count < ROUNDS and f"/0.{count}-" in record.launch, told)
            hit.expect(words.startswith(f"its launch ended after {count} of {ROUNDS} blocks"), told)


@pytest.mark.long
def test_garbage_for_a_report_is_a_failure_of_one_configuration(sweep_of: SweepOf, inject: Inject) -> None:
    """Written over a rank's report whenever that is there."""
    chance, repeats, launch = random.Random(f"{SEED}/garbage"), TIMES + 1, None
    sweep = sweep_of(studies.in_rounds(ROUNDS, repeats), checkout=CHECKOUT)
    driver = sweep.start()

    def spoil(report: Path, garbage: str) -> None:
        with contextlib.suppress(OSError):  # set aside, or being renamed
            if report.read_text() != garbage:
                report.write_text(garbage)

    for _ in range(TIMES):
        launch = until_round(sweep, driver, 1, launch)
        with inject(sweep, f"a report that is garbage, {LATER}") as hit:
            trials = set(blocks(launch))
            victim, garbage = chance.choice(sorted(trials)), chance.choice(GARBAGE)
            report = sweep.results / "trials" / victim / "ranks" / "rank-0.json"
            written = finish(sweep, trials, lambda report=report, garbage=garbage: spoil(report, garbage))
            hit.expect(written, f"its trials have no records: {driver.said()[-300:]}")
            hit.kept()
            for record in (record for record in sweep.outcomes().values() if record.id in trials):
                told = f"{record.id}: {record.status} {record.reason}, {len(record.ranks)} ranks, {garbage!r}"
                hit.expect(record.status == ("failed" if record.id == victim else "ok"), told)
                hit.expect(record.id != victim or "rank" in record.reason, told)
    with inject(sweep, f"what follows garbage, {LATER}") as hit:
        hit.ends(driver, 1, seconds=300)
        hit.goes_on(CONFIGURATIONS * repeats, "failed")


@pytest.mark.long
def test_a_full_disk_costs_at_most_the_running_launch(sweep_of: SweepOf, inject: Inject, namespace: Namespace) -> None:
    repeats = 3  # so that there is more to do, should the second launch end before the disk is full
    sweep = sweep_of(studies.in_rounds(ROUNDS, repeats), checkout=CHECKOUT, namespace=namespace)
    sweep.into.mkdir()
    namespace.memory_disk(sweep.into, "24m")
    driver = sweep.start()
    launch = until_round(sweep, driver, 3, until_round(sweep, driver, 1, None))
    with inject(sweep, f"disk full, {LATER}", "environment") as hit:
        ballast = fill(sweep.seen(sweep.into))
        hit.ended_by_a_full_disk(driver)
        ballast.unlink()
        hit.goes_on(repeats * CONFIGURATIONS)
        second = [record for record in sweep.outcomes().values() if record.launch.startswith(f"{launch.name}/")]
        hit.expect(second, "nothing is kept of the launch that it ended, whose ranks had three rounds")


# --- a long stop: no time-out of Gloo, MPI or a process group may take a rank that waits for one that hangs


STOP_SECONDS = 120.0 if FORM == "long" else 3.0
STEPS = 2


def launches(machine: Machine) -> Iterator[Trial]:
    """One of every framework and launcher that share launches on this host."""
    for trial in cases(machine):
        shares = not groups.why_cold(trial) and trial.input is None and trial.device == "cpu"
        if shares and all(map(installed, FRAMEWORKS[trial.framework].needs)):
            yield trial


@pytest.mark.long
def test_ranks_of_all_go_on_after_a_long_stop(tmp_path: Path) -> None:
    asked = list(launches(this_machine()))
    assert {trial.framework for trial in asked} >= {"single", "torch_ddp", "torch_fsdp2"}
    with contextlib.ExitStack() as alive:
        started = []
        for number, trial in enumerate(asked):
            folder = tmp_path / f"{number}-{trial.framework}"
            folder.mkdir()
            trial = replace(trial, window=Window(1, 2 * STEPS, 0.0, None, 2 * STEPS))
            group = alive.enter_context(WarmGroup([trial], folder / "launch", [folder], 300.0))
            with group.turn():
                group.build(0)
                group.block(0, 0, STEPS, untimed=True)
            started.append(group)
        pids = [rank.pid for group in started for rank in group.ranks]
        eventually.until(lambda: all(map(eventually.stopped, pids)))
        time.sleep(STOP_SECONDS)
        assert all(map(eventually.stopped, pids))
        for group in started:
            with group.turn():
                group.block(0, 1, STEPS, untimed=True)
    for group, trial in zip(started, asked, strict=True):
        assert group.exit and group.exit.code == 0, trial.framework
        ranks = store.read_ranks(group.folders[0], trial.processes)
        assert [len(rank.step_seconds) for rank in ranks] == [2 * STEPS] * trial.processes
        assert not outcome.first_problem(group.trials[0], tuple(ranks))
    assert not eventually.gone(pids)
