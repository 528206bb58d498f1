"""Data parallelism with plain MPI: gradients are packed into fused buffers, and averaged when backward is over.

    mpirun -np 2 python horovod_runs/mpi_allreduce.py --model resnet18 --batch-per-worker 32 --allreduce fp16

What Horovod does, less its background thread: nothing overlaps, and all of the reduction is the phase `communication`.
A call has a latency whatever its size, so tensors travel together, in buffers of `fusion_bytes` (64 MiB as in Horovod:
Sergeev and Del Balso, arXiv 1802.05799); MPI picks the algorithm (Thakur et al., doi 10.1177/1094342005051521). It has
no 16-bit floats: they travel as uint16, and an operation of our own adds them. GPUs' buffers pass through host memory.

communication_bytes of one step: allreduce = parameters x 4 (fp32) or x 2 (fp16, bf16); nothing with one worker.
"""

from collections.abc import Callable, Iterable

import torch
from torch.nn import Parameter

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.worker.script import run
from scaling_study.worker.with_mpi import MPI, join_mpi

FUSION_BYTES = 64 * 2**20
SIXTEEN_BIT = {"fp16": torch.float16, "bf16": torch.bfloat16}  # any other allreduce: gradients as they are


def join(trial: Trial) -> Ranks:
    # 1 join: by MPI.Init, once this worker's cores are claimed
    return join_mpi(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: rank 0's weights everywhere, and an average for the gradients
    workload = workloads.load(trial, ranks)
    model = workload.model
    broadcast(model.state_dict().values())
    optimizer = workload.optimizer(model.parameters())
    average = Average(model.parameters(), trial)

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    wire.watch(average, "hand_over", "allreduce")
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
            average()
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    return Training(step, workload, optimizer, phase, wire, held=lambda: {"buckets": average.buffers}, scaler=scaler)


class Average:
    """Call it: every gradient becomes its mean over all workers. With one worker there is no buffer to send."""

    def __init__(self, parameters: Iterable[Parameter], trial: Trial) -> None:
        self.dtype = SIXTEEN_BIT.get(trial.allreduce)
        self.add = MPI.Op.Create(adding(self.dtype), commute=True) if self.dtype else MPI.SUM
        trained = [p for p in parameters if p.requires_grad and trial.allreduce != "none"]
        self.groups = fused(trained, self.dtype, trial.fusion_bytes or FUSION_BYTES)
        self.buffers = [torch.cat([p.detach().to(self.dtype or p.dtype).reshape(-1) for p in g]) for g in self.groups]

    def __call__(self) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            parts = buffer.split([p.numel() for p in group])
            for part, parameter in zip(parts, group, strict=True):
                part.copy_(parameter.grad.reshape(-1))  # and casts
            buffer.div_(MPI.COMM_WORLD.Get_size())  # before it travels: a sum of fp16 values could overflow
            self.hand_over(values := buffer.cpu())  # on a CPU the buffer itself
            buffer.copy_(values)
            for part, parameter in zip(parts, group, strict=True):
                parameter.grad.copy_(part.view_as(parameter))

    def hand_over(self, values: torch.Tensor) -> None:
        """Values (n,) in host memory become their sums over all workers."""
        sendable = values.view(torch.uint16) if self.dtype else values
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, sendable.numpy(), op=self.add)


def fused(parameters: Iterable[Parameter], dtype: torch.dtype | None, limit: int) -> list[list[Parameter]]:
    """Neighbours of one dtype and at most `limit` bytes on the wire; a tensor beyond the limit travels by itself."""
    groups, room = [], 0
    for parameter in parameters:
        size = parameter.numel() * (dtype or parameter.dtype).itemsize
        if not groups or size > room or parameter.dtype != groups[-1][0].dtype:
            groups.append([])
            room = limit
        groups[-1].append(parameter)
        room -= size
    return groups


def adding(dtype: torch.dtype) -> Callable[..., object]:
    """`ours += theirs` on 16-bit floats, for MPI: torch adds them in fp32 and rounds once."""
    return lambda theirs, ours, _: torch.frombuffer(ours, dtype=dtype).add_(torch.frombuffer(theirs, dtype=dtype))


def broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Rank 0's values on every rank, as bytes."""
    for tensor in tensors:
        MPI.COMM_WORLD.Bcast((values := tensor.cpu().contiguous()).reshape(-1).view(torch.uint8).numpy())
        tensor.copy_(values)


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("mpi_allreduce", join, build)
