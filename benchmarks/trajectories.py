"""Every framework trains as one process does, step by step, for as long as rounding allows.

    one process, batch 64   ----------------------------------------   loss of each of 200 steps
    two workers, batch 32   ----------------------------------------   how far from it after 20 steps, after 200?
    one process, nudged     ----------------------------------------   and how far is a training whose weights
                                                                       began one unit in the last place away?

Claimed: in fp64, with augmentation, schedule and (where the framework clips all gradients) clipping, the losses of the
first 20 steps differ by at most 1e-9 of their size; up to step 200 by at most as much as those of one process whose
weights were nudged by one unit in the last place. Training is chaotic: a difference of rounding grows, and the nudged
runs show by how much.

DeepSpeed has no fp64. In fp32, by its own loop as studies/cifar10deepspeed.yaml has it (its vision transformer, ZeRO 0,
accumulation, clipping, one cycle of the rate) but without dropout, the first step's loss differs by at most the parity
gate's bound, and 50 steps by at most as much as those of one process that was nudged (VIT_NUDGES times).

Measured: by each framework's own launcher on CIFAR-10, resnet8 with group normalisation (batch statistics would be of
half the samples). The largest difference of NUDGES nudged runs is what the others are held against. The same command
gives the same figures, so they have no interval.

Not shown: other models, more workers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import jobs
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Finding, exact, not_run
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.parity.compare import WIRE_BOUND
from scaling_study.records import store
from scaling_study.settings import CHECKOUT

MODEL, STEPS, EARLY = "resnet8_groupnorm", 200, 20
BATCH, NUDGES = 64, 3
CLOSE = 1e-9
CLIPPED = ("torch_ddp", "horovod", "mpi_allreduce", "lightning_ddp", "torch_fsdp2")  # the others hold shards
COMPARED = (*CLIPPED, "fairscale_oss", "fairscale_fsdp")
RECIPE = f"""--model {MODEL} --precision fp64 --data cifar10 --device cpu --cores-per-worker 1
    --train-validation 0 --train-optimizer nesterov --learning-rate 0.05
    --train-weight-decay 5e-4 --train-augmentation crop_flip --train-schedule cosine
    --train-warmup-steps 5 --train-evaluate-every 0.000001""".split()  # a row for each step
CLIP = ("--train-clip-norm", "1.0")
VIT, VIT_STEPS, VIT_BATCH = "vit_small_dataset", 50, 16
VIT_NUDGES = 6  # by how much single runs part in fp32 differs by a factor of ten
# studies/cifar10deepspeed.yaml's
PUBLISHED = f"""--model {VIT} --precision fp32 --dropout 0 --data cifar10 --device cpu --cores-per-worker 1
    --train-validation 0 --train-clip-norm 5 --accumulation 2
    --learning-rate 0.004 --train-start-learning-rate 0.0001 --train-schedule triangular
    --train-cycle-steps 4000 --train-augmentation resized_crop --train-evaluate-every 0.000001""".split()
OWN_LOOP = ("--zero-stage", "0", "--train-loop", "native")


def run(options: Options) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="trajectories-") as folder:
        return [*in_fp64(options, Path(folder)), *([] if options.quick else in_fp32(options, Path(folder)))]


def in_fp64(options: Options, folder: Path) -> list[Finding]:
    """Every framework."""
    steps = 4 if options.quick else STEPS
    compared = COMPARED[:1] if options.quick else COMPARED

    def losses(name: str, framework: str, workers: int, clip: bool, nudge: int = 0) -> list[float]:
        flags = [*RECIPE, *(CLIP if clip else ()), "--batch-per-worker", str(BATCH // workers)]
        return trained(folder / name, framework, workers, flags, steps, nudge)

    kinds = sorted({framework in CLIPPED for framework in compared})
    alone = {clip: losses(f"one process{', clipped' * clip}", "single", 1, clip) for clip in kinds}
    nudged = {
        clip: [
            furthest(losses(f"nudged {n}{', clipped' * clip}", "single", 1, clip, n), alone[clip])
            for n in nudges(options)
        ]
        for clip in kinds
    }
    findings = []
    for framework in compared:
        clip = framework in CLIPPED
        try:
            ours = losses(framework, framework, 2, clip)
        except Unavailable as reason:
            findings.append(not_run(f"{framework}: losses of {steps} steps", reason))
            continue
        early, late = furthest(ours[:EARLY], alone[clip][:EARLY]), furthest(ours, alone[clip])
        evidence = {"losses": ours, "one_process": alone[clip], "nudged": nudged[clip], "clipped": clip}
        limit = max(nudged[clip])
        findings += [
            exact(f"{framework}: difference of losses within {EARLY} steps", early, Bar(high=CLOSE), **evidence),
            exact(f"{framework}: the same within {steps}, over that of nudged runs", late / limit, Bar(high=1.0)),
        ]
    return findings


def in_fp32(options: Options, folder: Path) -> list[Finding]:
    """DeepSpeed's own loop. tests/train/test_deepspeed_vit.py does the same with the test size."""

    def losses(what: str, framework: str, workers: int, nudge: int = 0) -> list[float]:
        flags = [*PUBLISHED, *(OWN_LOOP if workers > 1 else ()), "--batch-per-worker", str(VIT_BATCH // workers)]
        return trained(folder / f"{VIT}, {what}", framework, workers, flags, VIT_STEPS, nudge)

    name = f"deepspeed_zero, {VIT}"
    try:
        ours = losses("DeepSpeed", "deepspeed_zero", 2)
    except Unavailable as reason:
        return [not_run(f"{name}: losses of {VIT_STEPS} steps", reason)]
    alone = losses("one process", "single", 1)
    nudged = [furthest(losses(f"nudged {n}", "single", 1, n), alone) for n in range(1, VIT_NUDGES + 1)]
    evidence = {"losses": ours, "one_process": alone, "nudged": nudged}
    first, late = furthest(ours[:1], alone[:1]), furthest(ours, alone)
    return [
        exact(f"{name}: difference of the first step's loss", first, Bar(high=WIRE_BOUND["fp32"]), **evidence),
        exact(f"{name}: of losses within {VIT_STEPS} steps, over nudged runs'", late / max(nudged), Bar(high=1.0)),
    ]


def trained(record: Path, framework: str, workers: int, flags: Sequence[str], steps: int, nudge: int) -> list[float]:
    """The loss of each step."""
    script = ["-m", "benchmarks.perturbed", str(nudge), str(CHECKOUT / FRAMEWORKS[framework].script)]
    jobs.launched(framework, [*script, *flags, "--train-steps", str(steps), "--record", str(record)], workers)
    print(f"  {record.name}: done", flush=True)
    training = store.read_ranks(record, workers)[0].training
    return [float(row["train_loss"] or "nan") for row in training.rows] if training else []


def nudges(options: Options) -> range:
    return range(1, 2 if options.quick else NUDGES + 1)


def furthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest relative difference of two runs' losses, step by step."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
