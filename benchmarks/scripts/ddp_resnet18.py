"""Trains torchvision's ResNet-18 on CIFAR-10 with DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 ddp_resnet18.py --data DATA
"""

import pace
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


def main():
    asked = pace.parser(__doc__, batch_size=32).parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    normalized = transforms.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
    images = datasets.CIFAR10(asked.data, transform=transforms.Compose([transforms.ToTensor(), normalized]))
    sampler = DistributedSampler(images)
    loader = DataLoader(images, asked.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(models.resnet18(num_classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
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
    dist.destroy_process_group()
