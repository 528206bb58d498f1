"""Results folders of trainings to a target whose truth is known: what each seed took, or when it was stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import MACHINE, Planted, plant, record

from analysis.frames import results
from analysis.frames.results import Results
from scaling_study.records.store import write_record

TARGET = "accuracy=0.6"
EVERY = 50  # steps between two evaluations
RECIPE = (("train_target", TARGET), ("train_epochs", 30), ("learning_rate", 0.05), ("train_optimizer", "nesterov"))


@dataclass(frozen=True)
class Trained:
    """`steps`: of each seed, from 1; None: stopped after `stopped` steps."""

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


def plant_trained(folder: Path, trained: Sequence[Trained], **about: Any) -> Results:
    plant(folder, [], **{"baseline": {"framework": "single"}, "machine": MACHINE, **about})
    rng = np.random.default_rng(0)
    for one in trained:
        for seed, steps in enumerate(one.steps, 1):
            trial = replace(one.planted.trial(seed), seed=seed)
            made = record(one.planted, trial, trial.global_batch / one.step_seconds, "planted", rng)
            said = {"training": training(one, steps, trial.global_batch, seed), "own_cpu_seconds": one.cpu_seconds}
            ranks = [replace(rank, **said) for rank in made.ranks]
            price = {} if one.price is None else {"price_per_worker_hour": one.price}
            write_record(folder / "trials" / trial.id, replace(made, ranks=ranks, machine_file=price))
    return results.read(folder)


def training(one: Trained, steps: int | None, batch: int, seed: int) -> dict[str, Any]:
    last = steps or one.stopped
    loss = 1.0 + len(one.of.framework) / 1000 if one.train_loss is None else one.train_loss
    rows = [
        {"steps": at, "samples": at * batch, "epoch": at / 400, "seconds": at * one.step_seconds,
         "all_seconds": at * one.step_seconds, "learning_rate": 0.05, "train_loss": loss, "accuracy": 0.5, "loss": 1.2}
        for at in (*range(EVERY, last, EVERY), last)
    ]  # fmt: skip
    return {
        "ended_by": "target" if steps else "steps", "target": TARGET, "reached": rows[-1] if steps else None,
        "rows": rows, "best_step": last, "steps": last, "resumed": 0, "lost_steps": 0,
        "seconds": {"train": last * one.step_seconds, "evaluate": 1.0, "save": 0.0, "test": 1.0},
        "evaluated": {"split": "test", "samples": 10_000, "accuracy": one.accuracy + 0.001 * seed, "loss": 1.1},
        **one.says,
    }  # fmt: skip
