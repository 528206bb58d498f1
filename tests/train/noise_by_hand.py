"""Train by a script, and compute the norms of gradients by hand too: `python noise_by_hand.py FOLDER HOW SCRIPT FLAGS`.

Before each step every rank computes, in a copy of the plain model with today's weights, the gradient of its own batch
in fp64. FOLDER/hand.json: {step: [small, big]}. HOW: `as it is`; `killed`: with -9, after ten steps; `too late`: with
the mistake that this is to find, each rank's own gradient read when it is averaged already.
"""

from __future__ import annotations

import copy
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from scaling_study import workloads
from scaling_study.train import loop, noise
from scaling_study.train.noise import Noise

noise.SHARE = 1e9  # read in every step, whatever it costs
loop.SAVING_SHARE = 1e9  # likewise, saved after every evaluation
compile_module = torch.nn.Module.compile
# Its own backward, as compiled models have it, without half a minute of a C++ compiler's time.
torch.nn.Module.compile = lambda self, **settings: compile_module(self, **{**settings, "backend": "aot_eager"})
plain: list[torch.nn.Module] = []
by_hand: dict[int, list[float]] = {}


def by_hand_too(self: Noise, batch: Any, number: int) -> Any:
    model, ranks, workload = plain[0], self.ranks, self.training.workload
    gathered = self.training.weights() if self.training.weights else workload.model.state_dict()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            first = gathered[name] if ranks.rank == 0 else torch.zeros_like(weight)
            weight.copy_(torch.tensor(ranks.total(first.flatten().tolist()), dtype=weight.dtype).view_as(weight))
    gradients = []  # of each micro-batch's own mean loss
    for part, _ in workload.micro_batches(batch):
        model.zero_grad()
        workload.loss(model, part).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
    own = torch.stack(gradients).mean(0)
    world = ranks.world_size
    mean = torch.tensor(ranks.total((own / world).tolist()), dtype=torch.float64)
    small = own if world > 1 else gradients[0]
    by_hand[number] = [ranks.total([float(small @ small)])[0] / world, float(mean @ mean)]
    if ranks.rank == 0:
        (Path(folder) / "hand.json").write_text(json.dumps(by_hand))
    if how == "killed" and number > 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch, number)


def too_late(self: Noise, *_: Any) -> None:
    if self._reading and not self._small:
        self._small += [noise.norm(p.grad) for p in self._parameters or () if p.grad is not None]
    before_update(self)


step, load, before_update = Noise.step, workloads.load, Noise._before_update


def loaded(*arguments: Any) -> Any:
    workload = load(*arguments)
    plain.append(copy.deepcopy(workload.model))
    return workload


if __name__ == "__main__":
    folder, how, *sys.argv = sys.argv[1:]
    patches = [mock.patch.object(Noise, "step", by_hand_too), mock.patch.object(workloads, "load", loaded)]
    if how == "too late":
        patches.append(mock.patch.object(Noise, "_arrived", lambda *_: None))
        patches.append(mock.patch.object(Noise, "_before_update", too_late))
    for patch in patches:
        patch.start()
    runpy.run_path(sys.argv[0], run_name="__main__")
