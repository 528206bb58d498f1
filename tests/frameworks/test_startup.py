"""Every script's --help: what it says, and what our own modules add to the start beside torch and the framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from trained import skip_where_missing

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import installed
from scaling_study.settings import CHECKOUT

MOST_SECONDS = 0.3  # of a core: a neighbour takes the core away, and is no fault of ours
# What a user of the framework imports anyway, to be taken as given.
GIVEN = {
    "single": "import torch, torch.distributed",
    "torch_dp": "import torch, torch.distributed",
    "torch_ddp": "import torch, torch.distributed, torch.nn.parallel\n"
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
    "diloco": "import torch, torch.distributed",
    "horovod": "import torch, torch.distributed, horovod.torch",
    "mpi_allreduce": "import torch, torch.distributed, mpi4py.MPI",
    "fairscale_oss": "import torch, torch.distributed, fairscale.nn.data_parallel, fairscale.optim.oss",
    "fairscale_fsdp": "import torch, torch.distributed, fairscale.nn.data_parallel",
    "torch_fsdp2": "import torch, torch.distributed, torch.distributed.fsdp, torch.distributed.device_mesh",
    "deepspeed_zero": "import torch, torch.distributed, deepspeed",
    "lightning_ddp": "import torch, torch.distributed, lightning.fabric",
    "lightning_fsdp": "import torch, torch.distributed, lightning.fabric, torch.distributed.fsdp\n"
    "import torch.distributed.checkpoint.state_dict",
    "torch_tp": "import torch, torch.distributed, torch.distributed.fsdp, torch.distributed.tensor.parallel\n"
    "import torch.distributed.checkpoint.state_dict",
    "torch_pipeline": "import torch, torch.distributed.pipelining, torch.distributed.device_mesh",
    "naive_model_parallel": "import torch, torch.distributed, torch.distributed.device_mesh",
    "fairscale_pipe": "import torch, torch.distributed, fairscale.nn.pipe",
    "torch_context": "import torch, torch.distributed, torch.nn.parallel, torch.distributed.device_mesh",
    "hivemind": "import torch, torch.distributed, hivemind",
    "network_probe": "import torch, torch.distributed",
}
# Asks every script for its help in a fork of one process that has imported torch, after the imports that are given.
PROGRAM = """
import gc, json, os, runpy, sys, time
import torch, torch.distributed
for given, script, out in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        exec(given)
        gc.disable()  # its pause would be that of the script
        os.dup2(os.open(out + ".help", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        sys.argv, sys.path[0] = [script, "--help"], os.path.dirname(script)
        before = time.process_time()
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            sys.stdout.flush()
            open(out + ".seconds", "w").write(str(time.process_time() - before))
            os._exit(end.code or 0)
        os._exit(1)  # --help goes on to train
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(script)
"""
HERE = [name for name in sorted(FRAMEWORKS) if all(installed(library) for library in FRAMEWORKS[name].needs)]


def asked_for_help(frameworks: Sequence[str], folder: Path) -> dict[str, float]:
    """CPU seconds of each framework's script beside what is given. What it says lies in `folder`/FRAMEWORK.help."""
    asked = [(GIVEN[name], str(CHECKOUT / FRAMEWORKS[name].script), str(folder / name)) for name in frameworks]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: float((folder / f"{name}.seconds").read_text()) for name in frameworks}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asked")


@pytest.fixture(scope="module")
def first_seconds(folder: Path) -> dict[str, float]:
    return asked_for_help(HERE, folder)


@pytest.mark.slow
@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_every_script_explains_itself_without_a_gpu_and_our_own_modules_add_little(
    framework: str, first_seconds: dict[str, float], folder: Path, tmp_path: Path
) -> None:
    """Which modules take the time: python -X importtime SCRIPT --help."""
    skip_where_missing(framework)
    text = (folder / f"{framework}.help").read_text()
    flags = ("--batch-per-worker",) if FRAMEWORKS[framework].trains else ("--max-bytes",)
    assert text.startswith("usage: ") and all(flag in text for flag in (*flags, "--record"))
    runs = [first_seconds[framework]]
    while runs[-1] > MOST_SECONDS and len(runs) < 3:  # a neighbour takes the cache away too
        runs.append(asked_for_help([framework], tmp_path)[framework])
    assert min(runs) <= MOST_SECONDS
