"""How the state of a framework, model and optimiser, is written to a folder and read back.                [torch]

Each `save` and `load` is called by all ranks. Loading runs no code of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from scaling_study.ranks import Ranks


class State(Protocol):
    """Model and optimiser of one framework."""

    portable: bool  # whether another number of workers can load it

    def save(self, folder: Path, ranks: Ranks) -> None: ...

    def load(self, folder: Path, ranks: Ranks) -> None: ...


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
    """What torch.distributed.checkpoint gathers: whole or sharded, saved by any number of workers for any other."""

    portable = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def save(self, folder: Path, ranks: Ranks) -> None:
        from torch.distributed import checkpoint

        checkpoint.save(self._gathered(), checkpoint_id=folder / "state")

    def load(self, folder: Path, ranks: Ranks) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self._gathered()
        checkpoint.load(state, checkpoint_id=folder / "state")
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )  # fmt: skip

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

    def save(self, folder: Path, ranks: Ranks) -> None:
        torch.save(self.gather(), folder / f"state-{ranks.rank}.pt")

    def load(self, folder: Path, ranks: Ranks) -> None:
        self.put_back(torch.load(folder / f"state-{ranks.rank}.pt", map_location=ranks.device, weights_only=True))
