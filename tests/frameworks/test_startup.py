"""What our own modules add to starting a trial, beside torch, the framework and the workload's library."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import installed
from scaling_study.settings import CHECKOUT

MOST_SECONDS = 0.3
# What a user of the framework imports anyway, to be taken as given.
GIVEN = {
    "single": "import torch, torch.distributed",
    "torch_dp": "import torch, torch.distributed",
    "torch_ddp": "import torch, torch.distributed, torch.nn.parallel\n"
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
    "horovod": "import torch, torch.distributed, horovod.torch",
    "mpi_allreduce": "import torch, torch.distributed, mpi4py.MPI",
    "fairscale_oss": "import torch, torch.distributed, fairscale.nn.data_parallel, fairscale.optim.oss",
    "fairscale_fsdp": "import torch, torch.distributed, fairscale.nn.data_parallel",
    "torch_fsdp2": "import torch, torch.distributed, torch.distributed.fsdp, torch.distributed.device_mesh",
    "deepspeed_zero": "import torch, torch.distributed, deepspeed",
    "lightning_ddp": "import torch, torch.distributed, lightning.fabric",
    "lightning_fsdp": "import torch, torch.distributed, lightning.fabric, torch.distributed.fsdp\n"
    "import torch.distributed.checkpoint.state_dict",
    "torch_pipeline": "import torch, torch.distributed.pipelining, torch.distributed.device_mesh",
    "naive_model_parallel": "import torch, torch.distributed, torch.distributed.device_mesh",
    "fairscale_pipe": "import torch, torch.distributed, fairscale.nn.pipe",
    "network_probe": "import torch, torch.distributed",
}
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \| \s*(\S+)")


def imported(arguments: list[str]) -> dict[str, float]:
    """Seconds of each module's own import, without those that it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: int(micro) / 1e6 for micro, name in LINE.findall(done.stderr)}


@pytest.mark.slow
@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_our_own_modules_add_little(framework: str) -> None:
    if missing := [name for name in FRAMEWORKS[framework].needs if not installed(name)]:
        pytest.skip(f"{missing[0]} is not installed")
    given = set(imported(["-c", GIVEN[framework]]))
    script = str(CHECKOUT / FRAMEWORKS[framework].script)
    seconds, most = [], {}
    for _ in range(3):  # a neighbour can make it slower than it is, and nothing can make it faster
        added = {name: took for name, took in imported([script, "--help"]).items() if name not in given}
        assert any(name.startswith("scaling_study") for name in added)
        seconds.append(sum(added.values()))
        most = dict(sorted(added.items(), key=lambda item: -item[1])[:5])
        if seconds[-1] <= MOST_SECONDS:
            return
    pytest.fail(f"{min(seconds):.2f} s, most of it in {most}")
