"""Layers split over workers, with no micro-batches: the lower bound of model parallelism.

    torchrun --standalone --nproc-per-node 2 pipeline/naive_model_parallel.py --model transformer_lm_deep

    worker 0   F .  .  B          one batch goes forward through all stages and back again: while one worker computes
    worker 1   .  F B  .          all others wait. p workers are as fast as one, less what the transfers take.

It trains a model that is too large for one device, and nothing more: the bubble is (p-1)/p of every step. A diff
against torch_pipeline.py shows what a schedule is; here the whole algorithm stands in step().

communication_bytes of one step, on a worker: send = activations to the next stage, gradients of them to the one before.
"""

import torch
import torch.distributed as dist

from scaling_study import workloads
from scaling_study.measure import Phase, Timeline, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.stages import Parts, Place, cut
from scaling_study.stages.stage import add_up
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def join(trial: Trial) -> Ranks:
    # 1 join: as torchrun sets rank and world size: one stage a worker
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then cut: every rank makes the whole model and keeps its own stage
    place = Place.of(trial, ranks)
    workload = workloads.load(trial, place.reading())
    unsplit = workload.model if trial.trained else None  # to be evaluated; what is only timed frees the other stages
    model = cut(workload, trial, ranks.device, ranks.agree).keep(place.mine)
    place.hand_over(workload, model.module())
    optimizer = place.optimizer(workload)
    parts = Parts(trial, place, unsplit, model, optimizer)

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    timeline, mine = Timeline(phase), ranks.rank
    stage, shape, handed_on = model.stages[mine], model.shapes[mine], model.shapes[mine + 1]

    def step(batch: workloads.Batch) -> torch.Tensor | None:
        loss = None
        if place.first:
            x = model.inputs(batch)
        else:
            x = torch.empty(shape.shape, dtype=shape.dtype, device=ranks.device)
            dist.recv(x, mine - 1)
            x.requires_grad_()
        with timeline("forward", mine, 0):
            output = stage(x, **model.extras(batch))
            if place.last:
                loss = model.loss(output, model.target(batch))
        if place.last:
            gradient = None
        else:
            dist.send(output.detach(), mine + 1)
            gradient = torch.empty(handed_on.shape, dtype=handed_on.dtype, device=ranks.device)
            dist.recv(gradient, mine + 1)
        with timeline("backward", mine, 0):
            (loss if place.last else output).backward(gradient)
        if not place.first:
            dist.send(x.grad, mine - 1)
        with phase("communication"):
            add_up(model.shared_parameters(), model.shared_like, place.along)
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach() if place.last else None

    return Training(
        step,
        workload,
        optimizer,
        phase,
        wire,
        weights=lambda: place.gathered(model.weights()),
        timeline=timeline,
        stages=model.about,
        whole=parts.whole,
        norm=parts.norm,
        state=parts,
    )


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("naive_model_parallel", join, build)
