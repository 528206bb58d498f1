"""Every framework by every launcher of its own, really started: what a rank cannot know unless its launcher told it.

What a framework counts, keeps and trains is asked of ranks that are forked (tests/forked.py), in the other files here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.frames import over_ranks
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import launchers
from scaling_study.machine import installed
from scaling_study.measure.arrivals import watchable
from scaling_study.processes.process import Exit
from scaling_study.ranks import as_pipelined
from scaling_study.records import outcome, store
from scaling_study.records.throughput import samples_per_second
from scaling_study.trial import Trial, Window

ELSEWHERE = {  # started by tests of their own, or by none on a machine like this
    ("deepspeed_zero", "deepspeed"): "test_deepspeed_zero.py",
    ("network_probe", "torchrun"): "test_network_probe.py",
    ("network_probe", "horovodrun"): "test_network_probe.py",
    ("network_probe", "mpirun"): "test_network_probe.py",
    ("torch_dp", "python"): "test_torch_ddp.py",  # needs two GPUs: a stand-in
    ("lightning_fsdp", "torchrun"): "test_lightning.py",  # needs a GPU: its check for one stepped over
}
BY_SLURM = "srun"  # tests/cluster
LAUNCHES = [
    (framework, launcher)
    for framework, entry in FRAMEWORKS.items()
    for launcher in entry.launchers
    if launcher != BY_SLURM and (framework, launcher) not in ELSEWHERE
]
CASES = [(*launch, None) for launch in LAUNCHES if launch != ("horovod", "horovodrun")] + [
    ("horovod", "horovodrun", "mpi"), ("horovod", "horovodrun", "gloo"),
]  # fmt: skip
PARAMETERS, FIRST_LAYER = 78_042, 3 * 3 * 3 * 16  # of resnet8
STEPS = 8


def carrier(trial: Trial) -> str:
    """Of a step's gradients, of two ranks on this host."""
    if trial.processes == 1:
        return ""
    mpi = trial.controller == "mpi" or trial.launcher == "mpirun"
    return "MPI over shared memory" if mpi else "Gloo over TCP"


def test_none_is_forgotten() -> None:
    known = {(framework, launcher) for framework, entry in FRAMEWORKS.items() for launcher in entry.launchers}
    assert known == {*LAUNCHES, *ELSEWHERE} | {launch for launch in known if launch[1] == BY_SLURM}
    assert len(CASES) >= 12


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "launcher", "controller"), CASES)
def test_its_ranks_meet_measure_and_report(
    tmp_path: Path, framework: str, launcher: str, controller: str | None
) -> None:
    if missing := [name for name in FRAMEWORKS[framework].needs if not installed(name)]:
        pytest.skip(f"{missing[0]} is not installed")
    trial = Trial(
        framework=framework, launcher=launcher, workers=1 if framework == "single" else 2, model="resnet8",
        batch_per_worker=8, data="synthetic", device="cpu", cores_per_worker=1,
        allreduce="none" if framework == "single" else "fp32", window=Window(1, STEPS, 0.0, None, STEPS),
        **({"controller": controller} if controller else {}),
    )  # fmt: skip
    if FRAMEWORKS[framework].cuts_model:
        trial = as_pipelined(trial)
    command = launchers.command(trial, record=tmp_path)
    env = {**os.environ, **command.env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command.argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    total = re.search(rf"Total images/sec on {trial.workers} worker\(s\): ([\d.]+)", done.stdout)
    assert f"95 % interval within this run of {STEPS} steps (too short to rely on)" in done.stdout

    result = outcome.judge(trial, tmp_path, Exit(0, 1.0))
    assert (result.status, result.reason) == ("ok", "")
    ranks = store.read_ranks(tmp_path, trial.processes)
    speed = samples_per_second((rank.samples_seen for rank in ranks), (rank.window_seconds for rank in ranks))
    assert total and float(total[1]) == pytest.approx(speed, abs=0.06), "what is printed is what the record says"
    assert [rank.rank for rank in ranks] == list(range(trial.processes)) == [rank.local_rank for rank in ranks]
    assert {(rank.world_size, len(rank.step_seconds)) for rank in ranks} == {(trial.processes, STEPS)}
    if controller:
        assert {rank.backend["controller"] for rank in ranks} == {controller}, "what Horovod itself reports"
    assert over_ranks.carrier(ranks) == carrier(trial)
    shares = [rank.overlap for rank in ranks if rank.overlap is not None]
    assert len(shares) == (0 if trial.processes == 1 or FRAMEWORKS[framework].cuts_model else 2)
    if framework == "mpi_allreduce":
        assert max(shares) < 0.01, "it computes nothing while it waits"
    elif framework == "horovod":  # DDP has one bucket for so small a model, and sends it when backward is over
        assert max(shares) > 0.05
    if len(ranks) == 2 and (os.cpu_count() or 1) >= 2:
        assert not set(ranks[0].cores) & set(ranks[1].cores)
    if not FRAMEWORKS[framework].cuts_model:
        assert len({rank.loss_last for rank in ranks}) == len(ranks), "each its own share of the data"
    for rank in ranks if watchable(trial) else ():
        assert rank.phases is not None and rank.phases.steps == 2, "the watched step is none of these"
        assert sum(size for size, _ in rank.gradients) == PARAMETERS * 4
        seconds = [seconds for _, seconds in rank.gradients]
        assert seconds == sorted(seconds) and seconds[0] > 0
        assert max(size for size, _ in rank.gradients[-3:]) == FIRST_LAYER * 4  # the first layers come last
