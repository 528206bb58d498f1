"""How long each layer of a chain takes: forward, backward and the loss with the last one.                [torch]

    x --layer 1--> x1 --detach--> layer 2 --> x2 ...     each by itself, so that each has its own time

On one micro-batch, as in the pipeline. Buffers and gradients are left as they were found, and random numbers too.
"""

from __future__ import annotations

from statistics import median

import torch

from scaling_study.measure.phases import now
from scaling_study.workloads import Batch
from scaling_study.workloads.chain import Chain
from scaling_study.workloads.workload import autocast

REPEATS = 5  # after one that warms up


def layer_seconds(chain: Chain, micro_batch: Batch, device: torch.device, precision: str) -> list[float]:
    """Median seconds of each layer's forward and backward on this rank."""
    layers = list(chain.layers.values())
    before = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    seconds: list[list[float]] = [[] for _ in layers]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for _ in range(1 + REPEATS):
            for index, took in enumerate(_once(chain, micro_batch, device, precision)):
                seconds[index].append(took)
    for buffer, value in before:
        buffer.copy_(value)
    for layer in layers:
        layer.zero_grad(set_to_none=True)
    return [median(took[1:]) for took in seconds]


def _once(chain: Chain, micro_batch: Batch, device: torch.device, precision: str) -> list[float]:
    x, extras, seconds = chain.inputs(micro_batch), chain.extras(micro_batch), []
    last = len(chain.layers) - 1
    for index, layer in enumerate(chain.layers.values()):
        start = now(device)
        with autocast(device, precision):
            output = layer(x, **extras)
            loss = chain.loss(output, chain.target(micro_batch)) if index == last else None
        if loss is None:
            output.backward(torch.ones_like(output))
        else:
            loss.backward()
        seconds.append(now(device) - start)
        x = output.detach().requires_grad_(output.is_floating_point())
    return seconds
