"""Trains torchvision's ResNet-18 on CIFAR-10 with accumulated gradients, evaluation and checkpoints in the middle.

python accumulation.py --data DATA --out FOLDER
"""

from pathlib import Path

import pace
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, models, transforms

MICRO_BATCHES, BETWEEN_EVALUATIONS, TESTED = 4, 50, 256


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    model.train()
    return right / TESTED


def main():
    flags = pace.parser(__doc__, batch_size=8)
    flags.add_argument("--out", type=Path, required=True, help="folder for checkpoints")
    asked = flags.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    as_tensors = transforms.ToTensor()
    images = datasets.CIFAR10(asked.data, transform=as_tensors)
    tested = Subset(datasets.CIFAR10(asked.data, train=False, transform=as_tensors), range(TESTED))
    loader = DataLoader(images, asked.batch_size, shuffle=True, drop_last=True)
    model = models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    clock = pace.Pace(asked)
    for _ in range(1000):
        for index, (x, y) in enumerate(loader, start=1):
            loss = F.cross_entropy(model(x), y) / MICRO_BATCHES
            loss.backward()
            if index % MICRO_BATCHES:
                continue
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if clock.step(loss * MICRO_BATCHES):
                return
            if clock.done % BETWEEN_EVALUATIONS == 0:
                print(f"accuracy {accuracy(model, DataLoader(tested, 64)):.3f}", flush=True)
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, asked.out / "last.pt")


if __name__ == "__main__":
    main()
