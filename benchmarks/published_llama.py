"""Llama 3.1 8B by torchtitan on 8 and 128 H100s, predicted from one row: tokens/s and memory of a GPU.

Given is the row of 8 GPUs that is not compiled. It fixes the rate at which matrices are multiplied, the only number
that is fitted. The other five follow from the network of 16 hosts, and from the bytes that torchtitan moves between
products, eager and fused. Linear scaling, the given rate, stands beside each. Memory is fitted to nothing.

| input | value | source |
|---|---|---|
| tokens/s a GPU; batch 2 | rows of torchtitan in analysis/published/references.csv | their source |
| sequence | 8,192 tokens | its train_configs/llama3_8b.toml; the page names none |
| memory bandwidth | 2.4 TB/s | the page |
| links | NVLink 450 GB/s, eight cards of 400 Gbit/s, latencies | the page; machines/eight-dgx-h100.yaml |
| weights, gradients on the wire | bf16 gathered, fp32 scattered | its MixedPrecisionPolicy |
| computed again | norms, rotation, SwiGLU, every second product (wk, wo, w3) | its selective checkpointing, "op" |
| attention | half of all pairs; backward 2.5 times forward | Dao, arXiv 2307.08691, 4.1 |
| bytes between products | the table below: a kernel reads its inputs, writes its result | its model.py and norms.py |
| float8 | products of layers at twice the rate; casts | H100's data sheet; torchao's Float8Linear |
| GPU taken by a collective | 20 of 132 multiprocessors | analysis/prediction/network.py |

Who counted the bytes knew all rows: blind is the arithmetic, not its author. Not modelled: power (500 W), launches of
kernels, clipping's allreduce, products whose rate depends on their shape, stragglers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.commands import by_name
from analysis.prediction.meshes import Computing, simulate
from analysis.prediction.network import GPU_SHARE
from analysis.published import references
from benchmarks import paired, publish
from benchmarks.paired import NOT_COMPARED, Finding
from scaling_study.stats.intervals import Interval
from scaling_study.study.meshes import SHAPES, Mesh, Work, kept_elements, kv_width, memory, of_layer

SHAPE = SHAPES["llama_3_1_8b"]
LENGTH, BATCH, BANDWIDTH = 8192, 2, 2.4e12
PEAK = 989e12  # dense, bf16: the data sheet's
WORDS = "torchtitan/blob/31a17bfd"
GIB = 2**30
# Published beside the rates (the page's tables 1 and 3): (GPUs, row) -> GiB.
PUBLISHED_GIB = {
    (8, "eager"): 82.4, (8, "compiled"): 77.0, (8, "float8"): 76.8,
    (128, "eager"): 67.0, (128, "compiled"): 62.0, (128, "float8"): 61.8,
}  # fmt: skip

# Bytes a token and layer that kernels between products read and write: in forward, in backward, and once more forward
# where that is computed again. d, kv and f are elements of a token; bf16 has 2 bytes, fp32 has 4.
#
#     norm (twice)     float 6, square 8, mean 4, scale 8, cast 6, weight 4 = 36; backward 84
#     rotation         of queries and keys: float 6, product 8, cast 6 = 20; backward 20
#     repeated heads   of keys and values: read kv, write d, as bf16
#     SwiGLU           silu 4, product 6 = 10; backward 18
#     residuals        two additions of 6; backward as many; one is computed again
#     gradients        of inputs that three and two products share: three additions of 6, backward only
#
# Fused, a kernel reads what products left and writes what the next one takes, and no more.


def eager_bytes() -> tuple[float, float]:
    """(forward, backward with what is computed again) of one token and layer."""
    d, kv, f = SHAPE.width, kv_width(SHAPE), SHAPE.feed_forward
    norms, rotation, repeated, gate = 2 * 36 * d, 20 * (d + kv), 2 * (2 * d + 2 * kv), 10 * f
    forward = norms + rotation + repeated + gate + 12 * d
    again = norms + rotation + repeated + gate + 6 * d
    backward = 2 * 84 * d + 20 * (d + kv) + 2 * (2 * d + 2 * kv) + 18 * f + (12 + 18) * d
    return forward, backward + again


def fused_bytes() -> tuple[float, float]:
    """The same of compiled layers."""
    d, kv, f = SHAPE.width, kv_width(SHAPE), SHAPE.feed_forward
    norms, rotation, gate = 4 * d + 8 * d, 8 * d + 4 * kv, 6 * f  # the second norm with the first residual
    forward = norms + rotation + gate + 6 * d
    again = norms + rotation + gate
    backward = 2 * 12 * d + 8 * d + 4 * kv + 10 * f
    return forward, backward + again


def cast_bytes() -> tuple[float, float]:
    """To float8: of a product's input the largest value and the cast, 5 bytes, forward and backward; of its gradient
    once."""
    d, kv, f = SHAPE.width, kv_width(SHAPE), SHAPE.feed_forward
    inputs, gradients = 3 * d + f, 3 * d + 2 * kv + 2 * f
    return 5.0 * inputs, 5.0 * (inputs + gradients)


LOSS_BYTES = 40 * SHAPE.vocabulary  # a token: to fp32 6, its logarithm 12, backward 4 + 12, to bf16 6
UPDATE_BYTES = 40  # a parameter of a shard: fused AdamW 28, clipping 12
CAST_WEIGHTS = 2 * 5  # bytes of a weight of a layer, forward and backward
SECOND_PRODUCTS = SHAPE.width * (kv_width(SHAPE) + SHAPE.width + SHAPE.feed_forward)  # wk, wo, w3: computed again


@dataclass(frozen=True)
class Row:
    """`kind`: eager, compiled, or float8 (compiled too)."""

    gpus: int
    kind: str
    tokens_per_second: float  # of a GPU

    @property
    def given(self) -> bool:
        return self.gpus == 8 and self.kind == "eager"


@dataclass(frozen=True)
class Predicted:
    row: Row
    tokens_per_second: float
    linear: float
    gib: float

    @property
    def error(self) -> float:
        return self.tokens_per_second / self.row.tokens_per_second - 1

    @property
    def linear_error(self) -> float:
        return self.linear / self.row.tokens_per_second - 1

    @property
    def published_gib(self) -> float:
        return PUBLISHED_GIB[self.row.gpus, self.row.kind]

    @property
    def cells(self) -> tuple[str, ...]:
        """Its errors are of tokens/s, linear scaling's too, and of memory."""
        speed = f"{self.tokens_per_second:,.0f}"
        errors = [f"{100 * error:+.1f} %" for error in (self.error, self.linear_error)]
        of_memory = f"{100 * (self.gib / self.published_gib - 1):+.1f} %"
        speeds = ("given", "", "") if self.row.given else (speed, *errors)
        return (*speeds, f"{self.published_gib:.1f}", f"{self.gib:.1f}", of_memory)


