"""Trainings to a result whose truth is known: steps to the target, critical batch, gradient noise and speed.

plant_trainings(tmp_path, [Trained(64), Trained(128), Trained(64, workers=2)], critical=200.0, noise_scale=150.0)
plant_trained(tmp_path, [TrainedIn(Planted("single", "resnet8", 128), steps=[1000, 1050, None])])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import MACHINE, Planted, plant, record

from analysis.frames import results
from analysis.frames.results import Results
from scaling_study.records.store import write_record

TARGET = "accuracy=0.6"
SMALLEST_STEPS, CRITICAL, NOISE_SCALE = 500.0, 200.0, 200.0
UNKNOWN = {"unknown": "a rank holds only shards of the gradients"}


@dataclass(frozen=True)
class Trained:
    """One configuration: `speed` in samples a second; `noise` False: its gradients are in no record; `reached` False:
    its seeds are stopped after `stopped` samples; `every`: steps between two evaluations, 0 where one is a step before
    the target is reached, and one where it is."""

    batch_per_worker: int
    workers: int = 1
    speed: float = 1000.0
    framework: str = ""
    allreduce: str = ""
    model: str = "resnet8"
    seeds: Sequence[int] = (1, 2, 3)
    noise: bool = True
    reached: bool = True
    stopped: float = 400_000.0
    every: int = 0
    said: Any = None  # in place of what it would say of noise
    keys: tuple[tuple[str, Any], ...] = ()

    def planted(self) -> Planted:
        framework = self.framework or ("single" if self.workers == 1 else "torch_ddp")
        allreduce = self.allreduce or ("none" if self.workers == 1 else "fp32")
        keys = (("train_epochs", 30), ("train_target", TARGET), ("learning_rate", 0.05), *self.keys)
        return Planted(
            framework, self.model, self.batch_per_worker, self.workers, allreduce, self.speed, repeats=len(self.seeds),
            keys=keys,
        )  # fmt: skip


def plant_trainings(
    folder: Path, trained: Iterable[Trained], *, steps: float = SMALLEST_STEPS, critical: float = CRITICAL,
    noise_scale: float = NOISE_SCALE, spread: float = 0.03, seed: int = 0, study: str = "trained", **about: Any,
) -> Path:  # fmt: skip
    """Samples to the target are steps x (batch + critical), and log-normal with `spread` between seeds."""
    plant(folder, [], study=study, **about)
    rng = np.random.default_rng(seed)
    for one in trained:
        planted = one.planted()
        for repeat, own in enumerate(one.seeds, start=1):
            trial = replace(planted.trial(repeat), seed=own)
            samples = steps * (trial.global_batch + critical) * math.exp(spread * rng.normal())
            speed = one.speed * math.exp(0.005 * rng.normal())
            made = record(planted, trial, speed, study, rng)
            said = training(one, trial.global_batch, samples, speed, noise_scale, rng)
            ranks = [replace(rank, training=said, phases=None) for rank in made.ranks]
            write_record(folder / "trials" / trial.id, replace(made, ranks=ranks))
    return folder


def training(
    one: Trained, batch: int, samples: float, speed: float, noise_scale: float, rng: np.random.Generator
) -> dict[str, Any]:
    """What rank 0 says of a training that reached its target after `samples`, or was stopped before."""
    if not one.reached:
        samples = one.stopped
    count = max(1, round(samples / batch))
    evaluated = {max(1, count * part // 5) for part in range(1, 6)} | {max(1, count - 1)}
    if one.every:
        count = math.ceil(count / one.every) * one.every
        evaluated = set(range(one.every, count + 1, one.every))
    seconds = count * batch / speed
    rows = [
        {"steps": at, "samples": at * batch, "epoch": at * batch / 45_000, "seconds": seconds * at / count,
         "all_seconds": 1.1 * seconds * at / count, "learning_rate": 0.05, "train_loss": 2.3 - 1.3 * at / count,
         "accuracy": (0.61 if one.reached else 0.5) * at / count, "loss": 2.3 - 1.2 * at / count}
        for at in sorted(evaluated)
    ]  # fmt: skip
    said = {
        **ended(rows, one.reached, seconds, {"evaluate": 0.05 * seconds, "save": 0.0, "test": 1.0}),
        "evaluated": {"split": "test", "accuracy": 0.6, "loss": 1.1, "samples": 10_000},
    }
    if one.said is not None:
        return said | {"noise": one.said}
    if not one.noise:
        return said | ({"noise": UNKNOWN} if one.workers > 1 else {})
    small = batch // one.workers if one.workers > 1 else batch // 2
    return said | {"noise": noted(small, batch, 60, noise_scale, rng)}


def noted(small: int, big: int, steps: int, noise_scale: float, rng: np.random.Generator) -> dict[str, Any]:
    """Squared norms of Gaussian gradients with |G|^2 = 1 and covariance of trace `noise_scale`, every tenth step."""
    grown = gradients(small, big // small, steps, noise_scale, rng)
    rows = [[10 * step, float(norms[0]), float(norms[1])] for step, norms in enumerate(grown, start=1)]
    return {"small_batch": small, "big_batch": big, "every": 10, "rows": rows}


def gradients(
    small: int,
    ranks: int,
    steps: int,
    noise_scale: float,
    rng: np.random.Generator,
    dimensions: int = 40,
    noisier: np.ndarray[Any, np.dtype[np.float64]] | None = None,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(steps, 2): the mean over ranks of |g_rank|^2, and |g|^2 of their mean. The covariance of one sample's gradient
    is diagonal, from 0.2 to 1.8 times its mean. `noisier`: (steps,), by what each step's covariance is multiplied."""
    covariance = np.linspace(0.2, 1.8, dimensions)
    covariance *= noise_scale / covariance.sum()
    noise = rng.standard_normal((steps, ranks, dimensions)) * np.sqrt(covariance / small)
    if noisier is not None:
        noise *= np.sqrt(noisier)[:, None, None]
    own = 1 / math.sqrt(dimensions) + noise
    return np.stack([(own**2).sum(axis=2).mean(axis=1), (own.mean(axis=1) ** 2).sum(axis=1)], axis=1)


