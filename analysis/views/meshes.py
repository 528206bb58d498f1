"""What would fit: memory, bytes and speed of a model on every mesh of so many workers, with nothing run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.findings import grouped
from analysis.prediction.inputs import OneWorker
from analysis.prediction.meshes import MeshStep, as_alone, at_rate, simulate
from analysis.prediction.network import ModelledNetwork
from analysis.show.layout import Listing
from analysis.text import number, percent
from scaling_study.models import Decoder
from scaling_study.study import meshes
from scaling_study.study.meshes import SHAPES, STATE, Mesh, Work
from scaling_study.study.on_gpus import CONTEXT_BYTES, GIB, NCCL_BYTES, UTILISATION

CHECKPOINTS = ("none", "selective", "block")  # from what is fastest to what keeps least
ROWS, FEWEST_ROWS = 16, 6  # of a table on one screen; of one number of workers
NARROW = ("framework", "mesh", "fits", "GiB", "tokens/s a GPU")  # columns of a screen; estimate.md has all


@dataclass(frozen=True)
class Question:
    """A model's step on a machine. `global_batch`: sequences of a step, 0: two for each worker."""

    model: str
    workers: Sequence[int]
    network: ModelledNetwork | None  # None: no speed is predicted
    memory_bytes: float  # of one GPU
    tflops: float  # of one GPU, dense, in 16 bits
    length: int
    precision: str = "bf16"
    global_batch: int = 0
    utilisation: float = UTILISATION  # share of the peak at which one GPU multiplies matrices
    alone: OneWorker | None = None  # whose measured step stands in place of that


