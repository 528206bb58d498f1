"""The one table: what each framework is, how it is launched, what it supports and what it needs.

Static data. The plan reads it together with a description of the machine; `doctor` tests it against
reality. A new framework is one script and one entry here (docs/adding-a-framework.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Framework:
    """What one framework can do, on the best machine there is.

    `axes` maps a trial key to the values it may take; `()` means any value of the right type. A trial key
    that is not an axis cannot be set for this framework, and its script has no flag for it.
    `refusals` maps a key to values that people ask for and the framework itself refuses, with its reason:
    such a trial is planned and recorded as `unsupported`, so that the hole in the table explains itself.
    """

    title: str
    script: str  # from the repository's root
    launchers: tuple[str, ...]  # the first is the default
    needs: tuple[str, ...]  # distributions that must be installed
    axes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


TRAINING_AXES: Mapping[str, tuple[object, ...]] = {
    "model": ("resnet8", "resnet18", "resnet50"),
    "batch_per_worker": (),
    "precision": ("fp32", "bf16", "fp16"),
    "device": (),
    "cores_per_worker": (),
    "data": ("auto", "cifar10", "synthetic"),
    "image_size": (),
    "memory_format": ("contiguous", "channels_last"),
    "learning_rate": (),
    "seed": (),
    "epochs": (),
}

FRAMEWORKS: Mapping[str, Framework] = {
    "single": Framework(
        title="one process, plain PyTorch",
        script="data_parallel/single.py",
        launchers=("python",),
        needs=("torch", "torchvision"),
        axes={**TRAINING_AXES, "allreduce": ("none",), "workers": (1,)},
    ),
    "horovod": Framework(
        title="Horovod allreduce",
        script="horovod_runs/resnet_cifar10.py",
        launchers=("horovodrun", "mpirun"),
        needs=("horovod", "torch", "torchvision"),
        axes={
            **TRAINING_AXES,
            "allreduce": ("none", "fp32", "fp16"),
            "workers": (),
            "controller": ("mpi", "gloo"),
            "oversubscribe": (True, False),
        },
        refusals={
            "allreduce": {
                "bf16": "Horovod 0.28.1 cannot reduce bf16 (Tensor type torch.BFloat16Tensor is not supported)"
            }
        },
    ),
}
