"""The trace of a rank of a parity trial: its losses, the samples it read, its weights at three moments.     [torch]

    step 1 ... 10:  loss, sample ids          weights before step 1, after it, and after the last (rank 0)
    then            the ids of the next two whole epochs: nothing is trained

BatchNorm's buffers are each rank's own while it trains. Before weights are gathered, all ranks take rank 0's.

It only records: the reference is computed elsewhere, by another process (scaling_study/parity).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure.training import Loss, Step, Weights, share_buffers
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import Batch, Workload

STEPS = 10
EPOCHS = 2


class ParityRecorder:
    """Wraps a step; every rank has one, and all call the same collectives in the same order."""

    def __init__(self, workload: Workload, trial: Trial, ranks: Ranks, weights: Callable[[], Weights]) -> None:
        self.workload, self.ranks, self.rank, self._gather = workload, ranks, ranks.rank, weights
        self.cut = FRAMEWORKS[trial.framework].cuts_model  # each rank has buffers of other layers
        self.steps = min(STEPS, trial.window.warmup_steps + trial.window.min_steps)
        self.taken = 0
        self.losses: list[float] = []  # none on a pipeline's ranks that have no loss
        self.ids: list[torch.Tensor] = []
        self.frozen = [name for name, p in workload.model.named_parameters() if not p.requires_grad]
        self.weights = {"first": self.gathered()}

    def recorded(self, step: Step) -> Step:
        """The step, whose loss and sample ids are recorded the first `steps` times."""

        def recorded_step(batch: Batch) -> Loss:
            ids = self.workload.batches.ids
            if len(ids) != len(batch[0]):
                held = f"the ids of {len(ids)} samples and a batch of {len(batch[0])}"
                raise RuntimeError(f"step {self.taken + 1} has {held}: what was read is not what the feed names")
            loss = step(batch)
            if self.taken < self.steps:
                self.taken += 1
                self.losses += [] if loss is None else [float(loss)]
                self.ids.append(ids.clone())
                if self.taken == 1:
                    self.weights["one"] = self.gathered()
                elif self.taken == self.steps:
                    self.weights["last"] = self.gathered()
            return loss

        return recorded_step

    def gathered(self) -> Weights:
        """A copy of the whole model's weights on the host. Every rank helps to gather them; rank 0 keeps them."""
        if not self.cut:
            share_buffers(self.workload.model, self.ranks)
        weights = self._gather()
        return {name: value.detach().to("cpu", copy=True) for name, value in weights.items()} if self.rank == 0 else {}

    def write(self, folder: Path) -> None:
        """Write `folder`/parity/rank-<n>.pt: tensors and plain values only, to be read with weights_only."""
        trace = {
            "losses": self.losses,
            "ids": torch.stack(self.ids).to(torch.int32),  # (steps, batch)
            "epochs": coming_epochs(self.workload).to(torch.int32),  # (EPOCHS, samples of this rank)
            "frozen": self.frozen,
            "weights": self.weights,
        }
        path = folder / "parity" / f"rank-{self.rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(trace, path)


def coming_epochs(workload: Workload) -> torch.Tensor:
    """Sample ids of the next EPOCHS whole epochs after the one that is under way, (EPOCHS, samples of this rank)."""
    feed, steps = workload.batches, workload.steps_per_epoch
    for _ in range(-feed.taken % steps):
        feed.skip()
    return torch.stack([torch.cat([feed.skip() for _ in range(steps)]) for _ in range(EPOCHS)])
