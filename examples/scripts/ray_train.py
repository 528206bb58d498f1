"""Trains torchvision's ResNet-18 with Ray Train: torch DDP in processes that Ray starts.

python ray_train.py --workers 2
"""

import argparse
import os
import tempfile

import ray
import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models


def train(config):
    """Run in each worker."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,)))
    loader = prepare_data_loader(DataLoader(data, config["batch_size"], shuffle=True, drop_last=True))
    model = prepare_model(models.resnet18(num_classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    done = 0
    for epoch in range(1000):
        if get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if (done := done + 1) == config["steps"]:
                return


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--workers", type=int, default=2)
    flags.add_argument("--batch-size", type=int, default=32, help="samples of a worker")
    flags.add_argument("--steps", type=int, default=1000)
    flags.add_argument("--out", default=tempfile.gettempdir(), help="folder for what Ray Train writes")
    asked = flags.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # otherwise Ray writes a token into the home folder
    ray.init(num_cpus=asked.workers + 1, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(asked),
        scaling_config=ScalingConfig(num_workers=asked.workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(name="ray_train", storage_path=os.path.abspath(asked.out)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
