"""What could be faster than the defaults, each thing by itself: no bar, a figure with its interval.

channels_last   images and weights laid out channel by channel (`memory_format: channels_last`), over contiguous
foreach, fused  torch's SGD over all tensors in one call, over its default loop on a CPU
yield           a waiting rank yields its core (our patch of Horovod sets it), over Open MPI's spinning

Measured: resnet18 at 32x32, batch 32, two workers, fp32 allreduce. The first three in one job, blocks of 10 steps in
turn (side_by_side.py). The last is decided when MPI starts, so there whole jobs of our script take turns.

Not shown: other models, shapes and machines. On a GPU all of these turn out differently.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from benchmarks import jobs
from benchmarks.horovod_synthetic import compare
from benchmarks.options import Options
from benchmarks.paired import Finding, alternate, ratio
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.store import read_ranks
from scaling_study.settings import CHECKOUT

MODEL = "resnet18"
IN_ONE_JOB = {
    "channels_last": "channels_last over contiguous",
    "foreach": "SGD(foreach=True) over the default",
    "fused": "SGD(fused=True) over the default",
}


def run(options: Options) -> list[Finding]:
    findings = []
    for variant, title in list(IN_ONE_JOB.items())[-1 if options.quick else 0 :]:
        evidence = compare(variant, "ours", "resnet8" if options.quick else MODEL, "fp32", options, pairs=20)
        findings.append(Finding(f"gain: {title}", ratio(evidence["samples_per_second"]), evidence=evidence))
        print(f"  {title}: done", flush=True)
    return [*findings, yielding(options)]


def yielding(options: Options) -> Finding:
    """Jobs with Open MPI's waiting ranks yielding and spinning, in turn."""
    model, steps = ("resnet8", 2) if options.quick else (MODEL, 40)
    pairs = 1 if options.quick else options.pairs(10)
    taken = alternate(partial(job_rate, model, steps, 1), partial(job_rate, model, steps, 0), pairs)
    print(f"  yield: {pairs} pairs of jobs done", flush=True)
    return Finding(
        "gain: a waiting MPI rank yields its core, over spinning", ratio(taken),
        evidence={"samples_per_second": taken, "model": model, "steps_a_job": steps},
    )  # fmt: skip


def job_rate(model: str, steps: int, yields: int) -> float:
    """Samples per second of our script as a job of its own."""
    with tempfile.TemporaryDirectory(prefix="yield-") as record:
        script = str(CHECKOUT / FRAMEWORKS["horovod"].script)
        flags = ["--model", model, "--batch-per-worker", "32", "--data", "synthetic", "--steps", str(steps)]
        env = {"OMPI_MCA_mpi_yield_when_idle": str(yields)}
        jobs.horovodrun([script, *flags, "--record", record], workers=2, env=env)
        ranks = read_ranks(Path(record), 2)
    return sum(rank.samples_seen for rank in ranks) / max(sum(rank.step_seconds) for rank in ranks)
