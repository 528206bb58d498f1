"""Horovod for scripts: how they join by it, and tensors in a layout that it takes.                         [torch]

Imported only by scripts whose framework needs Horovod.

    python -m scaling_study.worker.with_horovod      how this Horovod was built, as JSON (--print-environment)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import horovod
import horovod.torch as hvd
import psutil
import torch

from scaling_study.ranks import Ranks, as_claimed, claim_cores, claim_device
from scaling_study.trial import Trial

# Compression of gradients on the wire only; compute keeps its own precision (F7).
COMPRESSION = {"none": hvd.Compression.none, "fp32": hvd.Compression.none, "fp16": hvd.Compression.fp16}
FUSION_BYTES = 128 * 2**20  # its default (horovod/common/operations.cc)


def join_horovod(trial: Trial) -> Ranks:
    """Join by `hvd.init`, with the trial's knobs; the cores are claimed first, for Horovod's background thread.

    Horovod reads its knobs from the environment when it starts; the launcher's own flags set the same variables.
    """
    cores = claim_cores(trial)
    if trial.fusion_bytes is not None:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(trial.fusion_bytes)
    if trial.cycle_seconds is not None:
        os.environ["HOROVOD_CYCLE_TIME"] = str(1000 * trial.cycle_seconds)  # milliseconds
    hvd.init()
    if hvd.gloo_enabled() and hvd.size() > 1:
        require_asked_interface()
    device = claim_device(trial, as_claimed(hvd.local_rank()))
    backend = {
        "version": horovod.__version__,
        "controller": "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none",
        "operations": "NCCL" if hvd.nccl_built() and device.type == "cuda" else "host",
    }
    here = hvd.rank(), hvd.size(), hvd.local_rank()
    return Ranks(*here, device, cores, agree, backend, hvd.shutdown, total)


def require_asked_interface() -> None:
    """Look whether a connection of Gloo's takes the network interface that a machine file names.

    A Horovod without our patch ignores it: the host's name decides (environment/horovod-0.28.1.patch). Raises
    SystemExit. An interface that horovodrun chose by itself is no wish of anybody's.
    """
    name = os.environ.get("HOROVOD_GLOO_IFACE", "")
    if not name or os.environ.get("GLOO_SOCKET_IFNAME") != name:  # study/support.py sets it beside --network-interface
        return
    wanted = {address.address.partition("%")[0] for address in psutil.net_if_addrs().get(name, ())}
    connected = psutil.Process().net_connections("inet")
    taken = {connection.laddr.ip for connection in connected if connection.status == psutil.CONN_ESTABLISHED}
    if not wanted & taken:
        raise SystemExit(
            f"Horovod's Gloo connects from {', '.join(sorted(taken)) or 'nowhere'}, not by the interface {name} that "
            "was asked for: this build of Horovod ignores it. Take controller: mpi, or a Horovod that make setup builds"
        )


def fusion_bytes() -> int:
    """Bytes of the fusion buffer. Horovod's core allocates it whole, once two tensors travel together, and keeps it;
    of its memory pages a host has only those that were ever filled."""
    return int(os.environ.get("HOROVOD_FUSION_THRESHOLD", FUSION_BYTES))


def agree(value: float) -> float:
    """Rank 0's number, on every rank."""
    return float(hvd.broadcast(torch.tensor([value], dtype=torch.float64), root_rank=0, name="agree").item())


def total(values: Sequence[float]) -> list[float]:
    """The sum of all ranks' numbers, place by place."""
    numbers = torch.tensor(values, dtype=torch.float64)
    totals: list[float] = hvd.allreduce(numbers, op=hvd.Sum, name=f"total of {len(values)}").tolist()
    return totals


def dense(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of tensors in the order of their memory: Horovod refuses a tensor whose channels come last otherwise."""
    return {name: _dense(tensor) for name, tensor in tensors.items()}


def compression(trial: Trial) -> Any:
    """The trial's compression of gradients, for tensors in the trial's memory format."""
    chosen = COMPRESSION[trial.allreduce]
    return ChannelsLast(chosen) if trial.memory_format == "channels_last" else chosen


class ChannelsLast:
    """A compression whose tensors may lie channels last."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        packed, context = self.inner.compress(_dense(tensor))
        return packed, (context, tensor.is_contiguous())

    def decompress(self, tensor: torch.Tensor, context: tuple[object, bool]) -> torch.Tensor:
        unpacked: torch.Tensor = self.inner.decompress(tensor, context[0])
        return unpacked if context[1] else unpacked.permute(0, 3, 1, 2)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)


def build() -> dict[str, bool]:
    """The parts that this Horovod was built with, asked of its own library.

    `patched`: its build wrote down what it has, which ours does (environment/horovod-0.28.1.patch).
    """
    written = Path(horovod.__file__).with_name("metadata.json")
    patched = written.is_file() and "gloo" in json.loads(written.read_text(encoding="utf-8"))
    return {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": bool(hvd.nccl_built()), "patched": patched}


if __name__ == "__main__":
    print(json.dumps(build()))
