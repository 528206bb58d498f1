"""Two norms of gradients of two batch sizes, taken while a model is trained: the gradient noise scale.     [torch]

    backward                  hooks      each rank's own gradient, b samples            small: mean of squared norms
    the framework reduces
    the optimiser is called   pre-hook   their mean, B samples, not yet clipped         big: its squared norm

From both follow the noise's trace and |G|^2, without bias (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1). One
worker has gradients of two sizes where it accumulates: of its first micro-batch, and of all.

A hook of a parameter runs when autograd has added to `.grad`, before those by which DDP, Horovod and FairScale learn of
it. It is there in every `every`-th step only; what a reading costs is timed in the first steps, and `every` chosen by
that. Norms stay on the device; ranks meet at evaluations.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from scaling_study.frameworks import FRAMEWORKS, POWERSGD
from scaling_study.measure.training import Loss, Training, now
from scaling_study.ranks import Ranks
from scaling_study.train.recipe import Recipe
from scaling_study.trial import Trial
from scaling_study.workloads.workload import Batch

SHARE = 0.005  # of the steps' time that readings may take: half of what is claimed (benchmarks/training_overhead.py)
MOST_ROWS = 500  # of one training: enough for an interval, few for a record
TIMED = 3  # readings, from the second step on, whose seconds decide how many there are

COMPARED = (  # frameworks whose readings are what one computes by hand (tests/train/test_noise.py)
    "single",
    "torch_ddp",
    "horovod",
    "mpi_allreduce",
    "fairscale_oss",
    "fairscale_fsdp",
    "torch_fsdp2",
    "deepspeed_zero",
    "lightning_ddp",
)
ONE_SIZE = "one worker with one micro-batch a step has gradients of one batch size only: accumulation or more workers"
NATIVE = "a library's own loop trains: what it does between backward and update is not known here"
TOO_SHORT = "it ended before what a reading costs was known"
REDUCES_EACH = "DeepSpeed reduces every micro-batch by itself: with accumulation no rank's own gradient is ever whole"
OWN_SCALE = "DeepSpeed scales fp16's losses by a factor of its own"
STAGES = "a rank of a pipeline has the gradients of its own stage, and all its pipeline's samples"
UNTRIED = "no reading by this framework was ever compared with gradients computed by hand"
COMPRESSED = "what PowerSGD makes of the workers' gradients is not their mean"
ALONE = "each worker steps by its own gradients, and no step has their mean"
APART = "FSDP2 adds up gradients of 16-bit weights apart, where no hook sees them: no accumulation in 16 bits"


class Noise:
    """One rank's part of it: `step` makes the steps of a training, `record` is called by all ranks now and then."""

    def __init__(self, training: Training, trial: Trial, ranks: Ranks) -> None:
        self.training, self.ranks = training, ranks
        self.unknown = unknown(trial, ranks.world_size)
        alone = ranks.world_size == 1
        self.sizes = {
            "small_batch": trial.batch_per_worker // (trial.accumulation if alone else 1),
            "big_batch": trial.global_batch,
        }
        self.call = 1 if alone else trial.accumulation  # of a parameter's hook in a step: the one that is read
        self.factor = trial.accumulation if alone else 1  # a share of the loss is that much smaller than its own mean
        stage = FRAMEWORKS[trial.framework].shards if trial.zero_stage is None else trial.zero_stage
        group = trial.shard_group or ranks.world_size  # of ranks whose optimisers have a part each of the mean gradient
        self.copies = ranks.world_size // group if stage > 0 else ranks.world_size  # of it, over all ranks
        self.incoming = trial.framework == "deepspeed_zero"  # its own hooks, of the same kind, were there first
        self.every, self.rows = 0, list[list[float]]()
        self.pending = list[tuple[int, torch.Tensor]]()  # (step, [small, big] on the device) since the last evaluation
        self.made, self.costs = 0, list[float]()  # steps by this process; seconds of the timed readings
        self._parameters: list[torch.Tensor] | None = None
        self._reading = False
        training.optimizer.register_step_pre_hook(self._before_update)

    def step(self, batch: Batch, number: int) -> Loss:
        """Make the step of this number, from 1."""
        self.made += 1
        timed = not self.every and 1 < self.made <= 1 + TIMED
        if self.unknown or not (timed or (self.every and number % self.every == 0)):
            return self.training.step(batch)
        if self._parameters is None:
            self._parameters = list(self._with_own_gradients())
        self._small, self._big = list[torch.Tensor](), list[torch.Tensor]()
        self._calls, self._read, self._scale = Counter[int](), set[int](), 1.0
        self._clock: Callable[[], float] = (lambda: now(*self.ranks.devices)) if timed else time.perf_counter
        self._cost, start = 0.0, time.perf_counter()
        hooks = [self._hooked(index, parameter) for index, parameter in enumerate(self._parameters)]
        self._cost += time.perf_counter() - start
        self._reading = True
        try:
            loss = self.training.step(batch)
        finally:
            self._reading = False
            for hook in hooks:
                hook.remove()
        if timed:
            self.costs.append(self._cost)
        elif self._read:  # no update: fp16's scaler left the step out
            squares = [
                torch.stack(norms).square().sum() if norms else self._zero() for norms in (self._small, self._big)
            ]
            self.pending.append((number, torch.stack([squares[0] * (self.factor / self._scale) ** 2, squares[1]])))
        return loss

    def settle(self, step_seconds: Sequence[float], recipe: Recipe) -> None:
        """Choose `every` once it can be known, by all ranks alike."""
        if self.unknown or self.every or len(self.costs) < TIMED:
            return
        usual = median(step_seconds[-20:])
        affordable = math.ceil(median(self.costs) / (SHARE * usual))
        self.every = int(self.ranks.agree(max(1, affordable, math.ceil(recipe.most_steps(usual) / MOST_ROWS))))

    def record(self) -> dict[str, Any]:
        """The readings so far, for the record (docs/reference/record.md), on every rank; called by all."""
        if self.unknown:
            return {"unknown": self.unknown}
        if self.pending:
            values = torch.stack([pair for _, pair in self.pending])
            totals = torch.tensor(self.ranks.total(values.flatten().tolist()), dtype=torch.float64).view(-1, 2)
            mean = torch.tensor([self.ranks.world_size, self.copies])
            for (step, _), (small, big) in zip(self.pending, (totals / mean).tolist(), strict=True):
                if math.isfinite(small) and math.isfinite(big):
                    self.rows.append([step, small, big])
            self.pending.clear()
        if not self.every:
            return {"unknown": TOO_SHORT}
        return {**self.sizes, "every": self.every, "rows": self.rows}

    def go_on(self, saved: Mapping[str, Any]) -> None:
        """Begin with the rows of a checkpoint, unless its workers had gradients of other batch sizes."""
        if saved.items() >= self.sizes.items():
            self.every, self.rows = saved["every"], saved["rows"]

    def _with_own_gradients(self) -> Iterator[torch.Tensor]:
        """The tensors whose `.grad` is this rank's own, whole, at the moment at which their hooks run."""
        model, optimizer = self.training.workload.model, self.training.optimizer
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if self.incoming:  # the optimiser's are flat parts
            held = list(model.parameters())
        elif any(hasattr(p, "to_local") for p in held):
            held = gathered(model)
        yield from (p for p in held if p.requires_grad)

    def _hooked(self, index: int, parameter: torch.Tensor) -> Any:
        if self.incoming:
            return parameter.register_hook(lambda gradient: self._arrived(index, gradient))
        return parameter.register_post_accumulate_grad_hook(lambda p: self._arrived(index, p.grad))

    def _arrived(self, index: int, gradient: torch.Tensor | None) -> None:
        start = self._clock()
        self._calls[index] += 1
        if gradient is not None and self._calls[index] == self.call:
            self._small.append(norm(gradient))
        self._cost += self._clock() - start

    def _before_update(self, *_: object) -> None:
        """Horovod's optimiser calls it twice, the second time after clipping: each gradient is read once."""
        if not self._reading:
            return
        start = self._clock()
        for parameter in [p for group in self.training.optimizer.param_groups for p in group["params"]]:
            if id(parameter) not in self._read:
                self._read.add(id(parameter))
                if parameter.grad is not None:
                    self._big.append(norm(parameter.grad))
        self._cost += self._clock() - start
        if self.training.scaler:
            self._scale = self.training.scaler.get_scale()  # it has just waited for the device itself

    def _zero(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.ranks.device)


