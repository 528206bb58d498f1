"""Lightning's own loop in the place of ours: what its Trainer costs.                                       [torch]

    trainer.fit(module)     next batch | training_step  backward  clip  optimiser  scheduler | callbacks, loggers | ...
    seconds of training     from one end of a step to the next: all of it; validation and checkpoints apart

The Trainer is as its users have it by default: progress bar, a logger (CSV) of each 50th step, a checkpoint after each
validation of which the last is kept. With patience its EarlyStopping stops, and its ModelCheckpoint keeps the best
model, which is the one that is tested; TensorBoard and W&B are its own loggers. But for the check of validation before
the first step, and the data: batches and splits are the workload's, or it would be another training.

What was killed goes on from our loop's checkpoint (lightning_callbacks.py); FSDP's begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from scaling_study import train
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks
from scaling_study.targets import METRICS, logs
from scaling_study.train.log import wandb_settings
from scaling_study.train.loop import ON, PATIENCE
from scaling_study.trial import Trial
from scaling_study.worker.lightning_callbacks import Follower, Saved
from scaling_study.worker.lightning_module import Epoch, Module, Validation
from scaling_study.workloads import Batch, Workload


class Placed(LightningEnvironment):
    """Who this rank is, as it has joined: Lightning asks for NODE_RANK, which only some launchers set."""

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
        saved = [Saved(loop.folder, follower, best)] if loop.folder else []
        steps_made = loop.progress.steps
        if steps_made and best and loop.progress.best is not None:
            saved[0].go_on(loop.progress)
            waited = {"wait_count": loop.since_best(), "best_score": torch.tensor(loop.progress.best)}
            stopping[0].load_state_dict({**stopping[0].state_dict(), **waited})
        trainer = Trainer(
            **where, strategy=strategy, plugins=[Placed(ranks, where["devices"])],
            max_steps=recipe.steps - steps_made if recipe.steps else -1, max_epochs=-1,
            accumulate_grad_batches=trial.accumulation,
            val_check_interval=recipe.evaluate_every * trial.accumulation, check_val_every_n_epoch=None,
            gradient_clip_val=trial.train_clip_norm, num_sanity_val_steps=0,
            callbacks=[follower, *stopping, *saved], enable_checkpointing=bool(saved),
            logger=loggers(loop.folder, trial) if loop.folder else False,
        )  # fmt: skip
        module = Module(loop)
        if isinstance(strategy, FSDPStrategy):
            loop.training.weights = lambda: gathered(trainer.model)
        trainer.fit_loop.epoch_loop.on_load_checkpoint({"_batches_that_stepped": steps_made})  # the steps of its logs
        trainer.fit(module, Epoch(workload, follower.asked), Validation(loop) if loop.validates else None)
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