def rows() -> list[Row]:
    """The six rows, in the order of the file."""
    ours = [one for one in references.published() if WORDS in one.source and one.verified]
    kinds = [("float8" if one.precision == "fp8" else "compiled" if "compiled" in one.by else "eager") for one in ours]
    return [Row(one.count, kind, one.figure) for one, kind in zip(ours, kinds, strict=True)]


def mesh_of(gpus: int) -> Mesh:
    return Mesh(shards=gpus)


WORK = Work(samples=BATCH, length=LENGTH, precision="bf16", checkpoint="selective")


def step_seconds(gpus: int, kind: str, rate: float) -> float:
    network = replace(by_name("eight-dgx-h100"), gpu_share=GPU_SHARE)
    return simulate(SHAPE, mesh_of(gpus), WORK, network, computing(gpus, kind, rate)).step_seconds


def computing(gpus: int, kind: str, rate: float) -> Computing:
    """Seconds of a layer and of the rest: products at `rate` FLOP/s, and what lies between them at BANDWIDTH."""
    tokens = BATCH * LENGTH
    forward, backward = eager_bytes() if kind == "eager" else fused_bytes()
    casts = cast_bytes() if kind == "float8" else (0.0, 0.0)
    weights = CAST_WEIGHTS * of_layer(SHAPE) / 2 if kind == "float8" else 0.0
    pace = 2.0 if kind == "float8" else 1.0
    product, attention = 2 * of_layer(SHAPE) / pace, 2 * LENGTH * SHAPE.width
    again = 2 * SECOND_PRODUCTS / pace
    outside = 2 * SHAPE.of_vocabulary * tokens / rate
    loss = LOSS_BYTES * tokens / BANDWIDTH

    def seconds(flops: float, bytes: float) -> float:
        return tokens * flops / rate + (tokens * bytes + weights) / BANDWIDTH

    return Computing(
        seconds(product + attention, forward + casts[0]),
        seconds(2 * product + 2.5 * attention + again, backward + casts[1]),
        outside + loss / 2,
        2 * outside + loss / 2,
        UPDATE_BYTES * SHAPE.parameters / gpus / BANDWIDTH,
    )


