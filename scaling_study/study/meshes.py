"""Bytes that a step of a Llama hands to collectives, and bytes that a worker of a mesh holds, in closed form. Pure.

    workers = tensor x context x stages x shards x replicas       neighbours in rank share matrices, then sequences, ...

    tensor     share every matrix and every batch             (4 L + 2) T d e, in every step, hidden by nothing
    context    share every sequence                            keys and values, or heads, of every layer
    stages     hold some layers each                           T d e from each to the next, and back
    shards     hold one copy of the model in shards            2 P - R gathered (of a stage P), P scattered (FSDP2)
    replicas   hold copies of all that                         P reduced

L layers, d width, P parameters, R of them outside of the layers, T tokens of a step, e bytes of an element:
docs/internals/closed-forms.md has every formula with its source. A **group** is the workers that read one batch:
tensor x context x stages of them.

Counted are payloads, the whole tensors that collectives work on, as records count them; what is sent for them
is `stats.network.sent_share`. Where workers of a mesh differ, these are the bytes of the one with most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from scaling_study.frameworks import FRAMEWORKS, POWERSGD
from scaling_study.models import OURS, Decoder
from scaling_study.stats.network import sent_share
from scaling_study.trial import Trial

BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
ADAMW = 2  # numbers that its state has for each parameter
SYNC_EVERY = 8  # steps of local SGD and DiLoCo, where a study names none


SHAPES: Mapping[str, Decoder] = {name: model.decoder for name, model in OURS.items() if model.decoder}


def kv_width(shape: Decoder) -> int:
    """Width of the keys, or of the values, of all heads."""
    return shape.kv_heads * shape.head_dim


def of_layer(shape: Decoder) -> int:
    """Elements of the matrices of one layer."""
    return shape.of_attention + shape.of_feed_forward


@dataclass(frozen=True)
class Mesh:
    """Workers by what they share. `zero_stage` is of shards; schedule, virtual stages and micro-batches of stages."""

    tensor: int = 1
    context: int = 1
    stages: int = 1
    shards: int = 1
    replicas: int = 1
    sequence_parallel: bool = False
    loss_parallel: bool = False
    attention: str = "all_to_all"
    zero_stage: int = 3
    schedule: str = "1f1b"
    virtual_stages: int = 1
    micro_batches: int = 1

    @property
    def workers(self) -> int:
        return self.group * self.shards * self.replicas

    @property
    def group(self) -> int:
        """Workers that read one batch."""
        return self.tensor * self.context * self.stages


@dataclass(frozen=True)
class Work:
    """A step of one group: `samples` sequences of `length` tokens, one after the other in `accumulation` parts."""

    samples: int = 1
    length: int = 8192  # Llama 3's own
    precision: str = "bf16"
    allreduce: str = "fp32"
    accumulation: int = 1
    checkpoint: str = "none"  # none, block, selective
    sync_every: int = 1  # steps from one exchange between replicas to the next
    outer: str | None = None  # of replicas that exchange weights: average, nesterov
    optimizer_states: int = ADAMW

    @property
    def element(self) -> int:
        """Bytes of an element that matrices multiply."""
        return BYTES[self.precision]

    @property
    def own(self) -> int:
        """Bytes of an element of weights, gradients and optimiser."""
        return max(4, self.element)

    @property
    def on_the_wire(self) -> int:
        """Bytes of an element of a gradient that is reduced."""
        return 2 if self.allreduce in ("fp16", "bf16") else self.own

    @property
    def tokens(self) -> int:
        return self.samples * self.length

    def parts(self, mesh: Mesh) -> int:
        """How many micro-batches a step has, one after the other."""
        return mesh.micro_batches if mesh.stages > 1 else self.accumulation


KNOWN = (
    *("single", "torch_ddp", "horovod", "mpi_allreduce", "torch_fsdp2"),
    *("torch_tp", "torch_context", "torch_pipeline", "diloco"),
)


def of_trial(trial: Trial) -> tuple[Mesh, Work] | None:
    """The mesh and the work of a trial; None for a framework or a model without closed forms here."""
    if trial.framework not in KNOWN or trial.model not in SHAPES:
        return None
    groups = trial.data_parallel
    sharded = FRAMEWORKS[trial.framework].shards == 3 or trial.framework == "torch_tp"  # FSDP2 between its groups
    shards = trial.shard_group or (groups if sharded else 1)
    mesh = Mesh(
        tensor=trial.tensor_parallel or 1,
        context=trial.context_parallel or 1,
        stages=trial.stages or 1,
        shards=shards,
        replicas=groups // shards,
        sequence_parallel=trial.sequence_parallel,
        loss_parallel=trial.loss_parallel,
        attention=trial.attention or Mesh.attention,
        zero_stage=2 if shards > 1 and trial.stages else trial.zero_stage or Mesh.zero_stage,  # gathered once a step
        schedule=trial.schedule or Mesh.schedule,
        virtual_stages=trial.virtual_stages or 1,
        micro_batches=trial.micro_batches or 1,
    )
    local = trial.framework == "diloco"
    return mesh, Work(
        samples=trial.batch_per_worker,
        length=trial.sequence_length or SHAPES[trial.model].length,
        precision=trial.precision,
        allreduce=trial.allreduce,
        accumulation=trial.accumulation,
        checkpoint=trial.checkpoint or "none",
        sync_every=(trial.sync_every or SYNC_EVERY) if local else 1,
        outer=(trial.outer or "nesterov") if local else None,
    )


# Elements of a worker's part of the model, before they are sharded. Tensor parallelism cuts matrices, not norms.


@dataclass(frozen=True)
class Part:
    """`matrices` and `vectors`: elements of weights. `layers`: of the model; `ends`: 2 where both ends are here."""

    layers: int
    ends: int
    matrices: float
    vectors: float

    @property
    def elements(self) -> float:
        return self.matrices + self.vectors

    def bytes(self, matrix: int, vector: int) -> float:
        return matrix * self.matrices + vector * self.vectors


def part(shape: Decoder, mesh: Mesh) -> Part:
    """The fullest stage: with the embedding, or with the last norm and the matrix of scores; both of one stage."""
    layers = -(-shape.layers // mesh.stages)
    ends = 2 if mesh.stages == 1 else 1
    tables = shape.of_vocabulary * (1 if shape.tied else ends)
    matrices = (layers * of_layer(shape) + tables) / mesh.tensor
    return Part(layers, ends, matrices, (2 * layers + 1) * shape.width)


def outermost(shape: Decoder, mesh: Mesh) -> Part:
    """Its weights outside of the layers, which FSDP2 gathers once for forward and backward."""
    tables = shape.of_vocabulary * (1 if shape.tied or mesh.stages > 1 else 2)
    return Part(0, 2 if mesh.stages == 1 else 1, tables / mesh.tensor, shape.width)


# Bytes of one step.
#
#     tensor         Shoeybi et al., arXiv 1909.08053; with sequence parallelism Korthikanti et al., arXiv 2205.05198
#     context        heads change hands: Jacobs et al., arXiv 2309.14509; keys, values: Llama 3, arXiv 2407.21783, 3.3.2
#     stages         Narayanan et al., arXiv 2104.04473
#     shards         Rajbhandari et al., arXiv 1910.02054; between groups of them Zhao et al., arXiv 2304.11277, 3.2.2
#     replicas       PowerSGD: Vogels et al., arXiv 1905.13727; DiLoCo: Douillard et al., arXiv 2311.08105


@dataclass(frozen=True)
class Traffic:
    """One kind of collective over one dimension of the mesh: `bytes` of its payload in a step, among `workers`."""

    dimension: str
    kind: str  # as records call it
    bytes: float
    workers: int

    @property
    def sent_bytes(self) -> float:
        """That a worker sends for them, by the least that any algorithm can."""
        return self.bytes * (sent_share(self.kind, self.workers) or 0.0)


def traffic(shape: Decoder, mesh: Mesh, work: Work) -> list[Traffic]:
    """What the worker with most of it hands to collectives in one step; what does not happen is left out."""
    parts = (of_tensor, of_context, of_stages, of_copies)
    return [one for of_dimension in parts for one in of_dimension(shape, mesh, work) if one.bytes]


def of_tensor(shape: Decoder, mesh: Mesh, work: Work) -> Iterator[Traffic]:
    """Twice in each layer forward, twice backward; once each for the embedding and for the scores' matrix.

    A layer that is computed again communicates again, but for the last result, which nothing in it reads.
    """
    if mesh.tensor == 1:
        return
    here, tokens = part(shape, mesh), work.tokens / mesh.context
    again = here.layers if work.checkpoint == "block" else 0  # selective keeps results of collectives too
    once = tokens * shape.width * work.element
    crossing = (4 * here.layers + here.ends + again) * once
    if mesh.sequence_parallel:
        yield Traffic("tensor", "reduce_scatter", crossing, mesh.tensor)
        yield Traffic("tensor", "all_gather", crossing + again * once, mesh.tensor)
        yield Traffic("tensor", "allreduce", here.vectors * work.own, mesh.tensor)  # gradients of norms
    else:
        yield Traffic("tensor", "allreduce", crossing, mesh.tensor)
    if mesh.loss_parallel:  # of each token the largest score, the sum of exponentials, the target's score
        yield Traffic("tensor", "allreduce", 3 * tokens * work.own, mesh.tensor)
    else:
        yield Traffic("tensor", "all_gather", tokens * shape.vocabulary * work.element, mesh.tensor)


def of_context(shape: Decoder, mesh: Mesh, work: Work) -> Iterator[Traffic]:
    """Forward and backward of every layer: queries, keys, values and results, or keys and values alone. A layer that is
    computed again gathers again."""
    if mesh.context == 1:
        return
    layers, heads, times = part(shape, mesh).layers, 1 / mesh.tensor, 1 if work.checkpoint == "none" else 2
    if mesh.attention == "all_gather":
        both = 2 * layers * work.tokens * kv_width(shape) * heads * work.element
        yield Traffic("context", "all_gather", times * both, mesh.context)
        yield Traffic("context", "reduce_scatter", both, mesh.context)
    else:
        held = work.tokens / mesh.context * (shape.width + kv_width(shape)) * heads
        yield Traffic("context", "all_to_all", 2 * (1 + times) * layers * held * work.element, mesh.context)


def of_stages(shape: Decoder, mesh: Mesh, work: Work) -> Iterator[Traffic]:
    """A worker in the middle sends results to the next, gradients to the one before, of each of its parts. All add up
    the gradients of a table that both ends have: of tokens, and of scores."""
    if mesh.stages == 1:
        return
    sends = 2 * mesh.virtual_stages - (mesh.stages == 2)  # of two, each is at one end of the model
    held = work.tokens / mesh.context * shape.width / (mesh.tensor if mesh.sequence_parallel else 1)
    yield Traffic("stages", "send", sends * held * work.own, 2)  # what stages hand on is not rounded
    if shape.tied:
        yield Traffic("stages", "allreduce", shape.of_vocabulary / mesh.tensor / mesh.shards * work.own, mesh.stages)


def of_copies(shape: Decoder, mesh: Mesh, work: Work) -> Iterator[Traffic]:
    """Weights that are gathered and gradients that are averaged. Workers that share sequences average theirs too."""
    here, outside = part(shape, mesh), outermost(shape, mesh)
    if mesh.shards > 1:
        whole, kept = (each.bytes(work.element, work.own) for each in (here, outside))
        gathered = 2 * whole - kept if mesh.zero_stage == 3 else whole
        yield Traffic("shards", "all_gather", work.accumulation * gathered, mesh.shards)
        yield Traffic("shards", "reduce_scatter", here.elements * work.on_the_wire, mesh.shards)
    among = mesh.replicas * mesh.context
    if among == 1:
        return
    reduced = here.elements * work.on_the_wire / mesh.shards
    if rank := POWERSGD.get(work.allreduce):
        reduced = (low_rank(shape, mesh, rank) + here.vectors) * work.own
    loss = work.own if mesh.context > 1 else 0  # of which each has its share
    yield Traffic("replicas", "allreduce", reduced / work.sync_every + loss, among)


def low_rank(shape: Decoder, mesh: Mesh, rank: int) -> float:
    """Elements of the two factors of each matrix: rank (rows + columns), the vocabulary's included."""
    d, kv, f, v = shape.width, kv_width(shape), shape.feed_forward, shape.vocabulary
    here = part(shape, mesh)
    sides = 2 * (d + d) + 2 * (d + kv) + 3 * (d + f)
    return rank * (here.layers * sides + (1 if shape.tied else here.ends) * (v + d))


