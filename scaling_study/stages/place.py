"""This rank's place in a pipeline: which replica, which stages, and who else has them.                  [torch]

ranks of 2 replicas x 4 stages     looped: stage s on worker s % 4     in a V: worker 0 has the first and the last
replica 0:  0 1 2 3                worker 0: stages 0, 4               worker 0: stages 0, 7
replica 1:  4 5 6 7                worker 1: stages 1, 5               worker 1: stages 1, 6
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.stages.cut import stages_of
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.clipping import ClippedSGD


@dataclass(frozen=True)
class Place:
    """Where a rank stands. `along` are the workers of its own pipeline, `across` those with the same stages."""

    ranks: Ranks
    replica: int
    worker: int  # in its pipeline
    mine: tuple[int, ...]  # the stages that this rank holds
    last: bool  # the model's last stage among them: this rank has the loss
    along: dist.ProcessGroup | None = None
    across: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, trial: Trial, ranks: Ranks) -> Place:
        """Every rank calls this with the same trial: it makes the process groups."""
        workers, replicas, virtual = trial.stages or 1, trial.data_parallel, trial.virtual_stages or 1
        replica, worker = divmod(ranks.rank, workers)
        mine = stages_of(worker, workers, virtual, trial.schedule or "")
        mesh = dist.init_device_mesh(ranks.device.type, (replicas, workers), mesh_dim_names=("replica", "stage"))
        last = workers * virtual - 1 in mine
        return cls(ranks, replica, worker, mine, last, mesh.get_group("stage"), mesh.get_group("replica"))

    def reading(self) -> Ranks:
        """Who this rank is to whoever deals out the data: all workers of a pipeline read the same."""
        pipelines = self.ranks.world_size // dist.get_world_size(self.along)
        return replace(self.ranks, rank=self.replica, world_size=pipelines)

    @property
    def first(self) -> bool:
        """The model's first stage is here: this rank feeds the pipeline."""
        return 0 in self.mine

    def hand_over(self, workload: Workload, module: nn.Module) -> None:
        """Make the workload this rank's own: the stages that it trains; samples count where their loss is."""
        workload.model, workload.chain = module, None
        if not self.last:
            workload.samples_per_step, workload.tokens = 0, None

    def optimizer(self, workload: Workload) -> torch.optim.Optimizer:
        """The workload's own, over this rank's stages; where it clips, by the norm of the whole model's gradients."""
        optimizer = workload.optimizer(workload.model.parameters())
        if isinstance(optimizer, ClippedSGD):
            optimizer.over = self.added_up
        return optimizer

    def added_up(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over the workers of this rank's pipeline; called by all of them."""
        dist.all_reduce(value, group=self.along)
        return value

    def gathered(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The whole model's weights on rank 0, of the first replica; called by all ranks."""
        own = {name: value.detach().cpu() for name, value in weights.items()} if self.replica == 0 else {}
        parts: list[dict[str, torch.Tensor]] = [{}] * self.ranks.world_size
        dist.gather_object(own, parts if self.ranks.rank == 0 else None)
        return {name: value for part in parts for name, value in part.items()}
