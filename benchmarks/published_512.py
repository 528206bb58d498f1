"""Horovod's published efficiencies on 128 and 512 GPUs, predicted from published inputs.

| input | value | source |
|---|---|---|
| efficiencies, 32 servers x 4 GPUs | Inception V3, ResNet-101 90 %, VGG-16 79 % | Horovod's README of 2017 |
| efficiencies, 128 servers x 4 GPUs | 90 %, 90 %, 68 % | Horovod's docs/benchmarks.rst; arXiv 1802.05799 |
| GPUs, network | 4 Pascal a server, RoCE at 25 Gbit/s | the same |
| batch of a GPU, precision | 64, fp32 | the command lines there |
| one P100, images/s | 142 (Inception V3), 154 (VGG-16) | tensorflow.org, performance/benchmarks, May 2017 |
| one P100, ResNet-101 | 129: ResNet-50's 219 and ResNet-152's 91.8, interpolated by multiplications | the same |
| gradients: bytes, and when | torchvision's networks, backward by multiplications | published_layers.py |
| fusion, cycle | 64 MiB, 5 ms | Horovod's operations.cc until 2019 |
| backward / forward | 2 | two products of each layer against one |
| alpha between servers; within | 5 us; 5 us at 10 GB/s | ASSUMED: neither was published |

What nobody published is varied for the range: the GPUs' own speed (0.8 to 1 of the table: Horovod's docs show 16 GPUs
at 103.6 images/s each for ResNet-101), the share of 25 Gbit/s that is reached (0.8 to 1), alpha (2 to 20 us) and the
variation of a step between workers (0 to 3 %).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.prediction import simulate as stragglers
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.simulate import CYCLES, MIB, Fusion, Step, simulate
from scaling_study.stats.intervals import Interval

LAYERS = Path(__file__).with_name("published_layers.csv")
BATCH, GPUS_PER_SERVER = 64, 4
IMAGES_PER_SECOND: Mapping[str, float] = {"Inception V3": 142.0, "ResNet-101": 129.0, "VGG-16": 154.0}
PUBLISHED: Mapping[tuple[str, int], float] = {
    ("Inception V3", 128): 0.90, ("ResNet-101", 128): 0.90, ("VGG-16", 128): 0.79,
    ("Inception V3", 512): 0.90, ("ResNet-101", 512): 0.90, ("VGG-16", 512): 0.68,
}  # fmt: skip
OLD_HOROVOD = Fusion(CYCLES, 64 * MIB, cycle_seconds=0.005)
DRAWS = 500


@dataclass(frozen=True)
class Inputs:
    """What is put in beside the layers; the defaults are the table above."""

    speed: float = 1.0  # of a GPU, of IMAGES_PER_SECOND
    bandwidth: float = 1.0  # of 25 Gbit/s
    latency_seconds: float = 5e-6
    variation: float = 0.0  # of a step between workers


def efficiency(model: str, gpus: int, inputs: Inputs = Inputs()) -> float:
    """Throughput of so many GPUs over theirs alone, by a ring over all of them, as NCCL 2 made it then."""
    step = one_gpu(model, inputs.speed)
    within = Link(5e-6, 1 / 10e9)
    network = ModelledNetwork(Link(inputs.latency_seconds, 8 / (25e9 * inputs.bandwidth)), within, GPUS_PER_SERVER)
    slowest = step.scaled(stragglers.slowdown(gpus, inputs.variation))
    return step.seconds / simulate(slowest, gpus, "ring", network, OLD_HOROVOD).step_seconds


def one_gpu(model: str, speed: float = 1.0) -> Step:
    """Its step: a third forward, two thirds backward; the optimiser's share is not known and in them."""
    seconds = BATCH / (IMAGES_PER_SECOND[model] * speed)
    backward = 2 * seconds / 3
    return Step(seconds - backward, backward, 0.0, tuple((size, share * backward) for size, share in layers(model)))


def layers(model: str) -> list[tuple[float, float]]:
    """(bytes, share of backward) of each gradient, in the order of arrival."""
    with LAYERS.open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["model"] == model]
    return [(float(row["bytes"]), float(row["share_of_backward"])) for row in rows]


def varied(model: str, gpus: int) -> Interval:
    """The median over what the unpublished inputs leave open, and from 2.5 to 97.5 % of it."""
    random = np.random.default_rng(0)
    drawn = [
        efficiency(model, gpus, Inputs(
            random.uniform(0.8, 1.0), random.uniform(0.8, 1.0), float(np.exp(random.uniform(*np.log([2e-6, 20e-6])))),
            random.uniform(0.0, 0.03),
        ))
        for _ in range(DRAWS)
    ]  # fmt: skip
    low, middle, high = map(float, np.percentile(drawn, (2.5, 50, 97.5)))
    return Interval(middle, low, high, DRAWS)
