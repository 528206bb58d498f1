"""Workloads, one a file: model, data, loss, optimiser, and the word for one sample.                      [torch]"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType

import torch

from scaling_study import models
from scaling_study.models import MODELS
from scaling_study.ranks import Ranks
from scaling_study.study import rules
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, Feed
from scaling_study.workloads.workload import (
    Workload,
    by_part,
    checkpointed,
    forward_flops_per_sample,
    fused,
    grouped,
    recipe,
    with_loss,
)


def load(trial: Trial, ranks: Ranks) -> Workload:
    """The trial's workload on this rank's device. The same seed gives the same weights on every rank."""
    model = MODELS[trial.model]
    for _, problem in (
        *models.problems(vars(trial)),
        *rules.training_problems(vars(trial), trial.model, model, trial.framework),
        *rules.kernel_problems(vars(trial), trial.model, model),
    ):
        raise SystemExit(problem)  # of a study it was said before anything ran
    if trial.batch_per_worker % trial.accumulation:
        raise SystemExit(
            f"--accumulation {trial.accumulation} does not divide --batch-per-worker {trial.batch_per_worker}"
        )
    # Without keys whose value is `none`; a plan has none such.
    weights, freeze = (None if value == models.NONE else value for value in (trial.weights, trial.freeze))
    trial = replace(trial, weights=weights, freeze=freeze)
    # Imported on demand: no workload pays for another's libraries. An entry point may name its function after a colon.
    place, _, function = model.workload.partition(":")
    module = of_file(trial.model) if models.FILE_NAME.fullmatch(trial.model) else importlib.import_module(place)
    torch.manual_seed(trial.seed)
    workload: Workload = getattr(module, function or "load")(trial, ranks)
    workload.accumulation = trial.accumulation
    if trial.checkpoint not in (None, models.NONE):
        checkpointed(workload.model, workload.blocks, trial.checkpoint)
    if trial.wrap == "none":
        workload.blocks = ()  # one unit, gathered whole (F24)
    if trial.precision == "fp64":
        workload.model.double()
    if trial.find is None:
        workload.forward_flops_per_sample = forward_flops_per_sample(workload)
    if trial.find == "parity":  # one rule to step by, with nothing of its own to differ in, and fp32 that is fp32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        rate = PARITY_RATE * ranks.world_size
        workload.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=trial.learning_rate or rate)
    if trial.trained:
        if workload.held_out is None:
            raise SystemExit(f"model {trial.model} has no held-out data to be evaluated on: it can only be timed")
        multiplied_by = ranks.world_size if workload.scales_rate else 1
        workload.optimizer = recipe(trial, workload.optimizer, multiplied_by, workload.model)
    if workload.parts and (trial.trained or trial.freeze or trial.part_learning_rates):
        workload.optimizer = by_part(trial, workload.model, workload.optimizer)
        workload.grouped = partial(grouped, workload.model)
    elif trial.freeze or trial.part_learning_rates:
        raise SystemExit(f"model {trial.model} has no parts that can be frozen or have a learning rate of their own")
    if trial.optimizer_kernels == "fused":
        workload.optimizer = fused(workload.optimizer)
    if trial.compile_scope == "model_and_loss":
        workload.loss = with_loss(workload.model, workload.loss)
    if trial.compile:
        # In place: names and parameters stay, whatever wraps it. Shapes never change, but where sentences are padded to
        # each batch's longest: blocks that share their code would be compiled for any shape (and FSDP2's then fail).
        workload.model.compile(dynamic=None if trial.padding == "dynamic" else False)
    return workload


def of_file(name: str) -> ModuleType:
    """The module of a model `FILE.py:FUNCTION`, imported once in a process; it can import files that lie beside it.

    Raises SystemExit where no folder has the file (models.folders), or the file has no such function.
    """
    folders, (text, _, function) = models.folders(), name.rpartition(":")
    found = models.file_named(name, folders)
    if found is None:
        raise SystemExit(f"model {name}: there is no {text} in {' or '.join(folders)}")
    path = found.resolve()
    known_as = f"{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"  # two folders may have such a file
    if known_as not in sys.modules:
        spec = importlib.util.spec_from_file_location(known_as, path)
        assert spec and spec.loader  # its name ends in .py
        sys.modules[known_as] = importlib.util.module_from_spec(spec)
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        try:
            spec.loader.exec_module(sys.modules[known_as])
        except BaseException:
            del sys.modules[known_as]
            raise
    if not hasattr(sys.modules[known_as], function):
        raise SystemExit(f"model {name}: {path} has no function {function!r}")
    return sys.modules[known_as]


PARITY_RATE = 0.01

__all__ = ["Batch", "Feed", "Workload", "load"]
