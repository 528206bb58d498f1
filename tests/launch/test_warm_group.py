"""Launches that measure several configurations in turn, for real; their ranks are stopped, killed and orphaned here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import forked
import psutil
import pytest
from eventually import LATEST_SECONDS, gone, stopped, until

from scaling_study.launch import warm_group
from scaling_study.launch.warm_group import GroupFailed, WarmGroup
from scaling_study.machine import installed
from scaling_study.measure import inspected
from scaling_study.processes import leftovers
from scaling_study.records import outcome, store
from scaling_study.records.schema import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

STEPS, ROUNDS = 2, 2
SMALL = Trial(
    model="resnet8", batch_per_worker=4, data="synthetic", device="cpu", cores_per_worker=1, allreduce="none",
    window=Window(4, STEPS * ROUNDS, 0.0, None, STEPS * ROUNDS),
)  # fmt: skip
PAIR = replace(SMALL, workers=2, allreduce="fp32")
LAUNCHERS = {
    "torchrun": replace(PAIR, framework="torch_ddp", launcher="torchrun"),
    "torchrun, sharded": replace(PAIR, framework="torch_fsdp2", launcher="torchrun"),
    "horovodrun, Gloo": replace(PAIR, framework="horovod", launcher="horovodrun", controller="gloo"),
    "horovodrun, MPI": replace(PAIR, framework="horovod", launcher="horovodrun", controller="mpi"),
    "mpirun": replace(PAIR, framework="mpi_allreduce", launcher="mpirun"),
}
DRIVER = f"""
import sys, time
from pathlib import Path
from scaling_study.launch.warm_group import WarmGroup
from scaling_study.trial import Trial, Window
folder = Path(sys.argv[1])
trial = {SMALL!r}
with WarmGroup([trial], folder, [folder], 120.0) as group:
    (folder / "pid").write_text(str(group.ranks[0].pid))
    time.sleep(600)
"""


@dataclass
class Ran:
    """What came of one launch of two configurations."""

    told: dict[int, list[list[list[float]]]]  # index -> round -> rank -> seconds of each step
    reports: list[list[RankReport]]  # configuration, rank
    stopped_cpu_seconds: list[float]  # that each rank used while it was stopped
    states: set[str]  # of the ranks, while stopped
    launcher_states: set[str]  # meanwhile, of whoever started them: the supervisor where there is no launcher
    oom_scores: set[tuple[str, str]]  # of each while it ran, and was stopped
    group: WarmGroup


def group_of(*trials: Trial, folder: Path, timeout_seconds: float = 120.0) -> WarmGroup:
    folders = [folder / str(index) for index in range(len(trials))]
    for each in folders:
        each.mkdir(parents=True)
    return WarmGroup(trials, folder / "launch", folders, timeout_seconds)


def ran(trial: Trial, folder: Path) -> Ran:
    """Two batch sizes of a trial in two rounds, stopped for a moment after each. The steps of the second are longer
    than its blocks."""
    shorter = replace(trial.window, rounds=ROUNDS, block_seconds=1e-6)
    trials = [trial, replace(trial, batch_per_worker=2 * trial.batch_per_worker, window=shorter)]
    told: dict[int, list[list[list[float]]]] = {0: [], 1: []}
    used, states, launchers, scores = [], set(), set(), set[tuple[str, str]]()
    patient = mock.patch.object(warm_group, "LEAVE_SECONDS", LATEST_SECONDS)  # on a loaded machine they leave late
    with patient, group_of(*trials, folder=folder) as group:
        with group.turn():
            for index in told:
                assert all(answer["step_seconds"] > 0 for answer in group.build(index))
        processes = [psutil.Process(rank.pid) for rank in group.ranks]
        for round in range(ROUNDS):
            for index in (1, 0) if round else (0, 1):
                with group.turn():
                    told[index].append(group.block(index, round, STEPS, untimed=True))
                    running = [oom_score(process.pid) for process in processes]
                until(lambda: all(stopped(process.pid) for process in processes))
                before = [sum(process.cpu_times()[:2]) for process in processes]
                time.sleep(0.1)
                used += [sum(process.cpu_times()[:2]) - then for process, then in zip(processes, before, strict=True)]
                states |= {process.status() for process in processes}
                launchers |= {process.parent().status() for process in processes}
                scores |= set(zip(running, (oom_score(process.pid) for process in processes), strict=True))
    reports = [store.read_ranks(each, trial.workers) for each in group.folders]
    return Ran(told, reports, used, states, launchers, scores, group)


def oom_score(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii").strip()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One process."""
    yield ran(SMALL, tmp_path_factory.mktemp("alone"))


