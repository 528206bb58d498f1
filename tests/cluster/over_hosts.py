"""The studies that run over hosts, each a text as a user writes it, and how one is run from a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import yaml
from network import PATH, Host

from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT

BIN = Path(sys.executable).parent
TWO = "model: resnet8, data: synthetic, workers: 2, hosts: 2, cores_per_worker: 1"
OVER_HOSTS = {  # one for each way of starting processes over hosts
    "horovodrun --gloo": f"{{framework: horovod, controller: gloo, {TWO}}}",
    "horovodrun --mpi": f"{{framework: horovod, controller: mpi, {TWO}}}",
    "mpirun": f"{{framework: mpi_allreduce, {TWO}}}",
    "torchrun": f"{{framework: torch_ddp, {TWO}}}",
    "deepspeed": f"{{framework: deepspeed_zero, {TWO}}}",
}
QUICK = "{warmup_steps: 1, min_steps: 3, max_steps: 3, min_seconds: 0, repeats: 1, max_repeats: 1}"
LONG = "{warmup_steps: 1, min_seconds: 600, max_seconds: 600, repeats: 1, max_repeats: 1, timeout_seconds: 600}"


TRAIN = """
import os, sys, torch
from torch import nn
assert os.environ["LEVEL"] == "3" and "A_PASSWORD" not in os.environ
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if sys.argv[1:] == ["horovod"]:
    import horovod.torch as hvd
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
else:
    rank = next(os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID") if name in os.environ)
    torch.distributed.init_process_group("gloo", rank=int(rank), world_size=2)
    model = nn.parallel.DistributedDataParallel(model)
while True:
    x, y = torch.randn(8, 64), torch.randint(0, 10, (8,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
NODES = "--nnodes {nodes} --node-rank {node} --rdzv-endpoint {first_host}:{port} --nproc-per-node {workers_per_host}"
COMMANDS = {  # of a user's own, as people write them
    "torchrun": f"torchrun {NODES} train.py",
    "mpirun": f"'{BIN}/mpirun' --allow-run-as-root --bind-to none -np {{workers}} -H {{hosts}} python train.py",
    "horovodrun": "horovodrun --gloo -np {workers} -H {hosts} python train.py horovod",
    "srun": "srun --overlap --mem=0 --mpi=none --ntasks {workers} --nodes {nodes} python train.py",
}


def sweeps_of_commands(folder: Path, launchers: Iterable[str]) -> list[str]:
    """A sweep of each of these, over two hosts; their script is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    env = {"LEVEL": 3, "MASTER_ADDR": "{first_host}", "MASTER_PORT": "{port}"}
    keys = {"framework": "command", "workers": 2, "hosts": 2, "batch_per_worker": 8, "device": "cpu", "env": env}
    return [json.dumps({**keys, "workdir": str(folder), "command": COMMANDS[launcher]}) for launcher in launchers]


class Sweep:
    """A study in a folder that all hosts share, run from one of them."""

    def __init__(self, folder: Path, sweeps: list[str], measure: str = QUICK, **environment: str) -> None:
        self.folder, self.file = folder, folder / "study.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["study: over", "parity: false", f"measure: {measure}", "hosts: [h1:1, h2:1]", "sweeps:"]
        self.file.write_text("\n".join([*lines, *(f"  - {sweep}" for sweep in sweeps)]) + "\n", encoding="utf-8")
        self._environment = {
            **os.environ, "PATH": f"{BIN}{os.pathsep}{PATH}", "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200",
            **environment,
        }  # fmt: skip

    def machine_file(self, **keys: object) -> str:
        path = self.folder / "machine.yaml"
        path.write_text(yaml.safe_dump(keys), encoding="utf-8")
        return str(path)

    def start(self, host: Host, *options: str) -> subprocess.Popen[str]:
        """`python run_sweep.py` there; what is returned is nsenter, whose child it is."""
        said = (self.folder / "said.txt").open("w")
        command = [sys.executable, str(CHECKOUT / "run_sweep.py"), str(self.file), "--results", str(self.folder)]
        return host.start(
            *command, "--no-report", *options, folder=self.folder, env=self._environment, stdout=said, stderr=said
        )

    def run(self, host: Host, *options: str, seconds: float = 280.0) -> tuple[int, str]:
        """(its exit code, what it said)."""
        started = self.start(host, *options)
        try:
            return started.wait(seconds), self.said()
        finally:
            started.kill()

    def said(self) -> str:
        return (self.folder / "said.txt").read_text(encoding="utf-8")

    def records(self) -> list[Record]:
        return [store.read_record(path) for path in sorted(self.folder.glob("over/trials/*/record.json"))]

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("over/trials/*/log.txt"))


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
