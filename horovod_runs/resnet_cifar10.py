"""Data parallelism with Horovod: gradients are averaged by an allreduce while backward still runs.

    horovodrun -np 2 python horovod_runs/resnet_cifar10.py --model resnet18 --batch-per-worker 32 --allreduce fp16

A diff against data_parallel/single.py shows all that Horovod asks for: init, a broadcast of the weights, a wrapped
optimiser. The gradients' reduction starts in backward, tensor by tensor, fused by Horovod's background thread
(Sergeev and Del Balso, arXiv 1802.05799); what of it backward does not hide is the phase `communication`.
"""

import os

import horovod
import horovod.torch as hvd
import torch

from scaling_study import workloads
from scaling_study.measure import Phase, Wire, measure
from scaling_study.ranks import Ranks, as_launched, claim_cores, claim_device
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial
from scaling_study.worker.script import run

# Compression of gradients on the wire only; compute keeps its own precision (F7).
COMPRESSION = {"none": hvd.Compression.none, "fp32": hvd.Compression.none, "fp16": hvd.Compression.fp16}


def main(trial: Trial, record: str | None = None) -> RankReport:
    # 1 join: before init, so that Horovod's background thread shares this worker's cores
    cores = claim_cores(trial)
    tune(trial)
    hvd.init()
    device = claim_device(trial, hvd.local_rank())
    ranks = Ranks(hvd.rank(), hvd.size(), hvd.local_rank(), device, cores, agree, reported(device))
    trial = as_launched(trial, ranks)

    # 2 build, then wrap: rank 0's weights everywhere, and an optimiser that reduces before it steps
    workload = workloads.load(trial, ranks)
    model = workload.model
    hvd.broadcast_parameters({name: dense(tensor) for name, tensor in model.state_dict().items()}, root_rank=0)
    compression = COMPRESSION[trial.allreduce]
    if trial.memory_format == "channels_last":
        compression = ChannelsLast(compression)
    optimizer = hvd.DistributedOptimizer(
        workload.optimizer(model.parameters()), model.named_parameters(), compression=compression,
        backward_passes_per_step=trial.accumulation,  # hooks reduce in the last micro-batch's backward
    )  # fmt: skip

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    wire.watch(hvd.optimizer, "allreduce_async_", "allreduce")
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, _ in workload.micro_batches(batch):
            with phase("forward"):
                loss = workload.share(model, part)
            with phase("backward"):
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("communication"):
            optimizer.synchronize()
        with phase("optimizer"), optimizer.skip_synchronize():
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    # 4 measure
    return measure(step, workload, trial, ranks, optimizer=optimizer, phase=phase, wire=wire, record=record)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in the order in which it lies: Horovod refuses a tensor whose channels come last otherwise."""
    return tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)


class ChannelsLast:
    """A compression whose tensors may lie channels last."""

    def __init__(self, inner: type) -> None:
        self.inner = inner

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        packed, context = self.inner.compress(dense(tensor))
        return packed, (context, tensor.is_contiguous())

    def decompress(self, tensor: torch.Tensor, context: tuple[object, bool]) -> torch.Tensor:
        unpacked = self.inner.decompress(tensor, context[0])
        return unpacked if context[1] else unpacked.permute(0, 3, 1, 2)


def tune(trial: Trial) -> None:
    """Horovod reads its knobs from the environment when it starts; the launcher's own flags set the same variables."""
    if trial.fusion_bytes is not None:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(trial.fusion_bytes)
    if trial.cycle_seconds is not None:
        os.environ["HOROVOD_CYCLE_TIME"] = str(1000 * trial.cycle_seconds)  # milliseconds


def agree(value: float) -> float:
    """Rank 0's number, on every rank."""
    return float(hvd.broadcast(torch.tensor([value], dtype=torch.float64), root_rank=0, name="agree").item())


def reported(device: torch.device) -> dict[str, object]:
    """What Horovod itself says of the controller and the operations it runs with."""
    return {
        "version": horovod.__version__,
        "controller": "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none",
        "operations": "NCCL" if hvd.nccl_built() and device.type == "cuda" else "host",
    }


if __name__ == "__main__":
    run("horovod", main)
