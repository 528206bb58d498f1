"""Log of a training: rows for people and tools, a sign of life, resources, and what moved.               [torch]

training.csv     one row an evaluation      progress.json     how far it is, replaced every few seconds
tensorboard/     if `train_log` names it    wandb/            if it names that: offline, unless there is a key
"""

from __future__ import annotations

import csv
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from scaling_study.measure.memory import Memory
from scaling_study.measure.surroundings import PowerMeter, QuietMeter
from scaling_study.measure.training import Training, Weights
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.records.schema import ParameterGroup
from scaling_study.records.store import PROGRESS
from scaling_study.targets import QUIET_WANDB, logs
from scaling_study.trial import Trial

PARTS = ("train", "evaluate", "save", "log", "test")  # of a training's seconds


@dataclass
class TrainingProgress:
    """How far a training is: what a checkpoint says of it beside the state of its model."""

    steps: int = 0
    samples: int = 0  # of all ranks, where a step takes no fixed number of them; else 0
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the evaluations
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    loss_first: float | None = None
    best: float | None = None
    best_step: int | None = None
    resumed: int = 0
    lost_steps: int = 0  # made since a checkpoint that was gone on from
    noise: dict[str, Any] = field(default_factory=dict)  # of gradients (noise.py)
    best_file: str = ""  # of a library that keeps its best model itself
    data_seconds: float = 0.0  # of the training's, until the host had its batches
    data_seconds_logged: float = 0.0  # of those, up to the last row

    def batches(self, size: int) -> int:
        """Batches that a rank has read: one a step. With averaging rounds it is the mean over ranks, as the others' are
        not known; `size`: samples of a batch of every rank."""
        return self.samples // size or self.steps

    def epochs(self, steps_per_epoch: int) -> float:
        """Epochs so far. Averaging rounds may have more samples than others' steps: by the rate of the last row."""
        last = self.rows[-1] if self.rows else {"steps": steps_per_epoch, "epoch": 1.0}
        return self.steps * float(last["epoch"]) / int(last["steps"])

    def step_means(self) -> dict[str, float | None]:
        """Mean seconds of a step since the last row, and of those until the host had its batch; the latter is not known
        of a library's own loop."""
        last = self.rows[-1] if self.rows else {"steps": 0, "seconds": 0.0}
        steps, waited = max(1, self.steps - last["steps"]), self.data_seconds - self.data_seconds_logged
        return {
            "step_seconds": (self.seconds["train"] - last["seconds"]) / steps,
            "step_data_seconds": waited / steps if self.data_seconds else None,
        }


class Intervals:
    """Seconds of a loop that is not ours: from one mark to the next, less what our loop counted itself meanwhile."""

    def __init__(self, progress: TrainingProgress) -> None:
        self.progress, self.since, self.counted = progress, math.nan, 0.0

    def begin(self, at: float) -> None:
        """`at`: seconds of any clock that does not jump."""
        self.since, self.counted = at, sum(self.progress.seconds.values())

    def end(self, what: str, at: float) -> None:
        """Count what passed since the mark before as seconds of `what`; before the first mark nothing is counted."""
        if not math.isnan(self.since):
            apart = sum(self.progress.seconds.values()) - self.counted
            self.progress.seconds[what] += at - self.since - apart
        self.begin(at)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


WATCHED = 6  # of this process' steps: by then each gathers and reduces as in every one, and noise.py has its timings


