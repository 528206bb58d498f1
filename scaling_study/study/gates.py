"""The parity gate's trials: what must be shown about a framework before its speed means anything. Pure.

    every framework and model of the study        --> fp64, ten steps, within 1e-9 or rounding of the reference
    every 16-bit path (allreduce or precision)    --> one step, within that format's bound of fp32
    fp32, where fp64 goes another path            --> one step, within fp32's

How a gate is judged is in scaling_study/parity/; here is only which ones a study needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import MODELS
from scaling_study.trial import TRAIN_KEYS, Trial, Window

STEPS = 10
BATCH = 8
SEQUENCE_LENGTH = 32
MICRO_BATCHES = 4  # where there are more: one is the first, some are between, and one is reduced
SIXTEEN_BIT = ("fp16", "bf16")
ROUNDING = (*SIXTEEN_BIT, "int8")  # of gradients on the wire
ONE_STEP, TEN_STEPS = Window(0, 1, 0.0, None, 1), Window(0, STEPS, 0.0, None, STEPS)
SAME: Mapping[str, Any] = {  # for every gate, whatever its configuration is
    "find": "parity", "cores_per_worker": 1, "allocator": "system", "epochs": None, "warmup_epochs": None,
    "image_size": None, "image_width": None, "input": None, "damaged_images": None, "padding": None, "weights": None,
    "freeze": None, "learning_rate": None, "part_learning_rates": None, "bucket_bytes": None,
    "fusion_bytes": None, "cycle_seconds": None, "target_batch_size": None, "matchmaking_seconds": None,
    "averaging_timeout_seconds": None, "average_state_every": None, "updates": None,
    "repeat": 1, "warm": None, "window": TEN_STEPS, **dict.fromkeys(TRAIN_KEYS),
}  # fmt: skip
LOOKED_AT = [f.name for f in fields(Trial) if f.name not in (*SAME, "batch_per_worker", "sequence_length")]


def needed(configurations: Iterable[Trial]) -> list[Trial]:
    """The gates of these configurations, each once."""
    timed = (trial for trial in configurations if trial.find is None)
    unlike = {tuple(getattr(trial, name) for name in LOOKED_AT): trial for trial in timed}
    gates = {gate.id: gate for trial in unlike.values() for gate in gates_of(trial)}
    return list(gates.values())


def gates_of(trial: Trial) -> Iterator[Trial]:
    """The gates that one configuration stands behind: the same for every batch size and number of workers."""
    table = FRAMEWORKS[trial.framework]
    if not table.trains:
        return
    parallel = table.axes["workers"] != (1,)
    one_gpu = trial.device == "cuda" and trial.workers == 1  # no second one to be parallel with: the CPU has to do
    workers = 2 if parallel and not (one_gpu and table.needs_gpu) else 1
    shape = pipeline(trial) if table.cuts_model else {}
    workers = shape.pop("workers", workers)
    hosts = 2 if (trial.hosts or 1) > 1 and workers % 2 == 0 else None  # what passes on one need not over several
    wire = "none" if workers // (shape.get("stages") or 1) == 1 else "fp32"
    accumulation = min(trial.accumulation, MICRO_BATCHES)
    parts = shape.get("micro_batches") or accumulation
    # BatchNorm over a single value has no variance; over two of them ResNet-18 loses itself to rounding in three steps.
    micro_batch = max(4 if accumulation > 1 else 2, -(-BATCH // parts))
    gate = replace(
        trial, workers=workers, hosts=hosts, device="cpu" if one_gpu and workers == 2 else trial.device,
        batch_per_worker=micro_batch * parts, accumulation=accumulation, allreduce=wire,
        precision=table.parity_precision,
        sequence_length=SEQUENCE_LENGTH if "sequence_length" in MODELS[trial.model].keys else None, **SAME,
    )  # fmt: skip
    if trial.trained:  # its seed is that of one of its repeats
        gate = replace(gate, seed=Trial.seed)
    gate = replace(gate, **shape, **MODELS[trial.model].gate)
    yield gate if table.parity_precision == "fp64" else smooth(gate)
    precision = "fp32" if trial.precision == "fp64" else trial.precision
    wire = trial.allreduce if wire != "none" and trial.allreduce != "none" else wire
    if wire in ROUNDING or precision in SIXTEEN_BIT or (table.fp64_by_another_path and trial.precision == "fp32"):
        yield replace(smooth(gate), precision=precision, allreduce=wire)


def pipeline(trial: Trial) -> dict[str, Any]:
    """The keys of a pipeline's gate: its schedule on two workers, twice where there are replicas.

    Where it is cut decides nothing about what is trained: the gate cuts by layers, and measures nothing first.
    """
    stages, replicas = 2, min(2, trial.replicas or 1)
    workers = stages * replicas
    parts = trial.micro_batches and (1 if trial.micro_batches == 1 else MICRO_BATCHES)
    return {
        "workers": workers, "stages": stages, "replicas": trial.replicas and replicas, "micro_batches": parts,
        "stage_cut": "even", "oversubscribe": workers > 2,
        "virtual_stages": trial.virtual_stages and min(2, trial.virtual_stages),  # the test sizes have few layers
    }  # fmt: skip


def smooth(gate: Trial) -> Trial:
    """One step of a model of the same kind in which a rounding stays one."""
    ours, smooth = MODELS[gate.model], MODELS[gate.model].smooth
    if not smooth:
        return replace(gate, window=ONE_STEP)
    data = gate.data if MODELS[smooth].data == ours.data else "auto"
    return replace(gate, model=smooth, data=data, image_size=None, image_width=None, window=ONE_STEP)


def gate_ids(trial: Trial) -> list[str]:
    """The ids of the gates whose verdicts a configuration's numbers stand or fall with."""
    return [gate.id for gate in gates_of(trial)]


def verdict(trial: Trial, known: Mapping[str, str]) -> str:
    """`passed`, the first failure among its gates, or `not checked`; `known` maps a gate's id to its verdict."""
    verdicts = [known.get(id, "not checked") for id in gate_ids(trial)]
    failures = [verdict for verdict in verdicts if verdict not in ("passed", "not checked")]
    return (failures or [verdict for verdict in verdicts if verdict != "passed"] or ["passed"])[0]
