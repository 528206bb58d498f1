"""Commands of a user's own that misbehave, and a Ctrl-C at each phase of their launches.

All acts are configurations of one study, which share its launches with commands that behave: those lose nothing. Then
the book is closed, everybody behaves, and what had failed is run again. What befalls the driver, launchers and ranks
while commands take turns is in test_faults_in_rounds.py.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

import faulted_studies as studies
import pytest
from driver_faults import FAULTS, check_last_words
from faulted_studies import ALONE, BY_MPIRUN, QUOTED
from injection import Inject, Injection
from ledger import TIMES
from sweeping import Sweep, SweepOf

from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT

ROUNDS, MIN_STEPS = 3, 6
TIMEOUT_SECONDS = 8  # of a start, of a block, and of a command alone, where some are to run into it
PATIENCE_SECONDS = 60  # where none is: twenty interpreters that start at once take seconds of a busy machine


@dataclass(frozen=True)
class Act:
    """What a command does (planted_training.py), and what its trial has come to then."""

    name: str
    status: str = "ok"
    reason: str = ""  # it has these words
    also: str = ""  # likewise
    command: str = ALONE
    among: str = ""  # words of why its processes were ended in the launch that it shares
    printed: str = ""  # in its log

    @property
    def workers(self) -> int:
        return 2 if self.command == BY_MPIRUN else 1


DROPPED = "PYTHONPATH must reach its Python processes"
OVERDUE = f"not finished after {TIMEOUT_SECONDS} s"
NO_INPUT = "a command has no terminal, and /dev/null as its input"
ACTS = [
    Act("train"),
    Act("train", command=BY_MPIRUN),
    *map(Act, ("fork", "have_loaders", "ignore_sigterm", "delete_its_output", "change_folder")),
    *map(Act, ("have_a_site_of_its_own", "call_the_driver")),
    Act("take_words", command=QUOTED),
    Act("crash", "failed", "exit code 1: RuntimeError: no such data", "8 steps", among="a rank ended"),
    Act("crash_at_once", "failed", "exit code 1: there is no such configuration"),
    Act("never_step", "failed", DROPPED),
    Act("end_early", "failed", "8 steps were seen", among="a rank ended"),
    Act("be_killed", "failed", "signal 9", "8 steps", among="a rank ended"),
    Act("read_input", "failed", "EOFError", NO_INPUT),
    Act("need_terminal", "failed", "OSError", NO_INPUT),
    Act("delete_records", "failed", "deleted the folder", among="deleted the folder"),
    Act("delete_records_at_once", "failed", "deleted the folder", among="not observed: FileNotFoundError"),
    Act("have_no_room", "failed", "not observed: OSError: ", among="rank 0: not observed: ", printed="to its end"),
    Act("find_its_records_read_only", "failed", "not observed: ", among="rank 0: not observed: ", printed="to its end"),
    Act("become_a_daemon", "failed", "it left ", "behind, which were ended",
        among="the launch ended before its ranks had joined"),
    Act("lose_patience", "failed", "in a launch with others: block: a rank ended", among="a rank ended"),
    Act("say_nothing", "timeout", OVERDUE),
    Act("ignore_sigterm_and_hang", "timeout", OVERDUE),
    Act("drop_environment", "timeout", OVERDUE, DROPPED),
    Act("unset_path", "timeout", OVERDUE, DROPPED),
    Act("disagree", "timeout", OVERDUE, "unlike steps", BY_MPIRUN, "only 1 of 2 ranks had joined"),
]  # fmt: skip


# In the long form each is a part of its own: most of a late one's time is its time-out.
LATE = [act for act in ACTS if act.status == "timeout"]
STUDIES = {"in time": [act for act in ACTS if act not in LATE], "late": [*ACTS[:2], *LATE]}
WAITS = [pytest.param(acts, marks=[pytest.mark.long] * (name == "late"), id=name) for name, acts in STUDIES.items()]


def sweep_with(sweep_of: SweepOf, acts: list[Act], repeats: int) -> Sweep:
    """A sweep whose commands do as they are called."""
    named = {command: [act.name for act in acts if act.command == command] for command in (ALONE, BY_MPIRUN, QUOTED)}
    asked = {command: names for command, names in named.items() if names}
    seconds = TIMEOUT_SECONDS if any(act.status == "timeout" for act in acts) else PATIENCE_SECONDS
    sweep = sweep_of(studies.commands(asked, ROUNDS, repeats, seconds, MIN_STEPS), checkout=CHECKOUT)
    studies.put_training(sweep.folder)
    sweep.environment["PYTHONPATH"] += f"{os.pathsep}{sweep.folder / 'theirs'}"
    sweep.book.touch()
    return sweep


@pytest.mark.parametrize("acts", WAITS)
def test_what_a_command_does_is_the_outcome_of_its_own_trial(
    acts: list[Act], sweep_of: SweepOf, inject: Inject
) -> None:
    known = {(act.workers, f"act={act.name}"): act for act in acts}
    sweep, trials = sweep_with(sweep_of, acts, TIMES), TIMES * len(acts)
    driver = sweep.run(seconds=TIMES * 600)
    whys, records = why_groups_ended(sweep), list(sweep.outcomes().values())
    warm = [record for record in records if record.trial.warm]
    for record in warm:
        act = known[record.trial.workers, str(record.trial.arguments)]
        with inject(sweep, f"a command: {act.name.replace('_', ' ')}", "rank", act.command.split()[0]) as hit:
            judge(hit, act, record, whys.get(record.id, ""))
    with inject(sweep, "what follows, of commands") as hit:
        hit.all_gone()
        hit.expect(len(warm) == trials, f"{len(warm)} of {trials} trials have records")
        alone = [(record.trial.arguments, record.status) for record in records if not record.trial.warm]
        held = [("act=lose_patience", "ok")] * TIMES if acts is STUDIES["in time"] else []
        hit.expect(alone == held, f"what is ok alone is measured alone, not {alone}")
        hit.ends(driver, 1, "its log: ")
        sweep.book.unlink()
        hit.goes_on(trials + len(held), "failed", "timeout")


def why_groups_ended(sweep: Sweep) -> dict[str, str]:
    """Trial -> why the processes that it had in a launch with others were ended."""
    launches = [store.load(path) for path in sweep.results.glob("launches/[0-9]*/launch.json")]
    groups = [group for launch in launches for group in launch["groups"]]
    return {member: group["why"] for group in groups for member in group["members"]}


def judge(hit: Injection, act: Act, record: Record, why: str) -> None:
    told = f"{record.id}: {record.status} {record.reason!r}, its group: {why!r}"
    hit.expect(record.status == act.status, told)
    for words in (act.reason, act.also):
        hit.expect(words in record.reason, f"{words!r} is not in {told}")
    hit.expect(act.among in why, f"{act.among!r} is not in {told}")
    if act.status == "ok":
        blocks = [len(rank.blocks) for rank in record.ranks]
        hit.expect(blocks == [ROUNDS] * act.workers and not record.notes, f"{told}, {blocks}, {record.notes}")
    log = hit.sweep.results / "trials" / record.id / "alone" / "log.txt"
    hit.expect(not act.printed or act.printed in log.read_text(), f"{act.printed!r} is not in the log of {told}")


# (phase, how often it is pressed); in the other phases of a sweep: test_driver_faults.py
PHASES = [("starting", 1), ("starting", 2), ("turns", 1), ("alone", 1), ("alone", 2), ("turns", 2)]


@pytest.mark.long
def test_ctrl_c_at_each_phase_ends_all_and_keeps_what_is_measured(sweep_of: SweepOf, inject: Inject) -> None:
    acts = [Act("have_loaders"), Act("train", command=BY_MPIRUN), Act("say_nothing", "timeout")]
    last, repeats = 0, 2 * TIMES
    sweep = sweep_with(sweep_of, acts, repeats)
    for phase, presses in PHASES * TIMES:
        driver = sweep.start("--no-report", terminal=True)
        there = sweep.until(lambda phase=phase, last=last: reached(sweep, phase, last), 180, driver)
        assert there, driver.said()
        last = reached(sweep, phase, last)
        with inject(sweep, f"Ctrl-C {'once' if presses == 1 else 'twice'}, of commands", detail=phase) as hit:
            for _ in range(presses):
                driver.press_ctrl_c()
                time.sleep(0.05)
            driver.wait(120)
            hit.all_gone()
            hit.nothing_outside()
            hit.kept()
            check_last_words(hit, driver, FAULTS["Ctrl-C"], begun=True)
    with inject(sweep, "what follows Ctrl-C, of commands") as hit:
        sweep.book.unlink()
        hit.goes_on(len(acts) * repeats, "timeout")


def reached(sweep: Sweep, phase: str, after: int) -> int:
    """The number of a launch beyond `after` that is in this phase; 0: there is none yet."""
    number = max((int(path.name) for path in sweep.results.glob("launches/[0-9]*")), default=0)
    launch = sweep.results / "launches" / str(number)
    if number <= after or not (launch / "launch.json").exists():
        return 0
    if phase == "starting":
        states = [group["state"] for group in json.loads((launch / "launch.json").read_text())["groups"]]
        return number if "starting" in states else 0
    signs = {"turns": launch.glob("*/blocks.jsonl"), "alone": sweep.results.glob("trials/[!.]*/alone")}
    return number if any(signs[phase]) else 0
