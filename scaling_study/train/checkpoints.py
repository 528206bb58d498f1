"""Checkpoints of a training: written whole or not at all, and refused where they are another training's.  [torch]

<record>/checkpoints/step-00000351/   state of model and optimiser (states.py)
                                      rank-<n>.pt      random numbers, seconds of the steps, of each rank
                                      training.json    what is trained, and how far it is
<record>/checkpoints/.step-...        being written; renamed once every rank has written its part
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.train.states import State
from scaling_study.trial import Trial

KEPT = 2  # the last ones; the best beside them
ELSEWHERE = ("machine", "hosts", "launcher", "repeat", "cores_per_worker", "workers", "batch_per_worker", "allreduce")


class Checkpoints:
    """The checkpoints of one training, in the folder of its record."""

    def __init__(self, folder: Path, state: State, trial: Trial, layout: str, ranks: Ranks) -> None:
        self.folder, self.state, self.ranks = folder / "checkpoints", state, ranks
        self.about = {
            **{k: v for k, v in trial.to_dict().items() if k not in ELSEWHERE},
            "workers": trial.workers, "weights": layout,
        }  # fmt: skip

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

    def load_model(self, step: int) -> None:
        """Put back the state of a checkpoint that was kept as the best, and nothing of how far it was."""
        self.state.load(self.folder / name(step), self.ranks)

    def save(self, step: int, progress: Mapping[str, Any], step_seconds: list[float], scaler: Any) -> None:
        """Write one, called by all ranks; the folder gets its name when it is whole."""
        half, whole = self.folder / f".{name(step)}", self.folder / name(step)
        if self.ranks.rank == 0:
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
        self.ranks.total([0.0])  # it is there, for all
        self.state.save(half, self.ranks)
        own = {
            "cpu": torch.get_rng_state(), "python": random.getstate(),
            "cuda": torch.cuda.get_rng_state(self.ranks.device) if self.ranks.device.type == "cuda" else None,
            "step_seconds": torch.tensor(step_seconds, dtype=torch.float64),
        }  # fmt: skip
        torch.save(own, half / f"rank-{self.ranks.rank}.pt")
        self.ranks.total([0.0])  # all have written
        if self.ranks.rank == 0:
            grown = scaler.state_dict() if scaler else {}
            store.write_json(half / "training.json", {"about": self.about, "scaler": grown, **progress})
            sync(half)
            shutil.rmtree(whole, ignore_errors=True)
            os.replace(half, whole)
            self._thin(progress.get("best_step"))

    def _thin(self, best: int | None) -> None:
        steps = sorted(self.folder.glob("step-*"))
        for path in steps[:-KEPT]:
            if best is None or path.name != name(best):
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
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def layout_of(model: nn.Module) -> str:
    """A digest of the architecture: names and shapes of weights, and what each layer says of itself."""
    shapes = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    return hashlib.sha256(f"{shapes}\n{model}".encode()).hexdigest()[:16]
