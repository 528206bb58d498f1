"""A command's processes as a group, really started: when they are stopped, and which are not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from eventually import gone, stopped, until

from scaling_study.launch import observed
from scaling_study.launch.command_group import CommandGroup
from scaling_study.launch.shared_launch import Built, GroupRecord, Watch
from scaling_study.launch.warm_group import GroupFailed
from scaling_study.records import store
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

# It has a child beside it, as a DataLoader has workers. The pid that it names is its own, or that of its argument.
TRAIN = """
import os, subprocess, sys, time
from scaling_study import observe
loader = subprocess.Popen([sys.executable, "-c", "while True: pass"])
if named := int(sys.argv[1]):
    os.getpid = lambda: named
for number in range(1, 100_000):
    time.sleep(0.002)
    observe.step(8)
"""


def group_of(folder: Path, named: int = 0) -> CommandGroup:
    (folder / "train.py").write_text(TRAIN)
    window = Window(2, 6, 0.0, None, 6, rounds=2, block_seconds=0.01)
    command = f"{sys.executable} train.py {named}"
    trial = Trial(
        framework="command", launcher="python", command=command, workdir=str(folder), device="cpu", batch_per_worker=8,
        window=window,
    )  # fmt: skip
    return CommandGroup([trial], folder / "launch", [folder], 120.0)


def processes_of(group: CommandGroup) -> list[int]:
    rank = psutil.Process(group.ranks[0].pid)
    return [rank.pid, *(child.pid for child in rank.children(recursive=True))]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no launch started."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_loaders_are_stopped_before_the_report_of_a_block_is_written(tmp_path: Path) -> None:
    """Written while they run, it would give them time to read ahead, which no step of the next block waits for."""
    seen: list[str] = []
    write, note = observed.write_reports, CommandGroup._note

    def sees(what: str) -> None:
        seen.append(what)
        pids = processes_of(group)
        assert len(pids) == 2, "the rank and its loader"
        until(lambda: all(map(stopped, pids)))  # on a loaded machine it takes a moment

    def written(*given: Any, **more: Any) -> None:
        sees("report")
        write(*given, **more)

    def noted(self: CommandGroup, *given: Any) -> None:
        sees("note")
        note(self, *given)

    watched = mock.patch.object(observed, "write_reports", written), mock.patch.object(CommandGroup, "_note", noted)
    with watched[0], watched[1], group_of(tmp_path) as group:
        built = Built.of(group, GroupRecord(0, "command", [group.trials[0].id]), Watch())
        for block in range(2):
            assert built.run_block(0, block) > 0
        pids = processes_of(group)
    assert seen == ["report", *["report", "note"] * 2]
    [report] = store.read_ranks(tmp_path, 1)
    assert [block.round for block in report.blocks] == [0, 1]
    assert group.exit and group.exit.code == 0 and not gone(pids)


def test_a_report_that_cannot_be_made_ends_the_group_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(GroupFailed, match="asked for workers=1, but") as failed, group_of(tmp_path) as group:
        built = Built.of(group, GroupRecord(0, "command", [group.trials[0].id]), Watch())
        pids = processes_of(group)
        for name in (tmp_path / "launch" / observed.SEEN).glob("*.jsonl"):
            (name.parent / "another.jsonl").write_bytes(name.read_bytes())
        built.run_block(0, 0)
    assert failed.value.said and failed.value.trials == group.trials
    assert not gone(pids)


def test_a_process_that_the_launch_did_not_start_is_never_stopped(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """In a container with the host's network a rank calls, and names its pid there: that of another process here."""
    stranger = psutil.Process(bystander.pid)
    until(lambda: stranger.status() == psutil.STATUS_SLEEPING)
    with (
        pytest.raises(GroupFailed, match=f"cannot be held between steps: .*{bystander.pid}") as failed,
        group_of(tmp_path, named=bystander.pid),
    ):
        raise AssertionError("it was held")
    assert failed.value.said, "so that it is measured in launches of its own"
    assert stranger.status() == psutil.STATUS_SLEEPING


def test_the_queue_of_a_loader_is_used_up_before_the_first_block_is_timed(tmp_path: Path) -> None:
    """It was filled while others joined."""
    group, asked = group_of(tmp_path), list[tuple[int, int]]()

    def ask(_: str, index: int, steps: int, untimed: int, **more: Any) -> list[dict[str, Any]]:
        asked.append((steps, untimed))
        return [{"steps": 99, "step_seconds": [0.01] * steps}]

    with mock.patch.object(group, "_ask", ask):
        for block, steps, untimed in ((0, 40, True), (0, 2, True), (1, 40, True), (0, 40, False)):
            group.block(0, block, steps, untimed)
    assert asked == [(40, 10), (2, 1), (40, 1), (40, 0)]
