"""What the parts of a loss are, beside their sum: noted in every step, and averaged over all of them.       [torch]

A loss that is logged of the last batch alone says nothing of an epoch (F12); so it is with the losses of single heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scaling_study.ranks import Ranks


class LossParts:
    """The parts' values since they were last asked for, added up on the device: nothing waits for them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)  # of the columns of a row: loss_i
        self.forget()

    def forget(self) -> None:
        """Also what was noted before a training began."""
        self._sums: torch.Tensor | None = None
        self._batches = 0

    def note(self, values: torch.Tensor) -> None:
        """Those of one batch or micro-batch, (parts,)."""
        own = values.detach().double()
        self._sums = own if self._sums is None else self._sums + own
        self._batches += 1

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Their means over all batches and all ranks since the last time. Called by all ranks."""
        own = [0.0] * len(self.names) if self._sums is None else self._sums.tolist()
        *sums, batches = ranks.total([*own, float(self._batches)])
        self.forget()
        return {name: total / batches for name, total in zip(self.names, sums, strict=True)} if batches else {}
