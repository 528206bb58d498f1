"""A whole study with 3 launches costs at most a fifth of the published single pass, and says the same.

Claimed, over the 36 published configurations of studies/distributed_dl_horovod.yaml: (1) `run_sweep.py --small`,
3 interleaved launches, takes at most 20 % of the wall time of the published way: one whole epoch each, launch to exit;
(2) the throughput it reports is that of the epoch without its first steps: median |ratio - 1| at most 3 %.

Measured: our wall time is that of run_sweep.py itself, tables and figures included, called for one repeat of every
configuration at a time. The published way is timed by a plain script (plain_epoch.py) at 12 of the 36, two of each
model, worker count and precision, every batch size twice: its launch and exit, and `--fraction` of its epoch (at
least 8 steps), extrapolated linearly but for its first steps. The mean factor between those epochs and what our
throughputs predict for them, with its interval, then carries over to all 36. For (2) the plain script is fed from
memory, or a loader would be compared with a step; it runs once after each round, so that both see the same machine.

Not shown: a whole epoch's own drift, when --fraction is below 1. The interval of (1) holds the extrapolation only:
our wall time is a single measurement. Workers are pinned to the same cores in both, so a single published worker
does not take the idle core either.

Interrupted, it goes on where it was (--fresh begins anew).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Finding, median_deviation, ratio
from benchmarks.study_runs import Study, plain
from scaling_study.settings import CACHE, CHECKOUT
from scaling_study.stats.intervals import Interval
from scaling_study.study.plan import Planned
from scaling_study.workloads.cifar10 import SAMPLES

WORK = CACHE / "benchmarks" / "study_cost"
REPEATS = 3
TINY = """study: tiny
parity: false
measure: {warmup_steps: 1, min_steps: 3, min_seconds: 0}
sweeps: [{framework: horovod, matrix: {model: [resnet8], batch_per_worker: [32], workers: [1]}}]
"""


def run(options: Options) -> list[Finding]:
    with options.work(WORK) as work:
        return compared(options, work)


def compared(options: Options, work: Path) -> list[Finding]:
    """Both, with all that this folder has of them already."""
    if options.quick:
        (work / "tiny.yaml").write_text(TINY, encoding="utf-8")
        ours, repeats, fraction = Study(work, work / "tiny.yaml", small=False), 1, 0.01
    else:
        ours = Study(work, CHECKOUT / "studies/distributed_dl_horovod.yaml", small=True)
        repeats, fraction = REPEATS, options.fraction
    chosen = anchors(ours.configurations)
    for number in range(1, repeats + 1):
        ours.run_round(number)
        for index, planned in enumerate(chosen, start=1):
            for loader in ("dataloader", "memory") if number == 1 else ("memory",):
                plain(work, planned.trial, loader, number, fraction)
            print(f"  round {number} of {repeats}: plain epoch {index} of {len(chosen)} done", flush=True)
    findings = [cost(ours, chosen, repeats), *throughput(ours, chosen, repeats)]
    if not options.quick:  # the next run begins anew; this one's raw data stay to be looked at
        shutil.rmtree(done := work.with_name("study_cost_finished"), ignore_errors=True)
        work.rename(done)
    return findings


def anchors(configurations: Sequence[Planned]) -> list[Planned]:
    """Two batch sizes of each model, worker count and precision, together every batch size equally often."""
    groups: dict[tuple[Any, ...], list[Planned]] = {}
    for planned in sorted(configurations, key=lambda p: p.trial.batch_per_worker):
        trial = planned.trial
        groups.setdefault((trial.model, trial.workers, trial.allreduce), []).append(planned)
    chosen = []
    for index, (_, group) in enumerate(sorted(groups.items())):
        half = (len(group) + 1) // 2
        chosen += [group[i] for i in sorted({index % half, (index % half + half) % len(group)})]
    return chosen


def cost(ours: Study, chosen: Sequence[Planned], repeats: int) -> Finding:
    """Our wall time over the published way's."""
    epochs: dict[str, tuple[float, float]] = {}  # configuration -> as timed, as our throughput predicts
    launch: dict[int, list[float]] = {}  # workers -> seconds of launch and exit
    for planned in chosen:
        trial, said = planned.trial, plain(ours.work, planned.trial, "dataloader", 1, 0.0)
        launch.setdefault(trial.workers, []).append(said["seconds"] - sum(said["step_seconds"]))
        if rates := ours.rates(trial):
            epochs[trial.configuration] = (epoch_seconds(said, planned), SAMPLES / mean(rates))
    measured = [(p.trial, rates) for p in ours.configurations if (rates := ours.rates(p.trial))]
    if not epochs:
        raise Unavailable("no configuration has both a throughput and a timed epoch")
    factor, wall, done = ratio(list(epochs.values())), ours.wall_seconds(), ours.finished()
    launching = sum(mean(launch[trial.workers]) for trial, _ in measured)
    predicted = sum(SAMPLES / mean(rates) for _, rates in measured)
    low, high = (None if f is None else wall / (launching + f * predicted) for f in (factor.high, factor.low))
    share = wall / (launching + factor.mean * predicted)
    return Finding(
        f"wall time of our study, {repeats} launches of {len(measured)} configurations, over one published pass",
        Interval(share, low, high, factor.n, factor.verdict), Bar(high=0.2), unit="%",
        evidence={
            "our_seconds": wall, "of_which_launching": sum(r.launch_seconds or 0.0 for r in done),
            "our_trials": len(done), "not_ok": [r.id for r in done if r.status != "ok"],
            "published_seconds": launching + factor.mean * predicted, "of_which_launching_and_exit": launching,
            "epoch_seconds_timed_and_predicted": epochs, "commits": sorted({r.commit for r in done}),
        },
    )  # fmt: skip


def epoch_seconds(said: dict[str, Any], planned: Planned) -> float:
    """A whole epoch from a part of it: the first steps as they were, the others at the mean of the rest."""
    first, rest = parted(said, planned)
    return sum(first) + (SAMPLES / float(said["samples_per_step"]) - len(first)) * mean(rest)


def parted(said: dict[str, Any], planned: Planned) -> tuple[list[float], list[float]]:
    """Seconds of the first steps, as many as warm up in our trial, and of the others."""
    steps = list(map(float, said["step_seconds"]))
    first = max(1, planned.trial.window.warmup(min(steps)))
    return steps[:first], steps[first:]


def throughput(ours: Study, chosen: Sequence[Planned], repeats: int) -> list[Finding]:
    """Our throughputs beside those of the plain script's steps after its first ones."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for planned in chosen:
        theirs = []
        for number in range(1, repeats + 1):
            said = plain(ours.work, planned.trial, "memory", number, 0.0)
            theirs.append(said["samples_per_step"] / mean(parted(said, planned)[1]))
        if found := list(zip(ours.rates(planned.trial), theirs, strict=False)):
            pairs[planned.trial.configuration] = found
    if not pairs:
        raise Unavailable("no configuration has both throughputs")
    each = [(mean(a for a, _ in rows), mean(b for _, b in rows)) for rows in pairs.values()]
    evidence = {"samples_per_second_ours_and_plain": pairs}
    return [
        Finding(
            f"our throughput against the epoch's without its first steps: median |ratio - 1| of {len(pairs)}",
            median_deviation(pairs), Bar(high=0.03), unit="%", evidence=evidence,
        ),
        Finding("the same with its sign: mean ratio over those configurations", ratio(each)),
    ]  # fmt: skip
