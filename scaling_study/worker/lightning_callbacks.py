"""Callbacks of Lightning's Trainer that note what our loop notes, and keep checkpoints to go on from.       [torch]

Lightning's own checkpoints know nothing of the place in the data, nor of what the record counts. So a training that was
killed goes on from a checkpoint of our loop's, made after Lightning's own: a new Trainer makes the steps that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from scaling_study import train
from scaling_study.measure.phases import now
from scaling_study.measure.stopwatch import Stopwatch
from scaling_study.train.progress import Intervals, Progress
from scaling_study.worker.lightning_module import STEPS_MADE, Module


class Follower(Callback):
    """What our loop notes between its steps, noted between Lightning's; and it stops the Trainer."""

    def __init__(self, loop: train.Loop, hook: Any) -> None:
        self.loop, self.hook, self.progress = loop, hook, loop.progress
        self.watch, self.running, self.intervals = Stopwatch(*loop.ranks.devices), False, Intervals(loop.progress)
        self.ended = self.stop = self.look = 0  # by what it ended; steps at the next evaluation, and look at the clock
        self.loss: Any = 0.0  # of the step so far
        self.watched = ExitStack()  # for as long as a step lasts

    def asked(self) -> None:
        """Lightning asks for the batches of a step: from here on it trains."""
        if not self.running:
            self.interval("evaluate")
            self.begin()

    def begin(self) -> None:
        self.stop = self.loop.recipe.next_stop(self.progress.steps)
        self.look, self.running = self.progress.steps + self.loop.count(self.stop), True
        self.watch.start()

    def interval(self, what: str) -> None:
        """Count the seconds since the last interval as those of evaluations, or of saving."""
        self.intervals.end(what, now(*self.loop.ranks.devices))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.hook:  # Lightning's own setting of it is ignored on a CPU
            wrapped = trainer.strategy.model
            assert isinstance(wrapped, DistributedDataParallel)
            wrapped.register_comm_hook(None, self.hook)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        if batch[-1] % self.loop.trial.accumulation == 0:
            self.watched.enter_context(self.loop.resources.watching())

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *batch: Any) -> None:
        self.loss = self.loss + outputs["loss"]  # divided by the micro-batches already
        if batch[-1] % self.loop.trial.accumulation != self.loop.trial.accumulation - 1:
            return
        self.watched.close()
        self.loop.losses.append(self.loss)
        self.loss = 0.0
        self.progress.steps += 1
        self.loop.note_order(self.loop.workload.batches.ids, self.progress.steps)
        self.watch.lap()
        if self.progress.steps == self.stop and not self.loop.validates:
            self.pause()
            self.judge(trainer, {})
            self.save(trainer)
        elif self.progress.steps == self.loop.recipe.steps:
            trainer.should_stop = True  # and so it validates, wherever it is
        elif self.progress.steps == self.look < self.stop:
            self.loop.made(self.watch.seconds())
            self.begin()
            self.ended = self.loop.out_of_time()
            trainer.should_stop = bool(self.ended)

    def pause(self) -> None:
        """The steps are over for now; what came after the last of them is part of it."""
        self.watch.lap()
        *seconds, rest = self.watch.seconds()
        if seconds:
            self.loop.made([*seconds[:-1], seconds[-1] + rest])
        else:
            self.loop.step_seconds[-1] += rest
            self.progress.seconds["train"] += rest
        self.running = False
        self.intervals.begin(now(*self.loop.ranks.devices))

    def judge(self, trainer: Trainer, scores: dict[str, float]) -> None:
        """A row, and whether it is over."""
        self.loop.row(scores)
        self.ended = int(self.loop.ranks.agree(self.ended or self.loop.out_of_time() or self.loop.verdict()))
        trainer.should_stop = bool(self.ended)

    def save(self, trainer: Trainer, best_file: str = "") -> None:
        """A checkpoint of our loop's, where that can gather the model: shards are gathered by Lightning's own only."""
        if not isinstance(trainer.strategy, FSDPStrategy):
            self.progress.best_file = best_file
            self.loop.save(self.ended)
        self.interval("save")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Module)
        self.interval("evaluate")
        self.judge(trainer, pl_module.scores)


class Saved(ModelCheckpoint):
    """Lightning's checkpoints, whose seconds are known. It calls them after all other callbacks.

    `best`: what says which is the best, of which then that one is kept; empty: the last.
    """

    def __init__(self, folder: Path, follower: Follower, best: Mapping[str, Any]) -> None:
        super().__init__(folder / "checkpoints", save_on_train_epoch_end=False, **best)
        self.follower = follower

    def go_on(self, progress: Progress) -> None:
        """Know the best model of a training that this one goes on from."""
        if progress.best_file:
            best = {"best_model_path": progress.best_file, "best_model_score": torch.tensor(progress.best)}
            kept = {progress.best_file: best["best_model_score"]}
            self.load_state_dict({
                **self.state_dict(), **best, "best_k_models": kept, "kth_best_model_path": progress.best_file,
                "kth_value": best["best_model_score"],
            })  # fmt: skip

    def put_back(self, model: torch.nn.Module) -> int:
        """Give the model the weights that are kept; the step they were made by. Called by all ranks."""
        saved = torch.load(self.best_model_path, map_location="cpu", weights_only=True)
        set_model_state_dict(model, saved["state_dict"], options=StateDictOptions(full_state_dict=True))
        return int(saved[STEPS_MADE])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.follower.interval("evaluate")
        super().on_validation_end(trainer, pl_module)
        self.follower.save(trainer, self.best_model_path if self.monitor else "")
