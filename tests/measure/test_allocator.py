"""Fixed thresholds of the allocator: freed memory stays in the process; `system` leaves glibc as it is."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
import sys

import forked
import pytest

from scaling_study.settings import CHECKOUT

MODULE = CHECKOUT / "scaling_study" / "measure" / "surroundings.py"
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


BY_HAND = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
print("page faults", resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


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
    flags = ["--model", "resnet8", "--batch-per-worker", "128", "--steps", "5", "--warmup-steps", "1"]
    flags += ["--data", "synthetic", "--device", "cpu", "--cores-per-worker", "1"]

    def faults(*kind: str) -> int:
        script = CHECKOUT / "data_parallel" / "single.py"
        done = forked.run([sys.executable, "-c", BY_HAND, script, *flags, *kind])
        assert done.returncode == 0, done.stderr
        return int(done.stdout.rpartition("page faults ")[2])

    fixed, system = faults(), faults("--allocator", "system")
    assert fixed < 0.8 * system, (fixed, system)
