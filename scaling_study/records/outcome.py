"""The outcome of a trial: its exit, its ranks' reports and their errors -> a status with its reason.

Pure but for reading the ranks' files. The order of the questions is the point: a complete measurement stands even if
the process then died in a library's exit handler; a peer's complaint never hides the first error. Reports that disagree
with what was asked, with each other or with themselves make a trial `failed`, and the disagreement is the reason: a row
must never stand under a wrong label.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scaling_study.errors import printable, shortened
from scaling_study.frameworks import COMMAND, FRAMEWORKS
from scaling_study.processes.process import Exit
from scaling_study.records import store
from scaling_study.records.schema import RankError, RankReport
from scaling_study.records.store import MissingRecord
from scaling_study.trial import Trial

TAIL_BYTES = 4000
EXCEPTION = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?<!ChildFailed)(?:Error|Exception): *\S[^\n]*"
)  # in a log; torchrun adds its own
MOST_CHARACTERS = 500  # of a reason
WHAT_FITS = "batch_per_worker={} does not fit: give less, or `find: max_batch`, which measures what does"


def first_problem(trial: Trial, ranks: Sequence[RankReport]) -> str:
    """The first contradiction, in one clause; empty if there is none."""
    return next(_all(trial, ranks), "")


def _all(trial: Trial, ranks: Sequence[RankReport]) -> Iterator[str]:
    readers = min(trial.processes, trial.data_parallel)
    right = {trial.global_batch // readers, *([0] if readers < trial.processes else [])}  # 0: a pipeline's others
    for rank, report in enumerate(ranks):
        if report.rank != rank:
            yield f"the report of rank {rank} is that of rank {report.rank}"
        if report.world_size != trial.processes:
            yield f"asked for {trial.processes} workers, rank {rank} saw {report.world_size}"
        if not report.device.startswith(trial.device):
            yield f"asked for device {trial.device}, rank {rank} ran on {report.device}"
        if FRAMEWORKS[trial.framework].trains and report.samples_per_step not in right:
            yield f"asked for {max(right)} samples a step, rank {rank} took {report.samples_per_step}"
        controller = report.backend.get("controller")
        if trial.controller and controller and trial.controller != controller:
            yield f"asked for controller {trial.controller}, Horovod reports {controller}"
        if len(report.step_seconds) != len(ranks[0].step_seconds) or not report.step_seconds:
            yield f"rank {rank} timed {len(report.step_seconds)} steps, rank 0 {len(ranks[0].step_seconds)}"
        yield from _with_itself(report, trial.framework == COMMAND)
    asked, seen = trial.hosts or 1, Counter(report.host for report in ranks)
    if asked > 1 and (len(seen) != asked or len(set(seen.values())) > 1):
        counts = ", ".join(f"{count} on {host}" for host, count in sorted(seen.items()))
        yield f"asked for {asked} hosts with {trial.workers // asked} workers each, found {counts}"
    if not trial.oversubscribe:
        yield from _apart(ranks)
    if not FRAMEWORKS[trial.framework].trains:
        yield from _of_a_network(ranks)
    elif (taken := sum(report.samples_per_step for report in ranks)) != trial.global_batch:
        yield f"asked for {trial.global_batch} samples a step, all ranks took {taken}"


def _apart(ranks: Sequence[RankReport]) -> Iterator[str]:
    """Two workers of one host that computed on the same cores or GPUs."""
    for first, second in itertools.combinations(ranks, 2):
        if first.host != second.host:
            continue
        cores = ", ".join(map(str, sorted({*first.cores} & {*second.cores})))
        shared = [*([f"cores {cores}"] if cores else []), *sorted({*first.gpu_uuids} & {*second.gpu_uuids})]
        if shared:
            who = f"rank {first.rank} and rank {second.rank} of {first.host}"
            yield f"{who} share {' and '.join(shared)}: only a trial with oversubscribe may"


def _of_a_network(ranks: Sequence[RankReport]) -> Iterator[str]:
    """Contradictions between the ranks' rows of a network probe, and the rows with a wrong result."""
    for report in ranks:
        if not report.network or len(report.network) != len(ranks[0].network):
            yield f"rank {report.rank} has {len(report.network)} rows of the network, rank 0 {len(ranks[0].network)}"
        for row, other in zip(report.network, ranks[0].network, strict=False):
            if (row.collective, row.bytes, row.busy) != (other.collective, other.bytes, other.busy):
                yield f"rank {report.rank} measured another row of the network than rank 0"
            what = f"{row.collective} of {row.bytes} bytes"
            if not row.correct:
                yield f"rank {report.rank}: {what} gave a wrong result"
            if not row.seconds or len(row.seconds) != len(other.seconds):
                yield f"rank {report.rank} timed another number of calls of {what} than rank 0"
            elif not all(0 < seconds < math.inf for seconds in row.seconds):
                yield f"rank {report.rank} reports seconds of {what} that are not positive numbers"


