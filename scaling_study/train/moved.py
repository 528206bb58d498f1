"""How far the weights of each part of a model moved: one that did not was not trained (F11).               [torch]"""

from __future__ import annotations

import torch

from scaling_study.measure.training import Training, Weights


class Moved:
    """Made before the first step, also of a training that goes on. All ranks call each method."""

    def __init__(self, training: Training) -> None:
        self.training, self.parts = training, training.workload.parts
        self.first = self.weights() if self.parts else {}

    def weights(self) -> Weights:
        """A copy on the host, of parameters alone: BatchNorm's statistics move by themselves. Where a framework gathers
        them on rank 0 only, empty on the others."""
        model = self.training.workload.model
        gathered = self.training.weights() if self.training.weights else model.state_dict()
        names = [name for name, _ in model.named_parameters()]
        return {name: gathered[name].detach().to("cpu", torch.float64, copy=True) for name in names if name in gathered}

    def by_part(self) -> dict[str, float]:
        """`{"backbone": 0.0, "instrument": 0.31}`: norm of the difference over the norm of what was there first."""
        last = self.weights() if self.parts else {}
        shares: dict[str, float] = {}
        for part in self.parts:
            names = [name for name in last if name.partition(".")[0] == part]
            if names:
                away, there = (
                    sum(float(weights.square().sum()) for weights in of)
                    for of in ([last[name] - self.first[name] for name in names], [self.first[name] for name in names])
                )
                shares[part] = (away / (there or 1.0)) ** 0.5
        return shares
