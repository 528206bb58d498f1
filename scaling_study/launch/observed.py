"""A command of a user's own as a trial: started with the observer, held between steps, and read into rank reports.

    alone        command --> its processes write steps (observe/) --> reports --> judged as any trial
    in a group   a rank calls once it is warm, and waits; "block" lets it go on for so many steps

The observer's files are the one source of a report, whichever way the command was run. The driver writes the reports
in the ranks' place: the user's environment need not have this package.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from scaling_study import observe
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import Block, Phases, RankReport
from scaling_study.trial import Trial

SEEN = "observed"  # in a trial's folder, or a group's: one file of lines from each process
LOOP_PARTS = {"data": "data_seconds", "forward": "forward_seconds", "backward": "backward_seconds"}


class NotObserved(Exception):
    """No report can be made of what the command's processes left."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """The steps of one block: those after the first `after`."""

    block: int
    after: int
    steps: int
    at: float


def watched(trial: Trial, folder: Path) -> dict[str, str]:
    """The variables that have a trial's command observed and ended after the steps of its window.

    A command that runs alone is told a number of steps, as all of its processes must end at the same one: the window's
    most steps, or three times its least.
    """
    seen = folder / SEEN
    for own in (seen, folder / "run"):
        shutil.rmtree(own, ignore_errors=True)  # of an attempt before
        own.mkdir()
    steps = trial.window.warmup_steps + (trial.window.max_steps or 3 * trial.window.min_steps)
    return observe.environment(os.environ, seen.resolve(), steps)


def judge(trial: Trial, folder: Path, exit: Exit) -> Outcome:
    """The outcome of a command that ran alone, in `folder`."""
    try:
        write_reports(trial, folder / SEEN, folder)
    except NotObserved as why:
        result = outcome.judge(trial, folder, exit)
        return dataclasses.replace(result, reason=str(why)) if exit.code == 0 else result
    return outcome.judge(trial, folder, exit)


def write_reports(trial: Trial, seen: Path, folder: Path, turns: Sequence[Turn] = ()) -> None:
    """Leave the report of each rank in `folder`. Without `turns` the window is all that follows the warm-up.

    Raises NotObserved with what to do.
    """
    for report in reports(trial, observe.read(seen), turns):
        store.write_rank(folder, report)


def trained(processes: Sequence[Sequence[Mapping[str, Any]]]) -> list[Sequence[Mapping[str, Any]]]:
    """The processes that made training steps. Raises NotObserved where there are none."""
    found = [lines for lines in processes if any(line["kind"] == "step" for line in lines)]
    whys = [line["why"] for lines in processes for line in lines if line["kind"] == "not observed"]
    if not found and whys:
        raise NotObserved(f"not observed: {whys[0]}")
    if not found:
        raise NotObserved(
            "no process of the command trained where it could be observed: PYTHONPATH must reach its Python processes "
            "(a container or ssh may drop it), torch must be 2.1 or newer, and a script without optimiser and backward "
            "may say its steps: scaling_study.observe.step(samples)"
        )
    return found


def reports(trial: Trial, processes: Sequence[Sequence[Mapping[str, Any]]], turns: Sequence[Turn]) -> list[RankReport]:
    """The reports of a command's processes, by rank. Raises NotObserved."""
    ranks = trained(processes)
    count = max(int(lines[0].get("world") or 1) for lines in ranks)
    if not len(ranks) == count == trial.processes:
        raise NotObserved(
            f"asked for workers={trial.workers}, but {len(ranks)} processes trained, in a world of {count}: give the "
            "number that the command starts"
        )
    return [_report(trial, rank, lines, turns) for rank, lines in enumerate(ranks)]


def _report(trial: Trial, rank: int, lines: Sequence[Mapping[str, Any]], turns: Sequence[Turn]) -> RankReport:
    about = lines[0]
    steps = [line for line in lines if line["kind"] == "step"]
    ends = [line for line in lines if line["kind"] in ("end", "so far")]
    end: Mapping[str, Any] = ends[-1] if ends else {}
    warm = turns[0].after if turns else min(trial.window.warmup_steps, max(0, len(steps) - 1))
    timed = [steps[turn.after : turn.after + turn.steps] for turn in turns] or [steps[warm:]]
    window = list(itertools.chain.from_iterable(timed))
    if not window:
        raise NotObserved(f"rank {rank} made {len(steps)} steps: none is left after {warm} that warm up")
    each, notes = _samples(trial, end)
    whole = [step["seconds"] for step in window]
    parts = {ours: fmean(step["parts"][part] for step in window) for part, ours in LOOP_PARTS.items()}
    optimizer = fmean(step["parts"]["optimizer"] for step in window)
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
        samples_seen=each * len(window),
        tokens_seen=None,
        phases=Phases(
            steps=len(window),
            step_seconds=fmean(whole),
            optimizer_seconds=optimizer,
            unattributed_seconds=fmean(whole) - sum(parts.values()) - optimizer,
            **parts,
        ),
        parameters=int(end.get("parameters") or about.get("parameters") or 0),
        allreduce_bytes=None,
        communication_bytes={},
        peak_memory_bytes=end.get("peak_memory_bytes"),
        memory={},
        loss_first=steps[0]["loss"],
        loss_last=window[-1]["loss"],
        data_source="the command's own",
        steps_per_epoch=0,
        gpu_utilization_percent=None,
        energy_joules=None,
        backend=_observing(steps, end),
        versions={"torch": str(about.get("torch") or "")},
        notes=notes,
        learning_rate=window[-1]["learning_rate"],
        blocks=[Block(turn.block, turn.steps, turn.at) for turn in turns],
    )


def _samples(trial: Trial, end: Mapping[str, Any]) -> tuple[int, list[str]]:
    """(samples of a rank's step, notes): as seen, else as the study says them."""
    seen = end.get("samples_per_step")
    if seen is not None:
        return round(seen), []
    why = end.get("samples_unknown") or "the command was ended"
    return trial.batch_per_worker, [f"samples of a step are those that the study names: {why}"]


def _observing(
    steps: Sequence[Mapping[str, Any]], end: Mapping[str, Any]
) -> dict[str, str | int | float | bool | None]:
    """Seconds that the observer itself took, and those of all the steps in which it did."""
    observed = sum(step["seconds"] + step.get("pause_seconds", 0.0) for step in steps)
    return {"observer_seconds": end.get("own_seconds"), "observed_seconds": observed}
