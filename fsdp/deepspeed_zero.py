"""Sharded data parallelism with DeepSpeed's ZeRO: of optimiser state, gradients and weights each worker keeps 1/n.

    deepspeed --num_gpus 2 fsdp/deepspeed_zero.py --model resnet18 --zero-stage 2 --allreduce fp16

An engine takes the place of model and optimiser, and configuration that of code. --zero-stage says what is sharded
(Rajbhandari et al., arXiv 1910.02054): 0 nothing, 1 optimiser state, 2 (also if left out) gradients too, 3 weights too.
One step of P parameters, with g bytes a gradient (4; 2 with --allreduce fp16 or bf16) and A micro-batches:

    stage 0, 1   allreduce P g; 1 also all_gather P x 4, each part of the new weights, padded to a multiple of 2 n
    stage 2      allreduce A P g, all_gather P x 4    a worker drops what it does not keep only after an allreduce
    stage 3      reduce_scatter A P g, all_gather 2 A P x 4    each tensor is padded to a multiple of n

and, from stage 1 on, a norm of the gradients, unasked (4 bytes; at stage 3, in fp64, 8). In 16-bit compute stage 3
gathers weights as --allreduce says too. That is stage 3 with --tuned-for memory; for speed tensors below 1e5 stay whole
and 1e9 weights from forward to backward (F24). Reductions are in `backward`, the gathering of weights in `optimizer`.
"""

import os
from collections.abc import Iterable

import torch

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")  # or it warns of no GPU

import deepspeed
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.lr_schedules import OneCycle

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run

SIXTEEN_BIT = {"fp16": torch.float16, "bf16": torch.bfloat16}
LEAST_KEPT = ("stage3_param_persistence_threshold", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size")


def join(trial: Trial) -> Ranks:
    # 1 join: as the launcher sets rank, world size and address; DeepSpeed adopts the process group that is there
    ranks = join_torch(trial)
    if ranks.device.type == "cpu":
        set_accelerator(CPU_Accelerator())  # also where there is a GPU
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # half a minute to compile, for inference only
    return ranks


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: the engine flattens the parameters and gives the optimiser this worker's part of them
    workload, stage = workloads.load(trial, ranks), 2 if trial.zero_stage is None else trial.zero_stage
    model, optimizer = workload.model, workload.optimizer(workload.model.parameters())
    config, schedule = settings(trial, stage, workload), train.schedule(trial, workload, OneCycle)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, lr_scheduler=schedule)

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, _ in workload.micro_batches(batch):
            with phase("forward"):
                loss = workload.share(engine, part)
            with phase("backward"):
                engine.backward(loss, scale_wrt_gas=False)  # a share is divided by the micro-batches already
            with phase("optimizer"):
                engine.step()  # counts them, and steps after the last
            losses.append(loss.detach())
        return sum(losses)

    return Training(
        step, workload, optimizer, phase, wire, weights=lambda: whole(model), held=lambda: held(engine, stage),
        forward=engine, state=train.Own(engine.save_checkpoint, engine.load_checkpoint), native=train.Loop.fit,
        scaler=engine.torch_autocast_z0_gradscaler, backend={"deepspeed": deepspeed.__version__, "zero_stage": stage},
    )  # fmt: skip


def settings(trial: Trial, stage: int, workload: workloads.Workload) -> dict[str, object]:
    """DeepSpeed's configuration of the trial: what differs from its defaults, and why."""
    half, least, native = trial.precision in SIXTEEN_BIT, trial.tuned_for == "memory", trial.train_loop == "native"
    if half:  # under its autocast DeepSpeed asks each weight what travels, and not communication_data_type
        for parameter in workload.model.parameters():
            parameter.comm_dtype = SIXTEEN_BIT.get(trial.allreduce, torch.float32)
    return {
        "train_micro_batch_size_per_gpu": trial.batch_per_worker // trial.accumulation,
        "gradient_accumulation_steps": trial.accumulation,
        "log_level": "error",
        "gradient_clipping": (native and trial.train_clip_norm) or 0.0,  # its default of 1.0 is another training
        "zero_allow_untested_optimizer": True,  # torch's SGD
        "communication_data_type": "fp32" if trial.allreduce == "none" else trial.allreduce,
        "torch_autocast": {  # it switches off a GPU's autocast that is not its own
            "enabled": half,
            "dtype": str(SIXTEEN_BIT.get(trial.precision, torch.bfloat16)).removeprefix("torch."),
            "lower_precision_safe_modules": [],  # to compute in 16 bits, and to reduce in what `allreduce` says
        },
        "timers": {"throughput": {"enabled": native}},  # its default: it waits for the device in every step
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": min(500_000_000, workload.parameters),  # its default is 2 GB, allocated for any model
            "overlap_comm": stage == 3 or (stage == 2 and not least),  # its default at 3; at 2 it takes a second bucket
            **(dict.fromkeys(LEAST_KEPT, 0) if least else {}),
        },
    }


def whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of all weights and buffers; called by all ranks. Below stage 3 there is nothing to gather."""
    with deepspeed.zero.GatheredParameters(model.parameters()):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def held(engine: deepspeed.DeepSpeedEngine, stage: int) -> dict[str, Iterable[torch.Tensor] | int]:
    """ZeRO's flat parts by kind, and the buckets that gradients are reduced from; all else is where torch has it."""
    zero = engine.optimizer
    if stage == 0:
        return {"buckets": sum(p.nbytes for p in engine.module.parameters())}  # one flat copy of all gradients
    if stage == 3:
        parts, buckets = zero.fp16_partitioned_groups_flat, [bucket.buffer for bucket in zero.ipg_buckets.values()]
        weights = [*parts, *engine.module.parameters()]  # these hold what stays whole
        return {"parameters": weights, "gradients": [zero.grad_partitions_flat_buffer], "buckets": buckets}
    master = zero.single_partition_of_fp32_groups  # a second copy of this worker's part, even of fp32 weights
    state = [tensor for entry in engine.basic_optimizer.state.values() for tensor in entry.values()]
    bucket = zero.reduce_bucket_size * zero._gradient_reduction_buffer_dtype().itemsize  # they live during backward
    kept = {"optimizer": [*master, *state], "buckets": bucket * len(zero.ipg_buckets) * (1 + zero.overlap_comm)}
    return {**kept, "gradients": master} if stage == 2 else kept  # they are as large as what they belong to


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("deepspeed_zero", join, build)
