"""Versions of what decides how fast a trial is: the interpreter, the libraries, and what lies under a GPU.   [torch]

python -m scaling_study.measure.versions      the same as JSON (--print-environment)
"""

from __future__ import annotations

import json
import platform

import pynvml
import torch

from scaling_study.machine import DALI, installed

LIBRARIES = (
    "torch", "torchvision", "horovod", "mpi4py", "fairscale", "deepspeed", "lightning", "transformers", "numpy",
    "scaling_study", *DALI,
)  # fmt: skip


def versions() -> dict[str, str]:
    """Name -> version, of what is there."""
    libraries = {name: version for name in LIBRARIES if (version := installed(name))}
    return {"python": platform.python_version(), **libraries, **(under_a_gpu() if torch.cuda.is_available() else {})}


def under_a_gpu() -> dict[str, str]:
    """`cuda`, `cudnn`, `nccl` as torch was built with them, and `nvidia_driver`; those that can be asked."""
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    libraries = {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "nvidia_driver": _driver(),
    }
    return {name: str(version) for name, version in libraries.items() if version is not None}


def _driver() -> str | None:
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


if __name__ == "__main__":
    print(json.dumps(versions()))
