"""What is trained: model, data, loss and optimiser, and what one sample is. One file per workload.     [torch]"""

from __future__ import annotations

import importlib

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.workload import Batch, Workload

# model -> the module whose `load(trial, ranks)` makes it. Imported on demand: nobody pays for another's libraries.
MODULES = {
    "resnet8": "scaling_study.workloads.resnet_cifar10",
    "resnet18": "scaling_study.workloads.resnet_cifar10",
    "resnet50": "scaling_study.workloads.resnet_cifar10",
}


def load(trial: Trial, ranks: Ranks) -> Workload:
    """The trial's workload on this rank's device. The same seed gives the same weights on every rank."""
    workload: Workload = importlib.import_module(MODULES[trial.model]).load(trial, ranks)
    return workload


__all__ = ["MODULES", "Batch", "Workload", "load"]