def ended(rows: list[dict[str, Any]], reached: bool, seconds: float, others: Mapping[str, float]) -> dict[str, Any]:
    """What every training says of its end. `others`: seconds beside those of its steps."""
    last = rows[-1]["steps"]
    return {
        "ended_by": "target" if reached else "steps", "target": TARGET, "reached": rows[-1] if reached else None,
        "rows": rows, "best_step": last, "steps": last, "resumed": 0, "lost_steps": 0,
        "seconds": {"train": seconds, **others},
    }  # fmt: skip


# --- each seed's steps to the target, as they are said ---

EVERY = 50  # steps between two evaluations
RECIPE = (("train_target", TARGET), ("train_epochs", 30), ("learning_rate", 0.05), ("train_optimizer", "nesterov"))


@dataclass(frozen=True)
class TrainedIn:
    """`steps`: of each seed, from 1, to the target; None: stopped after `stopped` steps."""

    of: Planted
    steps: Sequence[int | None]
    step_seconds: float = 0.1
    stopped: int = 3_000
    accuracy: float = 0.61
    price: float | None = None
    train_loss: float | None = None  # of each evaluation; None: like that of no other framework
    cpu_seconds: float | None = None  # of each worker
    says: Mapping[str, Any] = field(default_factory=dict)  # of `training`, otherwise

    @property
    def planted(self) -> Planted:
        return replace(self.of, keys=(*RECIPE, *self.of.keys))

    @property
    def configuration(self) -> str:
        return self.planted.trial().configuration


def plant_trained(folder: Path, trained: Sequence[TrainedIn], **about: Any) -> Results:
    plant(folder, [], **{"baseline": {"framework": "single"}, "machine": MACHINE, **about})
    rng = np.random.default_rng(0)
    for one in trained:
        for seed, steps in enumerate(one.steps, 1):
            trial = replace(one.planted.trial(seed), seed=seed)
            made = record(one.planted, trial, trial.global_batch / one.step_seconds, "planted", rng)
            said = {"training": training_in(one, steps, trial.global_batch, seed), "own_cpu_seconds": one.cpu_seconds}
            ranks = [replace(rank, **said) for rank in made.ranks]
            price = {} if one.price is None else {"price_per_worker_hour": one.price}
            write_record(folder / "trials" / trial.id, replace(made, ranks=ranks, machine_file=price))
    return results.read(folder)


def training_in(one: TrainedIn, steps: int | None, batch: int, seed: int) -> dict[str, Any]:
    last = steps or one.stopped
    loss = 1.0 + len(one.of.framework) / 1000 if one.train_loss is None else one.train_loss
    rows = [
        {"steps": at, "samples": at * batch, "epoch": at / 400, "seconds": at * one.step_seconds,
         "all_seconds": at * one.step_seconds, "learning_rate": 0.05, "train_loss": loss, "accuracy": 0.5, "loss": 1.2}
        for at in (*range(EVERY, last, EVERY), last)
    ]  # fmt: skip
    return {
        **ended(rows, steps is not None, last * one.step_seconds, {"evaluate": 1.0, "save": 0.0, "test": 1.0}),
        "evaluated": {"split": "test", "samples": 10_000, "accuracy": one.accuracy + 0.001 * seed, "loss": 1.1},
        **one.says,
    }
