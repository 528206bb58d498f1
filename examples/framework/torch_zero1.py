"""DDP with torch's ZeroRedundancyOptimizer: every worker keeps, and steps, its own share of the optimiser's state.

    torchrun --standalone --nproc-per-node 2 data_parallel/torch_zero1.py --model resnet18

A diff against data_parallel/torch_ddp.py shows all that it asks for: another optimiser. Gradients are reduced as in
DDP; each worker then steps its share of the parameters and broadcasts it (ZeRO stage 1: Rajbhandari et al., arXiv
1910.02054).

communication_bytes of one step: allreduce = parameters x 4 (fp32), broadcast = parameters x 4
and BatchNorm's buffers.
"""

from contextlib import nullcontext

import torch
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from scaling_study import workloads
from scaling_study.measure import Phase, Wire, measure
from scaling_study.ranks import as_launched, join_torch
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial
from scaling_study.worker.script import run

# Without a hook DDP averages in the gradients' own precision, and a lone worker with itself.
HOOKS = {
    "none": debugging_hooks.noop_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}
MIB = 2**20


def main(trial: Trial, record: str | None = None) -> RankReport:
    # 1 join: torchrun has said who we are and where to meet
    ranks = join_torch(trial)
    trial = as_launched(trial, ranks)

    # 2 build, then wrap: DDP broadcasts rank 0's weights and reduces in backward
    workload = workloads.load(trial, ranks)
    cap = None if trial.bucket_bytes is None else trial.bucket_bytes / MIB
    model = DistributedDataParallel(workload.model, bucket_cap_mb=cap, forward_sync_buffers=ranks.world_size > 1)
    if trial.allreduce in HOOKS:
        model.register_comm_hook(None, HOOKS[trial.allreduce])
    plain = workload.optimizer(model.parameters())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), type(plain), **plain.defaults)

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, last in workload.micro_batches(batch):
            with nullcontext() if last else model.no_sync():  # gradients add up; the last backward reduces the sum
                with phase("forward"):
                    loss = workload.share(model, part)
                with phase("backward"):
                    scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    # 4 measure
    return measure(
        step, workload, trial, ranks, optimizer=optimizer, phase=phase, wire=wire,
        held=lambda: {"optimizer": [value for state in optimizer.optim.state.values() for value in state.values()]},
        record=record,
    )  # fmt: skip


if __name__ == "__main__":
    run("torch_zero1", main)