def _of_averaging_rounds(report: RankReport) -> Iterator[str]:
    """Rounds of decentralised training whose averaging did not happen, or not with everybody."""
    steps = len(report.step_seconds)
    unknown = max(0, steps - len(report.rounds))  # before a training was gone on from
    given = sum(each.samples for each in report.rounds[-steps:]) + unknown * report.samples_per_step
    if given != report.samples_seen:
        yield f"rank {report.rank} reports {report.samples_seen} samples in rounds of {given}"
    failed = [(number, each.failure) for number, each in enumerate(report.rounds, start=1) if each.failure]
    if failed:
        number, why = failed[0]
        yield (
            f"rank {report.rank}: {len(failed)} of {len(report.rounds)} rounds were not averaged over all peers; "
            f"round {number}: {why}"
        )
    elif report.untimed_rounds_failure:
        yield f"rank {report.rank}: a round beside the timed ones failed: {report.untimed_rounds_failure}"


def _with_itself(report: RankReport, is_command: bool = False) -> Iterator[str]:
    """Values of a report that no rank can have measured, however fast or slow it is.

    Steps of a command are not all alike: the last batch of an epoch may be shorter. `samples_per_step` is of most.
    """
    who, steps = f"rank {report.rank} reports", len(report.step_seconds)
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in (*report.step_seconds, *report.warmup_seconds)):
        yield f"{who} step times that are not positive numbers"
    if not math.isfinite(sum(report.step_seconds)):
        yield f"{who} step times whose sum is no number"
    if report.blocks:
        counts = [block.steps for block in report.blocks]
        if min(counts) < 1:
            yield f"{who} blocks of {counts} steps"
        elif sum(counts) != steps:
            yield f"{who} {steps} steps in blocks of {counts}"
        if (numbers := [block.round for block in report.blocks]) != list(range(len(numbers))):
            yield f"{who} blocks of rounds {numbers}"
    if report.rounds:
        yield from _of_averaging_rounds(report)
    elif report.samples_seen < 1 if is_command else report.samples_seen != steps * report.samples_per_step:
        yield f"{who} {report.samples_seen} samples in {steps} steps of {report.samples_per_step}"
    for epoch in report.epochs:
        if epoch.samples != epoch.steps * report.samples_per_step:
            yield f"{who} an epoch of {epoch.samples} samples in {epoch.steps} steps of {report.samples_per_step}"
    sizes = {
        "parameters": report.parameters,
        "tokens_seen": report.tokens_seen,
        "allreduce_bytes": report.allreduce_bytes,
        "peak_memory_bytes": report.peak_memory_bytes,
        "energy_joules": report.energy_joules,
        **{f"communication_bytes of {kind}": size for kind, size in report.communication_bytes.items()},
        **{f"{each.kind} of {each.group}": each.bytes for each in report.communication_groups},
        **{f"memory of {kind}": size for kind, size in report.memory.items()},
    }
    for name, size in sizes.items():
        if size is not None and not 0 <= size < math.inf:
            yield f"{who} {name}: {size}"


@dataclass(frozen=True)
class Outcome:
    """A status with its reason, and the ranks' reports when all of them are whole."""

    status: str
    reason: str = ""
    error: str = ""
    ranks: tuple[RankReport, ...] = ()
    notes: tuple[str, ...] = ()
    rank_errors: tuple[RankError, ...] = field(default=(), compare=False, repr=False)  # the earliest first

    def __post_init__(self) -> None:
        """Make the ranks' text safe to show: a reason is one line, and a terminal obeys neither reason nor error."""
        object.__setattr__(self, "reason", shortened(printable(self.reason), MOST_CHARACTERS))
        object.__setattr__(self, "error", printable(self.error, but="\n\t"))