# Bytes that a worker holds at its fullest.
#
#     state          weights, gradients and optimiser, by shards (Rajbhandari et al.); gradients of several parts whole
#     copies         16-bit copies of matrices, made by autocast and kept for backward; FSDP2 gathers in 16 bits
#     gathered       of FSDP2: what is outside of the layers, a layer that computes, the next one, one's gradients
#     exchange       PowerSGD's errors and one factor; weights of the last exchange, the outer optimiser's momentum
#     activations    what autograd keeps for backward; attention keeps no l x l matrix (Dao et al., arXiv 2205.14135)
#     scores         in the products' precision, their logarithm and its gradient
#
# Of a token and layer autograd keeps, in elements: the inputs of both norms and their results 4 d; queries, keys,
# values and attention's result 2 d + 2 d_kv; four of the matrices between 4 f. (Korthikanti et al. count the layer of
# GPT: the same, with dropout's masks, biases and two matrices between.) Left out: attention's sums, 4 bytes a head, and
# what allocators lose.

STATE = ("parameters", "gradients", "optimizer")
# Schedule -> micro-batches whose activations a worker keeps at most, of p stages and v parts a worker.
ALIVE: Mapping[str, Callable[[int, int], float]] = {
    "1f1b": lambda p, v: p,
    "interleaved_1f1b": lambda p, v: p + (p - 1) / v,  # Korthikanti et al., 4.2.3
    "interleaved_zero_bubble": lambda p, v: p + (p - 1) / v,
    "zbv_zero_bubble": lambda p, v: p,  # Qi et al., arXiv 2405.15362
    "dualpipev": lambda p, v: p + 1,
}


