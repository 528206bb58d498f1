"""Every framework trains as one process does, step by step, for as long as rounding allows.

    one process, batch 64   ----------------------------------------   loss of each of 200 steps
    two workers, batch 32   ----------------------------------------   how far from it after 20 steps, after 200?
    one process, nudged     ----------------------------------------   and how far is a training whose weights
                                                                       began one unit in the last place away?

Claimed: in fp64, with augmentation, schedule and (where the framework clips all gradients) clipping, the losses of the
first 20 steps differ by at most 1e-9 of their size; up to step 200 by at most as much as those of one process whose
weights were nudged by one unit in the last place. Training is chaotic: a difference of rounding grows, and the nudged
runs show by how much.

Measured: by each framework's own launcher on CIFAR-10, resnet8 with group normalisation (batch statistics would be of
half the samples). The largest difference of NUDGES nudged runs is what the others are held against. The same command
gives the same figures, so they have no interval.

Not shown: DeepSpeed, which has no fp64; other models, more workers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import jobs
from benchmarks.options import Options, Unavailable
from benchmarks.paired import MET, MISSED, NO_CLAIM, Bar, Finding
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.stats.intervals import Interval

MODEL, STEPS, EARLY = "resnet8_groupnorm", 200, 20
BATCH, NUDGES = 64, 3
CLOSE = 1e-9
CLIPPED = ("torch_ddp", "horovod", "mpi_allreduce", "lightning_ddp", "torch_fsdp2")  # the others hold shards
COMPARED = (*CLIPPED, "fairscale_oss", "fairscale_fsdp")
RECIPE = (
    *("--model", MODEL, "--precision", "fp64", "--data", "cifar10", "--device", "cpu", "--cores-per-worker", "1"),
    *("--train-validation", "0", "--train-optimizer", "nesterov", "--learning-rate", "0.05"),
    *("--train-weight-decay", "5e-4", "--train-augmentation", "crop_flip", "--train-schedule", "cosine"),
    *("--train-warmup-steps", "5", "--train-evaluate-every", "0.000001"),  # a row for each step
)
CLIP = ("--train-clip-norm", "1.0")


def run(options: Options) -> list[Finding]:
    steps = 4 if options.quick else STEPS
    compared = COMPARED[:1] if options.quick else COMPARED
    with tempfile.TemporaryDirectory(prefix="trajectories-") as folder:

        def losses(name: str, framework: str, workers: int, clip: bool, nudge: int = 0) -> list[float]:
            record = Path(folder) / name
            script = [str(CHECKOUT / FRAMEWORKS[framework].script), *RECIPE, *(CLIP if clip else ())]
            nudged = ["-m", "benchmarks.perturbed", str(nudge)]
            size = ["--batch-per-worker", str(BATCH // workers), "--train-steps", str(steps), "--record", str(record)]
            jobs.launched(framework, [*nudged, *script, *size], workers)
            print(f"  {name}: done", flush=True)
            return [row["train_loss"] for row in store.read_ranks(record, workers)[0].training["rows"]]

        kinds = sorted({framework in CLIPPED for framework in compared})
        alone = {clip: losses(f"one process{', clipped' * clip}", "single", 1, clip) for clip in kinds}
        nudges = range(1, 2 if options.quick else NUDGES + 1)
        nudged = {
            clip: [
                furthest(losses(f"nudged {n}{', clipped' * clip}", "single", 1, clip, n), alone[clip]) for n in nudges
            ]
            for clip in kinds
        }
        findings = []
        for framework in compared:
            clip = framework in CLIPPED
            try:
                ours = losses(framework, framework, 2, clip)
            except Unavailable as reason:
                print(f"{framework}: {reason}\n{reason.detail}", file=sys.stderr)
                findings.append(Finding(f"{framework}: losses of {steps} steps", single(float("nan")),
                                        verdict=f"not run: {reason}"))  # fmt: skip
                continue
            early, late = furthest(ours[:EARLY], alone[clip][:EARLY]), furthest(ours, alone[clip])
            evidence = {"losses": ours, "one_process": alone[clip], "nudged": nudged[clip], "clipped": clip}
            limit = max(nudged[clip])
            findings += [
                judged(f"{framework}: difference of losses within {EARLY} steps", early, CLOSE, options, evidence),
                judged(f"{framework}: the same within {steps}, over that of nudged runs", late / limit, 1.0, options),
            ]
    return findings


def furthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest relative difference of two runs' losses, step by step."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def judged(
    claim: str, value: float, most: float, options: Options, evidence: dict[str, object] | None = None
) -> Finding:
    verdict = NO_CLAIM if options.quick else MET if value <= most else MISSED
    return Finding(claim, single(value), Bar(high=most), verdict=verdict, evidence=evidence or {})


def single(value: float) -> Interval:
    """A figure that is the same each time."""
    return Interval(value, None, None, 1, 1.0)
