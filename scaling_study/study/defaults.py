"""Defaults that follow the device: the meaning of `auto`, and what a study's `defaults: 2026` turns on. Pure.

    key              on a GPU, with `auto` or `defaults: 2026`         on a CPU, and in studies without either
    precision        bf16, where the GPU computes in it                fp32
    memory_format    channels_last, of models of images                contiguous
    compile          true, where framework, GPU and machine can        false
    ...              as ON_GPUS has it, only by `defaults: 2026`       as before 2026

A value that a study names stays. A default never makes a trial wrong or unsupported: there the key keeps its older
value, and the plan says why. What is resolved is part of a trial's id, exactly as if the study had named it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import MODEL_KEYS, model_named
from scaling_study.trial import Trial

AUTO = "auto"
YEAR = 2026  # of the defaults that a study can ask for
FOLLOWING = ("precision", "memory_format", "compile")  # keys that may be `auto`

Keys = dict[str, Any]


@dataclass(frozen=True)
class Default:
    """The value of one trial key on a GPU."""

    key: str
    value: Any
    models: str = ""  # the beginning of the names of models that it is for; empty: all that have the key


ON_GPUS = (  # in an order in which each may rest on those before it
    Default("precision", "bf16"),
    Default("memory_format", "channels_last"),
    Default("compile", True),
    Default("compile_scope", "model_and_loss"),
    Default("optimizer_kernels", "fused"),
    Default("resident_batches", 8),
    Default("gelu", "tanh"),
    Default("vocabulary", 50_304),
    Default("dropout", 0.0, models="gpt2"),
)
KEYS = tuple(default.key for default in ON_GPUS)


def named(keys: Mapping[str, Any]) -> Keys:
    """The keys of a combination without those that are `auto` and follow the device."""
    return {key: value for key, value in keys.items() if not (value == AUTO and key in FOLLOWING)}


def of_device(
    keys: Mapping[str, Any], framework: str, machine: Machine, year: int | None, refused: Callable[[Keys], str]
) -> tuple[Keys, dict[str, str]]:
    """(keys that follow the device, with their values; keys of FOLLOWING that do not follow a GPU, with the reason).

    `keys`: a combination as a study asks for it. `year`: of the study's defaults, None for those of before. `refused`:
    the reason why a combination of keys is wrong, or unsupported on this machine; empty for one that is neither.
    """
    device = keys.get("device", AUTO)
    on_gpu = (machine.device if device == AUTO else device) == "cuda"
    if not (values := {row.key: row.value for row in _open(keys, framework, year)} if on_gpu else {}):
        return {}, {}
    reasons = {}
    if "precision" in values and machine.gpus and not machine.capability:
        del values["precision"]
        reasons["precision"] = f"whether {machine.gpus[0]} computes in bf16 is not known; name a precision"
    given = named(keys)
    before = refused(given)  # for another reason, with any default
    if refused({**given, **values}) == before:
        return values, reasons
    kept: Keys = {}
    for key, value in values.items():
        if (why := refused({**given, **kept, key: value})) == before:
            kept[key] = value
        elif key in FOLLOWING:
            reasons[key] = why
    return kept, reasons


def _open(keys: Mapping[str, Any], framework: str, year: int | None) -> Iterator[Default]:
    """The defaults for which a combination names no value, and that its framework and its model have."""
    table, model = FRAMEWORKS[framework], str(keys.get("model", Trial.model))
    own = model_named(model).keys
    if table.foreign or not table.trains:
        return
    for row in ON_GPUS:
        asked = keys.get(row.key, AUTO if year else None) == AUTO
        offered = row.key in table.axes and (not table.axes[row.key] or row.value in table.axes[row.key])
        if asked and offered and model.startswith(row.models) and (row.key not in MODEL_KEYS or row.key in own):
            yield row


def in_words(reasons: Mapping[tuple[str, str], set[str]]) -> Iterator[str]:
    """A note for each (key, reason) by which `auto` stays as on a CPU; `reasons` maps these to frameworks."""
    for (key, why), frameworks in sorted(reasons.items()):
        stays = f"{key} stays {str(getattr(Trial, key)).lower()}"
        yield f"{stays} for {', '.join(sorted(frameworks))}: {why}"


def older(asked: Iterable[tuple[Mapping[str, Any], str, Callable[[Keys], str]]], machine: Machine) -> list[str]:
    """A note on a study without `defaults`, where some of its combinations would follow a GPU; else none.

    `asked`: combinations of the study, their frameworks, and the reason why others of it are refused (as of_device).
    """
    following = set[str]()
    for keys, framework, refused in asked:
        following |= of_device(keys, framework, machine, YEAR, refused)[0].keys() - keys.keys()
    if not following:
        return []
    told = ", ".join(key for key in KEYS if key in following)
    return [
        f"this study has the defaults from before {YEAR}: `defaults: {YEAR}` lets {told} follow the GPU, which makes "
        "other configurations (docs/guide/gpu.md#defaults-that-follow-the-device)"
    ]
