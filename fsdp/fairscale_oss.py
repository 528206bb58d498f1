"""Sharded optimiser state and gradients with FairScale's OSS and ShardedDataParallel.

    torchrun --standalone --nproc-per-node 2 fsdp/fairscale_oss.py --model resnet18 --allreduce fp16

Every parameter has one owner, the worker that has the least so far. All keep all weights. A gradient is reduced to its
owner and dropped by the others; the owner alone has the optimiser's state, steps, and broadcasts the new weights
(ZeRO stage 2, Rajbhandari et al., arXiv 1910.02054). Against DDP, one reduce and one broadcast take the place of the
allreduce: the same volume, and 1/n of gradients and optimiser state.

One step hands over, for P parameters:

    reduce      4 P bytes (fp16: 2 P)        each gradient by itself, while backward runs
    broadcast   4 P bytes                    new weights after the step, in one buffer an owner

and with --buffers synced, FairScale's default, BatchNorm's buffers before every forward, each broadcast by itself.

Gradients are not collected in buffers (reduce_buffer_size=0, which is not FairScale's default). A buffer is whole on
every worker, so that nothing would be sharded; what is in one is silently reduced in fp32; and zero_grad of today's
torch detaches gradients from it, after which each worker silently trains by itself. Between hosts, where many small
messages are slow, they would pay.
"""

from contextlib import nullcontext

import torch
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim import OSS
from fairscale.optim.grad_scaler import ShardedGradScaler

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: the optimiser deals out the parameters, the model then knows where each gradient goes
    workload = workloads.load(trial, ranks)
    optimizer = OSS(workload.grouped(workload.model.parameters()), optim=workload.optimizer)
    model = ShardedDataParallel(
        workload.model,
        optimizer,
        reduce_buffer_size=0,
        reduce_fp16=trial.allreduce == "fp16",
        broadcast_buffers=trial.buffers == "synced",
    )
    model.refresh_trainable()  # deals the weights out into flat buffers now, not in the first step

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    # each rank sees its own gradients only: whether some overflowed, and the step is left out, is agreed on
    scaler = ShardedGradScaler(enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, last in workload.micro_batches(batch):
            with nullcontext() if last else model.no_sync():  # gradients add up; the last backward reduces
                with phase("forward"):
                    loss = workload.share(model, part)
                with phase("backward"):
                    scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("optimizer"):  # the broadcast of the new weights is inside
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    def held() -> dict[str, list[torch.Tensor]]:
        """What this worker owns: the optimiser inside OSS steps it, and its gradients outlive backward."""
        mine = [p for group in optimizer.partition_parameters()[ranks.rank] for p in group["params"]]
        state = [value for p in mine for value in optimizer.optim.state[p].values()]
        return {"gradients": mine, "optimizer": [value for value in state if isinstance(value, torch.Tensor)]}

    # each rank saves its weights, and the optimiser state that it owns
    state = train.PerRank(
        lambda: [workload.model.state_dict(), optimizer.optim.state_dict()],
        lambda saved: [workload.model.load_state_dict(saved[0]), optimizer.optim.load_state_dict(saved[1])],
    )
    return Training(step, workload, optimizer, phase, wire, held=held, state=state, scaler=scaler)


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("fairscale_oss", join, build)
