"""A network probe whose allreduce forgets a rank, once, in the middle of what is timed."""

import torch
import torch.distributed as dist

from scaling_study.measure.network import Network, probe
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run

calls = 0


def build(trial: Trial, ranks: Ranks) -> Network:
    def call(collective: str, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        global calls
        smallest = len(result) == 256  # of 1 KiB
        calls += smallest
        lost = result.clone()
        dist.all_reduce(result)
        # The third call: a row has three, however slow the machine. Of this size only: the next rows' must be right.
        return lost if smallest and calls == 3 and ranks.rank == 1 else result

    return Network(call, dist.barrier)


if __name__ == "__main__":
    run("network_probe", join_torch, build, measure=probe)
