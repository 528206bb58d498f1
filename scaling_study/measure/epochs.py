"""Whole epochs, as commonly reported: data-loading, training and running seconds of each.               [torch]

    epoch 1 (warm-up) | epoch 2 (warm-up) | epoch 3
    d t d t d t ...   |                   | d: waiting for a batch   t: in the step   running: the wall around both

The three come from other clock readings than the steps' own seconds, so that the two ways of measuring can be held
against each other: running = steps x mean step, or one of them is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from scaling_study.measure.phases import now
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch

Steps = Callable[[Callable[[Batch], Any], Iterator[Batch], int], list[float]]  # step, batches, how many -> seconds


class Epochs:
    """Runs epochs of `steps` steps each, through the clock's own loop; `rows` has what they took on this rank."""

    def __init__(self, steps: int, workload: Workload, devices: Sequence[torch.device]) -> None:
        self.steps, self.workload, self.devices = steps, workload, devices
        self.rows: list[dict[str, Any]] = []

    def run(self, step: Callable[[Batch], Any], through: Steps, warmup: bool) -> list[float]:
        """One epoch; the seconds of its steps."""
        data, training, samples = 0.0, 0.0, 0

        def fetched() -> Iterator[Batch]:
            nonlocal data, samples
            while True:
                start = time.perf_counter()
                batch = next(self.workload.batches)
                data += time.perf_counter() - start
                samples += self.workload.samples_in(batch)
                yield batch

        def trained(batch: Batch) -> Any:
            nonlocal training
            start = time.perf_counter()
            loss = step(batch)
            training += time.perf_counter() - start
            return loss

        start = now(*self.devices)
        seconds = through(trained, fetched(), self.steps)
        handed_over = time.perf_counter()
        end = now(*self.devices)
        training += end - handed_over  # what a GPU was still computing when the host had launched all of it
        self.rows.append({
            "warmup": warmup, "steps": self.steps, "samples": samples,
            "data_seconds": data, "training_seconds": training, "running_seconds": end - start,
        })  # fmt: skip
        return seconds
