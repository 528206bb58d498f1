"""Local SGD and DiLoCo: workers train alone, and bring their weights together every H-th step only.

    torchrun --standalone --nproc-per-node 2 data_parallel/diloco.py --model resnet18 --sync-every 8 --outer nesterov

A diff against data_parallel/torch_ddp.py shows what it asks for: nothing wraps the model, each worker steps by its own
gradients, and after H steps (--sync-every) all take the mean of their weights. With --outer average they go on from it:
local SGD (Stich, arXiv 1805.09767). With --outer nesterov all step from the weights that they had last against those
less the mean, by SGD at 0.7 with Nesterov momentum 0.9: DiLoCo (Douillard et al., arXiv 2311.08105). The inner
optimiser is the workload's; its state and BatchNorm's buffers stay each worker's own. Between two meetings weights
differ: evaluated, kept and compared is their mean.

communication_bytes of one step: allreduce = parameters x 4 / H, as a mean over H steps; nothing with one worker. With
--outer nesterov a worker holds 2 x parameters x 4 more: the weights of last time, and the momentum.
"""

from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run


class Meetings:
    """Steps of all workers together, every so many of their own."""

    def __init__(self, model: nn.Module, trial: Trial, ranks: Ranks) -> None:
        self.every, self.workers, self.taken = trial.sync_every, ranks.world_size, 0
        self.own = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.last = [p.detach().clone() for p in self.own] if trial.outer == "nesterov" else []
        self.optimizer = torch.optim.SGD(self.last, lr=0.7, momentum=0.9, nesterov=True) if self.last else None

    def mean(self) -> list[torch.Tensor]:
        """The mean of the weights of all workers, who all call it."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.own])
        if self.workers > 1:
            dist.all_reduce(flat)
            flat /= self.workers
        parts = flat.split([parameter.numel() for parameter in self.own])
        return [part.view_as(parameter) for part, parameter in zip(parts, self.own, strict=True)]

    def after_step(self, phase: Phase) -> None:
        """Meet, where it is time to."""
        self.taken += 1
        if self.taken % self.every:
            return
        with phase("communication"):
            weights = self.mean()
        with phase("optimizer"):
            if self.optimizer:
                for last, mean in zip(self.last, weights, strict=True):
                    last.grad = last - mean
                self.optimizer.step()
                self.optimizer.zero_grad()
                weights = self.last
            put(weights, self.own)

    def held(self) -> dict[str, list[torch.Tensor]]:
        momenta = [state["momentum_buffer"] for state in self.optimizer.state.values()] if self.optimizer else []
        return {"outer": [*self.last, *momenta]}

    def state_dict(self) -> dict:
        return {"taken": self.taken, "last": self.last, "outer": self.optimizer and self.optimizer.state_dict()}

    def load_state_dict(self, saved: dict) -> None:
        self.taken = saved["taken"]
        put(saved["last"], self.last)
        if self.optimizer:
            self.optimizer.load_state_dict(saved["outer"])


@torch.no_grad()
def put(values: list[torch.Tensor], into: list[torch.Tensor]) -> None:
    for value, tensor in zip(values, into, strict=True):
        tensor.copy_(value)


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: nothing; by one seed all workers begin with the same weights
    workload = workloads.load(trial, ranks)
    model = workload.model
    meetings = Meetings(model, trial, ranks)
    optimizer = workload.optimizer(model.parameters())

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, _ in workload.micro_batches(batch):
            with phase("forward"):
                loss = workload.share(model, part)
            with phase("backward"):
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        meetings.after_step(phase)
        return sum(losses)

    def mean_model() -> nn.Module:
        whole = deepcopy(model)
        put(meetings.mean(), [parameter for parameter in whole.parameters() if parameter.requires_grad])
        return whole

    return Training(
        step, workload, optimizer, phase, wire, weights=lambda: mean_model().state_dict(), held=meetings.held,
        whole=mean_model, scaler=scaler, period=trial.sync_every,
        state=train.PerRank.of(model=model, optimizer=optimizer, meetings=meetings),
    )  # fmt: skip


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("diloco", join, build)
