"""Pipeline parallelism with torch.distributed.pipelining: each worker holds stages, micro-batches pass through them.

    torchrun --standalone --nproc-per-node 2 pipeline/torch_pipeline.py --model transformer_lm_deep --schedule 1f1b

         gpipe, 2 workers, 4 micro-batches                 1f1b
         F0 F1 F2 F3 .  .  B0 B1 B2 B3                     F0 F1 .  B0 F2 B1 F3 B2 .  B3
         .  F0 F1 F2 F3 B0 B1 B2 B3 .                      .  F0 B0 F1 B1 F2 B2 F3 B3 .

A stage waits until the first micro-batch reaches it and after its last has left: of p workers and m micro-batches that
bubble is (p-1)/(m+p-1) of the step (Huang et al., arXiv 1811.06965). 1F1B (Narayanan et al., 2104.04473) has the same,
but keeps at most p micro-batches' activations, GPipe all m. Interleaved schedules give a worker v stages and divide the
bubble by v; zero-bubble ones (Qi et al., 2401.10241) fill it with the part of backward that no stage waits for.

communication_bytes of one step, on a worker: send = m x activations to the next stage, m x gradients of them to the
one before. With replicas: allreduce = this worker's parameters x 4 (fp32) or x 2 (fp16, bf16).
With --tensor-parallel several workers share the matrices of a stage, as in tensor/torch_tp.py, whose bytes come beside.
With --shard-group s, s replicas hold each stage in shards (fsdp/torch_fsdp2.py): of W weights in a stage, all_gather
= reduce_scatter = W x 4 once a step, and between groups of replicas allreduce = W x 4 / s.
"""

from functools import partial
from inspect import signature

import torch
from torch.distributed import pipelining

from scaling_study import workloads
from scaling_study.measure import Phase, Timeline, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.stages import Parts, Place, cut, micro_batches
from scaling_study.stages.matrices import split_matrices
from scaling_study.stages.stage import add_up, average, connected, fused_bytes, reducing, watched
from scaling_study.trial import Trial
from scaling_study.worker.script import run
from scaling_study.worker.with_fsdp2 import shard_stage, whole_gradients

SCHEDULES = {  # classes of torch.distributed.pipelining: an older torch has not all of them
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "interleaved_zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv_zero_bubble": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
ONE_STAGE = ("gpipe", "1f1b")  # these take a stage, the others a list of them


def join(trial: Trial) -> Ranks:
    # 1 join: as torchrun sets rank and world size
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then cut: every rank makes the whole model and keeps its own stages
    place = Place.of(trial, ranks)
    workload = workloads.load(trial, place.reading())
    workload.notes += micro_batches(workload, trial.micro_batches)
    unsplit = workload.model if trial.trained else None  # to be evaluated; what is only timed frees the other stages
    split = partial(split_matrices, mesh=place.matrices) if place.matrices else None
    model = cut(workload, trial, ranks.device, ranks.agree, split).keep(place.mine)
    if place.shards:
        shard = partial(shard_stage, blocks=workload.blocks, mesh=place.shards, trial=trial)
        model = model.sharded(shard, place.shard, trial.shard_group)
    place.hand_over(workload, model.module())
    optimizer = place.optimizer(workload)
    parts = Parts(trial, place, unsplit, model, optimizer)

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    timeline = Timeline(phase)
    stages = [
        pipelining.PipelineStage(
            stage,
            index,
            len(model.shapes) - 1,
            ranks.device,
            group=place.along,
            input_args=model.shapes[index],
            output_args=model.shapes[index + 1],
        )
        for index, stage in model.stages.items()
    ]
    loss = watched(stages, lambda output, target: model.loss(output, target) / trial.micro_batches, timeline)
    take = stages[0] if trial.schedule in ONE_STAGE else stages
    # Each micro-batch has its share of the loss: torch would divide gradients stage by stage, those of a weight that
    # two stages of one worker share (the layer of ALBERT) twice.
    schedule = getattr(pipelining, SCHEDULES[trial.schedule])(
        take, trial.micro_batches, loss_fn=loss, scale_grads=False
    )
    connected(schedule, stages)
    if place.shards:
        reducing(stages, phase)
    # Nobody reads the outputs; before torch 2.10 they are joined all the same.
    unread = {"return_outputs": False} if "return_outputs" in signature(schedule.step).parameters else {}

    def step(batch: workloads.Batch) -> torch.Tensor | None:
        losses = [] if place.last else None
        target = model.target(batch) if place.last else None
        inputs = [model.inputs(batch)] if place.first else []
        schedule.step(*inputs, target=target, losses=losses, **unread, **model.extras(batch))
        with phase("communication"):
            add_up(model.shared_parameters(), model.shared_like, place.along)
            if not place.shards:  # whose gradients FSDP2 has averaged
                average(workload.model.parameters(), place.across, trial.allreduce)
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(losses).sum().detach() if place.tells else None

    ours = list(workload.model.parameters())
    kept = {"buckets": fused_bytes(ours, place.across)}
    if place.shards:  # whose gradients add up whole
        kept = {"gradients": whole_gradients(ours, trial.allreduce)}
    return Training(
        step, workload, optimizer, phase, wire, weights=lambda: place.gathered(model.weights()), timeline=timeline,
        stages=model.about, held=lambda: {"buckets": wire.largest["reduce_scatter"], **kept},
        whole=parts.whole, norm=parts.norm, state=parts,
    )  # fmt: skip


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_pipeline", join, build)
