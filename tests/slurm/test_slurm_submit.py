"""What is submitted: the machine file's options and lines, and the words that a job is started with."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scaling_study.commands import parity
from scaling_study.errors import HostError, StudyError
from scaling_study.models import FOLDERS
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import jobs, submit
from scaling_study.slurm.jobs import Job
from scaling_study.slurm.submit import Request, submit_trials
from scaling_study.study import machine_file
from scaling_study.study.study import Measure
from scaling_study.study.support import ALONE
from scaling_study.trial import Trial

RESULTS = Path("/results/tiny")


def load(tmp_path: Path, text: str) -> machine_file.MachineFile:
    (tmp_path / "mine.yaml").write_text(text)
    return machine_file.load(tmp_path / "mine.yaml")


def problems(tmp_path: Path, text: str) -> str:
    with pytest.raises(StudyError) as wrong:
        load(tmp_path, text)
    return str(wrong.value).replace(f"{tmp_path}/", "")


def test_its_options_are_those_that_need_not_be_said(tmp_path):
    file = load(tmp_path, 'slurm: {partition: gpu, nodes: 2, time: "2:00:00", exclusive: yes}\n')
    request = Request(RESULTS, file, "nodes=4,exclusive=no", machine="mine")
    assert request.options == {"partition": "gpu", "nodes": "4", "time": "2:00:00"}


def test_setup_and_container(tmp_path):
    file = load(tmp_path, "setup: ['module load cuda']\ncontainer: apptainer exec '/images/a b.sif'\n")
    script = Request(RESULTS, file).script(Job("a", "a", ""), "a", ["s.yaml"], {}).splitlines()
    assert "module load cuda" in script
    run = shlex.quote(str(CHECKOUT / "run_sweep.py"))
    assert f"apptainer exec '/images/a b.sif' python {run} s.yaml &" in script


def test_a_time_that_yaml_takes_for_a_number_is_refused(tmp_path):
    said = problems(tmp_path, "slurm:\n  time: 2:00:00\n")
    assert said.startswith('mine.yaml:2: YAML reads 2:00:00 in base 60: in quotes, "2:00:00", it is a time')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "container: apptainer 'exec\n",
            'container: "apptainer \'exec" is not right: no closing quotation',
        ),
        (
            "setup: module load cuda\n",
            "setup: 'module load cuda' is not right: input should be a valid list",
        ),
        (
            'setup: ["a\\nb"]\n',
            "setup.0: 'a\\nb' is not right: must not contain line breaks",
        ),
        ("slurm: [gpu]\n", "slurm: Input should be a valid dictionary"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, said):
    assert problems(tmp_path, text).startswith(f"mine.yaml:1: {said}")


def test_options_in_it_are_checked_like_those_on_the_command_line(tmp_path):
    file = load(tmp_path, "slurm: {partiton: gpu}\n")
    with pytest.raises(
        StudyError, match=r"--machine mine: slurm: 'partiton' is not a supported Slurm option.* 'partition'"
    ):
        _ = Request(RESULTS, file, machine="mine").options


def test_a_job_of_one_trial_shares_no_launch():
    planned = SimpleNamespace(trial=SimpleNamespace(warm=True))
    run: Any = SimpleNamespace(plan=SimpleNamespace(configurations=[planned]))
    with pytest.raises(StudyError, match="interleave is true"):
        submit_trials(Console(), Request(RESULTS, machine_file.MachineFile()), run, False)


def test_a_job_of_one_trial_goes_on_from_the_checkpoints_of_its_earlier_result(tmp_path, monkeypatch):
    trial = Trial(train_steps=9)
    begun = Record("tiny", trial.id, trial.configuration, trial, "cancelled", started_at="", command="")
    finished = tmp_path / "trials" / trial.id
    (finished / "checkpoints").mkdir(parents=True)
    (finished / "checkpoints" / "step-5").touch()
    store.write_record(finished, dataclasses.replace(begun, status="timeout"))
    monkeypatch.setattr(jobs, "submit", lambda _: "7")
    job = Job(jobs.new_name("tiny"), trial.id, "", trial=trial.id)
    submit._submit(tmp_path, job, "", begun)
    earlier = jobs.folder_of(tmp_path, job) / jobs.BEFORE
    assert os.listdir(finished) == ["checkpoints"] and (finished / "checkpoints" / "step-5").exists()
    assert (earlier / "record.json").exists() and (earlier / "checkpoints" / "step-5").exists()


def test_a_job_of_one_trial_finds_the_files_that_define_models(tmp_path, monkeypatch):
    trial, seen = Trial(model="my_model.py:load"), []
    job = Job(jobs.new_name("tiny"), trial.id, "", trial=trial.id, measure=Measure().model_dump())
    jobs.prepare(tmp_path, job, "")
    begun = Record("tiny", trial.id, trial.configuration, trial, "cancelled", environment={FOLDERS: "/study:/here"})
    store.write_begun(jobs.folder_of(tmp_path, job), begun)
    monkeypatch.setattr(submit, "SupervisorClient", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(submit.Run, "run_trial", lambda run, planned, attempts: seen.append(attempts.cluster.of_models))
    assert submit.run(jobs.folder_of(tmp_path, job), ALONE) == submit.INTERRUPTED
    assert seen == [{FOLDERS: "/study:/here"}]


def test_parity_is_refused_while_jobs_are_live_and_touches_no_folder(tmp_path, monkeypatch):
    """A job of one trial may be running it now."""
    (tmp_path / "tiny.yaml").write_text("study: tiny\nsweeps: [{framework: torch_ddp, model: resnet8, workers: 2}]\n")
    seen = []

    def refuse(folder):
        seen.append(folder)
        raise HostError("1 pending or running Slurm jobs")

    monkeypatch.setattr(submit, "refuse_live_jobs", refuse)
    with pytest.raises(HostError, match="running Slurm jobs"):
        parity.run_gates(tmp_path / "tiny.yaml", False, tmp_path / "results")
    assert seen == [tmp_path / "results" / "tiny"] and not (tmp_path / "results").exists()
