"""What ranks exchange in one call of a collective, and what must come out of it, on every rank.       [torch]

Every rank has the same pattern of small whole numbers times a weight of its own. So what comes out is known without a
second network: the pattern times the weights' sum (allreduce, reduce_scatter), part by part times each rank's weight
(all_gather), or the pattern itself (broadcast). Undo the weights, and every rank must hold the pattern, bit for bit:
all sums are whole numbers below 2^24, which fp32 holds exactly.
"""

from __future__ import annotations

import torch

from scaling_study.stats.collectives import ALL_GATHER, ALLREDUCE, BROADCAST, REDUCE_SCATTER, part_elements, whole_bytes

PERIOD = 251  # a prime: no two parts of a buffer begin alike
NOTHING = -1.0  # what the receiving buffer holds before the call: no correct result has it
WEIGHTS = 3


def pattern(elements: int, device: torch.device) -> torch.Tensor:
    """(elements,) of 1, 2, ..., 251, 1, 2, ... in fp32."""
    return torch.arange(1, PERIOD + 1, dtype=torch.float32, device=device).repeat(-(-elements // PERIOD))[:elements]


def weight(rank: int) -> int:
    return 1 + rank % WEIGHTS


class Payload:
    """Of calls of one collective and size; `whole` is a pattern at least as long as the size.

    `bytes` is the size as it is: a whole that `ranks` parts do not fill is cut short.
    """

    def __init__(self, collective: str, bytes: int, rank: int, ranks: int, whole: torch.Tensor) -> None:
        part = part_elements(collective, bytes, ranks)
        self.collective, self.rank, self.bytes = collective, rank, whole_bytes(collective, part, ranks)
        self.weights = [weight(other) for other in range(ranks)]
        parted = collective in (REDUCE_SCATTER, ALL_GATHER)
        self.pattern = whole[: part * (ranks if parted else 1)]
        self.parts = self.pattern.split(part)
        self.sent = torch.empty_like(self.parts[rank] if collective == ALL_GATHER else self.pattern)
        self.received = (
            self.sent
            if not parted
            else torch.empty_like(self.pattern if collective == ALL_GATHER else self.parts[rank])
        )

    def fill(self) -> None:
        """Make ready for the next call: what this rank sends, and a buffer that holds no result."""
        if self.received is not self.sent:
            self.received.fill_(NOTHING)
        if self.collective == BROADCAST:
            self.sent.copy_(self.pattern) if self.rank == 0 else self.sent.fill_(NOTHING)
        else:
            own = self.parts[self.rank] if self.collective == ALL_GATHER else self.pattern
            torch.mul(own, self.weights[self.rank], out=self.sent)

    def is_correct(self, result: torch.Tensor) -> bool:
        """Whether this is what the collective must give to this rank. The weights are undone in place."""
        if self.collective in (ALLREDUCE, REDUCE_SCATTER):
            result.div_(sum(self.weights))
        elif self.collective == ALL_GATHER and result.shape == self.pattern.shape:
            for part, factor in zip(result.split(len(self.parts[0])), self.weights, strict=True):
                part.div_(factor)
        return torch.equal(result, self.parts[self.rank] if self.collective == REDUCE_SCATTER else self.pattern)
