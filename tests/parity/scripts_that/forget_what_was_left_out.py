"""PowerSGD without error feedback: what a step leaves out is lost."""

from torch.nn.parallel import DistributedDataParallel
from train_rightly import train_by

from scaling_study.trial import Trial
from scaling_study.worker import powersgd


class Forgetful(powersgd.PowerSGD):
    def reduce(self, parameters, gradients):
        super().reduce(parameters, gradients)
        for left_out in self.left_out.values():
            left_out.zero_()


def wrapped(model):
    model = DistributedDataParallel(model)
    model.register_comm_hook(Forgetful(model.parameters(), 4, Trial.seed), powersgd.hook)
    return model


train_by(wrap=wrapped)
