"""`--print-environment`: what a record that is made here depends on, as JSON, asked as a trial asks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from scaling_study import provenance
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import attempts, launchers
from scaling_study.machine import installed, this_machine
from scaling_study.settings import CHECKOUT, data_root

SECONDS = 120.0  # for what imports torch


def main() -> int:
    print(json.dumps(surroundings(), indent=2))
    return 0


def surroundings() -> dict[str, Any]:
    """Commit, machine, versions (of a process that imports torch), Horovod's build, launchers, data, variables."""
    return {
        "commit": provenance.commit(),
        "checkout": str(CHECKOUT),
        "python": sys.executable,
        "machine": this_machine().to_dict(),
        "versions": asked_of("scaling_study.measure.versions"),  # as in a record
        "horovod": asked_of("scaling_study.worker.with_horovod") if installed("horovod") else {},
        "launchers": launcher_paths(),
        "data_root": str(data_root()),
        "variables": provenance.environment(),
    }


def asked_of(module: str) -> dict[str, Any]:
    """What `python -m module` prints as JSON, in an interpreter like a trial's; `error` where it fails."""
    argv = [sys.executable, "-m", module]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def launcher_paths() -> dict[str, str]:
    """Launcher -> the program that a trial would start, "" where there is none."""
    path = attempts.launch_environment(launchers.Command((sys.executable,)))["PATH"]
    names = sorted({launcher for table in FRAMEWORKS.values() for launcher in table.launchers})
    return {name: shutil.which(name, path=path) or "" for name in names}
