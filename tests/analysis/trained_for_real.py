"""Real trainings with the record that a sweep would write of them, with or without a planted flaw."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import forked

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial


def train(trial: Trial, folder: Path, env: Mapping[str, str], flaws: Sequence[str] = ("none",)) -> None:
    """Run it once for each of `flaws` (tests/train/flawed.py), one after the other; its record, as a sweep would judge
    and write it."""
    launcher = ["torchrun", "--nproc-per-node", str(trial.workers)] if trial.workers > 1 else [sys.executable]
    script = [str(CHECKOUT / FRAMEWORKS[trial.framework].script), *trial.to_argv(), "--record", str(folder)]
    for flaw in flaws:
        done = forked.run([*launcher, str(CHECKOUT / "tests/train/flawed.py"), flaw, *script], env)
    judged = outcome.judge(trial, folder, Exit(done.returncode, 1.0))
    assert judged.status == "ok", f"{judged.reason} {done.stderr[-3000:]}"
    record = Record(
        study="planted", id=trial.id, configuration=trial.configuration, trial=trial, status="ok",
        started_at="2026-01-31T10:00:00+00:00", command="python ...", machine={}, ranks=list(judged.ranks),
        launch_seconds=1.0, total_seconds=2.0, exit_code=0, planned_repeats=1,
    )  # fmt: skip
    store.write_record(folder, record)
