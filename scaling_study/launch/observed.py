"""A command of a user's own as a trial: started with the observer, held between steps, and read into rank reports.

    separately   command --> its processes write steps (observe/) --> reports --> judged as any trial
    in a group   a rank calls once it is warm, and waits; "block" lets it go on for so many steps

The observer's files are the one source of a report, whichever way the command was run. The driver writes the reports
in the ranks' place: the user's environment need not have this package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from scaling_study import observe
from scaling_study.errors import shortened
from scaling_study.launch.launchers import ENV_LIST
from scaling_study.observe import checks
from scaling_study.observe.inside import BEFORE
from scaling_study.processes.process import FIRST_BYTES, LAST_BYTES, Exit
from scaling_study.records import outcome, store
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import DOUBT, Block, Lateness, Phases, RankReport
from scaling_study.stats.intervals import FEWEST_REPEATS, student_t
from scaling_study.study import command
from scaling_study.trial import Trial

SEEN = "observed"  # in a trial's folder, or a group's: one file of lines from each process
FIRST_STEPS = 8  # losses of which are kept, to be held against those of another command
Line = Mapping[str, Any]  # that the observer wrote (observe/steps.py)
COUNTED = {"forward_flops": "FLOPs", "communication_bytes": "bytes of collectives"}  # what inside.py may not know
LOOP_PARTS = {"data": "data_seconds", "forward": "forward_seconds", "backward": "backward_seconds"}
WHOLE_LOG = 2 * (FIRST_BYTES + LAST_BYTES)
SAID = re.compile(r"scaling-study: not observed: (.+)")  # where no record could be written (hooks.py)
INTERACTIVE = re.compile(r"EOF when reading|Inappropriate ioctl|not a (tty|terminal)", re.IGNORECASE)


class NotObserved(Exception):
    """No report can be made of what the command's processes left."""


class NothingSeen(NotObserved):
    """None of them trained where it could be observed."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """The steps of one block: those after the first `after`."""

    block: int
    after: int
    steps: int
    at: float


def watched(trial: Trial, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """`given`, the variables of this start, in full; and those that have it observed and ended after its window."""
    seen = folder / SEEN
    for own in (seen, folder / "run"):
        shutil.rmtree(own, ignore_errors=True)  # of an attempt before
        own.mkdir()
    return observing(trial, given, folder, steps_told(trial))


def observing(
    trial: Trial, given: Mapping[str, str], folder: Path, steps: int | None = None, driver: Path | None = None
) -> dict[str, str]:
    """`given`, the variables of this start, in full (`command.started`), and the observer's."""
    own = command.started(trial, given, os.environ, str((folder / "run").resolve()))
    seen = (folder / SEEN).resolve()
    more = observe.environment({**os.environ, **own}, seen, steps, driver and driver.resolve())
    if names := own.get(ENV_LIST):  # Open MPI ends at one that is not set
        unset = {observe.STEPS, observe.DRIVER} - more.keys()
        more[ENV_LIST] = ";".join(name for name in names.split(";") if name not in unset)
    return {**own, **more}


def steps_told(trial: Trial) -> int:
    """The steps after which a command that runs alone ends itself: of its warm-up, the most of its window, and one more
    where one of them may be looked into, which is not timed. All of its processes must end at the same one, so it is
    told before the start."""
    return trial.window.warmup_steps + _most(trial) + (trial.window.warmup_steps <= BEFORE)


def _most(trial: Trial) -> int:
    """The most steps that are timed of a command that runs alone: three times the least where a study does not say."""
    return trial.window.max_steps or 3 * trial.window.min_steps


def judge(trial: Trial, folder: Path, exit: Exit) -> Outcome:
    """The outcome of a command that ran alone, in `folder`."""
    try:
        write_reports(trial, folder / SEEN, folder, exit=exit)
    except NotObserved as why:
        result, log = outcome.judge(trial, folder, exit), outcome.tail(folder / "log.txt", WHOLE_LOG)
        return dataclasses.replace(result, reason=_reason(result, reason_behind(why, exit, log), exit, log))
    return outcome.judge(trial, folder, exit)


def reason_behind(why: NotObserved, exit: Exit, log: str) -> NotObserved:
    """The reason behind `why`: a process that could write no record said so in the log, or the command did not wait for
    the processes that it started. `why` itself where there is none."""
    if isinstance(why, NothingSeen) and (said := SAID.findall(log)):
        return NotObserved(f"not observed: {said[-1]}")
    if exit.code == 0 and exit.left_behind:
        left = f"{exit.left_behind} process{'es' * (exit.left_behind > 1)}"
        how = (
            f"it left {left} behind, which were ended: a command must wait for those that train, without & or a daemon"
        )
        return NotObserved(how if isinstance(why, NothingSeen) else f"{why}; {how}")
    return why


