"""The scripts for real: two CPU processes, real launchers, small steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import in_turn
import pytest

from scaling_study.launch import launchers
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
QUICK = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "12"]
HOROVOD, SINGLE = str(CHECKOUT / "horovod_runs/resnet_cifar10.py"), str(CHECKOUT / "data_parallel/single.py")


def run(argv: list[str]) -> str:
    done = forked.launch(argv)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def single(*flags: str) -> str:
    done = forked.run([sys.executable, SINGLE, *QUICK, "--cores-per-worker", "1", *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def horovod(program: list[str], workers: int = 2) -> str:
    trial = Trial(framework="horovod", workers=workers, launcher="horovodrun", controller="gloo")
    return run(list(launchers.horovodrun(trial, program, BIN).argv))


def case(folder: Path, *flags: str) -> list[str]:
    """A script and its flags that leave every rank's report in `folder`."""
    return [HOROVOD, *QUICK, *flags, "--record", str(folder)]


FP64 = ["--precision", "fp64"]
SMOOTH = ["--model", "resnet8_groupnorm", *FP64]
BASELINE = ["--learning-rate", "0.01", "--cores-per-worker", "1"]
PARTS = ["--accumulation", "4"]
TWO_WORKERS = {"fp64": FP64}
ONE_WORKER = {"fp16 alone": ["--allreduce", "fp16"], "baseline": BASELINE}


@pytest.fixture(scope="module")
def of_horovod(tmp_path_factory) -> Callable[[str], list[store.RankReport]]:
    """of_horovod("fp16"): the reports of a case. All with as many workers have their turn in one launch."""
    folder = tmp_path_factory.mktemp("horovod")
    started = set()

    def reports(name: str) -> list[store.RankReport]:
        workers, cases = (2, TWO_WORKERS) if name in TWO_WORKERS else (1, ONE_WORKER)
        if workers not in started:
            started.add(workers)
            commands = [case(folder / name, *flags) for name, flags in cases.items()]
            horovod(in_turn.program(folder / f"{workers}", *commands), workers=workers)
        return store.read_ranks(folder / name, workers)

    return reports


def test_the_bare_command_of_the_readme_works_as_typed():
    argv = ["horovodrun", "-np", "2", "python", "horovod_runs/resnet_cifar10.py", *QUICK]
    assert "Total images/sec on 2 worker(s)" in run(argv)


@pytest.mark.long
def test_one_horovod_worker_reduces_nothing(of_horovod):
    (alone,) = of_horovod("fp16 alone")
    assert (alone.allreduce_bytes, alone.memory["buckets"]) == (0, 0)


@pytest.mark.long
def test_horovod_with_one_worker_trains_exactly_as_the_baseline(tmp_path, of_horovod):
    """The same seed, data and weights: the losses of two frameworks agree to the last bits."""
    single(*BASELINE, "--record", str(tmp_path))
    (a,), (b,) = of_horovod("baseline"), store.read_ranks(tmp_path, 1)
    assert a.loss_first == pytest.approx(b.loss_first, rel=1e-6)
    assert a.loss_last == pytest.approx(b.loss_last, rel=1e-4)


@pytest.mark.parametrize("script", [HOROVOD, SINGLE])
def test_a_wrong_flag_is_one_clear_line(script):
    done = forked.run([sys.executable, script, "--batch-per-worker", "0"])
    assert done.returncode == 2
    assert "argument --batch-per-worker: 0 is less than 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs a core for the neighbour")
def test_a_neighbour_on_the_other_core_is_noticed(tmp_path):
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        single("--steps", "200", "--cores-per-worker", "1", "--record", str(tmp_path))
    finally:
        neighbour.kill()
        neighbour.wait()
    others = store.busy_elsewhere_cores(store.read_ranks(tmp_path, 1))
    assert others is not None and others > 0.5


@pytest.mark.long
def test_horovod_takes_its_knobs_from_flags(tmp_path, of_horovod):
    """With a fusion buffer of one byte nothing is fused, and the result is the same."""
    knobs = ["--fusion-bytes", "1", "--cycle-seconds", "0.002"]
    horovod([sys.executable, *case(tmp_path, *FP64, *knobs)])
    plain, tuned = of_horovod("fp64"), store.read_ranks(tmp_path, 2)
    assert tuned[0].loss_last == pytest.approx(plain[0].loss_last, rel=1e-9)


def test_accumulation_does_not_change_the_step(tmp_path):
    single(*SMOOTH, "--record", str(tmp_path / "whole"))
    single(*SMOOTH, *PARTS, "--record", str(tmp_path / "parts"))
    whole, parts = (store.read_ranks(tmp_path / name, 1)[0] for name in ("whole", "parts"))
    assert parts.loss_last == pytest.approx(whole.loss_last, rel=1e-9)
    assert parts.allreduce_bytes == whole.allreduce_bytes
