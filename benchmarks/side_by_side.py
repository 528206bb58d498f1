"""Training steps in one Horovod job, timed in turn: blocks of ours, of Horovod's own benchmark, of a variant.

    horovodrun -np 2 python -m benchmarks.side_by_side --sides ours,theirs,again --allreduce fp16 --out FILE

All live in the same processes, pinned to the same cores, so that what differs is only what is compared. All ranks
wait for each other before a block; its seconds are the slowest rank's.                                     [torch]
"""

from __future__ import annotations

import argparse
import io
import runpy
import sys
import timeit
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
from torchvision import models

from benchmarks import horovod_example
from benchmarks.built import Built, build
from benchmarks.paired import alternate
from scaling_study.measure import surroundings
from scaling_study.records.store import write_json
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10

SGD = torch.optim.SGD
OURS: dict[str, dict[str, Any]] = {  # variants of our step: what differs from the default
    "ours": {},
    "again": {},  # the same once more: what the order of building does, and whether the method is true
    "channels_last": {"memory_format": "channels_last"},
    "foreach": {"optimizer": partial(SGD, foreach=True)},
    "fused": {"optimizer": partial(SGD, fused=True)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", required=True, help=f"of {', '.join(OURS)}, theirs; in the order of the turns")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--allreduce", default="fp32", choices=("fp32", "fp16"))
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10, help="steps a block; 10 is Horovod's own number")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    trial = Trial(
        framework="horovod", model=asked.model, batch_per_worker=asked.batch, allreduce=asked.allreduce,
        data="synthetic",
    )  # fmt: skip
    sides: dict[str, Callable[[], float]] = {}
    reference = build(trial)  # first: it pins this process; it is not timed (paired.py says why)
    for side in asked.sides.split(","):
        if side == "theirs":
            block = theirs(trial, reference, asked.steps)
        else:
            block = partial(variant(side, reference).seconds, asked.steps)  # as a study times it
        sides[side] = partial(rate, block, asked.batch * asked.steps * hvd.size())
        sides[side]()  # warm, and the first negotiation
    taken = alternate(*sides.values(), turns=asked.turns)
    if hvd.rank() == 0:
        facts = {"cores_per_worker": len(reference.ranks.cores), **reference.facts}
        write_json(asked.out, {"samples_per_second": taken, **facts})


def variant(name: str, reference: Built) -> Built:
    """Our script's step with one thing changed."""
    changed = dict(OURS[name])
    with mock.patch("torch.optim.SGD", changed.pop("optimizer", SGD)):
        return build(replace(reference.trial, **changed), reference.ranks)


def theirs(trial: Trial, like: Built, steps: int) -> Callable[[], float]:
    """A block of Horovod's own step, timed as Horovod's file times it.

    The file runs as it is, up to its first timeit. Then what it trains is made what ours trains: 10 classes, our
    image size, our SGD's momentum (theirs has none, which saves a pass over the weights).
    """
    caught: list[Callable[[], None]] = []

    def stop_here(step: Callable[[], None], number: int) -> float:
        caught.append(step)
        return 1.0

    example = str(horovod_example.path())
    flags = ["--model", trial.model, "--batch-size", str(trial.batch_per_worker), "--num-iters", "1"]
    flags += ["--fp16-allreduce"] if trial.allreduce == "fp16" else []
    flags += ["--no-cuda"] if like.ranks.device.type == "cpu" else []
    images, labels = next(like.training.workload.batches)
    network = partial(getattr(models, trial.model), num_classes=cifar10.CLASSES)
    with (
        mock.patch.object(sys, "argv", [example, *flags]),
        mock.patch.object(models, trial.model, network),
        mock.patch("timeit.timeit", stop_here),
        redirect_stdout(io.StringIO()),  # it would report throughputs that nobody measured
    ):
        runpy.run_path(example, run_name="__main__")
    step, scope = caught[0], caught[0].__globals__
    scope["data"], scope["target"] = images.clone(), labels.clone()
    for group in scope["optimizer"].param_groups:
        group["momentum"] = like.training.optimizer.param_groups[0]["momentum"]
    if unlike := differences(scope, like):
        raise SystemExit(f"theirs and ours do not train the same: {unlike}")
    return lambda: timeit.timeit(step, number=steps)


def differences(scope: dict[str, Any], like: Built) -> str:
    """What differs between the two sides in network, shapes or optimiser; empty if nothing does."""
    theirs_and_ours = [(scope["model"], scope["optimizer"]), (like.training.workload.model, like.training.optimizer)]
    a, b = (
        {
            "network": str(model),
            "weights": {name: weight.shape for name, weight in model.named_parameters()},
            "optimiser": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
            "compression": optimizer._compression,
        }
        for model, optimizer in theirs_and_ours
    )
    return "; ".join(f"{key}: {a[key]} and {b[key]}" for key in a if a[key] != b[key])


def rate(block: Callable[[], float], samples: int) -> float:
    """Samples per second of all ranks over one block that they begin together."""
    with surroundings.settled():
        hvd.barrier()
        seconds = block()
    return samples / float(hvd.allgather(torch.tensor([seconds], dtype=torch.float64), name="seconds").max())


if __name__ == "__main__":
    main()
