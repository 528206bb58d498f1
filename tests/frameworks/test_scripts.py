"""The scripts as a person starts them: flags, refusals, one worker, and that a step does not depend on its parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked
import in_turn
import pytest
from trained import P, a_trial, ran, ranks_of

from scaling_study.launch import launchers
from scaling_study.machine import installed
from scaling_study.records import schema, store
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
QUICK = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "12"]
HOROVOD, SINGLE = str(CHECKOUT / "horovod_runs/resnet_cifar10.py"), str(CHECKOUT / "data_parallel/single.py")
CLEAN = {"CUDA_VISIBLE_DEVICES": ""}


def single(folder: Path, *flags: str) -> schema.RankReport:
    argv = [sys.executable, SINGLE, *QUICK, "--cores-per-worker", "1", *flags, "--record", str(folder)]
    forked.ended(forked.run(argv))
    (report,) = store.read_ranks(folder, 1)
    return report


def horovod(folder: Path, workers: int, **cases: list[str]) -> dict[str, list[schema.RankReport]]:
    """The reports of each case's ranks: all have their turn in one launch."""
    lines = [[HOROVOD, *QUICK, *flags, "--record", str(folder / name)] for name, flags in cases.items()]
    trial = Trial(framework="horovod", workers=workers, launcher="horovodrun", controller="gloo")
    forked.ended(forked.launch(launchers.horovodrun(trial, in_turn.program(folder, *lines), BIN).argv))
    return {name: store.read_ranks(folder / name, workers) for name in cases}


def test_the_bare_command_of_the_readme_works_as_typed() -> None:
    done = forked.launch(["horovodrun", "-np", "2", "python", "horovod_runs/resnet_cifar10.py", *QUICK])
    assert done.returncode == 0 and "Total images/sec on 2 worker(s)" in done.stdout, done.stdout + done.stderr


REFUSED = [  # script and flags -> exit code, what is said
    ("fsdp/deepspeed_zero.py", ["--precision", "fp64"], 2, "invalid choice: 'fp64'"),
    ("horovod_runs/allreduce_bandwidth.py", [], 1, "a network probe needs two or more ranks"),
    ("data_parallel/torch_dp.py", ["--workers", "2"], 1, "torch's DataParallel splits a batch over GPUs"),
    ("decentralized/hivemind_peers.py", ["--model", "resnet8"], 1, "one worker has no peers"),
]


@pytest.mark.parametrize(("script", "flags", "code", "said"), REFUSED)
def test_what_cannot_be_is_refused_without_a_traceback(script: str, flags: list[str], code: int, said: str) -> None:
    if "hivemind" in script and not installed("hivemind"):
        pytest.skip("hivemind is not installed")
    done = forked.run([sys.executable, CHECKOUT / script, *flags], env=CLEAN)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("framework", "keys", "said"),
    [
        ("lightning_ddp", {"precision": "fp16"}, "on a CPU Lightning computes in bf16 instead"),
        ("fairscale_fsdp", {"allreduce": "fp16"}, "FairScale reduces gradients as they were computed"),
    ],
)
def test_a_precision_that_a_framework_would_change_is_refused(
    framework: str, keys: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = ran(a_trial(framework, **keys), tmp_path)
    assert done.returncode != 0 and said in done.stderr


@pytest.mark.parametrize(
    ("framework", "launcher", "allreduce"),
    [("torch_ddp", "torchrun", "fp16"), ("torch_ddp", "python", "none"), ("torch_fsdp2", "torchrun", "none")],
)
def test_one_worker_sends_nothing(framework: str, launcher: str, allreduce: str, tmp_path: Path) -> None:
    (report,) = ranks_of(a_trial(framework, workers=1, launcher=launcher, allreduce=allreduce), tmp_path)
    assert (report.communication_bytes, report.world_size) == ({}, 1)


@pytest.mark.long
def test_one_horovod_worker_reduces_nothing_and_trains_exactly_as_the_baseline(tmp_path: Path) -> None:
    """The same seed, data and weights: the losses of two frameworks agree to the last bits."""
    baseline = ["--learning-rate", "0.01", "--cores-per-worker", "1"]
    ran = horovod(tmp_path, 1, fp16=["--allreduce", "fp16"], baseline=baseline)
    assert (ran["fp16"][0].allreduce_bytes, ran["fp16"][0].memory["buckets"]) == (0, 0)
    a, b = ran["baseline"][0], single(tmp_path / "single", *baseline)
    assert a.loss_first == pytest.approx(b.loss_first, rel=1e-6)
    assert a.loss_last == pytest.approx(b.loss_last, rel=1e-4)


@pytest.mark.long
def test_horovod_takes_its_knobs_from_flags(tmp_path: Path) -> None:
    """With a fusion buffer of one byte nothing is fused, and the result is the same."""
    fp64 = ["--precision", "fp64"]
    plain = horovod(tmp_path / "plain", 2, plain=fp64)["plain"]
    knobs = ["--fusion-bytes", "1", "--cycle-seconds", "0.002"]
    tuned = horovod(tmp_path / "tuned", 2, tuned=[*fp64, *knobs])["tuned"]
    assert tuned[0].loss_last == pytest.approx(plain[0].loss_last, rel=1e-9)
    assert tuned[0].allreduce_bytes == 8 * P


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs a core for the neighbour")
def test_a_neighbour_on_the_other_core_is_noticed(tmp_path: Path) -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        report = single(tmp_path, "--steps", "200")
    finally:
        neighbour.kill()
        neighbour.wait()
    others = schema.busy_elsewhere_cores([report])
    assert others is not None and others > 0.5
