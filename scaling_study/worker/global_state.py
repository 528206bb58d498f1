"""What a process has one of, and any configuration may change: each configuration of a launch has its own. [torch]

    before a block   what was so when this configuration was built is put back, its random numbers go on
    after a block    what the block itself changed is named

A workload that turns TF32 off, or sets the number of threads, would otherwise measure its neighbours.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # how it is read, and written


def _of(owner: Any, name: str) -> Setting:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


# Of which format fp32 is multiplied in, for all and by backend and kind. torch before 2.9 has only the older settings.
FORMATS = [
    ("generic", "all"),
    *((backend, kind) for backend in ("cuda", "mkldnn") for kind in ("all", "matmul", "conv", "rnn")),
]
HAS_FORMATS = hasattr(torch._C, "_get_fp32_precision_getter")


def _formats_of_fp32() -> list[str]:
    if not HAS_FORMATS:
        return [torch.get_float32_matmul_precision(), str(torch.backends.cudnn.allow_tf32)]
    return [torch._C._get_fp32_precision_getter(*each) for each in FORMATS]


def _set_formats_of_fp32(formats: list[str]) -> None:
    """By the newer settings, which count; the older are made to agree, as torch refuses to read those that do not."""
    if not HAS_FORMATS:
        torch.set_float32_matmul_precision(formats[0])
        torch.backends.cudnn.allow_tf32 = formats[1] == "True"
        return
    by = dict(zip(FORMATS, formats, strict=True))
    matmul = {by["cuda", "matmul"], by["mkldnn", "matmul"]}
    torch.set_float32_matmul_precision("medium" if "bf16" in matmul else "high" if "tf32" in matmul else "highest")
    torch.backends.cudnn.allow_tf32 = by["cuda", "conv"] == "tf32"
    for each, format in by.items():
        torch._C._set_fp32_precision_setter(*each, format)


def _unless_cpu(device: torch.device) -> torch.device | None:
    """None is the CPU too, without a mode of torch that looks at every call."""
    return None if device.type == "cpu" else device


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _random_of_gpu() -> torch.Tensor | None:
    """Of the GPU that this rank computes on; asking for it elsewhere would take memory of one."""
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _set_random_of_gpu(state: torch.Tensor | None) -> None:
    if state is not None:
        torch.cuda.set_rng_state(state)


SETTINGS: Mapping[str, Setting] = {
    "threads of torch": (torch.get_num_threads, torch.set_num_threads),
    "cores": (lambda: sorted(os.sched_getaffinity(0)), lambda cores: os.sched_setaffinity(0, cores)),
    "default type": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, lambda device: torch.set_default_device(_unless_cpu(device))),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "autocast on the CPU": (
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)
    ),
    "autocast on a GPU": (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "formats of fp32": (_formats_of_fp32, _set_formats_of_fp32),
    "cuDNN": _of(torch.backends.cudnn, "enabled"),
    "cuDNN's trials": _of(torch.backends.cudnn, "benchmark"),
    "cuDNN's determinism": _of(torch.backends.cudnn, "deterministic"),
    "oneDNN": _of(torch.backends.mkldnn, "enabled"),
    "garbage collector": (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    "environment": (lambda: dict(os.environ), _set_environment),
    "working folder": (os.getcwd, os.chdir),
}  # fmt: skip
# Drawn from by every step, so a change is no fault; each configuration draws as if it were alone.
GENERATORS: Mapping[str, Setting] = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "NumPy": (np.random.get_state, np.random.set_state),
    "Python": (random.getstate, random.setstate),
    "CUDA": (_random_of_gpu, _set_random_of_gpu),
}


class GlobalState:
    """One configuration's, as it was when this was made."""

    def __init__(self) -> None:
        self.settings = {name: read() for name, (read, _) in SETTINGS.items()}
        self.generators = {name: read() for name, (read, _) in GENERATORS.items()}

    def restore(self) -> None:
        """Put it back."""
        for name in changed(self.settings):
            SETTINGS[name][1](self.settings[name])
        for name, state in self.generators.items():
            GENERATORS[name][1](state)

    def leave(self) -> list[str]:
        """Keep the generators for the next time. The settings that have been changed since `restore`, by name."""
        self.generators = {name: read() for name, (read, _) in GENERATORS.items()}
        return changed(self.settings)


def changed(settings: Mapping[str, Any]) -> list[str]:
    """The settings that are no longer so."""
    return [name for name, (read, _) in SETTINGS.items() if read() != settings[name]]
