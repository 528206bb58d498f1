"""Fixed thresholds of the allocator: freed memory stays in the process; `system` leaves glibc as it is."""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import subprocess
import sys

import pytest

from scaling_study.settings import CHECKOUT

MODULE = CHECKOUT / "scaling_study" / "measure" / "allocator.py"
ARRAYS = """
import resource, runpy, sys
import numpy as np
if "fixed" in sys.argv:
    runpy.run_path(sys.argv[1])["fix_thresholds"]()
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**20 + step) for _ in range(4)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of(command: list[str], **environment: str) -> int:
    """Page faults of the process and what it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    subprocess.run([sys.executable, *command], cwd=CHECKOUT, check=True, env=os.environ | environment)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before


def test_freed_memory_stays_in_the_process() -> None:
    def faults(kind: str) -> int:
        command = [sys.executable, "-c", ARRAYS, str(MODULE), kind]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    fixed, system = faults("fixed"), faults("system")
    assert fixed < 1000 and system > 10 * fixed, (fixed, system)


def test_another_c_library_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fix = runpy.run_path(str(MODULE))["fix_thresholds"]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with pytest.raises(SystemExit, match="--allocator system"):
        fix()


@pytest.mark.slow
def test_a_script_by_hand_keeps_its_memory_unless_told_otherwise() -> None:
    """A step of this model and batch frees some 100 MB; five steps fault them in again, page by page."""
    script = ["data_parallel/single.py", "--model", "resnet8", "--batch-per-worker", "256", "--steps", "5"]
    script += ["--warmup-steps", "1", "--data", "synthetic", "--device", "cpu", "--cores-per-worker", "1"]
    fixed, system = (faults_of([*script, *kind]) for kind in ([], ["--allocator", "system"]))
    assert fixed < 0.8 * system, (fixed, system)
