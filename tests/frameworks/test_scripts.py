"""The scripts for real: two CPU processes, real launchers, small steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scaling_study.launch.launchers import LAUNCHERS
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
QUICK = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "12"]
HOROVOD, SINGLE = str(CHECKOUT / "horovod_runs/resnet_cifar10.py"), str(CHECKOUT / "data_parallel/single.py")


def run(argv: list[str], cwd: Path = CHECKOUT) -> str:
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def horovod(tmp_path: Path, *flags: str, launcher: str = "horovodrun", controller: str = "mpi", workers: int = 2):
    trial = Trial(framework="horovod", workers=workers, launcher=launcher, controller=controller)
    program = [sys.executable, HOROVOD, *QUICK, *flags, "--record", str(tmp_path)]
    tmp_path.mkdir(exist_ok=True)
    out = run(list(LAUNCHERS[launcher](trial, program, BIN).argv), cwd=tmp_path)
    return store.read_ranks(tmp_path, workers), out


@pytest.mark.parametrize(("launcher", "controller"), [("horovodrun", "mpi"), ("horovodrun", "gloo"), ("mpirun", "mpi")])
def test_horovod_trains_with_two_processes_through_every_launcher(tmp_path, launcher, controller):
    ranks, out = horovod(tmp_path, launcher=launcher, controller=controller)
    assert [r.rank for r in ranks] == [0, 1] and {r.world_size for r in ranks} == {2}
    assert {r.backend["controller"] for r in ranks} == {controller}  # what Horovod itself reports
    assert {len(r.step_seconds) for r in ranks} == {12}
    assert {r.allreduce_bytes for r in ranks} == {78_042 * 4}
    assert ranks[0].loss_last != ranks[1].loss_last  # each its own shard
    if (os.cpu_count() or 1) >= 2:
        assert not set(ranks[0].cores) & set(ranks[1].cores)
    assert re.search(r"Total images/sec on 2 worker\(s\): [\d.]+", out)
    assert "95 % interval within this run of 12 steps (too short to rely on)" in out


def test_the_bare_command_of_the_readme_works_as_typed():
    argv = ["horovodrun", "-np", "2", "python", "horovod_runs/resnet_cifar10.py", *QUICK]
    assert "Total images/sec on 2 worker(s)" in run(argv)


def test_fp16_on_the_wire_is_exactly_half_of_fp32(tmp_path):
    full, _ = horovod(tmp_path / "fp32")
    half, _ = horovod(tmp_path / "fp16", "--allreduce", "fp16")
    assert half[0].allreduce_bytes * 2 == full[0].allreduce_bytes == 78_042 * 4
    assert half[0].communication_bytes == {"allreduce": 78_042 * 2}


def test_one_horovod_worker_reduces_nothing(tmp_path):
    ranks, _ = horovod(tmp_path, "--allreduce", "fp16", workers=1)
    assert ranks[0].allreduce_bytes == 0


def test_horovod_with_one_worker_trains_exactly_as_the_baseline(tmp_path):
    """The same seed, data and weights: the losses of two frameworks agree to the last bits."""
    flags = ["--learning-rate", "0.01", "--cores-per-worker", "1"]
    horovod(tmp_path / "a", *flags, workers=1)
    run([sys.executable, SINGLE, *QUICK, *flags, "--record", str(tmp_path / "b")])
    a, b = (store.read_ranks(tmp_path / name, 1)[0] for name in "ab")
    assert a.loss_first == pytest.approx(b.loss_first, rel=1e-6)
    assert a.loss_last == pytest.approx(b.loss_last, rel=1e-4)


def test_the_baseline_works_from_elsewhere(tmp_path):
    out = run([sys.executable, SINGLE, *QUICK], cwd=tmp_path)
    assert "Total images/sec on 1 worker(s)" in out


@pytest.mark.parametrize("script", [HOROVOD, SINGLE])
def test_a_wrong_flag_is_one_clear_line(script):
    done = subprocess.run(
        [sys.executable, script, "--batch-per-worker", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "argument --batch-per-worker: 0 is less than 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs a core for the neighbour")
def test_a_neighbour_on_the_other_core_is_noticed(tmp_path):
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        run([sys.executable, SINGLE, *QUICK, "--steps", "200", "--cores-per-worker", "1", "--record", str(tmp_path)])
    finally:
        neighbour.kill()
        neighbour.wait()
    others = store.busy_elsewhere_cores(store.read_ranks(tmp_path, 1))
    assert others is not None and others > 0.5


def test_horovod_reduces_gradients_whose_channels_come_last(tmp_path):
    """Horovod itself refuses them; the same memory in another order is the same sum."""
    plain, _ = horovod(tmp_path / "plain", "--precision", "fp64")
    last, _ = horovod(tmp_path / "last", "--precision", "fp64", "--memory-format", "channels_last")
    assert [r.allreduce_bytes for r in last] == [r.allreduce_bytes for r in plain] == [78_042 * 8] * 2
    assert last[0].loss_last == pytest.approx(plain[0].loss_last, rel=1e-6)


def test_horovod_takes_its_knobs_from_flags(tmp_path):
    """With a fusion buffer of one byte nothing is fused, and the result is the same."""
    plain, _ = horovod(tmp_path / "plain", "--precision", "fp64")
    tuned, _ = horovod(tmp_path / "tuned", "--precision", "fp64", "--fusion-bytes", "1", "--cycle-seconds", "0.002")
    assert tuned[0].loss_last == pytest.approx(plain[0].loss_last, rel=1e-9)


@pytest.mark.parametrize("framework", ["horovod", "single"])
def test_accumulation_changes_how_often_gradients_travel_and_not_the_step(tmp_path, framework):
    flags = ["--model", "resnet8_groupnorm", "--precision", "fp64"]

    def ran(folder: Path, *more: str) -> store.RankReport:
        if framework == "horovod":
            return horovod(folder, *flags, *more)[0][0]
        run([sys.executable, SINGLE, *QUICK, *flags, *more, "--record", str(folder)])
        return store.read_ranks(folder, 1)[0]

    whole, parts = ran(tmp_path / "whole"), ran(tmp_path / "parts", "--accumulation", "4")
    assert parts.loss_last == pytest.approx(whole.loss_last, rel=1e-9)
    assert parts.allreduce_bytes == whole.allreduce_bytes
