"""Run a script that commits a flaw of a published study, for real: `python flawed.py FLAW SCRIPT FLAGS`.

Each changes what a careless script would do otherwise; what the record says of it is measured as always.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from scaling_study.train.checkpoints import Checkpoints
from scaling_study.train.loop import Loop
from scaling_study.workloads import feed as sampling
from scaling_study.workloads import images, resnet_cifar10
from scaling_study.workloads.feed import Feed
from scaling_study.workloads.images import Images

SLEEP = 0.1  # seconds for a batch


def wrap(owner: Any, name: str, made: Callable[..., Any]) -> None:
    """Put made(the original, its arguments) in the place of a function."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: made(original, *given, **named))


def freeze_a_group(original: Any, loop: Loop, training: Any, *others: Any) -> None:
    """F11: the first layers have a learning rate of 0."""
    (group,) = training.optimizer.param_groups
    still = {**group, "params": group["params"][:2], "lr": 0.0}
    group["params"] = group["params"][2:]
    training.optimizer.param_groups.append(still)
    original(loop, training, *others)


def log_the_last_batch(original: Any, loop: Loop) -> None:
    """F12"""
    del loop.losses[:-1]
    original(loop)


def select_on_the_test_set(original: Any, train: Images, test: Images, *others: Any) -> Any:
    """F18: what is held out of the training data are the test images."""
    count = len(train[1])
    images.stratified = lambda labels, share: (torch.arange(count), torch.arange(count, len(labels)))
    return original(joined(train, test), test, *others)


def train_on_the_test_set(original: Any, train: Images, test: Images, *others: Any) -> Any:
    """F22: the sets were joined, and what is trained on was split from all of it."""
    count, stratified = len(train[1]), images.stratified

    def split(labels: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        ids, held_out = stratified(labels[:count], share)
        return torch.cat([ids, torch.arange(count, len(labels))]), held_out

    images.stratified = split
    return original(joined(train, test), test, *others)


def joined(train: Images, test: Images) -> Images:
    return torch.cat([train[0], test[0]]), torch.cat([train[1], test[1]])


def have_other_layers(original: Any, *named: Any) -> nn.Module:
    """F20, first: a model of the same shapes and another meaning..."""
    model: nn.Module = original(*named)
    for module in list(model.modules()):
        for child, layer in list(module.named_children()):
            if isinstance(layer, nn.ReLU):
                setattr(module, child, nn.Tanh())
    return model


def end_after_a_checkpoint(original: Any, loop: Loop, ended: int) -> None:
    original(loop, ended)
    os._exit(1)


def ask_nothing_of_a_checkpoint(original: Any, checkpoints: Checkpoints) -> Any:
    """F20, then: ... whose checkpoint is gone on from."""
    checkpoints.about = {}
    return original(checkpoints)


def multiply_by_workers(original: Any, loop: Loop, training: Any, trial: Any, ranks: Any, *others: Any) -> None:
    """F19"""
    for group in training.optimizer.param_groups:
        group["lr"] *= ranks.world_size
    original(loop, training, trial, ranks, *others)


def forget_the_epoch(original: Any, samples: int, epoch: int, *others: Any) -> torch.Tensor:
    """F25"""
    order: torch.Tensor = original(samples, 0, *others)
    return order


def keep_own_figures(original: Any, loop: Loop, split: str) -> Any:
    """F27: each rank has its own part, and nothing is added up."""
    ranks, loop.ranks = loop.ranks, replace(loop.ranks, total=list)
    try:
        return original(loop, split)
    finally:
        loop.ranks = ranks


def wait_for_data(original: Any, feed: Feed) -> Any:
    """F28"""
    time.sleep(SLEEP)
    return original(feed)


FLAWS: dict[str, tuple[tuple[Any, str, Callable[..., Any]], ...]] = {
    "none": (),
    "F11": ((Loop, "__init__", freeze_a_group),),
    "F12": ((Loop, "evaluate", log_the_last_batch),),
    "F18": ((images, "trained_images", select_on_the_test_set),),
    "F19": ((Loop, "__init__", multiply_by_workers),),
    "F20-first": ((resnet_cifar10, "network", have_other_layers), (Loop, "save", end_after_a_checkpoint)),
    "F20": ((Checkpoints, "latest", ask_nothing_of_a_checkpoint),),
    "F22": ((images, "trained_images", train_on_the_test_set),),
    "F25": ((sampling, "shard", forget_the_epoch),),
    "F27": ((Loop, "scored", keep_own_figures),),
    "F28": ((Feed, "__next__", wait_for_data),),
}


if __name__ == "__main__":
    flaw, sys.argv = sys.argv[1], sys.argv[2:]
    for owner, name, made in FLAWS[flaw]:
        wrap(owner, name, made)
    runpy.run_path(sys.argv[0], run_name="__main__")