class Resources:
    """Memory of one rank, and how busy it keeps cores and GPUs, from `start` to `stop`.

    Over all of a training but for the test, evaluations and checkpoints included. Memory is counted as the clock counts
    it, with the activations of one early step.
    """

    def __init__(self, training: Training, trial: Trial, ranks: Ranks) -> None:
        gpus = [device.index for device in ranks.devices if device.type == "cuda"]
        self.meter, self.quiet = PowerMeter(gpus, ranks.local_rank), QuietMeter()
        self.memory = Memory(training.workload.model, training.optimizer, ranks.device, training.held, ranks.further)
        self.wire = training.wire  # whose largest message some frameworks hold in a buffer
        self.on_gpu = bool(gpus)
        self.watches = not trial.compile  # what is compiled would be compiled anew for it
        self.made = 0  # steps by this process
        self.kinds, self.peak_bytes = dict[str, int](), 0

    def start(self) -> None:
        self.memory.start()
        self.meter.start()
        self.quiet.start()

    def stop(self) -> None:
        self.quiet.stop()
        self.meter.stop()
        self.memory.stop()
        self.kinds, self.peak_bytes = self.memory.by_kind(), self.memory.peak_bytes()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Enter it around each step, of which one is watched."""
        self.made += 1
        if self.watches and self.made == WATCHED:
            with self.memory.watching(), self.wire:
                yield
        else:
            yield

    def report(self) -> dict[str, Any]:
        """The fields of a RankReport. On a CPU there is no peak of a training whose activations were not seen."""
        whole = self.on_gpu or self.kinds["activations"]
        return {
            "peak_memory_bytes": self.peak_bytes if whole else None,
            "memory": self.kinds,
            "gpu_utilization_percent": self.meter.utilization_percent,
            "energy_joules": self.meter.energy_joules,
            "own_cpu_seconds": self.quiet.own_cpu_seconds,
            "host_cpu_seconds": self.quiet.host_cpu_seconds,
            "throttled_seconds": self.quiet.throttled_seconds,
        }


FROZEN = "asks for no gradient"
AS_IT_RUNS = "running text is read as it runs"


def groups(
    optimizer: torch.optim.Optimizer,
    rates: Sequence[float],
    model: nn.Module,
    frozen: str = "",
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[ParameterGroup]:
    """Groups of weights, each at one of `rates`; those that are frozen have a rate of 0 (F11).

    `frozen`: the part that the trial asks to freeze; its group says so too. `sizes`: parameters of each part, of which
    a rank may hold shards alone.
    """
    trained = []
    for number, (group, rate) in enumerate(zip(optimizer.param_groups, rates, strict=True)):
        name, own = str(group.get("name", number)), sum(p.numel() for p in group["params"])
        trained.append(ParameterGroup(name, sizes.get(name, own), rate))
    still = sizes.get(frozen, sum(p.numel() for p in model.parameters() if not p.requires_grad))
    return [*trained, ParameterGroup(frozen or FROZEN, still, 0.0, bool(frozen))] if still else trained


def logged_loss(rows: Sequence[Mapping[str, Any]]) -> str:
    """The steps that the training loss of a row is the mean over: all since the row before, or fewer (F12)."""
    before = [0, *(row["steps"] for row in rows)]
    for start, row in zip(before, rows, strict=False):
        if (averaged := row.get("loss_steps", 0)) < row["steps"] - start:
            return f"last {averaged} of {row['steps'] - start} batches"
    return "interval"


def recordable(value: Any) -> Any:
    """The value with null for what is no number: a training that diverged has a record too."""
    if isinstance(value, dict):
        return {key: recordable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [recordable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Moved:
    """How far the weights of each part of a model moved: one that did not was not trained (F11).

    Made before the first step, also of a training that goes on. All ranks call each method.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.parts = training, training.workload.parts
        self.first = self.weights() if self.parts else {}

    def weights(self) -> Weights:
        """A copy on the host, of parameters alone: BatchNorm's statistics move by themselves. Where a framework gathers
        them on rank 0 only, empty on the others."""
        model = self.training.workload.model
        gathered = self.training.weights() if self.training.weights else model.state_dict()
        names = [name for name, _ in model.named_parameters()]
        return {name: gathered[name].detach().to("cpu", torch.float64, copy=True) for name in names if name in gathered}

    def by_part(self) -> dict[str, float]:
        """`{"backbone": 0.0, "instrument": 0.31}`: norm of the difference over the norm of what was there first."""
        last = self.weights() if self.parts else {}
        shares: dict[str, float] = {}
        for part in self.parts:
            if names := [name for name in last if name.partition(".")[0] == part]:
                away = sum(float((last[name] - self.first[name]).square().sum()) for name in names)
                there = sum(float(self.first[name].square().sum()) for name in names)
                shares[part] = (away / (there or 1.0)) ** 0.5
        return shares


