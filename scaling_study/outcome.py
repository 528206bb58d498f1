"""What came of a trial: how it exited, what its ranks reported and what they said when they failed -> a record.

Pure but for reading the ranks' files. The order of the questions is the point: a complete measurement stands
even if the process then died in a library's exit handler; a peer's complaint never hides the first error.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling_study import records
from scaling_study.process import Exit
from scaling_study.records import RankReport
from scaling_study.trial import Trial

TAIL_BYTES = 4000


@dataclass(frozen=True)
class Outcome:
    """A status with its reason, and the ranks' reports when all of them are whole."""

    status: str
    reason: str = ""
    error: str = ""
    ranks: tuple[RankReport, ...] = ()
    notes: tuple[str, ...] = ()


def judge(trial: Trial, folder: Path, exit: Exit) -> Outcome:
    """The outcome of a trial that ran in `folder`."""
    if exit.code is None and not exit.lost:
        return Outcome("failed", "the launcher could not be started", exit.error)
    missing = ""
    try:
        ranks = tuple(records.read_ranks(folder, trial.processes))
        if wrong := unlike(trial, ranks):
            return Outcome("failed", wrong, ranks=ranks)
        return Outcome("ok", ranks=ranks, notes=_after_the_end(exit))
    except records.UnreadableRecord as error:
        missing = str(error)
    first = first_error(folder)
    if exit.interrupted:
        return Outcome("cancelled", "interrupted")
    if exit.killed_for_memory or (first and first.get("oom")):
        said = f"rank {first['rank']}: {_clause(first['message'])}" if first else ""
        if not (first and first.get("oom")):  # counted for the whole machine, so what a rank said stands beside it
            said = f"the kernel killed a process for memory{f'; {said}' if said else ''}"
        return Outcome("oom", said, _quoted(first, folder))
    if exit.timed_out:
        return Outcome("timeout", f"not finished after {exit.seconds:.0f} s", _quoted(first, folder))
    if first:
        return Outcome("failed", f"rank {first['rank']}: {_clause(first['message'])}", _quoted(first, folder))
    if exit.lost:
        return Outcome("failed", f"watch: the process that watches over trials {exit.lost}", tail(folder / "log.txt"))
    if exit.code == 0:
        return Outcome("failed", "exited with 0 but left no whole report", f"{missing}\n{tail(folder / 'log.txt')}")
    how = f"signal {-exit.code}" if exit.code and exit.code < 0 else f"exit code {exit.code}"
    return Outcome("failed", f"{how} and no word from any rank", tail(folder / "log.txt"))


def unlike(trial: Trial, ranks: tuple[RankReport, ...]) -> str:
    """How the reports contradict what was asked, so that no row stands under a wrong label; empty if they agree."""
    for rank, report in enumerate(ranks):
        if report.rank != rank:
            return f"the report of rank {rank} is that of rank {report.rank}"
        if report.world_size != trial.processes:
            return f"asked for {trial.processes} workers, rank {report.rank} saw {report.world_size}"
        if not report.device.startswith(trial.device):
            return f"asked for device {trial.device}, rank {report.rank} ran on {report.device}"
        readers = min(trial.processes, trial.data_parallel)
        right = {trial.global_batch // readers, *([0] if readers < trial.processes else [])}  # 0: a pipeline's others
        if report.samples_per_step not in right:
            return f"asked for {max(right)} samples a step, rank {report.rank} took {report.samples_per_step}"
        asked, seen = trial.controller, report.backend.get("controller")
        if asked and seen and asked != seen:
            return f"asked for controller {asked}, Horovod reports {seen}"
        if len(report.step_seconds) != len(ranks[0].step_seconds) or not report.step_seconds:
            return f"rank {report.rank} timed {len(report.step_seconds)} steps, rank 0 {len(ranks[0].step_seconds)}"
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in report.step_seconds):
            return f"rank {report.rank} reports step times that are not positive numbers"
    if (taken := sum(report.samples_per_step for report in ranks)) != trial.global_batch:
        return f"asked for {trial.global_batch} samples a step, all ranks took {taken}"
    return ""


def first_error(folder: Path) -> dict[str, Any] | None:
    """The earliest word of a failing rank."""
    said = []
    for path in (folder / "ranks").glob("error-*.json"):
        with contextlib.suppress(OSError, ValueError):
            said.append(json.loads(path.read_text(encoding="utf-8")))
    whole = [error for error in said if isinstance(error, dict) and isinstance(error.get("at"), float)]
    return min(whole, key=lambda error: error["at"], default=None)


def tail(log: Path) -> str:
    """The log's last lines, to quote for a person; nothing is concluded from them."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _after_the_end(exit: Exit) -> tuple[str, ...]:
    if exit.lost:
        return (f"complete; the process that watches over trials {exit.lost}",)
    if exit.timed_out or exit.interrupted:
        return ("complete, but its processes did not end by themselves and were ended",)
    if exit.code:
        return (f"complete; its processes then exited with {exit.code}",)
    return ()


def _quoted(first: dict[str, Any] | None, folder: Path) -> str:
    return str(first["traceback"]) if first else tail(folder / "log.txt")


def _clause(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), message)
    return line if len(line) <= 200 else line[:197] + "..."
