"""Sharded data parallelism with FairScale's FullyShardedDataParallel, which torch's own FSDP descends from.

    torchrun --standalone --nproc-per-node 2 fsdp/fairscale_fsdp.py --model resnet18 --zero-stage 3

A worker keeps 1/n of all parameters, gradients and optimiser state (ZeRO: Rajbhandari et al., arXiv 1910.02054; Xu et
al., arXiv 2004.13336). Every block of the model is a unit with one flat parameter, what is left is one more. A unit is
gathered before its forward, freed, gathered again before its backward, and its gradients are reduced straight into
shards; with `--zero-stage 2` it stays gathered in between. As a single unit (`--wrap none`) the model is gathered
whole: little memory saved, nothing overlapped (F24).

One step without accumulation hands over, for B parameters in blocks and R outside, each unit padded to a multiple of n:

    all_gather       4 (2 B + R) bytes     stage 2: 4 (B + R). What is outside blocks always stays until its backward.
    reduce_scatter   4 (B + R)

FairScale has no precision of the wire by itself. With `--precision fp16` weights are gathered, and compute, in fp16 (2
bytes above); BatchNorms stay fp32, in units of their own. Then, and only then, gradients can travel as fp16 too. bf16
is torch's autocast over fp32 weights. With no GPU its streams are stubbed (scaling_study/worker/script.py).
"""

from contextlib import nullcontext

import torch
from fairscale.internal import reduce_scatter_bucketer
from fairscale.nn import FullyShardedDataParallel, auto_wrap, enable_wrap
from fairscale.nn.data_parallel import fully_sharded_data_parallel
from fairscale.optim.grad_scaler import ShardedGradScaler
from torch import nn

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import put_fairscale_on_cpu, run

KEEP_FP32 = {"mixed_precision": False, "fp32_reduce_scatter": False, "reshard_after_forward": False}


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    ranks = join_torch(trial)
    if ranks.device.type == "cpu":
        put_fairscale_on_cpu(fully_sharded_data_parallel, reduce_scatter_bucketer)
    return ranks


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: block by block, then the rest; only then the optimiser, which is to see shards
    workload = workloads.load(trial, ranks)
    model = sharded(workload, trial, ranks.device)
    optimizer = workload.optimizer(model.parameters())
    units = sum(isinstance(module, FullyShardedDataParallel) for module in model.modules())

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    # each rank sees its own shards only: whether some gradient overflowed, and the step is left out, is agreed on
    scaler = ShardedGradScaler(enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, last in workload.micro_batches(batch):
            with nullcontext() if last else model.no_sync():  # whole gradients add up; the last backward reduces
                with phase("forward"):
                    loss = workload.share(model, part)
                with phase("backward"):
                    scaler.scale(loss).backward()
                    drop_hooks(model)
            losses.append(loss.detach())
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    return Training(
        step, workload, optimizer, phase, wire,
        weights=model.state_dict,  # gathers: whole tensors, by the plain model's names
        # the outermost unit's shard hangs on the wrapper; buckets of small units are freed after backward
        held=lambda: {"parameters": model.parameters(), "buckets": bucket_bytes(model)},
        forward=model, scaler=scaler,
        state=train.PerRank(
            lambda: [model.local_state_dict(), optimizer.state_dict()],
            lambda saved: [model.load_local_state_dict(saved[0]), optimizer.load_state_dict(saved[1])],
        ),
        backend={"units": units, "cpu adapter": ranks.device.type == "cpu"},
    )  # fmt: skip


def sharded(workload: workloads.Workload, trial: Trial, device: torch.device) -> nn.Module:
    """The workload's model with every block, and then all that is left of it, as units of their own."""
    half = trial.precision == "fp16"
    if trial.allreduce == "fp16" and not half:
        raise SystemExit("--allreduce fp16 needs --precision fp16: FairScale reduces gradients as they were computed")
    if half:
        for module in workload.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.wrapper_config = KEEP_FP32

    def is_unit(module: nn.Module, recurse: bool, module_is_root: bool, **_: int) -> bool:
        return recurse or module_is_root or isinstance(module, workload.blocks) or hasattr(module, "wrapper_config")

    double = trial.precision == "fp64"
    settings = {
        "reshard_after_forward": trial.zero_stage != 2,
        "mixed_precision": half,
        "fp32_reduce_scatter": half and trial.allreduce != "fp16",
        "buffer_dtype": torch.float64 if double else None,  # None: as they compute
    }
    with enable_wrap(is_unit, wrapper_cls=FullyShardedDataParallel, compute_device=device, **settings):
        model = auto_wrap(workload.model.float())  # it wraps fp32 only,
    return model.double() if double else model  # and converts what is wrapped


def bucket_bytes(model: FullyShardedDataParallel) -> int:
    """Bytes of what small units' gradients are collected in, and of the shards that come out; none before a step."""
    buckets = model._reducer.buckets.values() if model._reducer else ()
    return sum(bucket.data.nbytes + bucket.output_shard.nbytes for bucket in buckets)


def drop_hooks(model: nn.Module) -> None:
    """Take away what each forward hooks onto each flat parameter: FairScale never does, and step n would call n."""
    for parameter in model.parameters():
        if hook := getattr(parameter, "_shard_bwd_hook", None):  # (node of the graph, handle)
            hook[1].remove()


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("fairscale_fsdp", join, build)
