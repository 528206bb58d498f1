"""A network probe whose allreduce forgets a rank, once, in the middle of what is timed."""

import torch
import torch.distributed as dist

from scaling_study.measure.network import probe
from scaling_study.ranks import as_launched, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run

calls = 0


def main(trial: Trial, record: str | None = None) -> None:
    ranks = join_torch(trial)

    def call(collective: str, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        global calls
        smallest = len(result) == 256  # of 1 KiB
        calls += smallest
        lost = result.clone()
        dist.all_reduce(result)
        # The third call: a row has three, however slow the machine. Of this size only: the next rows' must be right.
        return lost if smallest and calls == 3 and ranks.rank == 1 else result

    probe(call, dist.barrier, as_launched(trial, ranks), ranks, record)


if __name__ == "__main__":
    run("network_probe", main)
