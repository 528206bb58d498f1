"""--print-environment: what it prints is what a record has, and what is not there is said to be missing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scaling_study import cli
from scaling_study.commands import doctor
from scaling_study.machine import installed, this_machine
from scaling_study.settings import CHECKOUT


@pytest.mark.slow
def test_it_prints_what_a_record_depends_on(monkeypatch, capsys):
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert cli.run_sweep(["--print-environment"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["versions"]["torch"] == installed("torch")
    assert printed["machine"] == json.loads(json.dumps(this_machine().to_dict()))
    assert printed["variables"]["OMP_PROC_BIND"] == "true"
    assert printed["launchers"]["python"] and printed["launchers"]["torchrun"]
    if installed("horovod"):
        assert printed["horovod"]["mpi"] or printed["horovod"]["gloo"]


def test_where_torch_cannot_be_imported_the_reason_is_printed(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback ...\nModuleNotFoundError: No module named 'torch'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert doctor.asked_of("any") == {"error": "ModuleNotFoundError: No module named 'torch'"}


def test_a_launcher_that_is_not_there_is_empty(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(CHECKOUT / "nowhere" / "python"))
    assert doctor.launcher_paths()["torchrun"] == ""