def kept_elements(shape: Decoder, mesh: Mesh, checkpoint: str) -> float:
    """Of each token and layer, from forward to backward."""
    d, kv, f = shape.width, kv_width(shape), shape.feed_forward
    outside = mesh.tensor if mesh.sequence_parallel else 1  # what lies between the matrices that are shared
    return {
        "none": 4 * d / outside + (2 * d + 2 * kv + 4 * f) / mesh.tensor,
        "selective": 3 * d / outside + (2 * d + 2 * kv + 2 * f) / mesh.tensor,  # input, results of products, attention
        "block": d / outside,
    }[checkpoint]


def memory(shape: Decoder, mesh: Mesh, work: Work) -> dict[str, float]:
    """Bytes by kind of the worker that holds most: of a pipeline at its first stage, or at its last with the scores."""
    if mesh.stages == 1:
        return _held(shape, mesh, work, 1 / work.accumulation, True)
    alive = ALIVE.get(mesh.schedule, lambda p, v: math.inf)(mesh.stages, mesh.virtual_stages)  # else all of them
    first = _held(shape, mesh, work, min(1.0, alive / mesh.micro_batches), False)
    last = _held(shape, mesh, work, 1 / mesh.micro_batches, True)
    return max(first, last, key=lambda held: sum(held.values()))


