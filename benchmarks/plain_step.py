"""A framework's plain training step, as its own examples show it, beside our script's: blocks in turn.      [torch]

    torchrun --standalone --nproc-per-node 2 -m benchmarks.plain_step --framework torch_ddp --out FILE

Ours is built by the script itself, which also joins the process group; the plain one then wraps a second model of the
same weights. Both read the same resident batch. The script's own is built once more, as the control. Where our script
sets what the examples leave as it is, a fourth is the plain loop with our settings (ALIKE).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from benchmarks.built import build, rate
from benchmarks.paired import alternate
from benchmarks.plain_loops import FRAMEWORKS_WITH_A_LOOP
from scaling_study.measure.clock import Stopwatch
from scaling_study.ranks import Ranks, leave_torch
from scaling_study.records.store import write_json
from scaling_study.trial import Trial
from scaling_study.worker.script import ddp_settings
from scaling_study.workloads.resnet_cifar10 import MOMENTUM, Block, network

Step = Callable[[torch.Tensor, torch.Tensor], None]
MODEL = "resnet8"


def single(model: nn.Module, rate: float) -> Step:
    return usual(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM))


def torch_ddp(model: nn.Module, rate: float) -> Step:
    return single(nn.parallel.DistributedDataParallel(model), rate)


def torch_ddp_alike(model: nn.Module, rate: float) -> Step:
    return single(nn.parallel.DistributedDataParallel(model, **settings_of_ddp()), rate)


def settings_of_ddp() -> dict[str, Any]:
    """Of docs/reference/settings.md: no buffers are sent in forward, and no gradient is copied into its bucket."""
    workers = dist.get_world_size()
    return ddp_settings(Trial(framework="torch_ddp", workers=workers), Ranks(world_size=workers))


def torch_fsdp2(model: nn.Module, rate: float) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in [module for module in model.modules() if isinstance(module, Block)]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return single(model, rate)


def fairscale_oss(model: nn.Module, rate: float, **settings: Any) -> Step:
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=rate, momentum=MOMENTUM)
    return usual(ShardedDataParallel(model, optimizer, reduce_buffer_size=0, **settings), optimizer)  # or wrong


def deepspeed_zero(model: nn.Module, rate: float) -> Step:
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 2}, "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        engine.backward(F.cross_entropy(engine(images), labels))
        engine.step()

    return step


def lightning_ddp(model: nn.Module, rate: float, **settings: Any) -> Step:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=DDPStrategy(**settings))
    fabric.launch()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM))

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(wrapped(images), labels))
        optimizer.step()

    return step


def usual(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


ALIKE: dict[str, Callable[[nn.Module, float], Step]] = {
    "torch_ddp": torch_ddp_alike,
    "lightning_ddp": lambda model, rate: lightning_ddp(model, rate, **settings_of_ddp()),
    "fairscale_oss": partial(fairscale_oss, broadcast_buffers=False),
}
PLAIN = {f.__name__: f for f in (single, torch_ddp, torch_fsdp2, fairscale_oss, deepspeed_zero, lightning_ddp)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", required=True, choices=FRAMEWORKS_WITH_A_LOOP)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--swapped", action="store_true", help="the control is what is built first, before the plain loop"
    )
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # deepspeed's launcher passes it
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    trial = Trial(
        framework=asked.framework, model=MODEL, batch_per_worker=32, data="synthetic", device="cpu",
        zero_stage=2 if asked.framework == "deepspeed_zero" else None,
    )  # fmt: skip
    joined = build(trial)  # first: it joins the group and pins this process; it is not timed (paired.py says why)
    ours = build(trial, joined.ranks)
    torch.manual_seed(trial.seed)
    images, labels = next(ours.training.workload.batches)
    learning_rate = ours.training.optimizer.param_groups[0]["lr"]

    def plain(step: Step) -> Callable[[], float]:
        return partial(block, step, images.clone(), labels.clone(), asked.steps)

    step = PLAIN[asked.framework](network(MODEL), learning_rate)
    again = build(trial, ours.ranks)  # the control
    built = (again, ours) if asked.swapped else (ours, again)
    blocks = [partial(built[0].seconds, asked.steps), plain(step), partial(built[1].seconds, asked.steps)]
    if alike := ALIKE.get(asked.framework):
        blocks.append(plain(alike(network(MODEL), learning_rate)))
    turns = [partial(rate, seconds, ours.samples(asked.steps)) for seconds in blocks]
    for turn in turns:  # warm
        turn()
    taken = alternate(*turns, turns=asked.turns)
    if ours.ranks.rank == 0:
        write_json(asked.out, {"samples_per_second": taken, **ours.facts})
    leave_torch()


def block(step: Step, images: torch.Tensor, labels: torch.Tensor, steps: int) -> float:
    watch = Stopwatch(images.device)
    watch.start()
    for _ in range(steps):
        step(images, labels)
        watch.lap()
    return sum(watch.seconds())


if __name__ == "__main__":
    main()
