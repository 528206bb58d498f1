"""One weight does not ask for its gradient (F15)."""

from functools import partial

from train_rightly import train

from scaling_study import workloads
from scaling_study.worker.script import run


def frozen(trial, ranks):
    workload = workloads.load(trial, ranks)
    workload.model.get_parameter("stem.0.0.weight").requires_grad_(False)
    return workload


run("torch_ddp", partial(train, load=frozen))