def _held(shape: Decoder, mesh: Mesh, work: Work, share: float, scores: bool) -> dict[str, float]:
    """`share`: of a step's tokens whose activations are there at once. `scores`: it has the scores of one part."""
    here, outside = part(shape, mesh), outermost(shape, mesh)
    own, element, shards = work.own, work.element, mesh.shards
    parts = work.parts(mesh)
    tokens, one = share * work.tokens / mesh.context, work.tokens / mesh.context / parts
    state = own * here.elements / shards
    layer = (here.bytes(element, own) - outside.bytes(element, own)) / here.layers
    activations = here.layers * tokens * kept_elements(shape, mesh, work.checkpoint)
    if work.checkpoint != "none":  # the layer that is computed again
        activations += one * kept_elements(shape, mesh, "none")
    held = {
        "parameters": state,
        "gradients": work.on_the_wire * here.elements if shards > 1 and parts > 1 else state,
        "optimizer": work.optimizer_states * state,
        "copies": element * here.matrices if element < own and shards == 1 else 0.0,
        "gathered": 0.0,
        "exchange": 0.0,
        "activations": activations * element,
        "scores": 0.0,
    }
    if shards > 1:
        unit = max(outside.elements, (here.elements - outside.elements) / here.layers)
        weights = outside.bytes(element, own) + 2 * layer if mesh.zero_stage == 3 else here.bytes(element, own)
        held["gathered"] = weights + own * unit
    if rank := POWERSGD.get(work.allreduce):
        columns = here.layers * (6 * shape.width + shape.feed_forward) + (1 if shape.tied else here.ends) * shape.width
        held["exchange"] = own * (here.matrices + rank * columns)  # what steps left out, and where the next begins
    if work.outer:
        held["exchange"] = own * here.elements * (2 if work.outer == "nesterov" else 0)
    if scores:
        wide = element + 2 * max(4, element)
        held["scores"] = one * shape.vocabulary * wide / (mesh.tensor if mesh.loss_parallel else 1)
    return held