def fitted(row: Row) -> float:
    """FLOP/s of products with which the row's step takes as long as it did."""
    took, low, high = BATCH * LENGTH / row.tokens_per_second, 0.01 * PEAK, PEAK
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if step_seconds(row.gpus, row.kind, middle) > took else (low, middle)
    return low


def gib(gpus: int) -> float:
    """Of the fullest moment. torchtitan keeps every second product and attention's result."""
    held = memory(SHAPE, mesh_of(gpus), WORK)
    ours = kept_elements(SHAPE, Mesh(), WORK.checkpoint)  # all products
    theirs = 4 * SHAPE.width + kv_width(SHAPE) + SHAPE.feed_forward
    less = (ours - theirs) * SHAPE.layers * WORK.tokens * WORK.element
    return (sum(held.values()) - less) / GIB


def predicted(every: Sequence[Row]) -> list[Predicted]:
    """All rows, the given one included: its rate is fitted, its memory is not."""
    (given,) = (row for row in every if row.given)
    rate, made = fitted(given), []
    for row in every:
        speed = BATCH * LENGTH / step_seconds(row.gpus, row.kind, rate)
        made.append(Predicted(row, speed, given.tokens_per_second, gib(row.gpus)))
    return made


def findings() -> list[Finding]:
    """Each error, beside linear scaling's; no bar."""
    made = predicted(rows())
    columns = ("published tokens/s", "predicted", "error", "linear scaling's", "GiB", "predicted", "error")
    named = {f"{one.row.gpus} GPUs, {one.row.kind}": one for one in made}
    shown = [(name, f"{one.row.tokens_per_second:,.0f}", *one.cells) for name, one in named.items()]
    publish.print_table("Llama 3.1 8B by torchtitan, from 8 GPUs uncompiled", columns, shown)
    blind = {name: one for name, one in named.items() if not one.row.given}
    found = []
    for whose, errors in {
        "prediction": {name: one.error for name, one in blind.items()},
        "linear scaling": {name: one.linear_error for name, one in blind.items()},
        "memory": {name: one.gib / one.published_gib - 1 for name, one in named.items()},
    }.items():
        title = f"published Llama 3.1 8B by torchtitan, {len(errors)} rows"
        median, worst = paired.median_error([*errors.values()]), Interval(max(errors.values(), key=abs), None, None, 1)
        found += [
            Finding(f"{title}: median error of {whose}", median, unit="%", evidence=errors, control=NOT_COMPARED),
            Finding(f"{title}: the worst of {whose}", worst, unit="%", control=NOT_COMPARED),
        ]
    return found
