"""The two things that study_cost.py compares, run and kept so that an interruption loses little.

<work>/results/<study>/     what run_sweep.py left       <work>/calls.json   wall seconds of each call of it
<work>/plain/*.json         what each run of the plain script left
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.options import Unavailable
from scaling_study import datasets
from scaling_study.machine import this_machine
from scaling_study.processes import process
from scaling_study.records import schema, store
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.trial import Trial

LEAST_STEPS = 8  # of the plain script: its first steps, and enough to tell the others' mean
HOURS = 3600.0


class Study:
    """A study under a folder of its own, and how far it has come."""

    def __init__(self, work: Path, file: Path, small: bool) -> None:
        self.work, self.file, self.small = work, file, small
        asked, data = study.load(file, small), datasets.prepare(["cifar10"])
        if data["cifar10"].name != "cifar10":
            raise Unavailable(f"CIFAR-10 is not here: {data['cifar10'].why}")
        made = plan.make(asked, this_machine(), data)
        self.configurations = [p for p in made.configurations if not p.unsupported]
        self.once = len(made.configurations) - len(self.configurations) + len(made.gates)  # not of every round
        self.results = work / "results" / asked.name
        self.log = work / "calls.json"
        self.calls: list[dict[str, float]] = store.load(self.log) if self.log.exists() else []

    def finished(self) -> list[schema.Record]:
        """Every timed trial that ran, by the time at which it began."""
        found = store.read_study(self.results) if self.results.exists() else []
        timed = (r for r in found if r.status != "unsupported" and r.trial.find is None)
        return sorted(timed, key=lambda r: r.started_at)

    def run_round(self, number: int) -> None:
        """Call run_sweep.py until every configuration has `number` repeats."""
        before = len(self.finished())
        missing = number * len(self.configurations) - before
        if missing <= 0:
            return
        argv = [sys.executable, str(CHECKOUT / "run_sweep.py"), str(self.file), "--results", str(self.results.parent)]
        argv += ["--max-trials", str(missing + (0 if before else self.once)), *(["--small"] if self.small else [])]
        output = self.work / "run_sweep.log"
        print(f"  round {number}: run_sweep.py runs {missing} trials; it tells how far it is in {output}", flush=True)
        start = time.monotonic()
        with process.Interruption() as interruption:
            ended = process.run(argv, {}, output, 12 * HOURS, interruption)
        self.calls.append({"seconds": time.monotonic() - start, "trials": len(self.finished()) - before})
        store.write_json(self.log, self.calls)
        if ended.interrupted:
            raise KeyboardInterrupt
        if not self.calls[-1]["trials"]:
            raise Unavailable("run_sweep.py finished no trial", ended.error or f"see {output}")

    def wall_seconds(self) -> float:
        """Of all calls. Trials of a call that was killed before it could be noted count by their own seconds."""
        unnoted = len(self.finished()) - int(sum(call["trials"] for call in self.calls))
        lost = sum(r.total_seconds or 0.0 for r in self.finished()[: max(0, unnoted)])
        return sum(call["seconds"] for call in self.calls) + lost

    def rates(self, trial: Trial) -> list[float]:
        """Samples per second of a configuration's good repeats, in order."""
        good = [r for r in self.finished() if r.configuration == trial.configuration and r.status == "ok"]
        return [schema.throughput(r) for r in sorted(good, key=lambda r: r.trial.repeat)]


def plain(work: Path, trial: Trial, loader: str, number: int, fraction: float) -> dict[str, Any]:
    """What the number-th run of the plain script left for a configuration, run now if it was not yet."""
    out = work / "plain" / f"{trial.configuration}-{loader}-{number}.json"
    if not out.exists():
        flags = ["--model", trial.model, "--batch", str(trial.batch_per_worker), "--loader", loader]
        flags += ["--fp16"] if trial.allreduce == "fp16" else []
        flags += ["--cores-per-worker", str(trial.cores_per_worker), "--at-least-steps", str(LEAST_STEPS)]
        half = out.with_suffix(".half")
        argv = ["-m", "benchmarks.plain_epoch", *flags, "--fraction", str(fraction), "--out", str(half)]
        seconds = jobs.launched("horovod", argv, trial.workers, HOURS)
        store.write_json(out, {**store.load(half), "seconds": seconds})
        half.unlink()
    return dict(store.load(out))