def _reason(result: Outcome, why: NotObserved, exit: Exit, log: str) -> str:
    """Of a command without reports: how it ended, what it said last, and how far it came."""
    if result.status == "timeout":
        return f"{result.reason}; {why}"
    if result.status != "failed" or exit.code is None or exit.node:
        return result.reason
    if exit.lost_sight:
        return str(why)
    exception = outcome.last_exception(log[-outcome.TAIL_BYTES :])
    if exit.code == 0:  # of a pipeline it is the last command's, and says nothing of a training before it
        return str(why) if exception in str(why) else f"{why}; its log has {exception}"
    how = f"signal {-exit.code}" if exit.code < 0 else f"exit code {exit.code}"
    last = exception or (log.splitlines() or ["it printed nothing"])[-1]
    seen = "" if isinstance(why, NothingSeen) else f"; {why}"
    return f"{how}: {shortened(last, 200)}{needs_input(last)}{seen}"


def needs_input(said: str) -> str:
    """`; a command has no terminal, ...` where a command's last words ask for one; empty for others."""
    return "; a command has no terminal, and /dev/null as its input" if INTERACTIVE.search(said) else ""


def write_reports(trial: Trial, seen: Path, folder: Path, turns: Sequence[Turn] = (), exit: Exit | None = None) -> None:
    """Leave the report of each rank in `folder`. Without `turns` the window is all that follows the warm-up, of a
    command that has ended as `exit` says.

    Raises NotObserved with what to do.
    """
    if not seen.is_dir():
        raise NotObserved(f"the command deleted the folder in which its processes write what is seen of them: {seen}")
    try:
        processes = observe.read(seen)
        made = reports(trial, processes, turns)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotObserved(f"a record in {seen} is none of ours: {type(error).__name__}: {error}") from error
    if exit and not exit.timed_out and (exit.code != 0 or exit.interrupted):
        told, steps = steps_told(trial), min(len(_steps(lines)) for lines in trained(processes))
        if steps < told:
            raise NotObserved(f"it ended after {steps} of {told} steps")
    for report in made:
        store.write_rank(folder, report)


def trained(processes: Sequence[Sequence[Line]]) -> list[Sequence[Line]]:
    """The processes that made training steps. Raises NotObserved where there are none, or one was lost sight of."""
    found = [lines for lines in processes if any(line["kind"] == "step" for line in lines)]
    whys = [line["why"] for lines in found or processes for line in lines if line["kind"] == "not observed"]
    if whys:
        raise NotObserved(f"not observed: {whys[0]}")
    if not found:
        raise NothingSeen(
            "no training step of the command was observed: PYTHONPATH must reach its Python processes (a container, "
            "ssh or `env -i` may drop it, `python -I` ignores it), torch must be 2.1 or newer, and a script without "
            "an optimiser or without torch reports its steps: scaling_study.observe.step(samples)"
        )
    return found


def reports(trial: Trial, processes: Sequence[Sequence[Line]], turns: Sequence[Turn]) -> list[RankReport]:
    """The reports of a command's processes, by rank. Raises NotObserved."""
    ranks = trained(processes)
    count = max(int(lines[0].get("world") or 1) for lines in ranks)
    if not len(ranks) == count == trial.processes:
        raise NotObserved(
            f"asked for workers={trial.workers}, but {len(ranks)} processes trained, in a world of {count}: give the "
            "number that the command starts"
        )
    if not turns:
        _check_steps(trial, [sum(line["kind"] == "step" for line in lines) for lines in ranks])
    hosts = [str(lines[0]["host"]) for lines in ranks]
    looked_at = {line["step"] for lines in ranks for line in lines if line.get("looked_at")}  # by any of the ranks
    windows = [_window(trial, rank, _steps(lines), turns, looked_at) for rank, lines in enumerate(ranks)]
    late: list[Lateness | None] = [None] * count
    if not any(_inside(lines).get("part_of_model") for lines in ranks):  # stages of a pipeline are not alike
        late = lateness([[step.get("before_backward") for step in window] for window in windows], hosts)
    made = [
        _report(trial, rank, lines, window, turns, behind)
        for rank, (lines, window, behind) in enumerate(zip(ranks, windows, late, strict=True))
    ]
    made[0].notes.extend(f"{DOUBT}{said}" for said in checks.doubts(ranks))
    return made


def _check_steps(trial: Trial, counts: Sequence[int]) -> None:
    """Raise NotObserved where ranks of a command that ran alone did not make the same steps, or too few."""
    fewest, most = min(counts), max(counts)
    if fewest < steps_told(trial) <= most:
        raise NotObserved(
            f"rank {counts.index(most)} was ended after {most} steps, and {fewest} were seen of rank "
            f"{counts.index(fewest)}: unlike steps? scaling_study.observe.step(samples) in the script says what one is"
        )
    if fewest < (least := trial.window.warmup_steps + trial.window.min_steps):
        raise NotObserved(f"{fewest} steps were seen, and warmup_steps and min_steps ask for {least}")


