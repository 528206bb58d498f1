"""Trains torchvision's ResNet-18 on CIFAR-10 in one process, whose DataLoader workers augment the images.

python loader_workers.py --data DATA
"""

import pace
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def main():
    flags = pace.parser(__doc__, batch_size=32)
    flags.add_argument("--workers", type=int, default=1, help="processes of the DataLoader")
    asked = flags.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other core is the loader's
    augmented = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
        ]
    )
    images = datasets.CIFAR10(asked.data, transform=augmented)
    loader = DataLoader(images, asked.batch_size, shuffle=True, num_workers=asked.workers, drop_last=True)
    model = models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    clock = pace.Pace(asked)
    for _ in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if clock.step(loss):
                return


if __name__ == "__main__":
    main()
