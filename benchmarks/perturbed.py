"""A script that is tested on few samples, whose weights may begin one unit in the last place away.

python -m benchmarks.perturbed SEED SCRIPT FLAGS      SEED 0: they begin where they do
"""

from __future__ import annotations

import runpy
import sys

from scaling_study import workloads
from scaling_study.parity.reference import nudged
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import Workload

TESTED = 64  # samples: ten thousand in fp64 take longer than what is looked at

if __name__ == "__main__":
    seed, sys.argv = int(sys.argv[1]), sys.argv[2:]
    load = workloads.load

    def altered(trial: Trial, ranks: Ranks) -> Workload:
        """The workload with each weight moved up or down, as the seed says."""
        workload = load(trial, ranks)
        if workload.held_out:
            sizes: dict[str, int] = workload.held_out.sizes  # type: ignore[assignment]
            sizes["test"] = min(TESTED, sizes["test"])
        if seed:
            nudged(workload.model, seed)
        return workload

    workloads.load = altered
    runpy.run_path(sys.argv[0], run_name="__main__")
