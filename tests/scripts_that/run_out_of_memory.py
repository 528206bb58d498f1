"""Really asks the allocator for more than there is."""

import torch

from scaling_study.worker.script import run


def join(trial):
    torch.empty(1 << 60, dtype=torch.uint8)


run("single", join, build=None)
