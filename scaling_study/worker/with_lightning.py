"""Lightning: a user's module, its own loop in place of ours, and callbacks that note what ours notes.   [torch]

    trainer.fit(module)     next batch | training_step  backward  clip  optimiser  scheduler | callbacks, loggers | ...
    seconds of training     from one end of a step to the next: all of it; validation and checkpoints apart

The Trainer is as its users have it by default: progress bar, a logger (CSV) of each 50th step, a checkpoint after each
validation of which the last is kept. With patience its EarlyStopping stops, and its ModelCheckpoint keeps the best
model, which is the one that is tested; TensorBoard and W&B are its own loggers. But for the check of validation before
the first step, and the data: batches and splits are the workload's, or it would be another training.

Lightning's own checkpoints know nothing of the place in the data, nor of what the record counts. So a training that was
killed goes on from a checkpoint of our loop's, made after Lightning's own: a new Trainer makes the steps that are left.
One by FSDP begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from scaling_study import train
from scaling_study.measure import Phase, Training, Wire
from scaling_study.measure.clock import Stopwatch
from scaling_study.measure.training import now, share_buffers
from scaling_study.ranks import Ranks
from scaling_study.targets import METRICS, logs
from scaling_study.train.log import Intervals, TrainingProgress, wandb_settings
from scaling_study.train.loop import ON, PATIENCE, batches, reduced
from scaling_study.trial import Trial
from scaling_study.workloads import Batch, Workload


class Follower(Callback):
    """Notes between Lightning's steps what our loop notes between its own; and it stops the Trainer."""

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
            if self.ended and not self.loop.validates:  # nothing else would write the last row
                self.pause()
                self.judge(trainer, {})
                self.save(trainer)

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
        self.ended = self.loop.over(self.ended or self.loop.out_of_time())
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


class LightningCheckpoints(ModelCheckpoint):
    """Lightning's checkpoints, whose seconds are known. It calls them after all other callbacks.

    `best`: keywords that name the metric of the best model, which is then kept; empty: the last is.
    """

    def __init__(self, folder: Path, follower: Follower, best: Mapping[str, Any]) -> None:
        super().__init__(folder / "checkpoints", save_on_train_epoch_end=False, **best)
        self.follower = follower

    def go_on(self, progress: TrainingProgress) -> None:
        """Know the best model of a training that this one goes on from."""
        if progress.best_file:
            best = {"best_model_path": progress.best_file, "best_model_score": torch.tensor(progress.best)}
            kept = {progress.best_file: best["best_model_score"]}
            worst = {"kth_best_model_path": progress.best_file, "kth_value": best["best_model_score"]}
            self.load_state_dict({**self.state_dict(), **best, "best_k_models": kept, **worst})

    def put_back(self, model: torch.nn.Module) -> int:
        """Give the model the weights that are kept; the step they were made by. Called by all ranks."""
        saved = torch.load(self.best_model_path, map_location="cpu", weights_only=True)
        set_model_state_dict(model, saved["state_dict"], options=StateDictOptions(full_state_dict=True))
        return int(saved[STEPS_MADE])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.follower.interval("evaluate")
        super().on_validation_end(trainer, pl_module)
        self.follower.save(trainer, self.best_model_path if self.monitor else "")


STEPS_MADE = "steps_made"


class Module(LightningModule):
    """The workload of a training loop, whose Trainer calls its steps."""

    def __init__(self, loop: train.Loop) -> None:
        super().__init__()
        self.model, self.loop, self.scores = loop.workload.model, loop, dict[str, float]()

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(*inputs)  # where it is tested: FSDP gathers weights for whoever calls its outermost module

    def training_step(self, batch: Batch) -> torch.Tensor:
        loss = self.loop.workload.loss(self.model, batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        share_buffers(self.model, self.loop.ranks)
        self.metrics = self.loop.held_out.metrics()

    def validation_step(self, batch: tuple[Batch, torch.Tensor]) -> None:
        self.loop.held_out.update(self.metrics, self.model, *batch)

    def on_validation_epoch_end(self) -> None:
        self.scores = reduced(self.metrics, self.loop.ranks)  # self.log's would be a mean of ranks (F27)
        self.log_dict({f"validation_{name}": value for name, value in self.scores.items()}, sync_dist=True)

    def configure_optimizers(self) -> Any:
        loop, optimizer = self.loop, self.loop.training.optimizer
        schedule = train.schedule(loop.trial, loop.workload, steps=loop.progress.steps)
        assert schedule is not None
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[STEPS_MADE] = self.loop.progress.steps  # its global_step counts from where it went on


class EpochBatches:
    """The batches of an epoch, of which Lightning knows how many there are."""

    def __init__(self, workload: Workload, asked: Callable[[], None]) -> None:
        """`asked` is called before each step's batch is made."""
        self.workload, self.asked = workload, asked

    def __len__(self) -> int:
        return self.workload.steps_per_epoch * self.workload.accumulation

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.workload.steps_per_epoch):
            self.asked()
            yield from (part for part, _ in self.workload.micro_batches(next(self.workload.batches)))