def test_each_configuration_has_its_own_steps(alone: Ran) -> None:
    for index, [report] in enumerate(alone.reports):
        told = [seconds for round in alone.told[index] for seconds in round[0]]
        assert report.step_seconds == told and len(told) == STEPS * ROUNDS
        assert [(block.round, block.steps) for block in report.blocks] == [(0, STEPS), (1, STEPS)]
        assert report.samples_seen == STEPS * ROUNDS * alone.group.trials[index].batch_per_worker
        assert report.phases and report.phases.forward_seconds
        assert 0 < (report.own_cpu_seconds or 0) < 10 * report.window_seconds
        assert not outcome.first_problem(alone.group.trials[index], (report,))
    assert alone.group.changed == {0: set(), 1: set()}


def test_a_rank_that_waits_uses_no_time(alone: Ran) -> None:
    assert set(alone.stopped_cpu_seconds) == {0.0}
    assert alone.states == {psutil.STATUS_STOPPED} and psutil.STATUS_STOPPED not in alone.launcher_states
    ours = int(oom_score(os.getpid()))
    assert alone.group.exit and alone.group.exit.code == 0
    assert not gone(rank.pid for rank in alone.group.ranks), "nothing lives on"
    assert alone.oom_scores == {(str(min(1000, ours + 500)), str(ours))}, "whoever runs is killed first"


@pytest.mark.parametrize("name", [
    name if name in ("torchrun, sharded", "horovodrun, MPI") else pytest.param(name, marks=pytest.mark.long)
    for name in LAUNCHERS
])  # fmt: skip
def test_every_launcher_keeps_its_ranks(name: str, tmp_path: Path) -> None:
    needs = {"horovod": "horovod", "mpi_allreduce": "mpi4py"}.get(LAUNCHERS[name].framework, "torch")
    if not installed(needs):
        pytest.skip(f"{needs} is not installed")
    of_its_blocks_alone = forked.starts() if name == "torchrun, sharded" else contextlib.nullcontext()
    with of_its_blocks_alone:
        result = ran(LAUNCHERS[name], tmp_path)
    assert result.group.exit and result.group.exit.code == 0
    assert result.states == {psutil.STATUS_STOPPED} and psutil.STATUS_STOPPED not in result.launcher_states
    for index, reports in enumerate(result.reports):
        assert [report.rank for report in reports] == [0, 1]
        counted = {report.allreduce_bytes for report in (*reports, result.reports[0][0])}
        assert len(counted) == 1 and all(counted), "the same, with and without a profiler in the step that is counted"
        assert all(report.overlap is not None and 0 <= report.overlap <= 1 for report in reports)
        assert all(report.memory["activations"] for report in reports)
        assert [bool(report.gradients) for report in reports] == [inspected.watchable(result.group.trials[index])] * 2
        assert not outcome.first_problem(result.group.trials[index], tuple(reports))


@pytest.mark.usefixtures("forked_starts")
def test_a_rank_that_is_killed_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(GroupFailed, match="block: a rank ended") as failed, group_of(SMALL, folder=tmp_path) as group:
        group.resume()
        group.build(0)
        pid = group.ranks[0].pid
        threading.Timer(0.5, os.kill, [pid, signal.SIGKILL]).start()
        group.block(0, 0, 100_000, untimed=False)
    assert failed.value.trials == [SMALL]
    assert not gone([pid])


@pytest.mark.long
def test_a_group_whose_supervisor_is_killed_ends_alone(tmp_path: Path) -> None:
    with group_of(SMALL, folder=tmp_path / "other") as other:
        with pytest.raises(GroupFailed), group_of(SMALL, folder=tmp_path / "killed") as group:
            pid = group.ranks[0].pid
            psutil.Process(pid).parent().kill()
            group.resume()
            group.build(0)
        assert group.exit and "ended by signal 9" in group.exit.lost
        assert not gone([pid])
        with other.turn():
            other.build(0)


