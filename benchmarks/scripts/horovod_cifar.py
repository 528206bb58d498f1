"""Trains a small convolutional network on CIFAR-10 with Horovod.

horovodrun --gloo -np 2 python horovod_cifar.py --data DATA
"""

import os

import horovod.torch as hvd
import pace
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


def network():
    layers = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


def main():
    asked = pace.parser(__doc__, batch_size=64).parse_args()
    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    images = datasets.CIFAR10(asked.data, transform=transforms.ToTensor())
    sampler = DistributedSampler(images, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(images, asked.batch_size, sampler=sampler, drop_last=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    clock = pace.Pace(asked)
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if clock.step(loss):
                return


if __name__ == "__main__":
    main()
