"""DDP with torch's ZeroRedundancyOptimizer: every worker keeps, and steps, its own share of the optimiser's state.

    torchrun --standalone --nproc-per-node 2 data_parallel/torch_zero1.py --model resnet18

A diff against data_parallel/torch_ddp.py shows all that it asks for: another optimiser. Gradients are reduced as in
DDP; each worker then steps its share of the parameters and broadcasts it (ZeRO stage 1: Rajbhandari et al., arXiv
1910.02054).

communication_bytes of one step: allreduce = parameters x 4 (fp32), broadcast = parameters x 4; with
--buffers synced also BatchNorm's buffers.
"""

from contextlib import nullcontext

import torch
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire, ddp_buckets
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import ddp_settings, run

# Without a hook DDP averages in the gradients' own precision, and a lone worker with itself.
HOOKS = {
    "none": debugging_hooks.noop_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: DDP broadcasts rank 0's weights and reduces in backward
    workload = workloads.load(trial, ranks)
    model = DistributedDataParallel(workload.model, **ddp_settings(trial, ranks))
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

    def held() -> dict[str, list[torch.Tensor] | int]:
        state = [value for entry in optimizer.optim.state.values() for value in entry.values()]
        return {"optimizer": state, "buckets": ddp_buckets(model)}

    return Training(step, workload, optimizer, phase, wire, held=held)


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_zero1", join, build)