def judge(trial: Trial, folder: Path, exit: Exit) -> Outcome:
    """The outcome of a trial that ran in `folder`."""
    if exit.code is None and not exit.lost and not exit.node:
        return Outcome("failed", "the launcher could not be started", exit.error)
    try:
        ranks = tuple(store.read_ranks(folder, trial.processes))
        if wrong := first_problem(trial, ranks):
            return Outcome("failed", wrong, ranks=ranks)
        return Outcome("ok", ranks=ranks, notes=_after_the_end(exit))
    except store.UnreadableRecord as error:
        unreadable = error
    rank_errors = errors(folder)
    first = rank_errors[0] if rank_errors else None
    failure = _failure(folder, exit, first, unreadable)
    if failure.status == "oom" and first and first.oom and trial.device == "cuda":
        failure = replace(failure, reason=f"{failure.reason}; {WHAT_FITS.format(trial.batch_per_worker)}")
    if first and failure.status == "failed" and not exit.node:
        failure = replace(failure, reason=f"{failure.reason}{_own_line(trial.model, first.traceback)}")
    return replace(failure, rank_errors=tuple(rank_errors))


def _own_line(model: str, traceback: str) -> str:
    """` (my_model.py:3)`: the innermost line of a model `my_model.py:load` in a traceback; empty where it has none."""
    file = model.rpartition(":")[0]
    lines = re.findall(rf'File "(?:[^"]*/)?{re.escape(file)}", line (\d+)', traceback) if file.endswith(".py") else []
    return f" ({file}:{lines[-1]})" if lines else ""


def foreign_gpus(ranks: Sequence[RankReport], visible: Collection[str]) -> str:
    """The rank that computed on a GPU which is not `visible` here, by UUID, in one clause; empty where none did.

    A launcher may pass over CUDA_VISIBLE_DEVICES. Not looked at: parts of a GPU (MIG), and any where none is known.
    """
    if any(name.startswith("MIG-") for name in visible):
        return ""
    for rank in ranks:
        for uuid in rank.gpu_uuids:
            if visible and uuid.startswith("GPU-") and uuid not in visible:
                return f"rank {rank.rank} ran on {uuid}, which CUDA_VISIBLE_DEVICES does not name"
    return ""


def _failure(folder: Path, exit: Exit, first: RankError | None, unreadable: store.UnreadableRecord) -> Outcome:
    """The outcome of a trial without whole reports; `first`: the earliest error of its ranks."""
    broken, missing, log = str(unreadable), isinstance(unreadable, MissingRecord), tail(folder / "log.txt")
    of_rank = f"rank {first.rank}: {_clause(first.message)}" if first else ""
    error = first.traceback[-TAIL_BYTES:] if first else log
    said = f"; its log has {last}" if (last := last_exception(log)) else ""
    if exit.node:
        return Outcome("failed", f"node_failed: {exit.node}", error)
    if exit.interrupted:
        return Outcome("cancelled", "interrupted")
    if first and first.oom:
        return Outcome("oom", of_rank, error)
    if exit.killed_for_memory:  # counted for the whole machine, so a rank's own error is shown beside it
        return Outcome("oom", f"the kernel killed a process for memory{f'; {of_rank}' if of_rank else ''}", error)
    if exit.timed_out:
        return Outcome("timeout", f"not finished after {exit.seconds:.0f} s{said}", error)
    if first:
        return Outcome("failed", of_rank, error)
    if exit.lost:
        return Outcome("failed", f"watch: the supervisor of trials {exit.lost}", log)
    if not missing:  # it is there, and not to be believed
        why = broken.replace(f"{folder}{os.sep}", "").removeprefix(f"{folder}: ")
        return Outcome("failed", _clause(why), f"{broken}\n{log}")
    if exit.code == 0:
        return Outcome("failed", "exited with 0 but left no whole report", f"{broken}\n{log}")
    how = f"signal {-exit.code}" if exit.code and exit.code < 0 else f"exit code {exit.code}"
    return Outcome("failed", f"{how} and no report from any rank{said}", log)


def errors(folder: Path) -> list[RankError]:
    """The errors that failing ranks wrote, the earliest first; incomplete ones are skipped."""
    complete = []
    for path in (folder / "ranks").glob("error-*.json"):
        with contextlib.suppress(store.UnreadableRecord):
            complete.append(store.parsed(store.contents(path), RankError, path))
    return sorted(complete, key=lambda error: error.at)


def tail(log: Path, size: int = TAIL_BYTES) -> str:
    """The log's last lines, to quote for a person; no number is taken from them."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - size))
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def last_exception(log: str) -> str:
    """The last line that names an exception of Python, for a person: no status depends on it."""
    found = EXCEPTION.findall(log)
    return _clause(found[-1]) if found else ""


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


def _clause(message: str) -> str:
    return shortened(next((line.strip() for line in message.splitlines() if line.strip()), message), 200)
