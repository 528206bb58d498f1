"""What a rank's report says of the rank itself, however the trial is measured.                            [torch]"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Any

import torch

from scaling_study.machine import boot_id, cpu_model
from scaling_study.measure.power import gpu_uuids
from scaling_study.measure.training import Training
from scaling_study.measure.versions import versions
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial


def described(training: Training, trial: Trial, ranks: Ranks) -> dict[str, Any]:
    """The fields of a RankReport that no measuring is needed for."""
    workload = training.workload
    return {
        "rank": ranks.rank, "world_size": ranks.world_size, "local_rank": ranks.local_rank,
        "host": socket.gethostname(), "boot_id": boot_id(), "pid": os.getpid(),
        "device": str(ranks.device), "device_name": device_name(ranks.device),
        "cores": list(ranks.cores), "threads": torch.get_num_threads(),
        "gpu_uuids": gpu_uuids([device.index for device in ranks.devices if device.type == "cuda"]),
        "samples_per_step": workload.samples_per_step, "parameters": workload.parameters,
        "parameters_all": workload.parameters_all,
        "data_source": workload.data_source, "steps_per_epoch": workload.steps_per_epoch,
        "forward_flops_per_sample": workload.forward_flops_per_sample,
        "backend": dict(with_backend(ranks, training).backend), "versions": versions(),
        "learning_rate": training.optimizer.param_groups[0]["lr"], "stages": list(training.stages),
        "weights": dict(workload.weights),
    }  # fmt: skip


def with_backend(ranks: Ranks, training: Training) -> Ranks:
    """The ranks, with what the framework reports once the model is wrapped."""
    return replace(ranks, backend={**ranks.backend, **training.backend})


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
