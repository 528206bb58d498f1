"""A few steps under torch's profiler, where `--profile` asks for them.                                  [torch]

They come after everything that is measured, of every rank at once, and leave torch-rank-<n>.json.gz for
ui.perfetto.dev: operators of the host, kernels of the device, collectives, each step under its own name. Without
profiling a trial pays for one look at the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from scaling_study.ranks import Ranks
from scaling_study.settings import PROFILE
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch

STEPS = 3


def trace(step: Callable[[Batch], object], workload: Workload, ranks: Ranks) -> None:
    """Every rank calls this, or none does: the variable goes with the trial."""
    if not (folder := os.environ.get(PROFILE)):
        return
    from torch.profiler import ProfilerActivity, profile, record_function

    watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ranks.device.type == "cuda" else [])]
    with profile(activities=watched) as profiler:
        for index in range(STEPS):
            with record_function(f"step {index}"):
                step(next(workload.batches))
    Path(folder).mkdir(parents=True, exist_ok=True)  # on whichever host
    profiler.export_chrome_trace(str(Path(folder) / f"torch-rank-{ranks.rank}.json.gz"))
