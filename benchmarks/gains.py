"""What could be faster than the defaults, each thing by itself: no bar, a figure with its interval.

channels_last   images and weights laid out channel by channel (`memory_format: channels_last`), over contiguous
foreach, fused  torch's SGD over all tensors in one call, over its default loop on a CPU
yield           a waiting rank yields its core (our patch of Horovod sets it), over Open MPI's spinning
allocator       fixed thresholds of malloc (`allocator: fixed`, the default), over glibc's own

Measured: resnet18 at 32x32, batch 32, two workers, fp32 allreduce. The first three in launches of one job, blocks of 10
steps in turn (side_by_side.py), with the default a second time as control. The others are decided when a process
starts, so there whole jobs of our script take turns; the allocator by model, batch and number of workers, with the
resident memory that it takes.

Not shown: other models, shapes and machines. On a GPU all of these turn out differently.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import jobs
from benchmarks.horovod_synthetic import compare
from benchmarks.options import Options
from benchmarks.paired import Finding, alternate, compared, pairs_of, ratio
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.store import read_ranks
from scaling_study.settings import CHECKOUT

MODEL = "resnet18"
ALLOCATED = (  # model, batch, workers, steps of a job
    ("resnet18", 32, 1, 40), ("resnet18", 32, 2, 40), ("resnet8", 1024, 1, 8), ("resnet8", 512, 2, 8),
)  # fmt: skip
IN_ONE_JOB = {
    "channels_last": "channels_last over contiguous",
    "foreach": "SGD(foreach=True) over the default",
    "fused": "SGD(fused=True) over the default",
}


def run(options: Options) -> list[Finding]:
    findings = []
    for variant, title in list(IN_ONE_JOB.items())[-1 if options.quick else 0 :]:
        evidence = compare(variant, "ours", "again", "resnet8" if options.quick else MODEL, "fp32", options)
        findings.append(compared(f"gain: {title}", evidence["samples_per_second"], evidence, control=(1, 2)))
        print(f"  {title}: done", flush=True)
    if not options.quick:  # jobs as of the allocator, in another environment
        findings.append(yielding(options))
    return [*findings, *(allocating(options, *job) for job in ALLOCATED[-1 if options.quick else 0 :])]


def yielding(options: Options) -> Finding:
    """Jobs with Open MPI's waiting ranks yielding and spinning, in turn."""
    steps, pairs = 40, options.pairs(10)
    sides = [
        partial(job_rate, MODEL, 32, steps, 2, env={"OMPI_MCA_mpi_yield_when_idle": str(yields)}) for yields in (1, 0)
    ]
    taken = alternate(*sides, turns=pairs)
    print(f"  yield: {pairs} pairs of jobs done", flush=True)
    return Finding(
        "gain: a waiting MPI rank yields its core, over spinning", ratio(pairs_of(taken)),
        evidence={"samples_per_second": taken, "model": MODEL, "steps_a_job": steps},
    )  # fmt: skip


def allocating(options: Options, model: str, batch: int, workers: int, steps: int) -> Finding:
    """Jobs with fixed thresholds and with glibc's own, in turn."""
    model, batch, workers, steps = ("resnet8", 32, 1, 2) if options.quick else (model, batch, workers, steps)
    resident: dict[str, list[int]] = {"fixed": [], "system": []}
    sides = [
        partial(job_rate, model, batch, steps, workers, flags=("--allocator", kind), resident=resident[kind])
        for kind in resident
    ]
    taken = alternate(*sides, turns=1 if options.quick else options.pairs(10))
    who = f"{model}, batch {batch}, {workers} worker{'s' * (workers != 1)}"
    print(f"  allocator, {who}: done", flush=True)
    return Finding(
        f"gain: fixed thresholds of malloc over glibc's own, {who}", ratio(pairs_of(taken)),
        evidence={"samples_per_second": taken, "resident_bytes": resident, "steps_a_job": steps},
    )  # fmt: skip


def job_rate(
    model: str, batch: int, steps: int, workers: int, env: Mapping[str, str] | None = None, flags: Sequence[str] = (),
    resident: list[int] | None = None,
) -> float:  # fmt: skip
    """Samples per second of our script as a job of its own; what its largest rank grew by is added to `resident`."""
    with tempfile.TemporaryDirectory(prefix="gain-") as record:
        script = str(CHECKOUT / FRAMEWORKS["horovod"].script)
        always = ["--model", model, "--batch-per-worker", str(batch), "--data", "synthetic", "--steps", str(steps)]
        jobs.launched("horovod", [script, *always, *flags, "--record", record], workers, env=env)
        ranks = read_ranks(Path(record), workers)
    if resident is not None:
        resident.append(max(rank.memory["resident"] for rank in ranks))
    return sum(rank.samples_seen for rank in ranks) / max(sum(rank.step_seconds) for rank in ranks)
