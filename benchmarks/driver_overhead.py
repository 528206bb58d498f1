"""The driver costs at most 0.1 s a trial over 50 trials of a one-second script, however full the results folder.

Claimed: (1) against a shell loop over the very same command lines, at most 0.1 s a trial; (2) with 1,000 finished
trials in the results folder, all of them in the plan as well, the same within 10 ms.

Measured: blocks of 6 trials (two configurations with the default settings, so 3 repeats), shell and driver in turn
(paired.py). What the driver pays once a run (opening the folder, passing over what is finished) is found by running
the same plan again at once, when nothing is left to do; what `run_sweep.py` pays to start (interpreter, imports,
plan) by dry runs of the default study. Both count, as 1/50 of themselves: the claim is over 50 trials. The controls are
a second shell loop, and a second empty folder, in the same turns.

Not shown: the tables and figures drawn after a sweep, and the terminal's live display (here it is silent).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from unittest import mock

from benchmarks.options import Options
from benchmarks.paired import Bar, Control, Finding, alternate, difference, pairs_of
from scaling_study import sweep
from scaling_study.frameworks import FRAMEWORKS, Framework
from scaling_study.launch import launchers
from scaling_study.launch.shared_launch import Watch
from scaling_study.machine import this_machine
from scaling_study.processes import process
from scaling_study.records import store
from scaling_study.records.results import Summary
from scaling_study.settings import CHECKOUT
from scaling_study.study.documents import Document
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.study import Measure, Study
from scaling_study.trial import Trial

TRIALS = 50  # over which the claim is made
SCRIPT = CHECKOUT / "tests" / "scripts_that" / "take_a_second.py"
PLANTED = Framework("a one-second script", str(SCRIPT), ("python",), (), FRAMEWORKS["single"].axes)
MEASURE = Measure()  # the defaults: 3 repeats, and the driver asks before each further one whether it is needed


class Quiet(Watch):
    """A display that shows nothing."""

    def finished(self, planned: Planned, record: Summary, again: bool) -> None:
        if record.status != "ok":
            raise SystemExit(f"a planted trial failed: {record.reason}")


def run(options: Options) -> list[Finding]:
    new, finished, pairs = (1, 7, options.pairs(10)) if options.quick else (2, 334, options.pairs(30))
    environment = {"SLEEP_SECONDS": "0.05"} if options.quick else {}
    start = [start_seconds() for _ in range(1 if options.quick else 5)]
    with (
        mock.patch.dict(FRAMEWORKS, {"single": PLANTED}),
        mock.patch.dict(os.environ, environment),
        tempfile.TemporaryDirectory(prefix="driver-") as made,
    ):
        scratch = Path(made)
        full = Driver(scratch / "full", new, finished)
        loop = partial(shell_block, scratch / "loop", new * MEASURE.repeats)
        again = partial(shell_block, scratch / "again", new * MEASURE.repeats)
        shell = alternate(Driver(scratch / "shell", new), loop, again, turns=pairs)
        print(f"  against a shell loop: {pairs} pairs done", flush=True)
        empty = [Driver(scratch / name, new) for name in ("empty", "empty-too")]
        thousand = alternate(full, *empty, turns=pairs)
    evidence = {"trials_a_block": new * MEASURE.repeats, "start_seconds": start, "seconds_a_trial": shell}
    return [
        Finding(
            f"driver's own time a trial over {TRIALS} one-second trials, against a shell loop",
            difference(pairs_of(shell), plus=mean(start) / TRIALS), Bar(high=0.1), "s", evidence=evidence,
            control=Control(difference(pairs_of(shell, (1, 2))), equal=0.0),
        ),
        Finding(
            f"the same with {finished * MEASURE.repeats:,} finished trials in the folder, less with none",
            difference(pairs_of(thousand)), Bar(-0.01, 0.01), "s",
            evidence={**evidence, "seconds_a_trial": thousand, "once_a_run_seconds": full.once},
            control=Control(difference(pairs_of(thousand, (1, 2))), equal=0.0),
        ),
    ]  # fmt: skip


def start_seconds() -> float:
    """What `run_sweep.py` takes before its first trial, and to end: a dry run."""
    argv = [sys.executable, str(CHECKOUT / "run_sweep.py"), str(CHECKOUT / "sweeps.yaml"), "--dry-run", "--json"]
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - start


def configurations(first: int, count: int) -> list[Trial]:
    return [
        Trial(framework="single", device="cpu", allreduce="none", seed=seed) for seed in range(first, first + count)
    ]


def shell_block(folder: Path, trials: int) -> float:
    """Seconds a trial of a shell loop over the driver's command line."""
    here = "RECORD"
    words = launchers.command(configurations(0, 1)[0], record=Path(here)).argv
    line = " ".join(f'"{folder}/$i"' if word == here else shlex.quote(word) for word in words)
    start = time.perf_counter()
    subprocess.run(["sh", "-c", f"for i in $(seq {trials}); do {line}; done"], check=True)
    return (time.perf_counter() - start) / trials


class Driver:
    """Seconds a trial of the driver in its folder, what it pays once a run counted as 1/50."""

    def __init__(self, results: Path, new: int, finished: int = 0) -> None:
        self.results, self.new, self.done = results, new, 0
        self.once: list[float] = []
        if finished:
            self.seconds(new=1)  # one that really ran, to copy
            self.fill(finished - 1)

    def __call__(self) -> float:
        working, nothing_left = self.seconds(self.new), self.seconds(new=0)
        self.once.append(nothing_left)
        return (working - nothing_left) / (self.new * MEASURE.repeats) + nothing_left / TRIALS

    def seconds(self, new: int) -> float:
        """Of opening the folder and running a plan with all that is finished and `new` more configurations."""
        self.done += new
        document = Document(self.results / "study.yaml", "study: one-second\n", {}, {})
        study = Study("one-second", "weak", None, 0, MEASURE, (), document)
        plan = Plan(study, this_machine(), tuple(Planned(t, MEASURE) for t in configurations(0, self.done)), ())
        start = time.perf_counter()
        job = sweep.Run(plan, self.results)
        job.open()
        with process.Interruption() as interruption:
            job.run(Quiet(), interruption)
        if interruption.signal is not None:
            raise KeyboardInterrupt
        return time.perf_counter() - start

    def fill(self, count: int) -> None:
        """`count` more finished configurations, as copies of the one that really ran."""
        pattern = next(store.read_study(self.results))
        for first in configurations(self.done, count):
            for trial in (replace(first, repeat=n + 1) for n in range(MEASURE.repeats)):
                folder = self.results / "trials" / trial.id
                copy = replace(pattern, id=trial.id, configuration=trial.configuration, trial=trial)
                store.write_record(folder, copy)
        self.done += count
