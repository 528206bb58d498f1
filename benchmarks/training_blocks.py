"""A training's steps in turn, with and without reading gradients, and then with the clock's.                [torch]

    torchrun --standalone --nproc-per-node 2 -m benchmarks.training_blocks --framework torch_ddp --out FILE

FILE: "reading": [[seconds with, without, with again], ...],
"loop": [[training's samples per second, the clock's, those of the clock's step built a second time], ...].
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.built import build, rate
from benchmarks.paired import alternate
from scaling_study.ranks import leave_torch
from scaling_study.records.store import write_json
from scaling_study.train.loop import Loop
from scaling_study.trial import Trial

WARM = 8  # steps of the training: after them it is known how often gradients are to be read
SHORT = 400  # steps that it says it has: so few that readings are limited by what they cost and by nothing else


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", required=True, choices=("single", "torch_ddp"))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    trial = Trial(
        framework=asked.framework, model="resnet8", batch_per_worker=64, data="cifar10", device="cpu",
        accumulation=2 if asked.framework == "single" else 1,
    )  # fmt: skip
    joined = build(trial)  # first: it joins the group and pins this process; it is not timed (paired.py says why)
    clock = build(trial, joined.ranks)
    trained = build(replace(trial, train_steps=SHORT), clock.ranks)
    loop = Loop(trained.training, trained.trial, trained.ranks, asked.out.parent / "record")
    while not loop.noise.every:
        loop.block(loop.progress.steps + WARM)
    every = loop.noise.every
    steps = -(-asked.steps // every) * every  # each block has as many readings as another
    samples = trained.samples(steps)

    def block(reading: bool) -> float:
        """Seconds of a block of the training's steps."""
        loop.noise.unknown = "" if reading else "switched off"
        before, first = loop.progress.seconds["train"], loop.progress.steps
        while loop.progress.steps < first + steps:
            loop.block(first + steps)
        return loop.progress.seconds["train"] - before

    def of_all_ranks(reading: bool) -> float:
        """The same by the slowest rank's, from a start together."""
        return samples / rate(partial(block, reading), samples)

    with_reading = partial(rate, partial(block, True), samples)
    by_the_clock = partial(rate, partial(clock.seconds, steps), samples)
    clock_again = build(trial, clock.ranks)
    by_another = partial(rate, partial(clock_again.seconds, steps), samples)
    of_all_ranks(True), of_all_ranks(False), by_the_clock(), by_another()  # warm
    reading = alternate(*(partial(of_all_ranks, whether) for whether in (True, False, True)), turns=asked.turns)
    taken = alternate(with_reading, by_the_clock, by_another, turns=asked.turns)
    if clock.ranks.rank == 0:
        write_json(asked.out, {"reading": reading, "loop": taken, "every": every, "steps": steps})
    leave_torch()


if __name__ == "__main__":
    main()
