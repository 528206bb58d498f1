"""The doctor's answers: each is what a real trial of the same framework says, and nothing is answered untried."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from scaling_study import cli, datasets
from scaling_study.commands import doctor
from scaling_study.commands.doctor import FAILS, NOT_HERE, WORKS, Answer
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import launchers
from scaling_study.machine import DALI, Machine, installed, this_machine
from scaling_study.study.support import ALONE

MACHINE = Machine(2, "a CPU", 2**33, (), {name: "1.0" for table in FRAMEWORKS.values() for name in table.needs})
COMPLETE = replace(MACHINE, libraries={**MACHINE.libraries, "torchvision": "1.0"})
IN_JOB = replace(ALONE, in_job=True)


def test_a_missing_library_is_not_here_and_the_extra_is_named():
    trial = next(trial for trial in doctor.cases(COMPLETE) if trial.framework == "fairscale_oss")
    without = replace(COMPLETE, libraries={k: v for k, v in COMPLETE.libraries.items() if k != "fairscale"})
    assert doctor.reason(trial, COMPLETE, ALONE) == ""
    assert doctor.reason(trial, without, ALONE) in (
        "fairscale is not installed: make setup, or pip install '.[fairscale]'",
        "fairscale is not installed: make setup",  # where scaling-study itself is not
    )
    assert doctor.libraries(without) == ["fairscale"] and doctor.libraries(COMPLETE) == []


def test_without_the_scripts_it_says_where_trials_run(tmp_path, monkeypatch, capsys):
    """As where the package was installed as a wheel."""
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)
    assert doctor.main() == 1
    (tmp_path / "study.yaml").write_text("study: a\nsweeps: [{framework: single, data: synthetic}]\n")
    assert cli.run_sweep([str(tmp_path / "study.yaml"), "--results", str(tmp_path / "results")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("error: trials are run from a checkout: ") for line in lines)
    assert cli.run_sweep([str(tmp_path / "study.yaml"), "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("program", "cluster", "reason"),
    [
        (None, ALONE, "needs a Slurm job, and there is no srun: apt install slurm-client"),
        ("/usr/bin/srun", ALONE, "needs a Slurm job: salloc -n 2 scaling-study doctor"),
        (None, IN_JOB, "no srun on PATH: make setup, or apt install slurm-client"),
        ("/usr/bin/srun", IN_JOB, ""),
    ],
)
def test_srun_is_tried_only_in_a_job(monkeypatch, program, cluster, reason):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: program)
    trial = next(trial for trial in doctor.cases(COMPLETE) if trial.launcher == "srun")
    assert doctor.reason(trial, COMPLETE, cluster) == reason  # type: ignore[arg-type]


def test_dali_is_tried_where_it_is_and_else_the_pip_line_is_said():
    (trial,) = (trial for trial in doctor.cases(COMPLETE) if trial.input)
    assert doctor._name(trial) == "single: python, input dali"
    why = "nvidia-dali-cuda130 is not installed (pip install 'scaling-study[dali]')"
    assert doctor.reason(trial, COMPLETE, ALONE) == why and doctor.libraries(COMPLETE) == []
    for build in DALI:
        assert doctor.reason(trial, replace(COMPLETE, libraries={**COMPLETE.libraries, build: "2.4"}), ALONE) == ""


def test_launches_are_shared_only_by_trials_that_are_launched_alike():
    by_launch: dict[object, list[tuple[str, str | None]]] = {}
    for trial in doctor.cases(COMPLETE):
        by_launch.setdefault(launchers.alike(trial), []).append((trial.launcher, trial.controller))
    shared = [each for each in by_launch.values() if len(each) > 1]
    assert all(len({launcher for launcher, _ in each}) == 1 for each in by_launch.values())
    assert sum({launcher for launcher, _ in each} == {"srun"} for each in by_launch.values()) >= 2  # with PMIx, without
    assert {"torchrun", "horovodrun"} <= {launcher for each in shared for launcher, _ in each}
    assert not [each for each in shared if ("horovodrun", "mpi") in each or "mpirun" in dict(each)], "one MPI_Init each"


@pytest.mark.parametrize(
    ("answers", "code", "next_command"),
    [
        ([WORKS, NOT_HERE], 0, "scaling-study run sweeps.yaml"),
        ([WORKS, FAILS, NOT_HERE], 1, "look at log.txt:3"),
        ([NOT_HERE], 1, "scaling-study run sweeps.yaml"),
    ],
)
def test_exit_code_and_next_command(tmp_path, monkeypatch, capsys, answers, code, next_command):
    planted = [Answer(f"a framework {a}", a, "why " * 60, log="log.txt:3" if a == FAILS else "") for a in answers]
    monkeypatch.setattr(doctor, "examine", lambda *_: iter(planted))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a failure's folder is kept
    monkeypatch.setattr(doctor, "this_machine", lambda: COMPLETE)
    assert doctor.main() == code
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert COMPLETE.cpu in first and last.endswith(f"Next: {next_command}")
    assert [line.split("  ")[0] for line in lines] == answers and all("why " * 59 in line for line in lines)


def test_the_line_of_a_log_is_the_last_with_the_reason(tmp_path):
    log = tmp_path / "log.txt"
    assert doctor.line_of(log, "no log was written") == f"{log}:1"
    log.write_text("starting\nValueError: a bug\nat 1\nValueError: a bug\nended\n\n")
    assert doctor.line_of(log, "rank 1: a bug") == f"{log}:4"
    assert doctor.line_of(log, "exit code 1 and no report from any rank") == f"{log}:5"


@pytest.mark.parametrize(
    ("file", "there"),
    [
        ("WikiText2/wikitext-2/wiki.train.tokens", {"wikitext2", "wikitext2_bpe"}),  # a sweep reads it there
        ("cola/readme.txt", set()),  # a sweep would download it
    ],
)
def test_data_are_there_where_a_sweep_would_read_them(tmp_path, monkeypatch, file, there):
    """What --dry-run and the doctor say of data."""
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    monkeypatch.delenv("DATA_PATH", raising=False)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("")
    assert set(datasets.available()) == there | {"cholect45", "surgical_scenes"}  # scenes are drawn where there is none
    without_torch = replace(COMPLETE, libraries={})
    details = {answer.what.removeprefix("data "): answer.detail for answer in doctor._data(without_torch)}
    assert {name for name, detail in details.items() if detail.startswith("torch is not installed")} == there


@pytest.mark.slow
def test_print_environment_prints_what_a_record_depends_on(monkeypatch, capsys):
    for name, value in {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "true", "HOROVOD_SECRET_KEY": "s3cret"}.items():
        monkeypatch.setenv(name, value)
    assert cli.run_sweep(["--print-environment"]) == 0
    text = capsys.readouterr().out
    printed = json.loads(text)
    assert printed["versions"]["torch"] == installed("torch")
    assert printed["machine"] == json.loads(json.dumps(this_machine().to_dict()))
    assert printed["variables"]["OMP_NUM_THREADS"] == "2" and "s3cret" not in text
    assert {"OMP_PROC_BIND", "HOROVOD_SECRET_KEY"} <= printed["variables_not_passed_to_trials"].keys()
    assert printed["launchers"]["python"] and printed["launchers"]["torchrun"]
    if installed("horovod"):
        assert printed["horovod"]["mpi"] or printed["horovod"]["gloo"]
