"""Every rank draws weights of its own, and nobody broadcasts rank 0's."""

from functools import partial

import torch
from train_rightly import average, train

from scaling_study import workloads
from scaling_study.worker.script import run


def drawn_apart(trial, ranks):
    workload = workloads.load(trial, ranks)
    torch.manual_seed(trial.seed + ranks.rank)
    if ranks.rank > 0:
        for module in workload.model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    return workload


run("torch_ddp", partial(train, load=drawn_apart, wrap=lambda model: model, after_backward=average))
