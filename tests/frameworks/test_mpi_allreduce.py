"""Plain MPI: what is sent is exact, and so is the sum of what 16 bits can hold."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import in_turn
import pytest
import torch
from torch import nn
from trained import P, a_trial, ranks_of, started

from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

pytest.importorskip("mpi4py")
SCRIPT = str(CHECKOUT / "horovod_runs/mpi_allreduce.py")
QUICK = ["--model", "resnet8", "--data=synthetic", "--batch-per-worker=8", "--steps=4", "--warmup-steps=1",
         "--cores-per-worker=1"]  # fmt: skip


def mpirun(workers: int, *program: str | Path) -> subprocess.CompletedProcess[str]:
    return started("mpi_allreduce", workers, [sys.executable, *map(str, program)], {})


# --- without a launcher: the script's own parts ---


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The script's names; MPI is loaded and not started."""
    try:
        return runpy.run_path(SCRIPT)
    except RuntimeError as error:  # mpi4py's wheel brings no MPI
        pytest.skip(str(error))


def parameters(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(float(size))) for size in sizes]


@pytest.mark.parametrize(
    ("limit", "dtype", "groups"),
    [
        (10**6, None, [[10, 20, 5, 100, 5]]),
        (140, None, [[10, 20, 5], [100], [5]]),  # 140 bytes are 35 fp32 values; 100 travel by themselves
        (140, torch.bfloat16, [[10, 20, 5], [100], [5]]),
        (280, torch.bfloat16, [[10, 20, 5, 100, 5]]),
        (1, None, [[10], [20], [5], [100], [5]]),
    ],
)
def test_tensors_share_buffers_of_at_most_fusion_bytes(script, limit, dtype, groups) -> None:
    found = script["fused"](parameters(10, 20, 5, 100, 5), dtype, limit)
    assert [[p.numel() for p in group] for group in found] == groups


def test_gradients_of_another_dtype_have_a_buffer_of_their_own_and_one_worker_has_none(script) -> None:
    mixed = [*parameters(3), nn.Parameter(torch.zeros(3, dtype=torch.float64)), *parameters(3)]
    average = script["Average"](mixed, Trial(framework="mpi_allreduce", workers=2))
    assert [buffer.dtype for buffer in average.buffers] == [torch.float32, torch.float64, torch.float32]
    assert script["Average"](mixed, Trial(framework="mpi_allreduce", allreduce="none")).buffers == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_values_are_added_in_fp32_and_rounded_once(script, dtype: torch.dtype) -> None:
    """Over all exponents; bit by bit the same as the rounded fp32 sum, subnormals, infinities and all."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randint(-(2**15), 2**15, (2, 100_000), generator=generator).to(torch.int16).view(dtype)
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
def test_means_are_exact_in_every_format_and_equal_on_every_rank(tmp_path: Path, workers: int) -> None:
    (tmp_path / "exact.py").write_text(EXACT)
    done = forked.ended(mpirun(workers, tmp_path / "exact.py", SCRIPT))
    said = [json.loads(line.partition("SAID")[2]) for line in done.stdout.splitlines() if "SAID" in line]
    assert len(said) == workers
    for rank in said:
        assert rank.pop("broadcast") == [0.0, 5, 0.3]
        assert len(rank) == 8 and all(rank.values()), rank


@pytest.mark.slow
def test_small_buffers_send_as_much_and_train_the_same(tmp_path: Path) -> None:
    cases = {"whole": [], "parts": ["--fusion-bytes", "10000"]}
    flags = [SCRIPT, *QUICK, "--model", "resnet8_groupnorm"]
    lines = [[*flags, *more, "--record", str(tmp_path / name)] for name, more in cases.items()]
    forked.ended(mpirun(2, *in_turn.program(tmp_path, *lines)[1:]))
    whole, parts = (store.read_ranks(tmp_path / name, 2) for name in cases)
    assert {r.allreduce_bytes for r in (*whole, *parts)} == {4 * P}
    assert [r.loss_last for r in whole] == [r.loss_last for r in parts]
    assert all(r.phases.communication_seconds > 0 and "Open MPI" in r.backend["library"] for r in whole)


@pytest.mark.slow
def test_one_worker_sends_nothing_with_mpirun_or_without(tmp_path: Path) -> None:
    forked.ended(mpirun(1, SCRIPT, *QUICK, "--allreduce", "fp16", "--record", tmp_path / "mpirun"))
    alone = a_trial("mpi_allreduce", workers=1, launcher="python", allreduce="none")
    for (report,) in (store.read_ranks(tmp_path / "mpirun", 1), ranks_of(alone, tmp_path / "python")):
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
def test_a_rank_that_fails_ends_the_others_and_leaves_word(tmp_path: Path) -> None:
    """mpi4py by itself would finalize at exit, and wait for ranks that wait in their broadcast."""
    (tmp_path / "fails.py").write_text(FAILS)
    assert mpirun(2, tmp_path / "fails.py", SCRIPT, *QUICK, "--record", tmp_path).returncode != 0
    assert json.loads((tmp_path / "ranks/error-1.json").read_text())["message"] == "the planted bug"
