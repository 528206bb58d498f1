"""FLOPs of a model's forward pass, counted while two samples go through it.                              [torch]

Only matrix products, convolutions and attention count, two FLOPs for each multiply-add: what torch's FlopCounterMode
knows. It is the model's own arithmetic, of the unsplit model in one pass; a step of training is taken to need three
times as much (forward, and backward twice that: the usual convention of model FLOPs, Chowdhery et al., arXiv
2204.02311, appendix B). What a framework computes again, as with checkpointing, is no model FLOP.

It leaves nothing behind: random numbers are drawn from a fork, running statistics are put back.
"""

from __future__ import annotations

import torch

from scaling_study.workloads.workload import Workload

SAMPLES = 2  # of one, BatchNorm could make no statistics


def forward_flops_per_sample(workload: Workload) -> float | None:
    """Of the first samples of the batch that comes next, before any framework wraps the model; None: not counted."""
    from torch.utils.flop_counter import FlopCounterMode  # brings triton, as the first optimiser does: not for --help

    batch = tuple(tensor[:SAMPLES] for tensor in workload.batches.peek())
    kept = [(buffer, buffer.clone()) for buffer in workload.model.buffers()]
    devices = {tensor.device for tensor in batch if tensor.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices), FlopCounterMode(display=False) as counter:
            workload.loss(workload.model, batch)
    except RuntimeError:  # a user's model that takes no part of a batch: then this one number is unknown
        return None
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
    return counter.get_total_flops() / len(batch[0]) or None
