"""A small Llama, trained by two ranks that split it, rightly and in wrong ways: how far each is off.

    torchrun --nproc-per-node 2 tests/stages/split_llamas.py OUT.json     {"plain": {"weights": 1e-16, "norm": 1e-16}}

Off: as the parity gate has it (scaling_study/parity/compare.py), of one process that trains the same model for STEPS of
plain SGD in fp64; `norm`: of the gradients after them, `clipped`: of these, clipped to half of it.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from scaling_study.models import Decoder
from scaling_study.parity.compare import weight_errors
from scaling_study.stages import matrices
from scaling_study.stages.stage import assembled, own
from scaling_study.train.loop import clip
from scaling_study.workloads.llama import Attention, Llama, turned
from scaling_study.workloads.wikitext2 import cross_entropy

RATE, STEPS = 0.5, 3
SHAPE = Decoder(layers=2, width=32, heads=4, kv_heads=2, feed_forward=48, vocabulary=96, length=8, head_dim=8)
Batch = tuple[torch.Tensor, torch.Tensor]
Share = Callable[[Any, DeviceMesh], object]


@dataclass(frozen=True)
class Way:
    """How the model is split over two ranks, and what is changed about it before, alone as well."""

    share: Share
    change: Callable[[Any], object] = lambda model: None
    tied: bool = False
    loss_parallel: bool = False
    replicas: int = 1
    reads_apart: bool = False  # the ranks of one group


def batch(step: int, reader: int) -> Batch:
    generator = torch.Generator().manual_seed(10 * step + reader)
    text = torch.randint(SHAPE.vocabulary, (2, SHAPE.length + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def gradients(model: nn.Module, batches: Iterable[Batch], parallel: bool) -> None:
    for tokens, targets in batches:
        with loss_parallel() if parallel else nullcontext():
            cross_entropy(model(tokens), targets).backward()
    matrices.put_together(model.parameters())


def trained(model: nn.Module, readers: list[int], parallel: bool = False) -> None:
    """STEPS of plain SGD on the batches of so many readers each, and the gradients of one more."""
    for step in range(STEPS):
        gradients(model, [batch(step, reader) for reader in readers], parallel)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-RATE / len(readers))
                parameter.grad = None
    gradients(model, [batch(STEPS, reader) for reader in readers], parallel)


def off(way: Way, mesh: DeviceMesh) -> dict[str, float]:
    """How far the ranks are off one process, by the weights that they hold together and by their gradients' norm."""
    torch.manual_seed(0)
    alone = Llama(replace(SHAPE, tied=way.tied)).double()
    way.change(alone)
    model = copy.deepcopy(alone)
    replica, part = mesh.get_coordinate() or (0, 0)
    way.share(model, mesh)
    trained(model, [replica + part * way.reads_apart], way.loss_parallel)
    trained(alone, list(range(way.replicas)))
    ours = {name: assembled(tensor.detach()) for name, tensor in model.state_dict().items()}
    right = torch.cat([p.grad.flatten() for p in alone.parameters() if p.grad is not None]).norm() / way.replicas
    norm = matrices.norm_of(list(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    clip(optimizer, float(right) / 2, matrices.norm_of)
    optimizer.step()
    clipped = matrices.norm_of(list(model.parameters()))
    return {
        "weights": max(weight_errors(ours, alone.state_dict()).values()),
        "norm": float((norm - right).abs() / right),
        "clipped": float((2 * clipped - right).abs() / right),
    }


def split(sequence: bool = False, loss: bool = False) -> Share:
    return lambda model, mesh: matrices.split_matrices(model, mesh["tensor"], sequence, loss)


def replicated(model: Any, mesh: DeviceMesh, sequence: bool = False, summed: bool = False) -> None:
    """As tensor/torch_tp.py does it. `summed`: and nobody divides by the replicas."""
    matrices.split_matrices(model, mesh["tensor"], sequence)
    for unit in (*model.layers, model):
        fully_shard(unit, mesh=mesh["replica"])
        if summed:
            unit.set_gradient_divide_factor(1.0)


class Fused(Attention):
    """Queries, keys and values by one matrix, whose product is cut by how many heads each has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.wqkv(x)
        heads = (self.heads, self.kv_heads, self.kv_heads)
        parts = product.split([product.shape[-1] * count // sum(heads) for count in heads], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        angles = self.rotary(q)
        attended = self.attend(turned(q, *angles), turned(k, *angles), v)
        return self.wo(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def fuse(model: Any) -> None:
    for block in model.layers:
        attention = block.attention
        weight = torch.cat([attention.wq.weight, attention.wk.weight, attention.wv.weight]).detach()
        attention.wqkv = nn.Linear(*reversed(weight.shape), bias=False)
        attention.wqkv.weight = nn.Parameter(weight)
        del attention.wq, attention.wk, attention.wv
        attention.__class__ = Fused


def cut_the_fused(model: Any, mesh: DeviceMesh) -> None:
    """By rows, as any other matrix: a worker has queries only, the other the keys and values."""
    gone = [f"{matrices.ATTENTION}.{name}" for name in ("wq", "wk", "wv")]
    plan = {name: style for name, style in matrices.plan().items() if name not in gone}
    parallelize_module(model, mesh["tensor"], {**plan, f"{matrices.ATTENTION}.wqkv": ColwiseParallel()})


def leave_untied(model: Any, mesh: DeviceMesh) -> None:
    parallelize_module(model, mesh["tensor"], matrices.plan())


def feed_whole_sequences(model: Any, mesh: DeviceMesh) -> None:
    """To norms that take what they are given for their part of the tokens."""
    plan = matrices.plan(sequence_parallel=True)
    del plan["norm"]
    plan["tok_embeddings"] = RowwiseParallel(input_layouts=Replicate())
    plan["output"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh["tensor"], plan)


def leave_norms_apart(model: Any, mesh: DeviceMesh) -> None:
    """Plain tensors, each worker's with the gradients of its own tokens."""
    plan = matrices.plan(sequence_parallel=True)
    parallelize_module(model, mesh["tensor"], {name: plan[name] for name in plan if name not in matrices.NORMS})


def add_biases(model: Any) -> None:
    """To what the feed-forward layers give: on every worker that has a part of it."""

    def biased(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        bias = own(module.added)
        if not isinstance(output, DTensor):
            return output + bias
        return DTensor.from_local(output.to_local() + bias, output.device_mesh, output.placements, run_check=False)

    for block in model.layers:
        down = block.feed_forward.w2
        down.added = nn.Parameter(torch.linspace(-0.1, 0.1, SHAPE.width, dtype=torch.float64))
        down.register_forward_hook(biased)


RIGHT = {
    "plain": Way(split()),
    "tied": Way(split(), tied=True),
    "loss parallel": Way(split(loss=True), loss_parallel=True),
    "sequence parallel": Way(split(sequence=True)),
    "both, tied": Way(split(sequence=True, loss=True), loss_parallel=True, tied=True),
    "replicas": Way(replicated, replicas=2, tied=True),
    "replicas, sequence parallel": Way(partial(replicated, sequence=True), replicas=2),
}
WRONG = {
    "fused QKV": Way(cut_the_fused, fuse),
    "weights untied": Way(leave_untied, tied=True),
    "whole sequences fed to parts": Way(feed_whole_sequences),
    "a bias on every worker": Way(split(), add_biases),
    "gradients of norms not put together": Way(leave_norms_apart),
    "gradients not divided by replicas": Way(partial(replicated, summed=True), replicas=2),
    "workers of a group read apart": Way(split(), reads_apart=True),
}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    names = ("replica", "tensor")
    meshes = {count: init_device_mesh("cpu", (count, 2 // count), mesh_dim_names=names) for count in (1, 2)}
    found = {name: off(way, meshes[way.replicas]) for name, way in {**RIGHT, **WRONG}.items()}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
