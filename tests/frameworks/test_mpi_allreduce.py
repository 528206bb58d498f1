"""Plain MPI: what is sent is exact, and so is the sum of what 16 bits can hold."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import forked
import in_turn
import pytest
import torch
from torch import nn

from scaling_study.launch import launchers
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

pytest.importorskip("mpi4py")
BIN = Path(sys.executable).parent
SCRIPT = CHECKOUT / "horovod_runs/mpi_allreduce.py"
QUICK = ["--data=synthetic", "--batch-per-worker=8", "--steps=4", "--warmup-steps=1", "--cores-per-worker=1"]
PARAMETERS = 78_042  # of resnet8


def run(trial: Trial, program: list[str], fails: bool = False) -> subprocess.CompletedProcess[str]:
    done = forked.launch(launchers.mpirun(trial, [sys.executable, *program], BIN).argv)
    assert (done.returncode != 0) == fails, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def case(folder: Path, *flags: str) -> list[str]:
    """A script and its flags that leave every rank's report in `folder`."""
    return [str(SCRIPT), "--model", "resnet8", *QUICK, *flags, "--record", str(folder)]


# --- without a launcher: the script's own parts ---


@pytest.fixture(scope="module")
def script() -> dict:
    """The script's names; MPI is loaded and not started."""
    try:
        return runpy.run_path(str(SCRIPT))
    except RuntimeError as error:  # mpi4py's wheel brings no MPI
        pytest.skip(str(error))


def parameters(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(float(size))) for size in sizes]


def test_tensors_share_buffers_of_at_most_fusion_bytes(script):
    def sizes(limit: int, dtype: torch.dtype | None = None) -> list[list[int]]:
        return [[p.numel() for p in group] for group in script["fused"](parameters(10, 20, 5, 100, 5), dtype, limit)]

    assert sizes(10**6) == [[10, 20, 5, 100, 5]]
    assert sizes(140) == [[10, 20, 5], [100], [5]]  # 140 bytes are 35 fp32 values; 100 travel by themselves
    assert sizes(140, torch.bfloat16) == [[10, 20, 5], [100], [5]]
    assert sizes(280, torch.bfloat16) == [[10, 20, 5, 100, 5]]
    assert sizes(1) == [[10], [20], [5], [100], [5]]


def test_gradients_of_another_dtype_have_a_buffer_of_their_own(script):
    mixed = [*parameters(3), nn.Parameter(torch.zeros(3, dtype=torch.float64)), *parameters(3)]
    assert [len(group) for group in script["fused"](mixed, None, 10**6)] == [1, 1, 1]
    average = script["Average"](mixed, Trial(framework="mpi_allreduce", workers=2))
    assert [buffer.dtype for buffer in average.buffers] == [torch.float32, torch.float64, torch.float32]


def test_one_worker_has_nothing_to_send(script):
    assert script["Average"](parameters(3), Trial(framework="mpi_allreduce", allreduce="none")).buffers == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_values_are_added_in_fp32_and_rounded_once(script, dtype):
    """Over all exponents; bit by bit the same as the rounded fp32 sum, subnormals, infinities and all."""
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.randint(-(2**15), 2**15, (100_000,), generator=generator).to(torch.int16).view(dtype) for _ in range(2)
    )
    right = (a.float() + b.float()).to(dtype)
    theirs, ours = a.view(torch.int16).numpy().tobytes(), bytearray(b.view(torch.int16).numpy().tobytes())
    script["adding"](dtype)(bytearray(theirs), ours, None)
    got = torch.frombuffer(ours, dtype=dtype)
    numbers = ~right.isnan()
    assert torch.equal(got.isnan(), right.isnan())
    assert torch.equal(got[numbers].view(torch.int16), right[numbers].view(torch.int16))


# --- real processes ---