@dataclass(frozen=True)
class Estimated:
    """One mesh, with the fastest checkpointing that fits (else the one that keeps least) at one sequence a part."""

    framework: str
    mesh: Mesh
    work: Work
    held: dict[str, float]  # bytes by kind, those of the process included
    room: float
    most: int  # sequences of a part that fit
    step: MeshStep | None

    @property
    def total(self) -> float:
        return sum(self.held.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.room

    @property
    def tokens_per_second(self) -> float | None:
        """Of one worker."""
        tokens = self.work.tokens * self.mesh.shards * self.mesh.replicas
        return tokens / self.step.step_seconds / self.mesh.workers if self.step else None


def estimated(asked: Question) -> Iterator[Estimated]:
    """Every mesh of each number of workers among whose groups the batch divides."""
    shape = SHAPES[asked.model]
    for workers in asked.workers:
        batch = asked.global_batch or 2 * workers
        for framework, mesh in meshes.made_of(shape, workers):
            groups = workers // mesh.group
            if batch % groups == 0:
                yield _fastest_that_fits(asked, shape, framework, mesh, batch // groups)


def _fastest_that_fits(asked: Question, shape: Decoder, framework: str, mesh: Mesh, samples: int) -> Estimated:
    mesh = replace(mesh, micro_batches=samples) if mesh.stages > 1 else mesh
    accumulation = 1 if mesh.stages > 1 else samples
    dimensions = sum(size > 1 for size in (mesh.tensor, mesh.context, mesh.stages, mesh.shards, mesh.replicas))
    process = {"process": CONTEXT_BYTES + NCCL_BYTES * dimensions}
    room = asked.memory_bytes
    for checkpoint in CHECKPOINTS[:1] if mesh.stages > 1 else CHECKPOINTS:  # no stage computes again
        work = Work(samples, asked.length, asked.precision, accumulation=accumulation, checkpoint=checkpoint)
        held = meshes.memory(shape, mesh, work) | process
        if sum(held.values()) <= room:
            break
    most = meshes.most_samples(shape, mesh, work, room - process["process"])
    step = None
    if asked.network:
        if asked.alone:
            computing = as_alone(shape, mesh, work, asked.alone.step, asked.alone.samples)
        else:
            computing = at_rate(shape, mesh, work, asked.utilisation * asked.tflops * 1e12)
        step = simulate(shape, mesh, work, asked.network, computing)
    return Estimated(framework, mesh, work, held, room, most, step)


NAMES = {"tensor": "tensor_parallel", "context": "context_parallel", "stages": "stages", "shards": "shard_group"}


def keys_of(mesh: Mesh) -> str:
    """`tensor_parallel 4, replicas 2`, as a study file names them."""
    names = NAMES | ({"shards": "replicas"} if mesh.tensor > 1 else {})  # FSDP2 shards what copies hold
    names |= {"replicas": "replicas"} if mesh.shards == 1 else {}
    return ", ".join(f"{key} {getattr(mesh, name)}" for name, key in names.items() if getattr(mesh, name) > 1)


def best(every: Sequence[Estimated]) -> list[Estimated]:
    """Those of one screen, as many of each number of workers: what fits first, then what is fastest or holds least."""
    by_workers = grouped(every, lambda one: one.mesh.workers)
    each = max(FEWEST_ROWS, ROWS // len(by_workers))

    def order(one: Estimated) -> tuple[bool, float, float]:
        return not one.fits, -(one.tokens_per_second or 0.0), one.total

    return [one for ours in by_workers.values() for one in sorted(ours, key=order)[:each]]


def listing(asked: Question, every: Sequence[Estimated], whole: bool = False) -> Listing:
    """A row for each mesh, in GiB and GB: of the `best`, or of the `whole` of them in the order of frameworks."""
    rows = []
    for one in (shown := every if whole else best(every)):
        held, shape = one.held, SHAPES[asked.model]
        state = sum(held[kind] for kind in STATE)
        kept = held["activations"] + held["scores"]
        sent = sum(each.sent_bytes for each in meshes.traffic(shape, one.mesh, one.work))
        row = {
            "framework": one.framework,
            "workers": str(one.mesh.workers),
            "mesh": keys_of(one.mesh),
            "fits": "yes" if one.fits else "no",
            "checkpoint": one.work.checkpoint,
            "state": f"{state / GIB:.1f}",
            "activations": f"{kept / GIB:.1f}",
            "other": f"{(one.total - state - kept) / GIB:.1f}",
            "GiB": f"{one.total / GIB:.1f}",
            "most sequences": str(one.most),
            "sent GB": number(sent / 1e9),
        }
        if one.step:
            exposed = sum(one.step.exposed_seconds.values()) / one.step.step_seconds
            row |= {"tokens/s a GPU": f"{one.tokens_per_second:,.0f}", "exposed": percent(exposed)}
        rows.append(row)
    return Listing.from_rows(f"What fits: {asked.model}", rows, _notes(asked, len(shown), len(every)))


def _notes(asked: Question, shown: int, all_of_them: int) -> Iterator[str]:
    if shown < all_of_them:
        yield f"{shown} of {all_of_them} meshes, those that fit and are fastest first (--all: all of them)."
    shape, batch = SHAPES[asked.model], asked.global_batch
    sequences = f"{batch:,} sequences" if batch else "two sequences for each worker"
    yield (
        f"{shape.parameters:,} parameters, {asked.precision}, AdamW, {sequences} of {asked.length:,} tokens in a step, "
        f"one sequence a part. Room: {asked.memory_bytes / GIB:.1f} GiB of a GPU."
    )
    yield (
        "By closed forms (docs/internals/closed-forms.md), nothing was run. Checkpoint: the fastest that fits, else "
        "the one that keeps least. State: gradients of shards are whole until the last part. Activations: with scores. "
        "Other: 16-bit copies, gathered weights, and the process. Most sequences: of one part, that fit. Sent GB: by a "
        "worker in a step."
    )
    if asked.network:
        rate = f"matrix products at {percent(asked.utilisation)} of {asked.tflops:,.0f} TFLOP/s, nothing else computed"
        alone = f"one worker's step as measured ({asked.alone.configuration})" if asked.alone else rate
        yield (
            f"tokens/s: {alone}; network {asked.network.source}. Exposed: the share of a step in which collectives, or "
            "a pipeline's bubble, have computing wait. Of meshes that do not fit it is what they would reach."
        )


def table(every: Sequence[Estimated]) -> pd.DataFrame:
    """A row for each mesh: its keys, bytes by kind, and by collective; seconds of a step and what is exposed."""
    rows = []
    for one in every:
        mesh = {name: getattr(one.mesh, name) for name in ("tensor", "context", "stages", "shards", "replicas")}
        rows.append(
            {
                "framework": one.framework,
                "workers": one.mesh.workers,
                **mesh,
                "checkpoint": one.work.checkpoint,
                "fits": one.fits,
                **{f"{kind}_bytes": size for kind, size in one.held.items()},
                "most_sequences": one.most,
                "step_seconds": one.step and one.step.step_seconds,
                "tokens_per_second": one.tokens_per_second,
            }
        )
    return pd.DataFrame(rows, dtype=object)
