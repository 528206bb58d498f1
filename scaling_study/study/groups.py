"""Groups of configurations that one set of processes can measure in turn, each built once. Pure.

    horovod, 2 workers, MPI:    resnet18 x batch 32, 64 x fp32, fp16        one group: four configurations
    torch_ddp, 2 workers:       resnet18 x batch 32, 64                     another

What a launcher decides, or a process has only one of, is the same for all of a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from scaling_study.frameworks import COMMAND, FRAMEWORKS
from scaling_study.models import MODELS
from scaling_study.study import command
from scaling_study.trial import Trial

if TYPE_CHECKING:
    from scaling_study.study.study import Measure

READ_AHEAD = ("images", "cholect45", "surgical_scenes")  # data whose files are decoded by threads
ON_A_GPU = ("single", "torch_ddp", "torch_fsdp2", "mpi_allreduce", "horovod")  # tried interleaved, with one worker
UNTESTED = "interleaving over several GPUs is untested: no record of it from two or more GPUs was looked at yet"
ALIKE = (
    *("framework", "launcher", "controller", "workers", "hosts", "device", "cores_per_worker", "allocator"),
    *("fusion_bytes", "cycle_seconds", "machine"),
)


def warmed(trial: Trial, measure: Measure) -> Trial:
    """The configuration as it is measured interleaved."""
    window = replace(trial.window, rounds=measure.rounds, block_seconds=measure.block_seconds)
    return replace(trial, warm=True, window=window)


def cooled(trial: Trial) -> Trial:
    """The configuration as it is measured in separate launches."""
    return replace(trial, warm=None, window=replace(trial.window, rounds=None, block_seconds=None))


def why_cold(trial: Trial, alone_on_gpus: bool = False, interleave_gpus: bool = False) -> str:
    """Why a configuration has separate launches whatever it is asked for; empty: it need not.

    `alone_on_gpus`: its study trains on GPUs what was not tried interleaved there. `interleave_gpus`: that is allowed.
    """
    if why := FRAMEWORKS[trial.framework].cold:
        return why
    if trial.model in MODELS and (why := MODELS[trial.model].cold):
        return why
    if "srun" in (trial.launcher, command.starter(trial)):
        return "ranks that srun has started are not stopped while others are measured"
    if trial.device == "cuda" and not interleave_gpus and (alone_on_gpus or _is_untried(trial)):
        tried = f"on a GPU interleaving was tried with one worker of {', '.join(ON_A_GPU)} only"
        return f"{tried}, and what is compared must be measured alike (interleave_gpus: true interleaves them too)"
    if trial.find or trial.epochs or trial.trained:
        return "it is not timed over a short window of steps"
    if trial.data in READ_AHEAD or trial.input not in (None, "memory"):
        return "its batches are read ahead between blocks too, so each block would begin with some to spare"
    if trial.compile or trial.oversubscribe:
        return "it needs a process or cores that others cannot share"
    return ""


def alone_on_gpus(trials: Iterable[Trial]) -> bool:
    """True where some of these train on GPUs what was not tried interleaved there; oversubscribed ones are compared
    with nothing, and do not count."""
    on_gpus = (trial for trial in trials if trial.device == "cuda" and FRAMEWORKS[trial.framework].trains)
    return any(_is_untried(trial) for trial in on_gpus if not trial.oversubscribe)


def on_several_gpus(trial: Trial) -> bool:
    """True for a trial whose workers have a GPU each, and are more than one."""
    return trial.device == "cuda" and trial.workers > 1 and not trial.oversubscribe


def _is_untried(trial: Trial) -> bool:
    """True for a trial on a GPU that was never measured in blocks with others there."""
    return trial.workers > 1 or trial.framework not in ON_A_GPU


def groups(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The warm ones among these that share a launch, in their order."""
    found: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        if trial.warm:
            found.setdefault(processes(trial), []).append(trial)
    return list(found.values())


def processes(trial: Trial) -> tuple[object, ...]:
    """The values of ALIKE, which are the same for all trials that one group of processes measures."""
    return (*(getattr(trial, key) for key in ALIKE), apart(trial.framework, trial.configuration))


def apart(framework: str, configuration: str) -> str:
    """What tells its processes from those of others that are alike in ALIKE: a command's measure nothing else."""
    return configuration if framework == COMMAND else ""


def comparable(trial: Trial, other: Trial, scaling: str) -> bool:
    """True for two trials of one model and one batch, a worker's or that of all workers."""
    whole = scaling == "strong" or FRAMEWORKS[other.framework].shares_batches
    batch = "global_batch" if whole else "batch_per_worker"
    return trial.model == other.model and getattr(trial, batch) == getattr(other, batch)
