"""Faults of one combination of keys: peers, pipelines, shards, training to a result. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scaling_study.frameworks import FRAMEWORKS, MESH, SCHEDULES
from scaling_study.models import CLASSES, DECODERS, IMAGE_KEYS, MODELS, NONE, OURS, PAIR_VOCABULARY, Model
from scaling_study.targets import ENDS, Target, logs, trains

MATCHMAKING_SECONDS, AVERAGING_TIMEOUT_SECONDS = 3.0, 60.0  # where a trial names none; the latter is Hivemind's own


def peer_problems(framework: str, workers: int, batch: int, keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, message) of everything that is wrong; nothing for a framework whose workers are no peers."""
    if not FRAMEWORKS[framework].has_rounds:
        return
    if workers < 2:
        yield "workers", f"{framework} needs 2 peers or more, not workers={workers}"
    if keys.get("updates") == "delayed" and trains(keys):
        yield (
            "updates",
            "updates=delayed can only be timed: it holds two copies of the weights, and a checkpoint saves one",
        )
    target = keys.get("target_batch_size")
    if target is not None and batch and target < workers * batch:
        yield (
            "target_batch_size",
            f"target_batch_size={target} is less than the {workers * batch} samples of workers={workers} with "
            f"batch_per_worker={batch}: each peer gives at least one batch",
        )
    elif target is not None and target % workers:
        yield "target_batch_size", f"workers={workers} does not divide target_batch_size={target}"
    if keys.get("cores_per_worker") and (why := no_core_left(keys.get("daemon_cores") or 0, keys["cores_per_worker"])):
        yield "daemon_cores", why
    matchmaking = keys.get("matchmaking_seconds") or MATCHMAKING_SECONDS
    timeout = keys.get("averaging_timeout_seconds") or AVERAGING_TIMEOUT_SECONDS
    if matchmaking >= timeout:
        key = "matchmaking_seconds" if "matchmaking_seconds" in keys else "averaging_timeout_seconds"
        yield (
            key,
            f"matchmaking_seconds={matchmaking:g} must be less than averaging_timeout_seconds={timeout:g}, which "
            "includes it",
        )


def no_core_left(daemon_cores: int, cores: int) -> str:
    """The reason why a peer of so many cores (0: pinned to none) cannot compute beside its daemon; empty if it can."""
    if not daemon_cores or daemon_cores < cores:
        return ""
    if not cores:
        return f"daemon_cores={daemon_cores} needs workers that are pinned to cores; workers with a GPU are not"
    return f"daemon_cores={daemon_cores} leaves no core to compute on: a worker has {cores}"


# The shape of a pipeline: stages x replicas of workers, micro-batches, schedule. Pure.
#
#     workers = stages x replicas          the model is cut into stages x virtual_stages parts
#                                          (x tensor_parallel, where several workers share the matrices of a stage)
#
#                  stage 0     stage 1
#     replica 0    worker 0 -> worker 1    each replica reads data of its own, batch_per_worker samples a step,
#     replica 1    worker 2 -> worker 3    in micro_batches parts; gradients are averaged down each column
#
# Replicas in groups of shard_group hold each stage once, in shards.
#
# Defaults for keys that a study or a command line leaves open. Contradictions are reported with both values.

SHAPE = ("stages", "replicas", "schedule", "virtual_stages", "micro_batches", "stage_cut")
DEFAULT_SCHEDULE = "1f1b"
CUTS = ("even", "time")
HOLDS = {"one": 1, "two": 2, "several": 2}  # stages that a worker holds, or the fewest


