"""A study -> every combination of keys that it asks for, checked for what is wrong on every machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling_study import parts
from scaling_study.errors import StudyError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import MODEL_KEYS, MODELS, OWN_KEYS, TIMM, Model, timm_names
from scaling_study.parts import IMAGENET, NONE
from scaling_study.stats import collectives
from scaling_study.study import matrix, peers, pipelines, training
from scaling_study.study.study import Study, Sweep, by_line, nearest
from scaling_study.trial import Trial


def checked(study: Study) -> list[tuple[matrix.Keys, Sweep]]:
    """Every combination with its sweep. Raises StudyError with file, line and both values for whatever is wrong."""
    matrix.refuse_too_many(study)
    problems: matrix.Problem = {}
    asked = [(keys, sweep) for sweep in study.sweeps for keys in matrix.combinations(study, sweep, problems)]
    for keys, sweep in asked:
        _find_problems(study, keys, sweep, problems)
    if problems:
        raise StudyError(sorted(problems, key=by_line))
    return asked


def data_shares(framework: str, keys: Mapping[str, Any]) -> int:
    """How many workers, or pipelines of workers, share the data."""
    workers = worker_count(keys)
    if not FRAMEWORKS[framework].cuts_model:
        return workers
    return max(1, workers // int(pipelines.resolved(framework, workers, keys)["stages"]))


def worker_count(keys: Mapping[str, Any]) -> int:
    """Of a combination: 1 where it does not name them."""
    return int(keys.get("workers", 1))


def _find_problems(study: Study, keys: matrix.Keys, sweep: Sweep, problems: matrix.Problem) -> None:
    """Add to `problems` what is wrong on every machine about one combination."""
    table = FRAMEWORKS[sweep.framework]

    def report(key: str, message: str) -> None:
        train = ("train", key.removeprefix("train_"))
        own = [(*sweep.place, "matrix", key), (*sweep.place, key), (*sweep.place, *train)]
        places = [*own, *([train] if key.startswith("train_") else []), sweep.place]
        line = study.document.at(next(p for p in places if p in study.document.lines))
        problems[f"{line}: {message}"] = None

    for key, value in keys.items():
        if key in ("global_batch", "launcher"):
            continue
        if key not in table.axes:
            report(key, f"framework {sweep.framework} has no {key!r}{nearest(key, list(table.axes))}")
        elif table.axes[key] and value not in table.axes[key] and str(value) not in table.refusals.get(key, {}):
            choices = ", ".join(map(str, table.axes[key]))
            report(key, f"framework {sweep.framework} has no {key}={value}; it has {choices}")
        elif not table.has(key, launcher := keys.get("launcher", table.launchers[0])):
            having = " or ".join(table.launcher_axes[key])
            report(key, f"framework {sweep.framework} has {key!r} with launcher={having} only, not with {launcher}")
    if keys.get("launcher", table.launchers[0]) not in table.launchers:
        *first, last = table.launchers
        choices = f"{', '.join(first)} or {last}" if first else last
        report("launcher", f"framework {sweep.framework} is not started by {keys['launcher']}, but by {choices}")
    if worker_count(keys) % keys.get("hosts", 1):
        report("hosts", f"workers={worker_count(keys)} cannot be spread evenly over hosts={keys['hosts']}")
    if (by := keys.get("launcher")) in ("mpirun", "srun") and keys.get("controller") == "gloo":
        report("controller", f"launcher={by} carries Horovod's messages over MPI, not controller=gloo; use horovodrun")
    model_name = keys.get("model", Trial.model)
    model = MODELS[model_name]
    if model_name.startswith(TIMM) and (known := timm_names()):
        name = model_name.removeprefix(TIMM).partition(".")[0]
        if name not in known:
            report("model", f"the installed timm has no model {name!r}{nearest(name, sorted(known))}")
    if why := _no_weights(keys.get("weights", NONE), model_name, model):
        report("weights", why)
    for key in MODEL_KEYS:
        if key in keys and key not in model.keys:
            whose = "it has" if key in OWN_KEYS else "its samples have"
            report(key, f"model {model_name} has no {key!r}: {whose} {', '.join(model.keys) or 'no such key'}")
    if keys.get("data", "auto") not in ("auto", "synthetic", model.data, *model.also):
        own = " or ".join((model.data, *model.also)) if model.data else "data of its own"
        report("data", f"model {model_name} trains on {own}, not on {keys['data']}")
    for key, message in (*parts.problems(keys), *training.problems(keys, model_name, model, sweep.framework)):
        report(key, message)
    if message := collectives.no_size(keys.get("min_bytes"), keys.get("max_bytes")):
        report("max_bytes" if "max_bytes" in keys else "min_bytes", message)
    shares = data_shares(sweep.framework, keys)
    batch, micro_batches = _batch(keys, shares), keys.get("accumulation", 1)
    if batch and batch % micro_batches:
        report("accumulation", f"accumulation={micro_batches} does not divide batch_per_worker={batch}")
    if "global_batch" in keys:
        if "target_batch_size" in keys:
            report("global_batch", "give global_batch or target_batch_size, not both: both are the samples of a step")
        if "batch_per_worker" in keys:
            report("global_batch", "give global_batch or batch_per_worker, not both: one follows from the other")
        elif keys["global_batch"] % shares:
            divisor = f"workers={shares}" if shares == worker_count(keys) else f"replicas={shares}"
            report("global_batch", f"{divisor} does not divide global_batch={keys['global_batch']}")
    if table.cuts_model:
        for key, message in pipelines.problems(sweep.framework, worker_count(keys), batch, keys):
            report(key, message)
    for key, message in peers.problems(sweep.framework, worker_count(keys), batch, keys):
        report(key, message)
    if keys.get("allreduce") == "none" and shares > 1:
        what = "worker" if shares == worker_count(keys) else "replica"
        report("allreduce", f"allreduce=none with {what}s={shares}: more than one {what} must reduce gradients")


def _no_weights(asked: str, name: str, model: Model) -> str:
    """Why a model cannot begin with these weights; empty where it can."""
    if asked == NONE:
        return ""
    if not model.loads_weights:
        return f"model {name} has random weights: only those of timm (timm:NAME) and tripnet_... load any"
    unknown = asked == IMAGENET and not model.imagenet
    return f"model {name} knows no weights {IMAGENET!r}: name a file" if unknown else ""


def _batch(keys: Mapping[str, Any], shares: int) -> int:
    """Samples of one worker (or pipeline), as far as the keys are right; 0 where they are not."""
    if "global_batch" not in keys:
        return int(keys.get("batch_per_worker", Trial.batch_per_worker))
    return 0 if keys["global_batch"] % shares else int(keys["global_batch"]) // shares