def unknown(trial: Trial, workers: int) -> str:
    """The reason why a trial's gradients have no two norms that could be read; empty where they have."""
    framework, several, accumulates = trial.framework, workers > 1, trial.accumulation > 1
    reasons = {
        NATIVE: trial.train_loop == "native",
        ALONE: bool(trial.sync_every),
        COMPRESSED: trial.allreduce in POWERSGD,
        STAGES: framework not in COMPARED and FRAMEWORKS[framework].cuts_model,
        UNTRIED: framework not in COMPARED,
        ONE_SIZE: not several and not accumulates,
        OWN_SCALE: framework == "deepspeed_zero" and trial.precision == "fp16",
        REDUCES_EACH: framework == "deepspeed_zero" and several and accumulates,
        APART: framework == "torch_fsdp2" and trial.precision in ("fp16", "bf16") and several and accumulates,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def gathered(model: nn.Module) -> list[torch.Tensor]:
    """FSDP2's whole weights, of which gradients are made: always the same objects, with memory while they are used."""
    from torch.distributed.fsdp import FSDPModule

    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.unshard()
    whole: list[torch.Tensor] = list(model.parameters())
    for unit in units:
        unit.reshard()
    return whole


def norm(gradient: torch.Tensor) -> torch.Tensor:
    """The root of the sum of a gradient's squares in fp64, on its device; of a DTensor, of this rank's shard."""
    own: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    root: torch.Tensor = torch.linalg.vector_norm(own.detach(), dtype=torch.float64)
    return root
