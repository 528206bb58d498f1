"""What a training leaves while it runs: rows for people and tools, and a sign of life for the driver.   [torch]

training.csv     one row an evaluation      progress.json     how far it is, replaced every few seconds
tensorboard/     if `train_log` names it    wandb/            likewise: offline, unless the environment has a key
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from scaling_study.records import store
from scaling_study.records.store import PROGRESS
from scaling_study.targets import logs
from scaling_study.trial import Trial

Row = Mapping[str, Any]
BY = ("steps", "samples", "epoch", "seconds", "all_seconds", "loss_steps")  # of a row: how far it is
SIGNS = ("steps", "resumed", "lost_steps")  # of how far it is: a run that is killed leaves them to the next
PROJECT = "scaling-study"


class Tool(Protocol):
    """A tool that shows trainings."""

    def row(self, row: Row) -> None: ...

    def close(self) -> None: ...


class Log:
    """Rank 0's; the other ranks leave nothing. Without a folder it only prints."""

    def __init__(self, folder: Path | None, rank: int, trial: Trial) -> None:
        self.folder, self.rank, self.trial = folder, rank, trial
        self.tools: list[Tool] = []
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


def wandb_settings(folder: Path, trial: Trial) -> dict[str, Any]:
    """The keywords of wandb.init. `mode`: as WANDB_MODE says, else online where there is a key."""
    import wandb

    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True,
                           x_save_requirements=False, x_disable_meta=True)  # fmt: skip
    return {
        "project": os.environ.get("WANDB_PROJECT", PROJECT), "name": trial.id, "id": trial.id[-128:],
        "resume": "allow", "config": trial.to_dict(), "dir": str(folder), "settings": quiet,
        "mode": os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline"),
    }  # fmt: skip


TOOLS: Mapping[str, Callable[[Path, Trial, int], Tool]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def figures(row: Row) -> dict[str, float]:
    """A row's figures, and how far it was beside its steps: `{"train_loss": 1.5, "by/samples": 6400, ...}`."""
    return {f"by/{k}" if k in BY else k: v for k, v in row.items() if k != "steps" and v is not None}
