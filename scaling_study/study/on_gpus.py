"""Seconds and memory of trials on GPUs, estimated before anything has run there. Pure.

    seconds of a step    samples x seconds of one on an H200 x its dense peak / this GPU's    within a factor of two
    memory of a GPU      context + NCCL + weights, gradients and optimiser + samples x one's  within DOUBT

Measured on one H200 (examples/results/one-gpu: throughput, and "Memory against batch"): of `single`, in 16 bits, not
compiled. Compiling makes steps shorter, sharding takes memory away, and networks add seconds: none of them is counted.
A Llama is counted in closed form instead (meshes.py), with all that shards it. Another model that is not in the table
has no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import MODELS
from scaling_study.study import meshes
from scaling_study.trial import Trial

GIB = 2**30
DOUBT = 0.25  # of an estimate of memory
MOST_MEMORY = 0.6  # of a GPU's, of the machine's and of what a container may use, that groups may have together
# Assumed, not measured: of one process on a GPU, its context with the kernels that torch loads and cuBLAS's workspace;
# and what NCCL keeps for one communicator.
CONTEXT_BYTES, NCCL_BYTES = 0.6 * GIB, 1.0 * GIB
H200_TFLOPS = 989.0  # dense, bf16: the data sheet's
UTILISATION = 0.4  # assumed of a Llama: torchtitan reaches 0.33 to 0.39 on H100s (analysis/published/references.csv)
WIDE = {"fp32": 2.0, "fp64": 4.0}  # precision of compute -> its bytes, and at least its seconds, against 16 bits


@dataclass(frozen=True)
class Sample:
    """One sample of a model in 16 bits on one H200, and the model's state."""

    seconds: float  # of a training step, at the larger of the batches that were measured
    bytes: float  # that it adds to the peak
    size: int  # of which these are: pixels of a side, or tokens
    state_bytes: float  # weights, gradients and optimiser in fp32


SAMPLES: Mapping[str, Sample] = {
    "gpt2": Sample(1 / 160.4, 1337e6, 1024, 16 * 124_439_808),  # AdamW
    "resnet50": Sample(1 / 6320, 45.4e6, 224, 12 * 25_557_032),  # SGD with momentum; of 1,000 classes
    "vit_small_dataset": Sample(1 / 51_775, 3.55e6, 32, 16 * 4_371_438),
}
DATA_SIDE = 32  # pixels of CIFAR-10's images, where a trial names no size


def step_seconds(trial: Trial, machine: Machine) -> float | None:
    """Seconds of one step of a worker on a GPU of the machine; None for a model that is not known.

    A GPU whose peak no machine file names counts as an H200.
    """
    tflops, wide = machine.gpu_tflops or H200_TFLOPS, WIDE.get(trial.precision, 1.0)
    if found := meshes.of_trial(trial):
        mesh, work = found
        flops = 3 * meshes.SHAPES[trial.model].forward_flops(work.length) * work.tokens / mesh.group
        return flops / (UTILISATION * tflops * 1e12) * wide
    if not (sample := SAMPLES.get(trial.model)):
        return None
    return trial.batch_per_worker * sample.seconds * _larger(trial, sample) * H200_TFLOPS / tflops * wide


def group_bytes(trials: Iterable[Trial]) -> float | None:
    """Bytes of one GPU that a process takes which keeps all these configurations; None where one is not known.

    Their states add up. Activations take the same memory, one configuration after the other.
    """
    known = list(trials)
    parts = [part for trial in known if (part := _parts(trial))]
    if len(parts) < len(known):
        return None
    several = any(trial.workers > 1 for trial in known)
    processes = CONTEXT_BYTES + NCCL_BYTES * several
    return processes + sum(state for state, _ in parts) + max(activations for _, activations in parts)


def _parts(trial: Trial) -> tuple[float, float] | None:
    """Bytes of a GPU that stay from step to step, and those of a batch; None of a trial that is not known."""
    if (sample := SAMPLES.get(trial.model)) and not trial.checkpoint:
        return sample.state_bytes, _activations(trial, sample)
    if found := meshes.of_trial(trial):
        held = meshes.memory(meshes.SHAPES[trial.model], *found)
        moving = held["activations"] + held["scores"]
        return sum(held.values()) - moving, moving
    return None


def why_too_large(trial: Trial, machine: Machine) -> str:
    """Why a batch cannot fit into a GPU of the machine, with one that would; empty where it may fit, or none knows.

    Figures of SAMPLES are those of whole models that are not compiled: others keep less.
    """
    keeps_less = trial.compile or trial.cross_entropy == "chunked" or trial.dropout == 0
    if trial.model in SAMPLES and (keeps_less or FRAMEWORKS[trial.framework].cuts_model):
        return ""
    room, need, parts = machine.gpu_memory_bytes, group_bytes([trial]), _parts(trial)
    if not room or not need or not parts or (1 - DOUBT) * need <= room or trial.find:
        return ""
    each = parts[1] / trial.batch_per_worker
    fits = math.floor((room - need) / each) + trial.batch_per_worker
    instead = f"about {fits} would (find: max_batch measures it)" if fits > 0 else "no batch does"
    batch = f"batch_per_worker={trial.batch_per_worker} of {trial.model}"
    return f"{batch} needs some {need / GIB:,.0f} GiB of a GPU by estimate, and has {room / GIB:,.0f}: {instead}"


def side_by_side(groups: Sequence[Sequence[Trial]], gpu_memory_bytes: int) -> str:
    """The groups that the fullest GPU holds at once by the estimate, and those that get another launch, in words.

    Every group has a process on the first GPU. As in a launch, the first one without room ends the list.
    """
    sizes = [group_bytes(group) for group in groups]
    if not gpu_memory_bytes or None in sizes:
        return "groups share the GPUs as long as they have room: the memory of some groups cannot be estimated"
    most = MOST_MEMORY * gpu_memory_bytes
    filled = list(accumulate(size or 0.0 for size in sizes))
    alive = max(1, sum(1 for total in filled if total <= most))
    text = (
        f"estimated: {alive} of {len(groups)} groups of processes fit on the GPUs together, in "
        f"{filled[alive - 1] / GIB:.0f} of {gpu_memory_bytes / GIB:.0f} GiB of the fullest GPU (contexts and NCCL's "
        "buffers counted)"
    )
    others = [f"{group[0].framework} with {group[0].workers} workers" for group in groups[alive:]]
    return f"{text}; in separate launches: {', '.join(others)}" if others else text


def _activations(trial: Trial, sample: Sample) -> float:
    """Bytes beside the state that a step of the trial keeps at most: of one micro-batch."""
    wide = WIDE.get(trial.precision, 1.0)
    return trial.batch_per_worker / trial.accumulation * sample.bytes * _larger(trial, sample) * wide


def _larger(trial: Trial, sample: Sample) -> float:
    """How much more a sample of the trial is than the one that was measured: by its pixels, or by its tokens."""
    if "image_size" in MODELS[trial.model].keys:
        return ((trial.image_size or DATA_SIDE) / sample.size) ** 2
    return (trial.sequence_length or sample.size) / sample.size
