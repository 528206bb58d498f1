"""The parity gate's trials: what must be shown about a framework before its speed means anything. Pure.

    every framework and model of the study        --> fp64, ten steps, within 1e-9 of the reference
    every 16-bit path (allreduce or precision)    --> one step, within that format's bound of fp32

How a gate is judged is in scaling_study/parity/; here is only which ones a study needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import MODELS
from scaling_study.trial import Trial, Window

STEPS = 10
BATCH = 8
SEQUENCE_LENGTH = 32
# Where one rounding decides nothing: no BatchNorm, and no max-pool that would pick another pixel.
SMOOTH_IMAGES = "resnet8_groupnorm"
SIXTEEN_BIT = ("fp16", "bf16")
ONE_STEP, TEN_STEPS = Window(0, 1, 0.0, None, 1), Window(0, STEPS, 0.0, None, STEPS)


def needed(configurations: Iterable[Trial]) -> list[Trial]:
    """The gates of these configurations, each once."""
    gates = {gate.id: gate for trial in configurations if trial.find is None for gate in of(trial)}
    return list(gates.values())


def of(trial: Trial) -> Iterator[Trial]:
    """The gates that one configuration stands behind: the same for every batch size and number of workers."""
    table = FRAMEWORKS[trial.framework]
    parallel = table.axes["workers"] != (1,)
    one_gpu = trial.device == "cuda" and trial.workers == 1  # no second one to be parallel with: the CPU has to do
    workers = 2 if parallel and not (one_gpu and table.needs_gpu) else 1
    wire = "none" if workers == 1 else "fp32"
    micro_batch = max(2, -(-BATCH // trial.accumulation))  # BatchNorm over a single value has no variance
    gate = replace(
        trial, find="parity", workers=workers, device="cpu" if one_gpu and workers == 2 else trial.device,
        batch_per_worker=micro_batch * trial.accumulation, allreduce=wire, precision=table.parity_precision,
        cores_per_worker=1, compile=False, epochs=None, image_size=None, memory_format="contiguous", padding=None,
        sequence_length=SEQUENCE_LENGTH if "sequence_length" in MODELS[trial.model].keys else None,
        learning_rate=None, bucket_bytes=None, fusion_bytes=None, cycle_seconds=None, repeat=1, window=TEN_STEPS,
    )  # fmt: skip
    yield gate if table.parity_precision == "fp64" else replace(gate, model=smooth(trial.model), window=ONE_STEP)
    precision = "fp32" if trial.precision == "fp64" else trial.precision
    wire = trial.allreduce if workers > 1 and trial.allreduce != "none" else wire
    if wire in SIXTEEN_BIT or precision in SIXTEEN_BIT:
        yield replace(gate, model=smooth(trial.model), precision=precision, allreduce=wire, window=ONE_STEP)


def smooth(model: str) -> str:
    """A model of the same kind in which a 16-bit rounding stays one."""
    return SMOOTH_IMAGES if model.startswith("resnet") else model


def behind(trial: Trial) -> list[str]:
    """The ids of the gates whose verdicts a configuration's numbers stand or fall with."""
    return [gate.id for gate in of(trial)]


def verdict(trial: Trial, known: Mapping[str, str]) -> str:
    """`passed`, the first failure among its gates, or `not checked`; `known` maps a gate's id to its verdict."""
    said = [known.get(id, "not checked") for id in behind(trial)]
    failures = [one for one in said if one not in ("passed", "not checked")]
    return (failures or [one for one in said if one != "passed"] or ["passed"])[0]
