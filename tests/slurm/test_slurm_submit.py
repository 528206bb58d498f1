"""What is submitted: the machine file's options and lines, and the words that a job is started with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scaling_study.errors import StudyError
from scaling_study.settings import CHECKOUT
from scaling_study.slurm.submit import SlurmArguments, submit_trials, words_for_job
from scaling_study.study import machine_file

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
    request = SlurmArguments("nodes=4,exclusive=no", machine="mine").request(RESULTS, file)
    assert request.options == {"partition": "gpu", "nodes": "4", "time": "2:00:00"}
    assert request.machine == ("--machine", "mine")


def test_setup_and_container(tmp_path):
    file = load(tmp_path, "setup: ['module load cuda', 'ulimit -c 0']\ncontainer: apptainer exec '/images/a b.sif'\n")
    request = SlurmArguments().request(RESULTS, file)
    assert request.setup == ["module load cuda", "ulimit -c 0"]
    assert request.container == ["apptainer", "exec", "/images/a b.sif"]


def test_a_time_that_yaml_takes_for_a_number_is_refused(tmp_path):
    said = problems(tmp_path, "slurm:\n  time: 2:00:00\n")
    assert said == 'mine.yaml:1: slurm: time is 7200, a number to YAML; with quotes it is a time: "2:00:00"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("container: apptainer 'exec\n", "mine.yaml:1: container: No closing quotation"),
        ("setup: module load cuda\n", "mine.yaml:1: setup: 'module load cuda': input should be a valid list"),
        ('setup: ["a\\nb"]\n', "mine.yaml:1: setup.0: 'a\\nb': must not contain line breaks or control characters"),
        ("slurm: [gpu]\n", "mine.yaml:1: slurm: input should be a valid dictionary"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, said):
    assert problems(tmp_path, text).startswith(said)


def test_options_in_it_are_checked_like_those_on_the_command_line(tmp_path):
    file = load(tmp_path, "slurm: {partiton: gpu}\n")
    with pytest.raises(
        StudyError, match=r"--machine mine: slurm: 'partiton' is not a supported Slurm option.* 'partition'"
    ):
        SlurmArguments(machine="mine").request(RESULTS, file)


def test_the_example_has_every_key_and_is_right():
    file = machine_file.load(CHECKOUT / "machines" / "example.yaml")
    assert SlurmArguments(machine="example").request(RESULTS, file).options["partition"] == "gpu"


def test_a_job_is_not_told_what_its_submitter_was_to_do():
    argv = ["s.yaml", "--slurm", "partition=gpu", "--small", "--slurm-print", "--where", "workers=2", "--json", "-q"]
    assert words_for_job(argv) == ["s.yaml", "--small", "--where", "workers=2", "-q"]
    assert words_for_job(["--slurm=nodes=2", "s.yaml", "--per-trial"]) == ["s.yaml"]


def test_a_job_of_one_trial_shares_no_launch() -> None:
    planned = SimpleNamespace(trial=SimpleNamespace(warm=True))
    run: Any = SimpleNamespace(plan=SimpleNamespace(configurations=[planned]))
    with pytest.raises(StudyError, match="warm is true"):
        submit_trials(Console(), SlurmArguments().request(RESULTS, machine_file.MachineFile()), run, False, False)