def held_bytes(shape: Decoder, mesh: Mesh, work: Work) -> float:
    """The sum of memory()."""
    return sum(memory(shape, mesh, work).values())


def most_samples(shape: Decoder, mesh: Mesh, work: Work, room: float) -> int:
    """The most sequences of one part (a micro-batch) with which a worker holds at most `room` bytes; 0: none."""
    parts = work.parts(mesh)
    none, one = (held_bytes(shape, mesh, replace(work, samples=parts * n)) for n in (0, 1))
    return max(0, math.floor((room - none) / (one - none)))


# The meshes that this project's scripts make of so many workers.


def refused(shape: Decoder, mesh: Mesh) -> str:
    """Why a model cannot be cut so, with both numbers; empty if it can."""
    heads = ("heads", "kv_heads")
    for key, of, what in (
        ("tensor_parallel", mesh.tensor, (*heads, "feed_forward")),
        ("context_parallel", mesh.context, heads if mesh.attention == "all_to_all" else ()),
    ):
        for name in what:
            if (count := getattr(shape, name)) % of:
                return f"{key}={of} does not divide {name}={count}"
    if mesh.stages > shape.layers:
        return f"stages={mesh.stages} is more than layers={shape.layers}"
    return ""


def made_of(shape: Decoder, workers: int) -> Iterator[tuple[str, Mesh]]:
    """(framework, mesh) of every way in which a script here splits a model over so many workers.

    A pipeline's stages share their matrices or shard their copies (gathered once a step); no script does both. Its
    micro-batches: two a stage, as in a study that names none.
    """
    yield "torch_ddp", Mesh(replicas=workers)
    divisors = [n for n in range(2, workers + 1) if workers % n == 0]
    for n in divisors:
        yield "torch_fsdp2", Mesh(shards=n, replicas=workers // n)
    for framework, each in (
        ("torch_tp", lambda n: Mesh(tensor=n, sequence_parallel=True, loss_parallel=True, shards=workers // n)),
        ("torch_context", lambda n: Mesh(context=n, replicas=workers // n)),
    ):
        yield from ((framework, mesh) for mesh in map(each, divisors) if not refused(shape, mesh))
    for stages in divisors:
        copies, pipeline = workers // stages, Mesh(stages=stages, micro_batches=2 * stages)
        cut = [replace(pipeline, replicas=copies)]
        for n in (n for n in divisors if copies % n == 0):
            cut.append(replace(pipeline, tensor=n, replicas=copies // n))
            cut.append(replace(pipeline, shards=n, zero_stage=2, replicas=copies // n))
        yield from (("torch_pipeline", mesh) for mesh in cut if not refused(shape, mesh))
