"""Bytes and kernels of a training step of GPT-2, as each key changes them, and of a Llama by `checkpoint`.   [torch]

    python -m benchmarks.step_bytes        some minutes on two cores; a busy machine changes no figure

data/step_bytes.csv, of GPT-2:

Two of its twelve layers and its whole vocabulary, one sequence of 1,024 tokens in bf16, on the CPU. Each row adds its
key to those of the rows above; the compiled ones have the whole cross-entropy again. The second step is counted, with
the optimiser's state in place, by torch's profiler, which sees each allocation:

    kept            bytes that forward leaves for backward
    peak            most bytes at one time, above those between steps (weights, the optimiser's state)
    kernels         operations of forward and backward that compute something, compiled ones included
    update kernels  those of the optimiser

data/checkpoint_bytes.csv, of SmolLM2-135M: four of its 30 layers, one sequence of 2,048 tokens in bf16. FLOPs:
those of forward and backward, by FlopCounterMode.

A GPU keeps the same tensors, but for what its kernels of attention keep. No time is shown: that takes a GPU.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import MEMORY_EVENT_NAME, FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from scaling_study.models import MODELS
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import gpt2, llama, load

DATA = Path(__file__).parent / "data"
LAYERS, LLAMA, LLAMA_LAYERS = 2, "smollm2_135m", 4
STEP = {"model": "gpt2", "data": "synthetic", "precision": "bf16", "batch_per_worker": 1, "device": "cpu"}
ONE_BY_ONE: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("no key", {}),
    ("dropout: 0", {"dropout": 0.0}),
    ("gelu: tanh", {"gelu": "tanh"}),
    ("vocabulary: 50304", {"vocabulary": 50_304}),
    ("optimizer_kernels: fused", {"optimizer_kernels": "fused"}),
    ("cross_entropy: chunked", {"cross_entropy": "chunked"}),
    ("compile: true", {"cross_entropy": None, "compile": True}),
    ("compile_scope: model_and_loss", {"compile_scope": "model_and_loss"}),
)
# Operations that compute nothing, beside those that only give a tensor another shape.
IDLE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "result_type"}
IDLE |= {"item", "_local_scalar_dense", "is_nonzero", "dropout"}  # the last where it drops nothing


@dataclass(frozen=True)
class Counts:
    """Of one step."""

    kept_bytes: int
    peak_bytes: int
    kernels: int
    update_kernels: int


def counted(keys: Mapping[str, Any]) -> Counts:
    """The second step of a trial with these keys, in this process."""
    from torch._inductor import config

    torch._dynamo.reset()
    workload = load(Trial(**keys), Ranks())
    optimizer = workload.optimizer(workload.model.parameters())

    def step() -> None:
        batch = next(workload.batches)
        with record_function("forward"):
            loss = workload.loss(workload.model, batch)
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            optimizer.step()
        optimizer.zero_grad()

    with config.patch({"cpp.enable_kernel_profile": True}):  # what is compiled tells the profiler of its kernels
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = seen.profiler.kineto_results.events() if seen.profiler else []
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == MEMORY_EVENT_NAME)
    (backward,) = (event.start_ns() for event in events if event.name() == "backward")
    held = list(accumulate(change for _, change in changes))
    computed = {event.name: computing(event) for event in seen.events() or () if event.name in PHASES}
    return Counts(
        kept_bytes=sum(change for moment, change in changes if moment < backward),
        peak_bytes=max(held),
        kernels=computed["forward"] + computed["backward"],
        update_kernels=computed["update"],
    )


PHASES = ("forward", "backward", "update")
COMPILED = "_cpp_fused_"  # in the names of kernels that torch.compile makes for a CPU


def computing(event: FunctionEvent) -> int:
    """The operations within an event that compute something, and call no other that does."""
    within = sum(map(computing, event.cpu_children))
    library, _, name = event.name.partition("::")
    return within or int(COMPILED in library or (library == "aten" and not idle(name)))


def idle(name: str) -> bool:
    """True for an operation of torch.ops.aten that gives a tensor another shape, or memory alone."""
    operation = getattr(torch.ops.aten, name, None)
    views = operation is not None and any(getattr(operation, form).is_view for form in operation.overloads())
    return views or name in IDLE


def flops(keys: Mapping[str, Any]) -> int:
    """FLOPs of products of matrices and attention in a step, what is computed again included."""
    from torch.utils.flop_counter import FlopCounterMode

    workload = load(Trial(**keys), Ranks())
    with FlopCounterMode(display=False) as counter:
        workload.loss(workload.model, next(workload.batches)).backward()
    return int(counter.get_total_flops())


def of_gpt2() -> None:
    """Print a row for each key, and write all into step_bytes.csv."""
    gpt2.SIZES["gpt2"]["n_layer"] = LAYERS
    keys: dict[str, Any] = {}
    with (DATA / "step_bytes.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["added", *(field.name for field in fields(Counts))])
        for added, more in ONE_BY_ONE:
            keys |= more
            counts = counted({**STEP, **keys})
            writer.writerow([added, *astuple(counts)])
            stream.flush()
            kept, peak = counts.kept_bytes / MIB, counts.peak_bytes / MIB
            print(f"| `{added}` | {kept:,.0f} | {peak:,.0f} | {counts.kernels:,} | {counts.update_kernels:,} |")


def of_checkpoints() -> None:
    """Print a row for each kind of checkpoint, and write all into checkpoint_bytes.csv."""
    whole = MODELS[LLAMA]
    assert whole.decoder
    llama.MODELS = {**MODELS, LLAMA: replace(whole, decoder=replace(whole.decoder, layers=LLAMA_LAYERS))}
    with (DATA / "checkpoint_bytes.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["checkpoint", "kept_bytes", "peak_bytes", "kernels", "flops"])
        for kind in ("none", "block", "selective"):
            keys = {**STEP, "model": LLAMA, "checkpoint": kind}
            counts, work = counted(keys), flops(keys)
            writer.writerow([kind, counts.kept_bytes, counts.peak_bytes, counts.kernels, work])
            stream.flush()
            kept, peak = counts.kept_bytes / MIB, counts.peak_bytes / MIB
            print(f"| `{kind}` | {kept:,.0f} | {peak:,.0f} | {counts.kernels:,} | {work / 1e12:.2f} |")


MIB = 2**20

if __name__ == "__main__":
    of_gpt2()
    of_checkpoints()
