"""Checkpoints of a training, and its best model: written whole or not at all.                            [torch]

    <record>/checkpoints/step-00000351/   state of model and optimiser, of one of the kinds below
                                          rank-<n>.pt      random numbers, seconds of the steps, of each rank
                                          training.json    what is trained, and how far it is
    <record>/checkpoints/.step-...        being written; renamed once every rank has written its part
    <record>/best.pt                      {"trial", "step", "epoch": after which it was the best, "metric", "value": of
                                          validation data, "weights": by the plain model's names, on the host}

Loading runs no code of a file. `python -m scaling_study.evaluate` reads best.pt, while the training runs too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from scaling_study.errors import first_line
from scaling_study.measure.training import Training
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.records.store import BEST
from scaling_study.trial import Trial


class State(Protocol):
    """Model and optimiser of one framework, written to a folder and read back; all ranks call each method."""

    portable: bool  # another number of workers can load it

    def save(self, folder: Path, ranks: Ranks) -> None: ...

    def load(self, folder: Path, ranks: Ranks) -> None: ...


class Stateful(Protocol):
    """What torch's modules and optimisers have."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, saved: Any, /) -> object: ...


class Replicated:
    """Every rank has the same weights and optimiser state: rank 0 writes them."""

    portable = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def save(self, folder: Path, ranks: Ranks) -> None:
        if ranks.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, folder / "state.pt")

    def load(self, folder: Path, ranks: Ranks) -> None:
        state = torch.load(folder / "state.pt", map_location=ranks.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class Distributed:
    """State that torch.distributed.checkpoint gathers, whole or sharded: any number of workers loads it.

    `own`: what each rank keeps for itself besides (PowerSGD), so that only as many workers can go on.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, own: Stateful | None = None) -> None:
        self.model, self.optimizer, self.own = model, optimizer, own
        self.portable = own is None

    def save(self, folder: Path, ranks: Ranks) -> None:
        from torch.distributed import checkpoint

        checkpoint.save(self._gathered(), checkpoint_id=folder / "state")
        if self.own:
            torch.save(self.own.state_dict(), folder / f"own-{ranks.rank}.pt")

    def load(self, folder: Path, ranks: Ranks) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self._gathered()
        checkpoint.load(state, checkpoint_id=folder / "state")
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if self.own:
            saved = torch.load(folder / f"own-{ranks.rank}.pt", map_location=ranks.device, weights_only=True)
            self.own.load_state_dict(saved)

    def _gathered(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))


class Own:
    """A library's own checkpoint, by folder and tag, of all ranks together: only as many workers can go on."""

    portable = False

    def __init__(self, save: Callable[[str, str], object], load: Callable[[str, str], object]) -> None:
        self._save, self._load = save, load

    def save(self, folder: Path, ranks: Ranks) -> None:
        self._save(str(folder), "state")

    def load(self, folder: Path, ranks: Ranks) -> None:
        self._load(str(folder), "state")


class PerRank:
    """Each rank writes what it holds, and reads its own back: only as many workers can go on."""

    portable = False

    def __init__(self, gather: Callable[[], Any], put_back: Callable[[Any], object]) -> None:
        self.gather, self.put_back = gather, put_back

    @classmethod
    def of(cls, **parts: Stateful) -> PerRank:
        """By each part's own state_dict and load_state_dict."""

        def put_back(saved: Mapping[str, Any]) -> None:
            for name, state in saved.items():
                parts[name].load_state_dict(state)

        return cls(lambda: {name: part.state_dict() for name, part in parts.items()}, put_back)

    def save(self, folder: Path, ranks: Ranks) -> None:
        torch.save(self.gather(), folder / f"state-{ranks.rank}.pt")

    def load(self, folder: Path, ranks: Ranks) -> None:
        self.put_back(torch.load(folder / f"state-{ranks.rank}.pt", map_location=ranks.device, weights_only=True))


class Best:
    """The file of one training; `folder` None: it keeps none. All ranks call each method."""

    def __init__(self, folder: Path | None, training: Training, trial: Trial, ranks: Ranks) -> None:
        if trial.train_keep and not folder:
            raise SystemExit(f"--train-keep {trial.train_keep} needs a folder to write to: --record FOLDER")
        self.path = folder / BEST if folder and trial.train_keep else None
        self.training, self.trial, self.ranks = training, trial, ranks
        self.step: int | None = None  # after which what the file holds was the best; None: this process wrote none

    def begin(self) -> None:
        """Forget that of another training, which began in this folder before."""
        if self.path and self.ranks.rank == 0:
            self.path.unlink(missing_ok=True)

    def keep(self, step: int | None, epoch: float, metric: str, value: float | None) -> None:
        """Put the model as it is now in the place of the one before; the file is whole at any time."""
        if not self.path or step == self.step:
            return
        gathered = self.training.weights() if self.training.weights else self.training.workload.model.state_dict()
        self.step = step
        if self.ranks.rank == 0:
            said = {"step": step, "epoch": epoch, "metric": metric, "value": value}
            weights = {name: tensor.detach().cpu() for name, tensor in gathered.items()}
            half = self.path.with_name(f".{BEST}")
            torch.save({"trial": self.trial.to_dict(), **said, "weights": weights}, half)
            with half.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(half, self.path)


def load(path: Path) -> dict[str, Any]:
    """The content of a best.pt. Raises OSError, or ValueError for a file that is none of its own."""
    try:
        kept: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not {"trial", "step", "epoch", "metric", "value", "weights"} <= set(kept):
            raise ValueError("it lacks a part")
    except OSError:
        raise
    except Exception as error:  # whatever torch finds in a file that is damaged, or something else
        raise ValueError(f"{path} cannot be read: {first_line(error)}") from error
    return kept


KEPT = 2  # the last ones; the best beside them
ELSEWHERE = ("machine", "hosts", "launcher", "repeat", "cores_per_worker", "workers", "batch_per_worker", "allreduce")


class Checkpoints:
    def __init__(self, folder: Path, state: State, trial: Trial, layout: str, ranks: Ranks) -> None:
        self.folder, self.state, self.ranks = folder / "checkpoints", state, ranks
        self.about = {
            **{k: v for k, v in trial.to_dict().items() if k not in ELSEWHERE},
            "workers": trial.workers,
            "weights": layout,
        }

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """The last whole one, by rank 0's eyes, and its training.json. Raises SystemExit for another training's."""
        steps = [int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*")]
        step = int(self.ranks.agree(max(steps, default=0)))
        if not step:
            return None
        path = self.folder / name(step)
        saved = store.load(path / "training.json")
        for key, ours in self.about.items():
            theirs = saved["about"].get(key)
            if theirs != ours and not (key == "workers" and self.state.portable):
                raise SystemExit(
                    f"{path} is of another training: its {key} is {theirs}, not {ours}; remove it to start anew"
                )
        return path, saved

    def load(self, path: Path) -> list[float]:
        """Put the state back; the seconds of this rank's steps so far. A rank that was not there begins with none."""
        self.state.load(path, self.ranks)
        with contextlib.suppress(FileNotFoundError):
            own = torch.load(path / f"rank-{self.ranks.rank}.pt", weights_only=True)
            torch.set_rng_state(own["cpu"])
            if self.ranks.device.type == "cuda":
                torch.cuda.set_rng_state(own["cuda"], self.ranks.device)
            version, words, gauss = own["python"]
            random.setstate((version, tuple(words), gauss))
            seconds: list[float] = own["step_seconds"].tolist()
            return seconds
        return []

    def save(self, step: int, progress: Mapping[str, Any], step_seconds: list[float], scaler: Any) -> None:
        """Write one, called by all ranks; the folder gets its name when it is whole."""
        half, whole = self.folder / f".{name(step)}", self.folder / name(step)
        if self.ranks.rank == 0:
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
        self.ranks.total([0.0])  # it is there, for all
        self.state.save(half, self.ranks)
        own = {
            "cpu": torch.get_rng_state(),
            "python": random.getstate(),
            "cuda": torch.cuda.get_rng_state(self.ranks.device) if self.ranks.device.type == "cuda" else None,
            "step_seconds": torch.tensor(step_seconds, dtype=torch.float64),
        }
        torch.save(own, half / f"rank-{self.ranks.rank}.pt")
        self.ranks.total([0.0])  # all have written
        if self.ranks.rank == 0:
            grown = scaler.state_dict() if scaler else {}
            store.write_json(half / "training.json", {"about": self.about, "scaler": grown, **progress})
            sync(half)
            shutil.rmtree(whole, ignore_errors=True)
            os.replace(half, whole)
            for path in sorted(self.folder.glob("step-*"))[:-KEPT]:
                if path.name != name(progress.get("best_step") or 0):
                    shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Take all of them away: the training is over. Called by all ranks."""
        self.ranks.total([0.0])
        if self.ranks.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


def name(step: int) -> str:
    return f"step-{step:08}"


def sync(folder: Path) -> None:
    """Let every file below a folder reach the disk before the folder gets its name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


def layout_of(model: nn.Module) -> str:
    """A digest of the architecture: names and shapes of weights, and what each layer says of itself."""
    shapes = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    return hashlib.sha256(f"{shapes}\n{model}".encode()).hexdigest()[:16]