class Validation:
    """This rank's share of the validation split, anew for each evaluation."""

    def __init__(self, loop: train.Loop) -> None:
        self.loop = loop

    def __iter__(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        return batches(self.loop.held_out, "validation", self.loop.ranks)


class Placed(LightningEnvironment):
    """The place of this rank, as it has joined: Lightning asks for NODE_RANK, which only some launchers set."""

    def __init__(self, ranks: Ranks, workers_of_a_host: int) -> None:
        super().__init__()
        self.host = ranks.rank // workers_of_a_host

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def node_rank(self) -> int:
        return self.host


def loggers(folder: Path, trial: Trial) -> list[Logger]:
    """Lightning's, beside the one that it has by default."""
    made: list[Logger] = [CSVLogger(folder, "lightning")]
    if "tensorboard" in logs(vars(trial)):
        made.append(TensorBoardLogger(folder, name="", version="tensorboard"))
    if "wandb" in logs(vars(trial)):
        settings = wandb_settings(folder, trial)
        made.append(WandbLogger(save_dir=settings.pop("dir"), offline=settings.pop("mode") == "offline", **settings))
    return made


def gathered(model: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """The whole weights of a sharded Module by the names of the plain model, on rank 0's host. Called by all ranks."""
    assert model is not None
    on_host = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole: dict[str, Any] = get_model_state_dict(model, options=on_host)
    return {name.removeprefix("model."): tensor for name, tensor in whole.items()}


def build(
    trial: Trial, ranks: Ranks, workload: Workload, where: Mapping[str, Any], strategy: Strategy, hook: Any = None
) -> Training:
    """The training that a Trainer makes of a workload. `where`: keywords of Trainer and Fabric alike."""

    def fit(loop: train.Loop) -> int:
        follower, recipe = Follower(loop, hook), loop.recipe
        mode = "max" if METRICS[recipe.metric][0] else "min"
        best: dict[str, Any] = {"monitor": f"validation_{recipe.metric}", "mode": mode} if recipe.patience else {}
        patience = {**best, "patience": recipe.patience, "check_on_train_epoch_end": False}
        stopping = [EarlyStopping(**patience)] if best else []
        saved = [LightningCheckpoints(loop.folder, follower, best)] if loop.folder else []
        steps_made = loop.progress.steps
        if steps_made and best and loop.progress.best is not None:
            saved[0].go_on(loop.progress)
            waited = {"wait_count": loop.since_best(), "best_score": torch.tensor(loop.progress.best)}
            stopping[0].load_state_dict({**stopping[0].state_dict(), **waited})
        trainer = Trainer(
            **where,
            strategy=strategy,
            plugins=[Placed(ranks, where["devices"])],
            max_steps=recipe.steps - steps_made if recipe.steps else -1,
            max_epochs=-1,
            accumulate_grad_batches=trial.accumulation,
            val_check_interval=recipe.evaluate_every * trial.accumulation,
            check_val_every_n_epoch=None,
            gradient_clip_val=trial.train_clip_norm,
            num_sanity_val_steps=0,
            callbacks=[follower, *stopping, *saved],
            enable_checkpointing=bool(saved),
            logger=loggers(loop.folder, trial) if loop.folder else False,
        )
        module = Module(loop)
        if isinstance(strategy, FSDPStrategy):
            loop.training.weights = lambda: gathered(trainer.model)
        trainer.fit_loop.epoch_loop.on_load_checkpoint({"_batches_that_stepped": steps_made})  # the steps of its logs
        trainer.fit(module, EpochBatches(workload, follower.asked), Validation(loop) if loop.validates else None)
        for logger in trainer.loggers if ranks.rank == 0 else ():
            if isinstance(logger, WandbLogger):
                logger.experiment.finish()
        whole: torch.nn.Module = module
        if isinstance(strategy, FSDPStrategy):
            assert trainer.model is not None
            whole = loop.training.forward = trainer.model
            loop.training.backend = {"units": len(FullyShardedDataParallel.fsdp_modules(whole))}
        else:
            workload.model.to(ranks.device)  # it leaves the model on the host
        if saved and recipe.patience:
            loop.training.best = lambda: saved[0].put_back(whole)
        return PATIENCE if follower.ended == ON else follower.ended  # EarlyStopping's figures are in fp32

    def step(_: Batch) -> torch.Tensor:
        raise NotImplementedError("the Trainer makes its steps itself")

    optimizer = workload.optimizer(workload.model.parameters())
    return Training(step, workload, optimizer, Phase(ranks.device), Wire(), native=fit)