def _steps(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == "step"]


def _end(lines: Sequence[Line]) -> Line:
    """The last account of a process; empty where it was ended before it gave one."""
    return next((line for line in reversed(lines) if line["kind"] in ("end", "so far")), {})


def _inside(lines: Sequence[Line]) -> Line:
    """What one step of a process held (observe/inside.py)."""
    return _end(lines).get("inside") or {}


def _warm(trial: Trial, steps: Sequence[Line], turns: Sequence[Turn]) -> int:
    """How many steps warm up."""
    return turns[0].after if turns else min(trial.window.warmup_steps, max(0, len(steps) - 1))


def _window(
    trial: Trial, rank: int, steps: Sequence[Line], turns: Sequence[Turn], looked_at: Collection[int]
) -> list[Line]:
    """The steps that are timed, no more than were asked for. One that was looked at is none, where the warm-up was too
    short for it and others are left. Raises NotObserved."""
    warm = _warm(trial, steps, turns)
    timed = [step for turn in turns for step in steps[turn.after : turn.after + turn.steps]]
    if not turns:
        later = list(steps[warm:])
        timed = ([step for step in later if step["step"] not in looked_at] or later)[: _most(trial)]
    if not timed:
        raise NotObserved(f"rank {rank} made {len(steps)} steps: none is left after {warm} that warm up")
    return timed


LATE_GROUPS, LATE_CONFIDENCE = 10, 0.99


