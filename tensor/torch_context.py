"""Context parallelism by hand: workers share every sequence, and attention alone brings its parts together.

    torchrun --standalone --nproc-per-node 2 tensor/torch_context.py --model llama_tiny --attention all_gather

A diff against data_parallel/torch_ddp.py shows all that it asks for: a mesh, a part of each sequence, and an attention
over parts (torch's own has no kernel for CPUs). Norms, projections, MLP and scores treat each token by itself.

    all_to_all   tokens of a part, all heads --> all tokens, some heads --> attention --> tokens of the part, all heads
                 (DeepSpeed-Ulysses: Jacobs et al., arXiv 2309.14509); the workers divide the key/value heads
    all_gather   keys and values of all tokens, for the queries of a part (as Llama 3 was trained: arXiv 2407.21783)

communication_bytes of one step of L layers, b sequences of l tokens, width d, keys of width d_kv, e bytes a value:
all_to_all = 4 L b (l/n) (d + d_kv) e; or all_gather = reduce_scatter = 2 L b l d_kv e. With either, allreduce =
parameters x 4, and one value: the loss, of which each part has its share.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire, ddp_buckets
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import ddp_settings, run

HEADS, TOKENS = 1, 2  # dimensions of queries, keys and values: b x heads x tokens x width of a head


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: the workers of one replica read the same sequences, and each trains on its part of them
    n, replicas = trial.context_parallel, trial.data_parallel
    mesh = init_device_mesh(ranks.device.type, (replicas, n), mesh_dim_names=("replica", "part"))
    group, (replica, mine) = mesh.get_group("part"), mesh.get_coordinate()
    workload = workloads.load(trial, replace(ranks, rank=replica, world_size=replicas))
    share(workload.model, trial.attention, group, workload.batches.peek()[0].shape[1])
    if mine > 0:
        workload.samples_per_step, workload.tokens = 0, None  # samples count once, where the loss is told
    model = DistributedDataParallel(workload.model, **ddp_settings(trial, ranks))
    optimizer = workload.optimizer(model.parameters())

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire(activations=("reduce_scatter",))  # of keys and values

    def step(batch: workloads.Batch) -> torch.Tensor | None:
        losses = []
        for whole, last in workload.micro_batches(batch):
            part = [tensor.chunk(n, 1)[mine] for tensor in whole]  # tokens and targets, of which -100 do not count
            with nullcontext() if last else model.no_sync():
                with phase("forward"):
                    loss = workload.share(model, part) * (part[1] >= 0).sum() / (whole[1] >= 0).sum()
                with phase("backward"):
                    (loss * n).backward()  # DDP takes the mean over all workers, and n of them make one gradient
            losses.append(loss.detach())
        with phase("communication"):
            dist.all_reduce(loss := sum(losses), group=group)
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return None if mine else loss

    state = train.Distributed(workload.model, optimizer)
    return Training(step, workload, optimizer, phase, wire, held=lambda: {"buckets": ddp_buckets(model)}, state=state)


def share(model: torch.nn.Module, attention: str, group: dist.ProcessGroup, length: int) -> None:
    """Have the model train on this worker's part of sequences of this length; evaluated, it reads whole ones."""
    places = torch.arange(length, device=next(model.parameters()).device)
    own = places.chunk(dist.get_world_size(group))[dist.get_rank(group)]
    seen = own[:, None] >= places  # by each query, of all keys

    def attend(whole, q, k, v):
        if not model.training:
            return whole(q, k, v)
        if attention == "all_to_all":
            q, k, v = (Exchange.apply(x, group, HEADS, TOKENS) for x in (q, k, v))
            return Exchange.apply(whole(q, k, v), group, TOKENS, HEADS)
        k, v = (Gather.apply(x, group).repeat_interleave(q.shape[HEADS] // x.shape[HEADS], HEADS) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, seen)

    model.register_forward_pre_hook(lambda *_: setattr(model.rotary, "positions", own if model.training else None))
    for block in model.layers:
        block.attention.attend = partial(attend, block.attention.attend)


class Exchange(torch.autograd.Function):
    """A tensor cut along one dimension, a piece to each worker; the pieces that come are joined along another."""

    @staticmethod
    def forward(ctx, x, group, cut, join):
        ctx.back = group, join, cut
        pieces = torch.stack(x.chunk(dist.get_world_size(group), cut))
        dist.all_to_all_single(come := torch.empty_like(pieces), pieces, group=group)
        return torch.cat(come.unbind(), join)

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.back), None, None, None


class Gather(torch.autograd.Function):
    """The tokens of all workers; backward, the sum of all workers' gradients of this worker's own tokens."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, n = group, dist.get_world_size(group)
        dist.all_gather_into_tensor(come := x.new_empty(n * len(x), *x.shape[1:]), x.contiguous(), group=group)
        return torch.cat(come.chunk(n), TOKENS)

    @staticmethod
    def backward(ctx, gradient):
        pieces = gradient.chunk(dist.get_world_size(ctx.group), TOKENS)
        dist.reduce_scatter_tensor(own := gradient.new_empty(pieces[0].shape), torch.cat(pieces), group=ctx.group)
        return own, None


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_context", join, build)