@pytest.mark.usefixtures("forked_starts")
def test_a_block_that_hangs_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(GroupFailed, match="block: not finished after 2 s"), group_of(SMALL, folder=tmp_path) as group:
        group.resume()
        group.build(0)
        pid, group.timeout_seconds = group.ranks[0].pid, 2.0
        group.stop()
        time.sleep(2.5)  # what counts is the time that it runs
        with group.turn():
            timed = group.block(0, 0, 1, untimed=False)
        group.resume()
        group.block(0, 1, 100_000, untimed=False)
    assert len(timed[0]) == 1, "while it was stopped no time ran out"
    assert not gone([pid])


@pytest.mark.usefixtures("forked_starts")
def test_what_cannot_be_built_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(SMALL, data="cifar10")
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    with pytest.raises(GroupFailed) as failed, group_of(SMALL, broken, folder=tmp_path) as group:
        group.resume()
        group.build(0)
        group.build(1)
    assert failed.value.trials == [broken] and "rank 0: " in str(failed.value)
    assert (tmp_path / "1" / "ranks" / "error-0.json").exists()


class Called(WarmGroup):
    """A group whose ranks are the test that calls it."""

    def _run(self, first: Trial, asked: Path) -> None:
        time.sleep(60)


def called(address: Sequence[Any], words: bytes) -> socket.socket:
    line = socket.create_connection(tuple(address))
    line.sendall(words)
    return line


def message(**about: Any) -> bytes:
    text = json.dumps(about).encode()
    return len(text).to_bytes(4, "big") + text


def test_whoever_calls_without_the_key_is_refused_and_delays_nobody(tmp_path: Path) -> None:
    """Also one that says nothing, or half of a word; a rank may take its time too."""
    group = Called([PAIR], tmp_path, [tmp_path], 60.0)
    group.begin()
    joining = threading.Thread(target=group.join, daemon=True)
    joining.start()
    told = json.loads((tmp_path / "request.json").read_text())
    address = told["address"]
    late = [called(address, words) for words in (b"", b"\0", b"\0\0\0\x50{")]
    wrong = [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}", b"\0\0\0\4null", b"\0\0\x0f\0" + b"[" * 0xF00, b"\xff" * 8]
    wrong += [message(key="another", rank=0, pid=1, host="h"), message(key="é", rank=0), message(key=None)]
    refused = [called(address, words) for words in wrong]
    greetings = [message(key=told["key"], rank=rank, world=2, pid=2**22 + rank, host="h") for rank in (1, 0)]
    ranks = [called(address, greeting[:30]) for greeting in greetings]
    for rank, greeting in zip(ranks, greetings, strict=True):
        rank.sendall(greeting[30:])
    joining.join(2 * warm_group.GREETING_SECONDS)
    assert not joining.is_alive() and [rank.pid for rank in group.ranks] == [2**22, 2**22 + 1]
    for line in (*refused, *late):
        line.settimeout(60)
        assert line.recv(1) == b"", "it is closed"
    assert "key" not in json.loads((tmp_path / "request.json").read_text())
    with pytest.raises(OSError):
        called(address, b"")


@pytest.mark.parametrize("supervised", [True, False])
def test_a_stopped_rank_dies_with_its_driver_or_is_found_by_the_next(supervised: bool, tmp_path: Path) -> None:
    folder = tmp_path / "launches" / "1" / "0-0-single"
    folder.mkdir(parents=True)
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], env=environment)
    try:
        until(lambda: driver.poll() is not None or ((folder / "pid").exists() and (folder / "pid").read_text()))
        rank = psutil.Process(int((folder / "pid").read_text()))
        until(lambda: driver.poll() is not None or stopped(rank.pid))
        assert driver.poll() is None
        supervisor = rank.parent()
        if not supervised:
            supervisor.suspend()
        driver.kill()
        driver.wait()
        if not supervised:
            supervisor.kill()
            assert rank.status() == psutil.STATUS_STOPPED
            assert leftovers.clean(tmp_path)
        rank.wait(60)
    finally:
        driver.kill()
        driver.wait()
        leftovers.clean(tmp_path)
