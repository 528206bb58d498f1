"""Every framework that shares launches goes on after a stop of two minutes, and so do its peers and its launcher.

All are alive and stopped at once, as in rounds of many groups: no time-out of Gloo, MPI, Horovod or a process group may
take a rank that waits for its turn for one that hangs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from ledger import FORM

from scaling_study.commands.doctor import cases
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.warm_group import WarmGroup
from scaling_study.machine import Machine, installed, this_machine
from scaling_study.records import outcome, store
from scaling_study.study import groups
from scaling_study.trial import Trial, Window

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
        time.sleep(STOP_SECONDS)
        assert {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED}
        for group in started:
            with group.turn():
                group.block(0, 1, STEPS, untimed=True)
    for group, trial in zip(started, asked, strict=True):
        assert group.exit and group.exit.code == 0, trial.framework
        ranks = store.read_ranks(group.folders[0], trial.processes)
        assert [len(rank.step_seconds) for rank in ranks] == [2 * STEPS] * trial.processes
        assert not outcome.first_problem(group.trials[0], tuple(ranks))
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