Row = Mapping[str, Any]
BY = ("steps", "samples", "epoch", "seconds", "all_seconds", "loss_steps")  # of a row: how far it is
SIGNS = ("steps", "resumed", "lost_steps")  # of how far it is: a run that is killed leaves them to the next
PROJECT = "scaling-study"


class Log:
    """Rank 0's; the other ranks leave nothing. Without a folder it only prints."""

    def __init__(self, folder: Path | None, rank: int, trial: Trial) -> None:
        self.folder, self.rank, self.trial = folder, rank, trial
        self.tools: list[TensorBoard | Wandb] = []
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        elif logs(vars(trial)):
            raise SystemExit(f"--train-log {trial.train_log} needs a folder to write to: --record FOLDER")

    def open(self, steps: int) -> None:
        """Begin after so many steps: what a training that was killed has written beyond them counts no more."""
        if self.folder and self.rank == 0:
            self.tools = [TOOLS[name](self.folder, self.trial, steps) for name in logs(vars(self.trial))]

    def close(self) -> None:
        for tool in self.tools:
            tool.close()

    def rows(self, rows: Sequence[Row]) -> None:
        """All evaluations so far, of which the last is new: the file is whole after a resumption too."""
        for tool in self.tools:
            tool.row(rows[-1])
        if self.folder and self.rank == 0 and rows:
            half = self.folder / ".training.csv"
            with half.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[-1]))
                writer.writeheader()
                writer.writerows(rows)
            os.replace(half, self.folder / "training.csv")

    def progress(self, **values: Any) -> None:
        """Not synced to the disk: what is lost with the machine is only how far it was."""
        if self.folder and self.rank == 0:
            half = self.folder / f".{PROGRESS}"
            half.write_text(json.dumps(values), encoding="utf-8")
            os.replace(half, self.folder / PROGRESS)

    def print(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)


def last_sign(folder: Path) -> dict[str, int]:
    """SIGNS of the run before this one, as it last left them; empty where there was none, or it came to its end."""
    try:
        sign = store.load(folder / PROGRESS)
        return {} if sign.get("over") else {key: int(sign.get(key, 0)) for key in SIGNS}
    except (store.UnreadableRecord, AttributeError, TypeError, ValueError):
        return {}


class TensorBoard:
    """Event files of one training, for `tensorboard --logdir results/<study>/trials`."""

    def __init__(self, folder: Path, trial: Trial, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=steps + 1 if steps else None)

    def row(self, row: Row) -> None:
        for name, value in figures(row).items():
            self._writer.add_scalar(name, value, row["steps"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases: online where its own variables say so or give a key, which is written nowhere."""

    def __init__(self, folder: Path, trial: Trial, steps: int) -> None:
        import wandb

        self._run = wandb.init(**wandb_settings(folder, trial))

    def row(self, row: Row) -> None:
        self._run.log(figures(row), step=row["steps"])

    def close(self) -> None:
        self._run.finish()


def run_id(folder: Path, trial: Trial) -> str:
    """The id of the run of W&B, which a training that goes on keeps. The same trial elsewhere has another."""
    file = folder / "wandb" / "id"
    if file.exists():
        return file.read_text(encoding="ascii")
    if file.parent.exists():
        return trial.id[-128:]  # of an older program
    file.parent.mkdir(parents=True)
    id = f"{trial.id[-100:]}-{secrets.token_hex(4)}"
    file.write_text(id, encoding="ascii")
    return id


def wandb_settings(folder: Path, trial: Trial) -> dict[str, Any]:
    """The keywords of wandb.init. `mode`: as WANDB_MODE says, else online where there is a key."""
    import wandb

    return {
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
        "name": trial.id,
        "id": run_id(folder, trial),
        "resume": "allow",
        "config": trial.to_dict(),
        "dir": str(folder),
        "settings": wandb.Settings(**QUIET_WANDB),
        "mode": os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline"),
    }


TOOLS: Mapping[str, type[TensorBoard] | type[Wandb]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def figures(row: Row) -> dict[str, float]:
    """A row's figures, and how far it was beside its steps: `{"train_loss": 1.5, "by/samples": 6400, ...}`."""
    return {f"by/{k}" if k in BY else k: v for k, v in row.items() if k != "steps" and v is not None}
