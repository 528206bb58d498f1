"""A Llama's matrices split over the workers of a group, which read one batch: tensor parallelism by DTensor. [torch]

                      worker 0              worker 1
    tok_embeddings    rows of its tokens    of its tokens        a token is known to one of them       --> sum
    wq, wk, wv        heads 0, 1            heads 2, 3           each attends with heads of its own
    wo                rows of its heads     of its heads                                               --> sum
    w1, w3; w2        columns; rows         of the other half    of the feed-forward width             --> sum
    output            scores of its tokens  of its tokens        gathered, or left where they are (loss_parallel)
    norms             whole                 whole

A sum is an allreduce: every worker then has all that passes from block to block (Shoeybi et al., arXiv 1909.08053).
With `sequence_parallel` it is a reduce-scatter, each worker keeps its part of the tokens for norms and additions, and
an all-gather brings them together before the next matrix (Korthikanti et al., arXiv 2205.05198).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from scaling_study.stages.stage import assembled

ATTENTION, FEED_FORWARD = "layers.*.attention", "layers.*.feed_forward"
NORMS = ("norm", "layers.*.attention_norm", "layers.*.ffn_norm")
LAST = -1  # dimension: of scores, the vocabulary


def plan(sequence_parallel: bool = False, loss_parallel: bool = False) -> dict[str, ParallelStyle]:
    """The way in which each module of a Llama is split, by its name.

    What enters attention and the feed-forward layer is made a DTensor there, once: else each of the matrices that read
    it would send back a gradient of its own, 7 L + 2 sums in place of 4 L + 2.
    """
    all_tokens, own_tokens = Replicate(), Shard(1)
    between = own_tokens if sequence_parallel else all_tokens  # two matrices
    entry = PrepareModuleInput(input_layouts=between, desired_input_layouts=all_tokens)
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=between)
    scores = ColwiseParallel(
        input_layouts=between,
        output_layouts=Shard(LAST) if loss_parallel else all_tokens,
        use_local_output=not loss_parallel,
    )
    return {
        "tok_embeddings": RowwiseParallel(input_layouts=all_tokens, output_layouts=between),
        **{ATTENTION: entry, FEED_FORWARD: entry},
        **dict.fromkeys((f"{ATTENTION}.wq", f"{ATTENTION}.wk", f"{ATTENTION}.wv"), columns),
        **dict.fromkeys((f"{FEED_FORWARD}.w1", f"{FEED_FORWARD}.w3"), columns),
        **dict.fromkeys((f"{ATTENTION}.wo", f"{FEED_FORWARD}.w2"), rows),
        "output": scores,
        **(dict.fromkeys(NORMS, SequenceParallel()) if sequence_parallel else {}),
    }


def split_matrices(model: Any, mesh: DeviceMesh, sequence_parallel: bool = False, loss_parallel: bool = False) -> None:
    """Replace each matrix of a Llama by this worker's part of it. `mesh`: the group, of one dimension.

    Every rank of the group calls this with the same weights. An output matrix that is the embedding stays it:
    `parallelize_module` makes two parameters of them, which then train apart. Both are split by tokens.
    """
    tied = model.output.weight is model.tok_embeddings.weight
    parallelize_module(model, mesh, plan(sequence_parallel, loss_parallel))
    if tied:
        model.output.weight = model.tok_embeddings.weight


def put_together(parameters: Iterable[nn.Parameter]) -> None:
    """Sum what each worker's tokens gave to the gradients of weights that all of them have: those of norms.

    DTensor knows such a gradient as a partial one, and would sum it in each operation of an optimiser that reads it.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
            parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


def norm_of(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients of the model, from those that a rank holds; called by all ranks of a group.

    Tensors of one operation must lie on one mesh: split ones, whole ones, and those that FSDP2 shards are taken apart.
    """
    kinds = defaultdict[Any, list[torch.Tensor]](list)
    for parameter in parameters:
        if parameter.grad is not None:
            kinds[getattr(parameter.grad, "device_mesh", None)].append(parameter.grad)
    norms = [assembled(torch.nn.utils.get_total_norm(gradients)) for gradients in kinds.values()]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
