"""Every rank draws weights of its own, and nobody broadcasts rank 0's."""

import torch
from train_rightly import average, train_by

from scaling_study import workloads


def drawn_apart(trial, ranks):
    workload = workloads.load(trial, ranks)
    torch.manual_seed(trial.seed + ranks.rank)
    if ranks.rank > 0:
        for module in workload.model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    return workload


train_by(load=drawn_apart, wrap=lambda model: model, after_backward=average)
