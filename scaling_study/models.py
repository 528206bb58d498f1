"""The table of models: which module makes each, what data it trains on, and which trial keys its samples have.

Static data, without torch. A user's own model joins by an entry point of an installed package
(docs/adding-a-workload.md); only its name is read here, its code is first imported by a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

ENTRY_POINTS = "scaling_study.workloads"
IMAGE_KEYS, TEXT_KEYS = ("image_size", "memory_format"), ("sequence_length", "padding")


@dataclass(frozen=True)
class Model:
    """One model, as far as a plan depends on it."""

    workload: str  # "module" or "module:function"; its `load(trial, ranks)` makes the workload
    data: str | None  # the real data set it trains on; None: its own
    needs: tuple[str, ...] = ()  # distributions that must be installed beside the framework's
    keys: tuple[str, ...] = ()  # the trial keys that samples of its kind have


_IMAGES = Model("scaling_study.workloads.resnet_cifar10", "cifar10", ("torchvision",), IMAGE_KEYS)
_TEXTS = Model("scaling_study.workloads.albert_cola", "cola", ("transformers", "tokenizers"), TEXT_KEYS)

OURS: Mapping[str, Model] = {
    "resnet8": _IMAGES,
    "resnet8_groupnorm": _IMAGES,
    "resnet18": _IMAGES,
    "resnet50": _IMAGES,
    "mlp_wide": Model("scaling_study.workloads.mlp_cifar10", "cifar10"),
    "albert_tiny": _TEXTS,
    "albert_base_v2": _TEXTS,
}


def installed() -> dict[str, Model]:
    """The models of installed packages, by name. A name that is ours stays ours."""
    points = metadata.entry_points(group=ENTRY_POINTS)
    return {p.name: Model(p.value, None, keys=IMAGE_KEYS + TEXT_KEYS) for p in points if p.name not in OURS}


MODELS: Mapping[str, Model] = {**OURS, **installed()}
SAMPLE_KEYS = IMAGE_KEYS + TEXT_KEYS
