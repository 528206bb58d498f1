"""One weight does not ask for its gradient (F15)."""

from train_rightly import train_by

from scaling_study import workloads


def frozen(trial, ranks):
    workload = workloads.load(trial, ranks)
    workload.model.get_parameter("stem.0.0.weight").requires_grad_(False)
    return workload


train_by(load=frozen)