def lateness(before_backward: Sequence[Sequence[float | None]], hosts: Sequence[str]) -> list[Lateness | None]:
    """By rank, how much later than the last of the others it comes to its last backward pass; None: not known.

    `before_backward`: (ranks, steps) seconds. Over several hosts the others are the ranks of other hosts, since a slow
    host has several slow ranks. The interval is Student's over medians of up to ten groups of consecutive steps: a
    slow spell, which is in several steps at once, is in few of the groups.
    """
    unknown: list[Lateness | None] = [None] * len(hosts)
    steps = {len(own) for own in before_backward}
    if len(hosts) < 2 or len(steps) > 1 or min(steps) < 2 * FEWEST_REPEATS or None in itertools.chain(*before_backward):
        return unknown
    spent = np.asarray(before_backward, dtype=np.float64)
    apart = len(set(hosts)) > 1
    found = list[Lateness | None]()
    for rank, host in enumerate(hosts):
        others = [other for other in range(len(hosts)) if (hosts[other] != host if apart else other != rank)]
        later = spent[rank] - spent[others].max(axis=0)
        groups = np.array_split(later, min(LATE_GROUPS, len(later) // 2))
        medians = [float(np.median(group)) for group in groups]
        half = student_t(LATE_CONFIDENCE, len(medians) - 1) * float(np.std(medians, ddof=1)) / len(medians) ** 0.5
        middle = float(np.median(later))
        found.append(Lateness(middle, middle - half, middle + half))
    return found


def _report(
    trial: Trial,
    rank: int,
    lines: Sequence[Line],
    window: Sequence[Line],
    turns: Sequence[Turn],
    late: Lateness | None,
) -> RankReport:
    about, end, inside, steps = lines[0], _end(lines), _inside(lines), _steps(lines)
    warm = _warm(trial, steps, turns)
    each, by, notes = _samples(trial, end)
    if window[-1]["loss"] is not None and _finite(window[-1]["loss"]) is None:
        notes.append("the loss is not finite")
    unknown = inside.get("unknown", {})
    notes += [f"{what} are not known: {unknown[name]}" for name, what in COUNTED.items() if name in unknown]
    if "sent_in" in inside:
        some, steps_seen = inside["sent_in"]
        notes.append(f"bytes of collectives are a mean: {some} of {steps_seen} steps communicate")
    notes += [f"peak memory is of {end['peak_memory_of']}"] if end.get("peak_memory_of") else []
    inspected = next((_taken(step, by, each) for step in reversed(steps) if step.get("looked_at")), each)
    whole = [step["seconds"] for step in window]
    parts = {ours: fmean(step["parts"][part] for step in window) for part, ours in LOOP_PARTS.items()}
    optimizer = fmean(step["parts"]["optimizer"] for step in window)
    phases = Phases(
        steps=len(window),
        step_seconds=fmean(whole),
        optimizer_seconds=optimizer,
        unattributed_seconds=fmean(whole) - sum(parts.values()) - optimizer,
        **parts,
    )
    libraries = {name: str(about.get(name) or "").partition("+")[0] for name in ("torch", "jax")}
    return RankReport(
        rank=rank,
        world_size=int(about.get("world") or 1),
        local_rank=int(about.get("local_rank") or 0),
        host=str(about["host"]),
        pid=int(about["pid"]),
        device=str(about.get("device") or trial.device),
        device_name=str(about.get("device_name") or ""),
        cores=[],
        threads=int(about.get("threads") or 0),
        first_step_at=float(steps[0]["ended"]) - float(steps[0]["seconds"]),
        warmup_seconds=[step["seconds"] for step in steps[:warm]],
        step_seconds=whole,
        samples_per_step=each,
        samples_seen=sum(_taken(step, by, each) for step in window),
        tokens_seen=None,
        phases=None if about.get("torch") == "" else phases,  # without torch nothing tells the parts of a step
        parameters=int(inside.get("parameters") or 0),
        allreduce_bytes=inside.get("allreduce_bytes"),
        communication_bytes=inside.get("communication_bytes") or {},
        peak_memory_bytes=end.get("peak_memory_bytes"),
        memory={},
        loss_first=_finite(steps[0]["loss"]),
        loss_last=_finite(window[-1]["loss"]),
        data_source="the command's own",
        steps_per_epoch=0,
        gpu_utilization_percent=None,
        energy_joules=None,
        backend={**_observing(steps, end), **_sharing(inside, window), **_program(about)},
        versions={name: version for name, version in libraries.items() if version},  # as distributions say: not +cu132
        notes=notes,
        learning_rate=_finite(window[-1]["learning_rate"]),
        warmup_skipped_steps=_skipped(steps[:warm]),
        skipped_steps=_skipped(window),
        first_losses=[_finite(step["loss"]) for step in steps[:FIRST_STEPS]],
        first_learning_rates=[_finite(step["learning_rate"]) for step in steps[:FIRST_STEPS]],
        forward_flops_per_sample=_per_sample(forward := inside.get("forward_flops"), inspected),
        step_flops_per_sample=_per_sample(inside.get("flops") if forward else None, inspected),  # of a part: neither
        late=late,
        blocks=[Block(turn.block, turn.steps, turn.at) for turn in turns],
    )


def _samples(trial: Trial, end: Line) -> tuple[int, str, list[str]]:
    """(samples of a rank's step, what of a step's line has its own, notes): as seen, else as the study says them."""
    seen = end.get("samples_per_step")
    if seen is not None:
        return round(seen), str(end.get("samples_by") or ""), []
    why = end.get("samples_unknown") or "the command was ended"
    return trial.batch_per_worker, "", [f"samples of a step are those that the study names: {why}"]


def _taken(step: Line, by: str, each: int) -> int:
    """The samples that a step took: the last batch of an epoch may be shorter. `each`: where its line does not say."""
    return int(step.get(by) or 0) if by else each


def _per_sample(flops: float | None, samples: int) -> float | None:
    return flops / samples if flops and samples else None


def _observing(
    steps: Sequence[Mapping[str, Any]], end: Mapping[str, Any]
) -> dict[str, str | int | float | bool | None]:
    """Seconds that the observer itself took, and those of all the steps in which it did."""
    observed = sum(step["seconds"] + step.get("pause_seconds", 0.0) for step in steps)
    return {"observer_seconds": end.get("own_seconds"), "observed_seconds": observed}


SHARING = ("backend", "reduced_by", "reduced_in", "reduced_calls")


def _sharing(inside: Line, window: Sequence[Line]) -> dict[str, str | int | float | bool | None]:
    """Sharing of gradients: the library, the part of the step in which most were handed to an allreduce, the
    calls of it, and backward passes of a step where there are several. What was not seen is left out."""
    backwards = round(fmean(line.get("backwards") or 0 for line in window))
    seen = {name: inside[name] for name in SHARING if inside.get(name)}
    return {**seen, "backwards": backwards} if backwards > 1 else seen


def _skipped(steps: Sequence[Line]) -> int | None:
    """Steps that a gradient scaler left out; None: not known, as of a fused optimizer, which knows alone."""
    told = [bool(step["skipped"]) for step in steps if step.get("skipped") is not None]
    return sum(told) if len(told) == len(steps) else None


def _program(about: Line) -> dict[str, str | int | float | bool | None]:
    """One digest of the files that a process runs, to be held against that of another launch; none where none is known.
    A program that lies elsewhere is the same."""
    code: Mapping[str, str] = about.get("code") or {}
    text = "\n".join(sorted(f"{Path(name).name} {digest}" for name, digest in code.items()))
    return {"code": hashlib.sha256(text.encode()).hexdigest()[:16]} if code else {}


def _finite(value: float | None) -> float | None:
    """A record has no NaN: null in its place."""
    return value if value is None or math.isfinite(value) else None
