"""--profile TRIAL: which trial is meant; and for real, a trace of each rank, and Horovod's timeline."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scaling_study.commands import profiling
from scaling_study.errors import StudyError
from scaling_study.machine import installed
from scaling_study.settings import CHECKOUT
from scaling_study.study.plan import Plan

STUDY = """
study: small
parity: false
measure: {warm: true, warmup_steps: 1, min_steps: 3, min_seconds: 0, max_steps: 3, repeats: 2, max_repeats: 2}
sweeps:
  - framework: single
    data: synthetic
    matrix: {model: [resnet8], batch_per_worker: [4, 8]}
"""
HOROVOD = """
  - framework: horovod
    data: synthetic
    matrix: {model: [resnet8], batch_per_worker: [4], allreduce: [fp32], workers: [2]}
"""


def test_a_trial_is_named_by_its_id_or_by_what_only_one_configuration_has(plan_of: Callable[..., Plan]) -> None:
    trials = plan_of(STUDY).trials()
    second = next(planned.trial for planned in trials if planned.trial.repeat == 2)
    assert profiling.chosen(second.id, trials).trial == second
    assert profiling.chosen(second.configuration, trials).trial.id == f"{second.configuration}.r1"
    (eight,) = {planned.trial.configuration for planned in trials if planned.trial.batch_per_worker == 8}
    part = next(eight[at : at + n] for n in range(1, len(eight)) for at in range(len(eight) - n)
                if sum(eight[at : at + n] in one for one in {p.trial.configuration for p in trials}) == 1)  # fmt: skip
    assert profiling.chosen(part, trials).trial.id == f"{eight}.r1"


@pytest.mark.parametrize(
    ("asked", "said"), [("resnet8", "which of 2?"), ("resnet999", "no trial of this study; there are ")]
)
def test_what_names_no_trial_or_several_is_told_which_there_are(
    plan_of: Callable[..., Plan], asked: str, said: str
) -> None:
    trials = plan_of(STUDY).trials()
    with pytest.raises(StudyError) as wrong:
        profiling.chosen(asked, trials)
    (line,) = wrong.value.problems
    assert line.startswith(f"--profile {asked}: {said}") and all(one.trial.configuration in line for one in trials)


def profiled(folder: Path, study: str, asked: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    (folder / "small.yaml").write_text(study)
    command = [sys.executable, str(CHECKOUT / "run_sweep.py"), "small.yaml", "--profile", asked]
    done = subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=600, check=False
    )
    return done, folder / "results" / "small"


def names_in(trace: Path) -> set[str]:
    """Of everything that happened, as a viewer would show it."""
    with gzip.open(trace, "rt", encoding="utf-8") as stream:
        return {str(event.get("name")) for event in json.load(stream)["traceEvents"]}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_one_process_leaves_a_trace_and_no_record(tmp_path: Path) -> None:
    done, results = profiled(tmp_path, STUDY, "single-resnet8-b4-")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (results / "profiles").iterdir()
    (trace,) = folder.glob("torch-rank-*.json.gz")
    assert {"step 0", "step 1", "step 2"} <= names_in(trace)
    assert any("conv" in name for name in names_in(trace)), "the operators of a step"
    assert not (results / "launches").exists(), "what is measured in rounds has a launch to itself here"
    assert not list((results / "trials").glob("*/record.json")), "steps that were watched are no result"
    assert str(trace.name) in done.stdout and "ui.perfetto.dev" in done.stdout
    again, _ = profiled(tmp_path, STUDY, folder.name)
    assert again.returncode == 0 and len(list((results / "profiles").rglob("torch-rank-*"))) == 1


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
@pytest.mark.skipif(installed("horovod") is None, reason="Horovod is not installed")
def test_horovod_leaves_a_trace_of_each_rank_and_its_timeline(tmp_path: Path) -> None:
    done, results = profiled(tmp_path, STUDY + HOROVOD, "horovod")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (results / "profiles").iterdir()
    assert {path.name for path in folder.glob("torch-rank-*")} == {"torch-rank-0.json.gz", "torch-rank-1.json.gz"}
    timeline = (folder / profiling.HOROVOD_TIMELINE).read_text(encoding="utf-8")
    assert "ALLREDUCE" in timeline and timeline.lstrip().startswith("[")
    assert {path.name for path in profiling.traces(folder)} == {
        "torch-rank-0.json.gz", "torch-rank-1.json.gz", profiling.HOROVOD_TIMELINE
    }  # fmt: skip
