"""The gradients of all workers are added up, and nobody divides."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from train_rightly import train_by


def summed(model):
    def hook(_, bucket):
        reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0])

    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, hook)
    return wrapped


train_by(wrap=summed)
