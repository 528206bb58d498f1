"""The pipeline script's step in turn with a hand-written loop of 1F1B, or with one process that has it all.   [torch]

    torchrun --standalone --nproc-per-node 2 -m benchmarks.pipeline_step --against loop --out FILE

    worker w of p:   p-1-w forwards ahead, then a forward and a backward in turns, then the backwards that are left

Ours is built by the script itself, which also joins the process group. The loop trains copies of the same stages.
The script's own is built once more, as the control.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.built import Built, build, rate
from benchmarks.paired import alternate
from scaling_study import workloads
from scaling_study.measure.clock import Stopwatch
from scaling_study.ranks import Ranks, leave_torch
from scaling_study.records.store import write_json
from scaling_study.stages import Cut, cut
from scaling_study.trial import Trial
from scaling_study.workloads.workload import ClippedSGD

BATCH = 20  # published


class Loop:
    """One worker's side of 1F1B: its stage, and the neighbours that it hears from and sends to."""

    def __init__(self, model: Cut, ours: Built, parts: int) -> None:
        self.rank, self.workers, self.parts = dist.get_rank(), dist.get_world_size(), parts
        self.first, self.last = self.rank == 0, self.rank == self.workers - 1
        self.model, self.stage = model, copy.deepcopy(model.stages[self.rank])
        assert isinstance(ours.training.optimizer, ClippedSGD)
        rate, norm = ours.training.optimizer.param_groups[0]["lr"], ours.training.optimizer.max_norm
        self.optimizer = ClippedSGD(self.stage.parameters(), rate, norm)
        self.optimizer.over = ours.training.optimizer.over
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []  # forward is done, backward is not
        self.sends: list[dist.Work] = []

    def step(self, batch: workloads.Batch) -> None:
        inputs, targets = (f(batch).chunk(self.parts) for f in (self.model.inputs, self.model.target))
        ahead = min(self.workers - 1 - self.rank, self.parts)
        for index in range(self.parts):
            self.forward(inputs[index], targets[index])
            if index >= ahead:
                self.backward()
        for _ in range(ahead):
            self.backward()
        for send in self.sends:
            send.wait()
        self.sends.clear()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> None:
        if not self.first:
            x = self.received(self.rank, self.rank - 1).requires_grad_()
        output = self.stage(x)
        if self.last:
            output = self.model.loss(output, target) / self.parts
        else:
            self.send(output.detach(), self.rank + 1)
        self.waiting.append((x, output))

    def backward(self) -> None:
        x, output = self.waiting.pop(0)
        output.backward(None if self.last else self.received(self.rank + 1, self.rank + 1))
        if not self.first:
            self.send(x.grad, self.rank - 1)

    def received(self, edge: int, source: int) -> torch.Tensor:
        like = self.model.shapes[edge]
        tensor = torch.empty(like.shape, dtype=like.dtype)
        dist.recv(tensor, source)
        return tensor

    def send(self, tensor: torch.Tensor, to: int) -> None:
        work = dist.isend(tensor, to)
        assert work
        self.sends.append(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, choices=("loop", "single"))
    parser.add_argument("--model", default="transformer_lm_deep")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    trial = Trial(
        framework="torch_pipeline", model=asked.model, batch_per_worker=BATCH, data="synthetic", device="cpu",
        cores_per_worker=1, schedule="1f1b", micro_batches=asked.micro_batches,
        stage_cut="9,5" if asked.model == "transformer_lm_deep" else "even",  # by time it would differ from run to run
    )  # fmt: skip
    joined = build(trial)  # first: it joins the group and pins this process; it is not timed (paired.py says why)
    ours = build(trial, joined.ranks)
    if asked.against == "loop":
        other = loop(ours, trial, asked.steps)
    else:
        other = alone(trial, asked.steps) if dist.get_rank() == 0 else lambda: 0.0  # the other worker waits
    again = build(trial, ours.ranks)  # the control
    blocks = (partial(ours.seconds, asked.steps), other, partial(again.seconds, asked.steps))
    turns = [partial(rate, seconds, BATCH * asked.steps) for seconds in blocks]
    for turn in turns:  # warm
        turn()
    taken = alternate(*turns, turns=asked.turns)
    if dist.get_rank() == 0:
        write_json(asked.out, {"samples_per_second": taken, **ours.facts})
    leave_torch()


def loop(ours: Built, trial: Trial, steps: int) -> Callable[[], float]:
    """Blocks of the hand-written loop, on copies of the model's stages and the batch that ours reads."""
    whole = workloads.load(ours.trial, Ranks())
    made = Loop(
        cut(whole, ours.trial, ours.ranks.device, ours.ranks.agree).keep([dist.get_rank()]),
        ours,
        trial.micro_batches or 1,
    )
    batch = tuple(tensor.clone() for tensor in next(whole.batches))

    def block() -> float:
        watch = Stopwatch(ours.ranks.device)
        watch.start()
        for _ in range(steps):
            made.step(batch)
            watch.lap()
        return sum(watch.seconds())

    return block


def alone(trial: Trial, steps: int) -> Callable[[], float]:
    """Blocks of the script with no framework, on this worker's core."""
    keys = {"framework": "single", "schedule": None, "micro_batches": None, "stage_cut": None}
    one = build(Trial(**{**vars(trial), **keys}))
    return partial(one.seconds, steps)


if __name__ == "__main__":
    main()
