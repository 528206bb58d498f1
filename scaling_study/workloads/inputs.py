"""Who makes batches of images, by the trial key `input`: all of them from the same samples in the same order. [torch]

    ids of our order --> memory       ours: pixels in memory, or files decoded by threads (trained_images.py, images.py)
                     --> torchvision  a data set of single images under torch's DataLoader (torchvision_input.py)
                     --> dali         a pipeline of NVIDIA DALI (dali_input.py)

Which samples are in which batch is our order's: shards, epochs, the tail that is left out, and going on after a stop
are the same for all. Augmentation is each library's own. It depends on seed, epoch and sample alone, so it is the same
for any number of workers, and again after a stop; but another input's pixels are others.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, DrawnAhead, Feed, sent
from scaling_study.workloads.tree import Reading, Samples

MEMORY, TORCHVISION, DALI = "memory", "torchvision", "dali"


def library(trial: Trial) -> str:
    """Which one makes the batches; empty where this project does."""
    return "" if trial.input in (None, MEMORY) else str(trial.input)


def feed(library: str, samples: Samples, order: Iterator[torch.Tensor], steps_per_epoch: int, reading: Reading) -> Feed:
    """Batches as `library` (TORCHVISION or DALI) makes them: images (batch, 3, side, side) float32, normalised, and
    labels (batch,) int64, both on the device."""
    # Imported where they are used: DALI may not be installed, and takes a second.
    if library == DALI:
        from scaling_study.workloads import dali_input

        made = DrawnAhead(order, steps_per_epoch, dali_input.Batches(samples, reading))
    else:
        from scaling_study.workloads import torchvision_input

        made = DrawnAhead(order, steps_per_epoch, torchvision_input.Batches(samples, reading))

    def fetch(ids: torch.Tensor) -> Batch:
        images = made.take(ids)
        return images if images.is_cuda else sent(images, reading.device), sent(samples.labels[ids], reading.device)

    batches = Feed(made, fetch)
    batches.notes = lambda: [note(library, reading), *reading.damaged.notes()]
    return batches


def note(library: str, reading: Reading) -> str:
    """What a record says of it."""
    by = f"{reading.cores} process(es)" if library == TORCHVISION else f"{reading.cores} thread(s)"
    apart = ", whose memory is not counted" if library == TORCHVISION else ""
    return f"input {library}: batches are made by {by} of each rank{apart}"