def resolved(framework: str, workers: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of the shape that the framework has; `given` are those asked for. Nothing is checked here."""
    axes = FRAMEWORKS[framework].axes
    if not FRAMEWORKS[framework].cuts_model:
        return _meshed(framework, workers, given)
    asked = {key: given[key] for key in SHAPE if given.get(key) is not None}
    width = given.get("tensor_parallel") or 1  # workers with the same stages, that share their matrices
    groups = max(1, workers // width)
    stages = asked.get("stages") or max(1, groups // asked.get("replicas", 1))
    schedule = asked.get("schedule", DEFAULT_SCHEDULE)
    full = {
        "stages": stages,
        "replicas": max(1, groups // stages),
        "schedule": schedule,
        "virtual_stages": HOLDS[SCHEDULES[schedule]],
        "micro_batches": 2 * stages,
        "stage_cut": "even",
        **asked,
    }
    return {key: full[key] for key in SHAPE if key in axes} | ({"tensor_parallel": width} if width > 1 else {})


def pipeline_problems(framework: str, workers: int, batch: int, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it on every machine) of a shape that is asked for; nothing where no model is cut."""
    if not FRAMEWORKS[framework].cuts_model:
        return
    shape = resolved(framework, workers, given)
    stages, replicas, width = shape["stages"], shape.get("replicas", 1), shape.get("tensor_parallel", 1)
    times = f" x tensor_parallel={width}" if width > 1 else ""
    if stages * replicas * width != workers:
        if "replicas" in given and "stages" in given:
            yield "workers", f"workers={workers} is not stages={stages} x replicas={given['replicas']}{times}"
        elif "replicas" in given:
            yield "replicas", f"replicas={given['replicas']}{times} does not divide workers={workers}"
        elif "replicas" in FRAMEWORKS[framework].axes:
            yield "stages", f"workers={workers} does not divide into pipelines of stages={stages}{times}"
        else:
            yield "stages", f"{framework} has one stage a worker: stages={stages} must be workers={workers}"
    parts, virtual = shape.get("micro_batches", 1), shape.get("virtual_stages", 1)
    if "schedule" in shape:
        schedule = f"schedule={shape['schedule']}"
        word = SCHEDULES[shape["schedule"]]
        if word == "several" and virtual < 2:
            yield "virtual_stages", f"{schedule} needs virtual_stages of 2 or more, not {virtual}; 1f1b has one"
        elif word != "several" and virtual != HOLDS[word]:
            several = "s" if word == "two" else ""
            yield "virtual_stages", f"{schedule} has {word} stage{several} a worker, not virtual_stages={virtual}"
        if problem := _too_few(shape["schedule"], stages, virtual, parts):
            yield "micro_batches", problem
    if batch and batch % parts:
        default = "" if "micro_batches" in given else " (2 x stages, the default)"
        yield "micro_batches", f"micro_batches={parts}{default} does not divide batch_per_worker={batch}"
    group = given.get("shard_group") or 1
    if width > 1:
        yield from _of_split_stages("tensor_parallel", width, str(shape["schedule"]), given)
        yield from _undivided_matrices(str(given.get("model")), width, given)
    if group > 1:
        yield from _of_split_stages("shard_group", group, str(shape["schedule"]), given)
    if width > 1 and group > 1:
        yield "shard_group", f"shard_group={group} and tensor_parallel={width} in one pipeline are untested: give one"
    if problem := _uncut(str(shape["stage_cut"]), stages * virtual):
        yield "stage_cut", problem


TRIED_SPLIT = ("gpipe", "1f1b")


def _of_split_stages(key: str, parts: int, schedule: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The problems of stages that several workers hold together."""
    if schedule not in TRIED_SPLIT:
        yield key, f"{key}={parts} needs schedule={' or '.join(TRIED_SPLIT)}: it is untested with {schedule}"
    if trains(given):
        yield key, f"{key}={parts} in a pipeline can only be timed: checkpoints do not save its parts"


def by_hand(stage_cut: str) -> list[int] | None:
    """`9,5` -> [9, 5], layers a stage in order; None for what is no such list."""
    parts = stage_cut.split(",")
    return [int(part) for part in parts] if all(re.fullmatch(r" *[0-9]{1,9} *", part) for part in parts) else None


def _too_few(schedule: str, stages: int, virtual: int, parts: int) -> str:
    """The reason why torch's schedule refuses the number of micro-batches; empty if it does not."""
    if schedule == "1f1b" and parts < stages:
        return f"schedule=1f1b needs a micro-batch for each of the {stages} stages, not micro_batches={parts}"
    if schedule == "dualpipev" and parts < stages * virtual:
        return f"schedule=dualpipev needs a micro-batch for each of the {stages * virtual} stages, not {parts}"
    rounds = max(1, parts // stages)
    if SCHEDULES[schedule] == "several" and schedule != "looped_bfs" and parts % rounds:
        return f"schedule={schedule} cannot divide micro_batches={parts} by {rounds}: use a multiple of stages={stages}"
    return ""


def _uncut(stage_cut: str, parts: int) -> str:
    """The problem with the cut; empty if there is none."""
    if stage_cut in CUTS:
        return ""
    layers = by_hand(stage_cut)
    if layers is None:
        return f"stage_cut={stage_cut!r} must be even, time, or the layers of each stage, like 9,5"
    if len(layers) != parts:
        return f"stage_cut={stage_cut} names {len(layers)} stages, the pipeline has {parts}"
    return "" if min(layers) > 0 else f"stage_cut={stage_cut}: each stage needs at least one layer"


# The shape of a mesh: workers that share every matrix or every sequence x replicas of them. Pure.
#
#     workers = tensor_parallel (or context_parallel) x replicas
#
#                  part 0      part 1
#     replica 0    worker 0    worker 1    read one batch of batch_per_worker samples together
#     replica 1    worker 2    worker 3    read the next one

DEFAULT_ATTENTION = "all_to_all"


def _meshed(framework: str, workers: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a mesh that the framework has; none for one whose workers all have data of their own."""
    axes = FRAMEWORKS[framework].axes
    shared = next((key for key in MESH if key in axes), None)
    if shared is None or FRAMEWORKS[framework].cuts_model:
        return {}
    parts = given.get(shared) or max(1, workers // (given.get("replicas") or 1))
    full = {
        shared: parts,
        "replicas": given.get("replicas") or max(1, workers // parts),
        "attention": given.get("attention") or DEFAULT_ATTENTION,
    }
    return {key: value for key, value in full.items() if key in axes}


def mesh_problems(framework: str, workers: int, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it on every machine) of a mesh that is asked for; nothing where workers share none."""
    mesh = _meshed(framework, workers, given)
    if not mesh:
        return
    (shared,) = set(MESH) & set(mesh)
    parts, replicas = mesh[shared], mesh["replicas"]
    if parts * replicas != workers:
        if given.get("replicas") and given.get(shared):
            yield "workers", f"workers={workers} is not {shared}={parts} x replicas={replicas}"
        elif given.get("replicas"):
            yield "replicas", f"replicas={replicas} does not divide workers={workers}"
        else:
            yield shared, f"{shared}={parts} does not divide workers={workers}"
    if shared == "context_parallel":
        yield from _uneven_parts(str(given.get("model")), parts, mesh["attention"], given.get("sequence_length"))
    if shared == "tensor_parallel":
        yield from _undivided_matrices(str(given.get("model")), parts, given)


def _undivided_matrices(model_name: str, parts: int, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What so many workers cannot share evenly. Any vocabulary they can: DTensor knows parts of unequal length."""
    decoder = MODELS[model_name].decoder if model_name in DECODERS else None
    if decoder is None:
        if "model" in given:
            yield "model", f"matrices of model {model_name} cannot be split: only those of {', '.join(DECODERS)} can"
        return
    counts = {"key/value heads": decoder.kv_heads, "columns of feed-forward layers": decoder.feed_forward}
    for what, count in counts.items():
        if count % parts:
            yield "tensor_parallel", f"tensor_parallel={parts} does not divide the {count:,} {what} of {model_name}"
    asked = given.get("sequence_length")
    length, own = asked or decoder.length, "" if asked else f", the default of {model_name}"
    if given.get("sequence_parallel") and length % parts:
        yield (
            "sequence_parallel",
            f"sequence_parallel: tensor_parallel={parts} does not divide sequence_length={length}{own}",
        )
    if given.get("loss_parallel") and (smoothing := given.get("train_label_smoothing") or 0):
        yield "loss_parallel", f"loss_parallel cannot smooth labels (label_smoothing={smoothing:g}): leave one out"


def _uneven_parts(model_name: str, parts: int, attention: str, asked: int | None) -> Iterator[tuple[str, str]]:
    decoder = MODELS[model_name].decoder if model_name in DECODERS else None
    if decoder is None:
        return  # the framework has no such model, which is said elsewhere
    length, own = asked or decoder.length, "" if asked else f", the default of {model_name}"
    if length % parts:
        yield "context_parallel", f"context_parallel={parts} does not divide sequence_length={length}{own}"
    if attention == "all_to_all" and decoder.kv_heads % parts:
        yield (
            "context_parallel",
            f"attention=all_to_all gives each worker whole heads, and context_parallel={parts} does not divide the "
            f"{decoder.kv_heads} key/value heads of {model_name}: attention=all_gather has no such limit",
        )


def shard_problems(framework: str, workers: int, keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, message) of everything that is wrong about groups of workers that hold one copy of a model in shards."""
    group, name, copies = keys.get("shard_group"), "workers", workers
    if FRAMEWORKS[framework].cuts_model:
        name, copies = "replicas", resolved(framework, workers, keys).get("replicas", 1)
    if group is not None and copies % group:
        yield "shard_group", f"shard_group={group} does not divide {name}={copies}"


def sharded(framework: str, workers: int, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys without those of sharding that say nothing: a group as if left out, and what scatters to one."""
    left_out = 1 if FRAMEWORKS[framework].cuts_model else workers  # a pipeline shards nothing unless it is told to
    given = {key: value for key, value in keys.items() if key != "shard_group" or value != left_out}
    if given.get("shard_group", workers) == 1:
        given.pop("reduce_scatter", None)
    return given


INSTEAD = ("epochs", "warmup_epochs", "find")
ONLY_TIMED = {  # framework -> why it is not trained to a result
    "torch_dp": "it can only be timed: it needs a GPU, and no training to a target by it was tried"
}
NATIVE = ("lightning_ddp", "lightning_fsdp", "deepspeed_zero")  # frameworks with a loop of their own
SCHEDULES_WITH_AN_END = ("step", "cosine", "one_cycle", "triangular")
CYCLES = ("one_cycle", "triangular")


def training_problems(
    keys: Mapping[str, Any], model_name: str, model: Model, framework: str
) -> Iterator[tuple[str, str]]:
    """(key, message) of everything that is wrong; nothing for a combination that is only timed."""
    given = {key: value for key, value in keys.items() if key.startswith("train_") and value is not None}
    if not given:
        return
    if not any(key in given for key in ENDS):
        first = next(iter(given))
        yield first, f"{first.removeprefix('train_')}={given[first]} needs an end: epochs, steps or max_seconds"
    for key in INSTEAD:
        if keys.get(key) is not None:
            yield key, f"{key}={keys[key]} and train exclude each other: give one of the two"
    if "train_epochs" in given and "train_steps" in given:
        yield "train_steps", "give train epochs or steps, not both: one follows from the other"
    if model_name in OURS and not model.metrics:
        yield "model", f"model {model_name} can only be timed: it has no held-out data to evaluate on"
    if given.get("train_loop") == "native" and (why := no_native_loop(framework)):
        yield "train_loop", why
    yield from _of_evaluation(given, model_name, model)
    yield from _of_the_optimiser(given, keys.get("learning_rate"))
    if given.get("train_optimizer") == "muon" and "part_learning_rates" in model.keys:
        yield "train_optimizer", f"optimizer=muon groups weights by shape, and model {model_name} has groups of its own"
    if "train_optimizer" in given and keys.get("learning_rate") is None:
        yield "train_optimizer", f"optimizer={given['train_optimizer']} needs a learning_rate: it has no default"
    if given.get("train_augmentation", "none") != "none" and not set(IMAGE_KEYS) & set(model.keys):
        augmentation = given["train_augmentation"]
        yield "train_augmentation", f"augmentation={augmentation} is for images, which model {model_name} does not have"
    for key in model.no_train_keys:
        if (asked := given.get(f"train_{key}", 0)) not in ("none", 0):
            yield f"train_{key}", f"model {model_name} has no {key} (here {asked}): leave it out"
    try:
        logs(given)
    except ValueError as error:
        yield "train_log", str(error)


NOT_TWICE = "has no blocks to compute again: BatchNorm would count a batch twice, and all of ALBERT is one block"


def kernel_problems(keys: Mapping[str, Any], model_name: str, model: Model) -> Iterator[tuple[str, str]]:
    """(key, message) of what is wrong about keys that choose kernels, or the synthetic data that they work on."""
    scope, rows = keys.get("compile_scope") or "model", keys.get("vocabulary") or PAIR_VOCABULARY
    if scope != "model" and not keys.get("compile"):
        yield "compile_scope", f"compile_scope={scope} compiles nothing without compile: true"
    if scope != "model" and "part_learning_rates" in model.keys:
        yield "compile_scope", f"compile_scope={scope} cannot compile the loss of {model_name}, which records its parts"
    if keys.get("optimizer_kernels") == "fused" and keys.get("train_optimizer") == "muon":
        yield "optimizer_kernels", "optimizer_kernels=fused: torch has no fused Muon; leave the key out"
    if rows < PAIR_VOCABULARY:
        yield "vocabulary", f"vocabulary={rows} is less than the {PAIR_VOCABULARY} tokens of GPT-2; 50304 pads them"
    if (kind := keys.get("checkpoint") or NONE) != NONE and "checkpoint" not in model.keys:
        yield "checkpoint", f"checkpoint={kind}: model {model_name} {NOT_TWICE}"
    smoothing = keys.get("train_label_smoothing") or 0
    for key, plain in (("vocabulary", PAIR_VOCABULARY), ("cross_entropy", "whole")):
        if smoothing and keys.get(key) not in (None, plain):
            yield key, f"{key}={keys[key]} cannot smooth labels (label_smoothing={smoothing:g}): leave one out"
    data = keys.get("data", "auto")
    if (classes := keys.get("classes")) not in (None, CLASSES) and data != "synthetic":
        yield "classes", f"classes={classes} needs data: synthetic, not data={data}"
    if (batches := keys.get("resident_batches") or 1) > 1 and data not in ("auto", "synthetic"):
        yield "resident_batches", f"resident_batches={batches} needs synthetic data: all of data={data} is read"


def no_native_loop(framework: str) -> str:
    """Why a framework has no loop of its own; empty where it has."""
    *first, last = NATIVE
    having = f"{', '.join(first)} and {last} have"
    return "" if framework in NATIVE else f"loop=native: {framework} has no training loop of its own; {having} one"


def _of_evaluation(given: Mapping[str, Any], model_name: str, model: Model) -> Iterator[tuple[str, str]]:
    if text := given.get("train_target"):
        try:
            metric = Target.parse(text).metric
            if model.metrics and metric not in model.metrics:
                yield "train_target", f"model {model_name} has no {metric}; it has {', '.join(model.metrics)}"
        except ValueError as error:
            yield "train_target", str(error)
    if "train_validation" in given and model.published_validation:
        yield (
            "train_validation",
            f"validation={given['train_validation']}: model {model_name} is validated on the published validation "
            "text, and nothing of the training text is held out: leave the key out",
        )
        return
    for key in ("train_target", "train_patience", "train_keep"):  # evaluate_every logs the training loss all the same
        if key in given and given.get("train_validation") == 0:
            yield key, f"{key.removeprefix('train_')} needs validation data: validation=0 holds none out"


def _of_the_optimiser(given: Mapping[str, Any], rate: float | None) -> Iterator[tuple[str, str]]:
    optimizer, schedule = given.get("train_optimizer"), given.get("train_schedule")
    if "train_momentum" in given and optimizer not in ("sgd", "nesterov"):
        yield "train_momentum", f"momentum is a key of optimizer sgd or nesterov, not of {optimizer or 'the default'}"
    if "train_weight_decay" in given and optimizer is None:
        yield "train_weight_decay", "weight_decay needs an optimizer: sgd, nesterov, adam, adamw or muon"
    ends = {"train_epochs", "train_steps", *(("train_cycle_steps",) if schedule == "triangular" else ())}
    if schedule in SCHEDULES_WITH_AN_END and not ends & set(given):
        yield "train_schedule", f"schedule={schedule} needs epochs or steps, to know its end"
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
            found = "which is not given" if rate is None else f"and that is {rate:g}"
            yield "train_start_learning_rate", f"start_learning_rate={start:g} grows to learning_rate, {found}"
    scale, reference = given.get("train_scale_learning_rate", "none"), given.get("train_reference_batch")
    if scale != "none" and reference is None:
        yield "train_scale_learning_rate", f"scale_learning_rate={scale} needs a reference_batch to scale from"
    if scale == "none" and reference is not None:
        yield "train_reference_batch", f"reference_batch={reference} needs scale_learning_rate: linear or sqrt"
