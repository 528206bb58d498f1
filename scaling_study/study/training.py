"""What is wrong about training to a result, in one combination of keys. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaling_study.models import IMAGE_KEYS, OURS, Model
from scaling_study.targets import ENDS, Target, logs
from scaling_study.trial import Trial

INSTEAD = ("epochs", "warmup_epochs", "find")
GPU_ONLY = "it needs a GPU, and training to a result by it was tried on none: it can only be timed"
ONLY_TIMED = {"torch_dp": GPU_ONLY}  # framework -> why it is not trained to a result
NATIVE = ("lightning_ddp", "lightning_fsdp", "deepspeed_zero")  # frameworks with a loop of their own
SCHEDULES_WITH_AN_END = ("step", "cosine", "one_cycle", "triangular")
CYCLES = ("one_cycle", "triangular")


def libraries(trial: Trial) -> dict[str, str]:
    """What a training needs beside its framework -> the extra that installs it; nothing where a trial is timed."""
    extra = {"wandb": "export"}
    needed = ("torchmetrics", *logs(vars(trial))) if trial.trained else ()
    return {library: extra.get(library, "training") for library in needed}


def problems(keys: Mapping[str, Any], model_name: str, model: Model, framework: str) -> Iterator[tuple[str, str]]:
    """(key, message) of everything that is wrong; nothing for a combination that is only timed."""
    given = {key: value for key, value in keys.items() if key.startswith("train_") and value is not None}
    if not given:
        return
    if not any(key in given for key in ENDS):
        first = next(iter(given))
        yield first, f"{first}={given[first]} without an end: give train one of epochs, steps or max_seconds"
    for key in INSTEAD:
        if keys.get(key) is not None:
            yield key, f"{key}={keys[key]} measures something else than train does: give one of the two"
    if "train_epochs" in given and "train_steps" in given:
        yield "train_steps", "give train epochs or steps, not both: one follows from the other"
    if model_name in OURS and not model.metrics:
        yield "model", f"model {model_name} has no held-out data to be evaluated on: it can only be timed"
    if given.get("train_loop") == "native" and (why := no_native_loop(framework)):
        yield "train_loop", why
    yield from _of_evaluation(given, model_name, model)
    yield from _of_the_optimiser(given, keys.get("learning_rate"))
    if "train_optimizer" in given and keys.get("learning_rate") is None:
        yield "train_optimizer", f"optimizer={given['train_optimizer']} needs a learning_rate: the default is another's"
    if given.get("train_augmentation", "none") != "none" and not set(IMAGE_KEYS) & set(model.keys):
        augmentation = given["train_augmentation"]
        yield "train_augmentation", f"augmentation={augmentation} is for images, which model {model_name} does not have"
    for key in model.no_train_keys:
        if (asked := given.get(f"train_{key}", 0)) not in ("none", 0):
            yield f"train_{key}", f"{key}={asked}: model {model_name} has none"
    try:
        logs(given)
    except ValueError as error:
        yield "train_log", str(error)


def no_native_loop(framework: str) -> str:
    """Why a framework has no loop of its own; empty where it has."""
    *first, last = NATIVE
    having = f"{', '.join(first)} and {last} have"
    return "" if framework in NATIVE else f"loop=native: {framework} has no training loop of its own; {having}"


def no_share(model_name: str, model: Model, validation: float | None) -> str:
    """Why no share of the training data can be held out; empty where it can, or none is asked for."""
    if validation is None or not model.published_validation:
        return ""
    return (
        f"validation={validation}: model {model_name} is validated on the published validation text, "
        "and nothing of the training text is held out: leave the key out"
    )


def _of_evaluation(given: Mapping[str, Any], model_name: str, model: Model) -> Iterator[tuple[str, str]]:
    if text := given.get("train_target"):
        try:
            metric = Target.parse(text).metric
            if model.metrics and metric not in model.metrics:
                yield "train_target", f"model {model_name} has no {metric}; it has {', '.join(model.metrics)}"
        except ValueError as error:
            yield "train_target", str(error)
    if why := no_share(model_name, model, given.get("train_validation")):
        yield "train_validation", why
        return
    for key in ("train_target", "train_patience", "train_keep"):  # evaluate_every logs the training loss all the same
        if key in given and given.get("train_validation") == 0:
            yield key, f"{key.removeprefix('train_')} needs validation data: validation=0 holds none out"


def _of_the_optimiser(given: Mapping[str, Any], rate: float | None) -> Iterator[tuple[str, str]]:
    optimizer, schedule = given.get("train_optimizer"), given.get("train_schedule")
    if "train_momentum" in given and optimizer not in ("sgd", "nesterov"):
        yield "train_momentum", f"momentum is a key of optimizer sgd or nesterov, not of {optimizer or 'the default'}"
    if "train_weight_decay" in given and optimizer is None:
        yield "train_weight_decay", "weight_decay needs an optimizer: sgd, nesterov, adam or adamw"
    ends = {"train_epochs", "train_steps", *(("train_cycle_steps",) if schedule == "triangular" else ())}
    if schedule in SCHEDULES_WITH_AN_END and not ends & set(given):
        yield "train_schedule", f"schedule={schedule} needs an end that is known: epochs or steps"
    if schedule in CYCLES and "train_warmup_steps" in given:
        share = "30 %" if schedule == "one_cycle" else "half"
        yield "train_warmup_steps", f"schedule={schedule} has a warm-up of its own: its first {share}"
    if "train_cycle_steps" in given and schedule != "triangular":
        yield "train_cycle_steps", f"cycle_steps is a key of schedule triangular, not of {schedule or 'constant'}"
    if (start := given.get("train_start_learning_rate")) is not None:
        if schedule not in CYCLES:
            other = f"not of {schedule or 'constant'}"
            yield "train_start_learning_rate", f"start_learning_rate is of schedule {' or '.join(CYCLES)}, {other}"
        elif rate is None or start > rate:
            found = "none is given" if rate is None else f"{rate:g} is smaller"
            yield "train_start_learning_rate", f"start_learning_rate={start:g} grows to learning_rate: {found}"
    scale, reference = given.get("train_scale_learning_rate", "none"), given.get("train_reference_batch")
    if scale != "none" and reference is None:
        yield "train_scale_learning_rate", f"scale_learning_rate={scale} needs a reference_batch to scale from"
    if scale == "none" and reference is not None:
        yield "train_reference_batch", f"reference_batch={reference} without scale_learning_rate: linear or sqrt"
