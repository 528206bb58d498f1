"""What came of a trial: how it exited, its ranks' reports and their errors -> a record.

Pure but for reading the ranks' files. The order of the questions is the point: a complete measurement stands
even if the process then died in a library's exit handler; a peer's complaint never hides the first error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scaling_study.processes.process import Exit
from scaling_study.quoting import printable, shortened
from scaling_study.records import store, validation
from scaling_study.records.reading import MissingRecord
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial

TAIL_BYTES = 4000
MOST_CHARACTERS = 500  # of a reason
ERROR_FIELDS = (("rank", int), ("at", float), ("type", str), ("message", str), ("traceback", str))  # of a failing rank


@dataclass(frozen=True)
class Outcome:
    """A status with its reason, and the ranks' reports when all of them are whole."""

    status: str
    reason: str = ""
    error: str = ""
    ranks: tuple[RankReport, ...] = ()
    notes: tuple[str, ...] = ()
    rank_errors: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)  # the earliest first

    def __post_init__(self) -> None:
        """What ranks wrote is shown to people: a reason is one line, and no terminal obeys either."""
        object.__setattr__(self, "reason", shortened(printable(self.reason), MOST_CHARACTERS))
        object.__setattr__(self, "error", printable(self.error, but="\n\t"))


def judge(trial: Trial, folder: Path, exit: Exit) -> Outcome:
    """The outcome of a trial that ran in `folder`."""
    if exit.code is None and not exit.lost and not exit.node:
        return Outcome("failed", "the launcher could not be started", exit.error)
    try:
        ranks = tuple(store.read_ranks(folder, trial.processes))
        if wrong := validation.first_problem(trial, ranks):
            return Outcome("failed", wrong, ranks=ranks)
        return Outcome("ok", ranks=ranks, notes=_after_the_end(exit))
    except store.UnreadableRecord as error:
        unreadable = error
    rank_errors = errors(folder)
    first = rank_errors[0] if rank_errors else None
    return replace(_failure(folder, exit, first, unreadable), rank_errors=tuple(rank_errors))


def _failure(folder: Path, exit: Exit, first: dict[str, Any] | None, unreadable: store.UnreadableRecord) -> Outcome:
    """The outcome of a trial without whole reports; `first`: the earliest error of its ranks."""
    broken, missing = str(unreadable), isinstance(unreadable, MissingRecord)
    if exit.node:
        return Outcome("failed", f"node_failed: {exit.node}", _quoted(first, folder))
    if exit.interrupted:
        return Outcome("cancelled", "interrupted")
    if exit.killed_for_memory or (first and first.get("oom")):
        why = f"rank {first['rank']}: {_clause(first['message'])}" if first else ""
        if not (first and first.get("oom")):  # counted for the whole machine, so a rank's own error is shown beside it
            why = f"the kernel killed a process for memory{f'; {why}' if why else ''}"
        return Outcome("oom", why, _quoted(first, folder))
    if exit.timed_out:
        return Outcome("timeout", f"not finished after {exit.seconds:.0f} s", _quoted(first, folder))
    if first:
        return Outcome("failed", f"rank {first['rank']}: {_clause(first['message'])}", _quoted(first, folder))
    if exit.lost:
        return Outcome("failed", f"watch: the supervisor of trials {exit.lost}", tail(folder / "log.txt"))
    log = tail(folder / "log.txt")
    if not missing:  # it is there, and not to be believed
        why = broken.replace(f"{folder}{os.sep}", "").removeprefix(f"{folder}: ")
        return Outcome("failed", _clause(why), f"{broken}\n{log}")
    if exit.code == 0:
        return Outcome("failed", "exited with 0 but left no whole report", f"{broken}\n{log}")
    how = f"signal {-exit.code}" if exit.code and exit.code < 0 else f"exit code {exit.code}"
    return Outcome("failed", f"{how} and no report from any rank", log)


def errors(folder: Path) -> list[dict[str, Any]]:
    """The errors that failing ranks wrote, the earliest first; incomplete ones are skipped."""
    loaded = []
    for path in (folder / "ranks").glob("error-*.json"):
        with contextlib.suppress(store.UnreadableRecord):
            loaded.append(store.load(path))
    errors = [error for error in loaded if isinstance(error, dict)]
    complete = [error for error in errors if all(type(error.get(k)) is t for k, t in ERROR_FIELDS)]
    return sorted(complete, key=lambda error: error["at"])


def tail(log: Path, size: int = TAIL_BYTES) -> str:
    """The log's last lines, to quote for a person; no number is taken from them."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - size))
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _after_the_end(exit: Exit) -> tuple[str, ...]:
    if exit.lost:
        return (f"complete; the supervisor of trials {exit.lost}",)
    if exit.node:
        return (f"complete; then a host failed: {exit.node}",)
    if exit.timed_out or exit.interrupted:
        return ("complete, but its processes did not exit and were terminated",)
    if exit.code:
        return (f"complete; its processes then exited with {exit.code}",)
    return ()


def _quoted(first: dict[str, Any] | None, folder: Path) -> str:
    return str(first["traceback"])[-TAIL_BYTES:] if first else tail(folder / "log.txt")


def _clause(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), message)
    return line if len(line) <= 200 else line[:197] + "..."
