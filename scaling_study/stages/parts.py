"""Parts of a model on this rank: the stages that it holds, evaluated, clipped and saved as one model.     [torch]

ranks of 2 replicas x 4 stages     looped: stage s on worker s % 4     in a V: worker 0 has the first and the last
replica 0:  0 1 2 3                worker 0: stages 0, 4               worker 0: stages 0, 7
replica 1:  4 5 6 7                worker 1: stages 1, 5               worker 1: stages 1, 6

With matrices in two parts each of these is two ranks, side by side: 0 1 hold stage 0 of replica 0, 2 3 its stage 1.
Replicas that follow each other may hold their stages in shards: ranks 0 and 4 then have half of stage 0 each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.stages.stage import Cut, assembled, stages_of
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import ClippedSGD


@dataclass(frozen=True)
class Place:
    """The place of a rank. `along` are the workers of its own pipeline, `across` those with the same stages.

    Several workers with the same stages may share every matrix of them, and a batch: then each has a pipeline of its
    own through their parts.
    """

    ranks: Ranks
    replica: int
    worker: int  # in its pipeline
    mine: tuple[int, ...]  # the stages that this rank holds
    last: bool  # the model's last stage among them: this rank has the loss
    along: dist.ProcessGroup | None = None
    across: dist.ProcessGroup | None = None
    matrices: dist.DeviceMesh | None = None  # of one dimension: the workers that share those of its stages
    part: int = 0  # among them
    shards: dist.DeviceMesh | None = None  # as `fully_shard` takes it: the workers that hold its stages in shards
    shard: int = 0  # among them
    replicas: int = 1

    @classmethod
    def of(cls, trial: Trial, ranks: Ranks) -> Place:
        """Every rank calls this with the same trial: it makes the process groups."""
        workers, virtual, group = trial.stages or 1, trial.virtual_stages or 1, trial.shard_group or 1
        replicas = trial.data_parallel
        sizes = {"replica": replicas // group, "shard": group, "stage": workers, "tensor": trial.tensor_parallel or 1}
        names = tuple(name for name, size in sizes.items() if size > 1 or name in ("replica", "stage"))
        mesh = dist.init_device_mesh(ranks.device.type, tuple(sizes[name] for name in names), mesh_dim_names=names)
        at = dict(zip(names, mesh.get_coordinate() or (), strict=True))
        mine = stages_of(at["stage"], workers, virtual, trial.schedule or "")
        several: str | tuple[str, ...] = ("replica", "shard") if replicas > group else "shard"
        return cls(
            ranks,
            at["replica"] * group + at.get("shard", 0),
            at["stage"],
            mine,
            last=workers * virtual - 1 in mine,
            along=mesh.get_group("stage"),
            across=mesh.get_group("replica"),
            matrices=mesh["tensor"] if "tensor" in at else None,
            part=at.get("tensor", 0),
            shards=mesh[several] if "shard" in at else None,
            shard=at.get("shard", 0),
            replicas=replicas,
        )

    def reading(self) -> Ranks:
        """Ranks by which data are dealt out: all workers of a pipeline read the same."""
        return replace(self.ranks, rank=self.replica, world_size=self.replicas)

    @property
    def first(self) -> bool:
        """The model's first stage is here: this rank feeds the pipeline."""
        return 0 in self.mine

    @property
    def tells(self) -> bool:
        """The loss of its replica is told here."""
        return self.last and self.part == 0

    def hand_over(self, workload: Workload, module: nn.Module) -> None:
        """Make the workload this rank's own: the stages that it trains; samples count where their loss is told."""
        workload.model, workload.chain = module, None
        if not self.tells:
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
        whole = {name: assembled(value.detach()).cpu() for name, value in weights.items()}
        own = whole if self.replica == self.part == 0 else {}
        parts: list[dict[str, torch.Tensor]] = [{}] * self.ranks.world_size
        dist.gather_object(own, parts if self.ranks.rank == 0 else None)
        return {name: value for part in parts for name, value in part.items()}


class Parts:
    """The stages of one rank beside those of the others. `unsplit` is the model that they were cut from.

        worker 0  [stem  blocks.0] blocks.1  head           [ ] its stages, which it trains: always as they are now
        worker 1   stem  blocks.0 [blocks.1  head]           |  the rest of the unsplit model, filled in by the others
                                                                before an evaluation; then all ranks share the samples

    A training to a result keeps the unsplit model on every rank, which a pipeline that is only timed drops.
    """

    portable = False  # to another number of workers

    def __init__(
        self, trial: Trial, place: Place, unsplit: nn.Module | None, cut: Cut, optimizer: torch.optim.Optimizer
    ) -> None:
        self.place, self.unsplit, self.cut, self.optimizer = place, unsplit, cut, optimizer
        workers, virtual = trial.stages or 1, trial.virtual_stages or 1
        self.holder = {  # of each stage, in the first replica
            stage: worker
            for worker in range(workers)
            for stage in stages_of(worker, workers, virtual, trial.schedule or "")
        }

    def whole(self) -> nn.Module:
        """The unsplit model with the weights and buffers of now, the first replica's; called by all ranks.

        What a rank trains itself it keeps, but for buffers (BatchNorm's statistics), of which training reads none.
        """
        assert self.unsplit is not None, "only a training to a result keeps the unsplit model"
        trained = {id(parameter) for stage in self.cut.stages.values() for parameter in stage.parameters()}
        for name, tensor in self.unsplit.state_dict(keep_vars=True).items():
            if name in self.cut.first_in:  # one of the names of a tied weight is enough
                source = self.holder[self.cut.first_in[name]]
                ours = id(tensor) in trained and self.place.ranks.rank != source
                dist.broadcast(torch.empty_like(tensor) if ours else tensor.detach(), source)
        return self.unsplit

    def norm(self, held: Sequence[nn.Parameter]) -> torch.Tensor:
        """The norm of all gradients of the model, from those of this rank's parameters; called by all ranks.

        A weight in several stages is counted once, where the first of them is.
        """
        counted = {id(p) for name, p in self.cut.weights().items() if self.cut.first_in[name] in self.place.mine}
        dtype = next(self.cut.module().parameters()).dtype
        zero = torch.zeros((), dtype=dtype, device=self.place.ranks.device)
        squares = sum((p.grad.square().sum() for p in held if id(p) in counted and p.grad is not None), zero)
        return self.place.added_up(squares).sqrt()

    def save(self, folder: Path, ranks: Ranks) -> None:
        """By the unsplit model's names: stages that were cut by time may be cut elsewhere the next time."""
        if self.place.replica == 0:
            weights = {name: tensor.detach() for name, tensor in self.cut.weights().items()}
            state = self.optimizer.state_dict()["state"]
            moments = {name: state[index] for index, name in enumerate(self._names()) if index in state}
            torch.save({"weights": weights, "optimizer": moments}, folder / f"state-{ranks.rank}.pt")

    def load(self, folder: Path, ranks: Ranks) -> None:
        weights: dict[str, torch.Tensor] = {}
        moments: dict[str, dict[str, torch.Tensor]] = {}
        for part in sorted(folder.glob("state-*.pt")):
            saved = torch.load(part, map_location=ranks.device, weights_only=True)
            weights |= saved["weights"]
            moments |= saved["optimizer"]
        with torch.no_grad():
            for name, tensor in self.cut.weights().items():
                tensor.copy_(weights[name])
        state = {index: moments[name] for index, name in enumerate(self._names()) if name in moments}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})

    def _names(self) -> list[str]:
        """The names of the optimiser's parameters, in its order."""
        return [self.cut.whole[id(p)] for group in self.optimizer.param_groups for p in group["params"]]
