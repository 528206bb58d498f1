"""The weights of a training's best model, in one file that stays when the training is over.               [torch]

<record>/best.pt     {"trial": what was asked, "step", "epoch": after which it was the best, "metric", "value": by
                      what, on validation data, "weights": by the plain model's names, on the host}

`python -m scaling_study.evaluate` reads it, while the training runs too. Loading runs no code of the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from scaling_study.measure.training import Training
from scaling_study.ranks import Ranks
from scaling_study.records.store import BEST
from scaling_study.trial import Trial


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
    """What `keep` has written. Raises OSError, or ValueError for a file that is none of its own."""
    try:
        kept: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not {"trial", "step", "epoch", "metric", "value", "weights"} <= set(kept):
            raise ValueError("it lacks a part")
    except OSError:
        raise
    except Exception as error:  # whatever torch finds in a file that is damaged, or something else
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return kept