EXACT = """
import json, runpy, sys
import torch
script = runpy.run_path(sys.argv[1])
MPI, Trial = script["MPI"], script["Trial"]
MPI.Init()
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
def counting(*shape, up_to, dtype):
    return torch.arange(torch.Size(shape).numel()).remainder(up_to).view(shape).to(dtype)
said = {}
for allreduce, dtype in ("fp32", "float32"), ("fp16", "float32"), ("bf16", "float32"), ("fp32", "float64"):
    # small whole numbers x size: every value, sum and mean is a number that all of these formats hold
    dtype = getattr(torch, dtype)
    p_mean, q_mean = counting(7, 1001, up_to=4, dtype=dtype), counting(3, 4, 5, 5, up_to=7, dtype=dtype)
    q_mean = q_mean.to(memory_format=torch.channels_last)
    p, q = torch.nn.Parameter(torch.zeros_like(p_mean)), torch.nn.Parameter(torch.zeros_like(q_mean))
    asked = Trial(framework="mpi_allreduce", workers=size, allreduce=allreduce, fusion_bytes=2000)
    average = script["Average"]([p, q], asked)
    for scale in (1, -2):  # twice: the buffers are used again
        p.grad, q.grad = p_mean * size * scale * (rank + 1), q_mean * size * (rank + 1)
        average()
        weight = size * (size + 1) // 2  # 1 + 2 + ... + size
        said[f"{allreduce} {dtype} {scale}"] = p.grad.equal(p_mean * scale * weight) and q.grad.equal(q_mean * weight)
grown = torch.full((2, 2), float(rank), dtype=torch.bfloat16), torch.tensor(rank + 5), torch.full((3,), rank + 0.1)
script["broadcast"](grown)
said["broadcast"] = [grown[0].sum().item(), grown[1].item(), round(grown[2].sum().item(), 6)]
print("SAID", json.dumps(said))
MPI.Finalize()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [pytest.param(2, marks=pytest.mark.long), 3, pytest.param(4, marks=pytest.mark.long)]
)
def test_means_are_exact_in_every_format_and_equal_on_every_rank(tmp_path, workers):
    (tmp_path / "exact.py").write_text(EXACT)
    done = run(Trial(framework="mpi_allreduce", workers=workers), [str(tmp_path / "exact.py"), str(SCRIPT)])
    said = [json.loads(line.partition("SAID")[2]) for line in done.stdout.splitlines() if "SAID" in line]
    assert len(said) == workers
    for rank in said:
        assert rank.pop("broadcast") == [0.0, 5, 0.3]
        assert len(rank) == 8 and all(rank.values()), rank


TRAINED = {
    "plain": [],
    "whole": ["--model", "resnet8_groupnorm"],
    "parts": ["--model", "resnet8_groupnorm", "--fusion-bytes", "10000"],
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Path:
    """Every case of TRAINED, in a folder of its name: one launch of two ranks, in which each has its turn."""
    folder = tmp_path_factory.mktemp("launched")
    cases = [case(folder / name, *flags) for name, flags in TRAINED.items()]
    run(Trial(framework="mpi_allreduce", workers=2), in_turn.program(folder, *cases)[1:])
    return folder


@pytest.mark.slow
def test_two_ranks_train_and_send_exactly_the_gradients(launched):
    ranks = store.read_ranks(launched / "plain", 2)
    assert [r.rank for r in ranks] == [0, 1] and {r.world_size for r in ranks} == {2}
    assert [r.local_rank for r in ranks] == [0, 1]  # by MPI, not by an environment variable
    assert {r.memory["buckets"] for r in ranks} == {4 * PARAMETERS}
    assert {r.allreduce_bytes for r in ranks} == {4 * PARAMETERS}
    assert {tuple(r.communication_bytes.items()) for r in ranks} == {(("allreduce", 4 * PARAMETERS),)}
    assert all(r.phases.communication_seconds > 0 for r in ranks)
    assert ranks[0].loss_last != ranks[1].loss_last  # each its own shard
    assert "Open MPI" in ranks[0].backend["library"]


@pytest.mark.slow
def test_small_buffers_send_as_much_and_train_the_same(launched):
    whole, parts = (store.read_ranks(launched / name, 2) for name in ("whole", "parts"))
    assert [r.allreduce_bytes for r in whole] == [r.allreduce_bytes for r in parts]
    assert [r.loss_last for r in whole] == [r.loss_last for r in parts]


@pytest.mark.slow
def test_one_worker_sends_nothing_with_mpirun_or_without(tmp_path):
    run(Trial(framework="mpi_allreduce", workers=1), case(tmp_path / "mpirun", "--allreduce", "fp16"))
    done = forked.run([sys.executable, *case(tmp_path / "python")])
    assert done.returncode == 0, done.stderr
    for name in ("mpirun", "python"):
        (report,) = store.read_ranks(tmp_path / name, 1)
        assert (report.allreduce_bytes, report.communication_bytes, report.world_size) == (0, {}, 1)


FAILS = """
import runpy, sys
script = runpy.run_path(sys.argv[1])
def load(trial, ranks):
    if ranks.rank == 1:
        raise ValueError("the planted bug")
    return original(trial, ranks)
workloads = script["workloads"]
original, workloads.load = workloads.load, load
sys.argv[1:] = sys.argv[2:]
script["run"]("mpi_allreduce", script["join"], script["build"])
"""


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others_and_leaves_word(tmp_path):
    """mpi4py by itself would finalize at exit, and wait for ranks that wait in their broadcast."""
    (tmp_path / "fails.py").write_text(FAILS)
    flags = ["--model", "resnet8", *QUICK, "--record", str(tmp_path)]
    run(Trial(framework="mpi_allreduce", workers=2), [str(tmp_path / "fails.py"), str(SCRIPT), *flags], fails=True)
    assert json.loads((tmp_path / "ranks/error-1.json").read_text())["message"] == "the planted bug"
