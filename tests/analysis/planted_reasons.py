"""Results folders whose figures of why and of what next are worth drawing: their steps, peaks and memory are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planted import Planted, plant
from planted_laws import ROOM
from planted_phases import Phased, plant_phased

from scaling_study.records.schema import IMPLIED

PARAMETERS_BYTES = 45_000_000
PEAKS = {"peak_flops_per_second": 1.5e11, "peak_bytes_per_second": 1.2e10}


def measured(batch: int, forward_flops: float = 7.4e7, memory_bytes: int | None = None) -> dict[str, Any]:
    """Fields of every rank of a worker with this batch."""
    kinds = {"parameters": PARAMETERS_BYTES, "gradients": PARAMETERS_BYTES, "optimizer": PARAMETERS_BYTES,
             "buffers": 0, "activations": 456_000 * batch, "resident": 0}  # fmt: skip
    peak = sum(kinds.values()) if memory_bytes is None else memory_bytes
    return {"forward_flops_per_sample": forward_flops, "memory": kinds, "peak_memory_bytes": peak, **PEAKS}


def step(workers: int, batch: int = 32, **more: float) -> dict[str, float]:
    """Phases of a step: half a millisecond fixed, computing that n workers slow down by 3 % each time they double, and
    an allreduce of 20 ms on a ring."""
    slower = 1 + 0.03 * math.log2(workers)
    phases = {
        "data": 0.0004, "forward": (0.004 + 0.0009 * batch) * slower, "backward": (0.008 + 0.0018 * batch) * slower,
        "optimizer": 0.006, "unattributed": 0.0005,
    }  # fmt: skip
    if workers > 1:
        phases["communication"] = 0.0008 * (workers - 1) + 0.020 * 2 * (workers - 1) / workers
    return {**phases, **{name: phases.get(name, 0.0) + value for name, value in more.items()}}


def one(framework: str, workers: int, batch: int = 32, wire: str = "fp32", **more: Any) -> Planted:
    return Planted(framework, "resnet18", batch, workers, "none" if workers == 1 else wire, **more)


def data_parallel(batches: tuple[int, ...] = (32, 64)) -> list[Phased]:
    """single, Horovod at two precisions, DDP and FSDP2 on 1 to 16 workers: laws, knees, prices and all parts."""
    made = []
    for batch in batches:
        report = measured(batch)
        made.append(Phased(one("single", 1, batch), step(1, batch), noise=0.01, report=report, price=1.5))
        for workers in (2, 4, 8, 16):
            for wire, share in (("fp32", 1.0), ("fp16", 0.5)):
                phases = step(workers, batch)
                phases["communication"] *= share
                lags = tuple(0.003 * rank / (workers - 1) for rank in range(workers))
                made.append(Phased(one("horovod", workers, batch, wire), phases, lags, noise=0.01, report=report,
                                   price=1.5))  # fmt: skip
            hidden = step(workers, batch, backward=0.6 * step(workers, batch)["communication"])
            del hidden["communication"]
            made.append(Phased(one("torch_ddp", workers, batch), hidden, noise=0.01, report=report, price=1.5))
            gathers = step(workers, batch, forward=0.010, backward=0.020)
            del gathers["communication"]
            made.append(Phased(one("torch_fsdp2", workers, batch), gathers, noise=0.01, report=report, price=1.5))
    return made


LIMIT = 400_000_000  # bytes of a worker's memory
SIZES = (32, 64, 128, 256, 512, 1024)


def out_of_memory() -> list[Phased]:
    """Batches that double until memory is full, of models with little and much state."""
    return [each for each in filled() if each.report["peak_memory_bytes"] <= LIMIT]


def filled() -> list[Phased]:
    """The same on a machine that has the memory for all of it."""
    made = []
    for model, state in (("resnet18", 135_000_000), ("resnet50", 282_000_000), ("resnet8", 1_000_000)):
        for workers in (1, 2):
            for batch in SIZES:
                framework = "single" if workers == 1 else "torch_ddp"
                planted = replace(one(framework, workers, batch, noise=0.01), model=model)
                report = measured(batch, memory_bytes=state * (3 + workers) // 4 + 500_000 * batch)
                made.append(Phased(planted, step(workers, batch), report=report))
    return made


def too_large() -> list[Planted]:
    """What did not fit: the first size was tried, the larger ones are implied by it."""
    made, first = [], {}
    for each in filled():
        if each.report["peak_memory_bytes"] > LIMIT:
            size = first.setdefault((each.one.model, each.one.workers), each.one.batch_per_worker)
            implied = f"{IMPLIED}batch_per_worker={size} was out of memory"
            reason = "CUDA out of memory" if each.one.batch_per_worker == size else implied
            made.append(replace(each.one, status="oom", reason=reason, speed=None, repeats=1))
    return made


def superlinear() -> list[Phased]:
    """Parts that are gains, and intervals as wide as the page."""
    made = [Phased(one("single", 1), step(1), noise=0.01, report=measured(32))]
    faster = step(2, forward=-0.012, backward=-0.020)
    made.append(Phased(one("horovod", 2), faster, noise=0.01, report=measured(32)))
    made.append(Phased(one("torch_ddp", 2), step(2), noise=0.3, report=measured(32)))
    return made


def once_each() -> list[Phased]:
    """No interval anywhere."""
    return [replace(each, one=replace(each.one, repeats=1), price=None) for each in data_parallel((32,))]


def long_names() -> list[Phased]:
    keys = (("image_size", 224), ("memory_format", "channels_last"), ("compile", True), ("accumulation", 4))
    other = (("image_size", 32), ("memory_format", "contiguous"), ("compile", False), ("accumulation", 1))
    return [
        replace(each, one=replace(each.one, keys=keys if index % 2 else other))
        for index, each in enumerate(data_parallel((32,)))
    ]


def on_gpus() -> list[Phased]:
    """Numbers of another size: 300 TFLOP/s, 60 GB, 100,000 samples a second, 64 workers."""
    made = []
    for workers in (1, 2, 4, 8, 64):
        for batch in (256, 1024):
            phases = {name: value / 50 for name, value in step(workers, batch).items()}
            report = {**measured(batch, 2.4e9, 4_000_000_000 + 55_000_000 * batch),
                      "peak_flops_per_second": 3.1e14, "peak_bytes_per_second": 2.9e12}  # fmt: skip
            report["memory"] = {**report["memory"], "activations": 55_000_000 * batch}
            planted = one("single" if workers == 1 else "horovod", workers, batch, keys=(("device", "cuda"),))
            made.append(Phased(planted, phases, noise=0.003, report=report, price=3.9))
    return made


STUDIES: Mapping[str, Callable[[], list[Phased]]] = {
    "data parallel": data_parallel, "out of memory": out_of_memory, "superlinear": superlinear,
    "once each": once_each, "long names": long_names, "on GPUs": on_gpus,
}  # fmt: skip


def plant_reasons(folder: Path, name: str) -> Path:
    """One of STUDIES, on a machine with cores for all of it."""
    if name == "out of memory":
        plant(folder, too_large())
    return plant_phased(folder, STUDIES[name](), study=name.replace(" ", "-"), machine=ROOM)
