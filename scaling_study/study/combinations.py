"""A study -> every combination of keys that it asks for, checked for what is wrong on every machine. Pure.

matrix {a: [1, 2], b: [3, 4]}  -->  a1 b3, a1 b4, a2 b3, a2 b4
exclude [{a: 1, b: 4}]         -->  a1 b3,        a2 b3, a2 b4       a partial match
include [{a: 9}]               -->  a1 b3,        a2 b3, a2 b4, a9   whole trials
"""

from __future__ import annotations

import ast
import builtins
import itertools
import math
import re
import symtable
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from scaling_study import models
from scaling_study.errors import StudyError, quoted
from scaling_study.frameworks import FRAMEWORKS, MESH
from scaling_study.models import FILE_NAME, IMAGENET, MODEL_KEYS, MODELS, NONE, OWN_KEYS, TIMM, file_named, timm_names
from scaling_study.stats import network
from scaling_study.study import command, defaults, rules
from scaling_study.study.study import Study, Sweep, by_line, nearest
from scaling_study.trial import Trial

# A line of YAML can ask for more combinations than there are atoms, so they are counted before any is made. Planning
# takes some 50 microseconds a configuration, a list of trials some 10 more and a kilobyte each: under 5 s and a few
# hundred MB at these limits, on a core of 2 GHz. At 10 s a trial so many would train for three weeks.
MAX_CONFIGURATIONS = 50_000
MAX_TRIALS = 200_000
MAX_MATCHES = 10_000_000  # of combinations with entries of `exclude`; one takes some 0.3 microseconds

Keys = dict[str, Any]
Problem = dict[str, None]  # the problems so far, each once, in order


def refuse_too_many(study: Study) -> None:
    """Raises StudyError, with the line and the number, for what would take minutes or more memory than there is."""
    sizes = {
        sweep.place: math.prod(map(len, sweep.matrix.values())) * bool(sweep.matrix or not sweep.include)
        for sweep in study.sweeps
    }
    asked = {sweep.place: sizes[sweep.place] + len(sweep.include) for sweep in study.sweeps}
    trials = {sweep.place: asked[sweep.place] * sweep.measure.repeats for sweep in study.sweeps}
    matches = {sweep.place: sizes[sweep.place] * len(sweep.exclude) for sweep in study.sweeps}
    for counts, most, key, what in (
        (asked, MAX_CONFIGURATIONS, "matrix", "combinations"),
        (trials, MAX_TRIALS, "repeats", "trials, with every repeat"),
        (matches, MAX_MATCHES, "exclude", "combinations to compare with entries of exclude"),
    ):
        if (count := sum(counts.values())) > most:
            worst = max(counts, key=lambda place: counts[place])
            raise StudyError([f"{study.document.at((*worst, key))}: {count:,} {what}; the limit is {most:,}"])


def combinations(study: Study, sweep: Sweep, problems: Problem) -> list[Keys]:
    """The combinations that the sweep asks for, with its fixed keys. What is wrong is added to `problems`."""
    kept, matched = [], set[int]()
    for values in itertools.product(*sweep.matrix.values()):
        keys = {**sweep.fixed, **dict(zip(sweep.matrix, values, strict=True))}
        hits = [index for index, entry in enumerate(sweep.exclude) if entry.items() <= keys.items()]
        matched.update(hits)
        if not hits and (sweep.matrix or not sweep.include):  # else it is a sweep of whole trials only
            kept.append(keys)
    for index, entry in enumerate(sweep.exclude):
        if index not in matched:
            line = study.document.at((*sweep.place, "exclude", index))
            said = study.document.worded(f"exclude {quoted(dict(entry))} matches nothing in the matrix")
            problems[f"{line}: {said}"] = None
    kept += ({**sweep.fixed, **entry} for entry in sweep.include)
    if sweep.expect:
        kept = [_with_expected_batch(study, sweep, keys, problems) for keys in kept]
    if not kept:
        problems[f"{study.document.at(sweep.place)}: this sweep of {sweep.framework} has no trials left"] = None
    return kept


def _with_expected_batch(study: Study, sweep: Sweep, keys: Keys, problems: Problem) -> Keys:
    """The combination with the global batch that `expect` gives; what is wrong is added to `problems`."""
    line = study.document.at((*sweep.place, "expect"))
    if not FRAMEWORKS[sweep.framework].foreign:
        problems[f"{line}: expect is for framework command; give {sweep.framework} its global_batch"] = None
        return keys
    try:
        expected = command.expected(sweep.expect, keys)
    except ValueError as wrong:
        problems[f"{line}: expect: global_batch {wrong}"] = None
        return keys
    given = keys.get("global_batch") or keys.get("batch_per_worker", 0) * worker_count(keys)
    if given and given != expected:
        how = "global_batch" if "global_batch" in keys else "batch_per_worker x workers"
        problems[
            f"{line}: expect: global_batch {sweep.expect!r} gives {expected}, and {how} is {given}: leave that out, "
            "and give the command its own batch as an axis of the matrix"
        ] = None
    return keys if given else {**keys, "global_batch": expected}


def checked(study: Study) -> list[tuple[Keys, Sweep]]:
    """All combinations, each with its sweep. Raises StudyError with file, line and both values of what is wrong."""
    refuse_too_many(study)
    problems: Problem = {}
    asked = [(keys, sweep) for sweep in study.sweeps for keys in combinations(study, sweep, problems)]
    for name, sweep in _models_of_files(asked):
        if why := _no_model(name, study.folders):
            problems[f"{line_of(study, sweep, 'model')}: {why}"] = None
    for keys, sweep in asked:
        _find_problems(study, keys, sweep, problems)
    if problems:
        raise StudyError(sorted(problems, key=by_line))
    return asked


def _models_of_files(asked: Sequence[tuple[Keys, Sweep]]) -> Iterator[tuple[str, Sweep]]:
    """Each model `FILE.py:FUNCTION` of each sweep, once; a command's model is only a label."""
    named = {(keys.get("model", ""), sweep.place): sweep for keys, sweep in asked}
    for (name, _), sweep in named.items():
        if FILE_NAME.fullmatch(name) and not FRAMEWORKS[sweep.framework].foreign:
            yield name, sweep


def _no_model(name: str, folders: Sequence[str]) -> str:
    """The reason why a model `FILE.py:FUNCTION` cannot be loaded: no file, no Python, no such function, or a name that
    the file does not define; else empty.

    The file is parsed, not run: a plan needs no torch.
    """
    text, _, function = name.rpartition(":")
    if not (path := file_named(name, folders)):
        there = [path.name for folder in folders for path in sorted(Path(folder).glob("*.py"))]
        return f"model {name}: there is no file {text} in {' or in '.join(folders)}{nearest(text, there)}"
    try:
        source = path.read_bytes()
        nodes = list(ast.walk(ast.parse(source)))
        undefined = _undefined(source)
    except SyntaxError as error:
        return f"model {name}: {path}:{error.lineno or 1}: {error.msg}"
    except (OSError, ValueError, RecursionError) as error:
        return f"model {name}: {path} cannot be read: {error}"
    if not re.search(rb"\b%s\b" % function.encode(), source):
        defined = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
        return f"model {name}: {path} has no function {function!r}{nearest(function, defined)}"
    uses = sorted((node.lineno, node.id) for node in nodes if isinstance(node, ast.Name) and node.id in undefined)
    names = ", ".join(dict.fromkeys(used for _, used in uses))
    return f"model {name}: {path}:{uses[0][0]}: neither defined nor imported: {names}" if uses else ""


UNKNOWABLE = re.compile(rb"import\s*\*|\bglobals\(|\bexec\(|\bNameError\b")  # in a file whose names only a run tells


def _undefined(source: bytes) -> set[str]:
    """The names that a Python file uses, and neither defines nor imports, in any of its scopes."""
    if UNKNOWABLE.search(source):
        return set()
    whole = symtable.symtable(decode_source(source), "model", "exec")
    scopes = [whole]
    for scope in scopes:
        scopes += scope.get_children()
    symbols = [symbol for scope in scopes for symbol in scope.get_symbols()]
    used = {symbol.get_name() for symbol in symbols if symbol.is_global() and symbol.is_referenced()}
    set_anywhere = [symbol for symbol in symbols if symbol.is_declared_global()] + whole.get_symbols()
    known = {symbol.get_name() for symbol in set_anywhere if symbol.is_assigned() or symbol.is_imported()}
    return {name for name in used - known - {*dir(builtins)} if not name.startswith("__")}


def data_shares(framework: str, keys: Mapping[str, Any]) -> int:
    """The number of workers, or of groups of workers with one batch, that share the data."""
    workers = worker_count(keys)
    shape = rules.resolved(framework, workers, keys)
    return max(1, workers // math.prod(int(shape.get(key, 1)) for key in ("stages", *MESH)))


def reducing(framework: str, keys: Mapping[str, Any]) -> int:
    """The number of workers that hold the same weights, and reduce their gradients: those with data of their own, and
    those that share a sequence."""
    parts = rules.resolved(framework, worker_count(keys), keys).get("context_parallel", 1)
    return data_shares(framework, keys) * int(parts)


def worker_count(keys: Mapping[str, Any]) -> int:
    """The workers that a combination names, else 1."""
    return int(keys.get("workers", 1))


def problem(study: Study, sweep: Sweep, keys: Mapping[str, Any]) -> str:
    """The first thing that is wrong on every machine about one combination, with its line; empty if nothing is."""
    problems: Problem = {}
    _find_problems(study, dict(keys), sweep, problems)
    return next(iter(problems), "")


def line_of(study: Study, sweep: Sweep, key: str) -> str:
    """`file:line` of the place where a sweep gives a key, else of the sweep."""
    train = ("train", key.removeprefix("train_"))
    own = [(*sweep.place, "matrix", key), (*sweep.place, key), (*sweep.place, *train)]
    places = [*own, *([train] if key.startswith("train_") else []), sweep.place]
    return study.document.at(next(p for p in places if p in study.document.lines))


def _find_problems(study: Study, keys: Keys, sweep: Sweep, problems: Problem) -> None:
    """Add to `problems` what is wrong on every machine about one combination."""
    table = FRAMEWORKS[sweep.framework]
    if not table.foreign:
        keys = defaults.named(keys)
    framework, workers, launcher = sweep.framework, worker_count(keys), keys.get("launcher", table.launchers[0])

    def report(key: str, message: str) -> None:
        problems[f"{line_of(study, sweep, key)}: {study.document.worded(message)}"] = None

    if table.foreign:
        for key, message in command.problems(keys):
            report(key, message)
    for key, value in keys.items():
        if key in ("global_batch", "launcher"):
            continue
        if key not in table.axes:
            why = f": {table.lacks[key]}" if key in table.lacks else nearest(key, list(table.axes))
            report(key, f"framework {framework} has no {key!r}{why}")
        elif table.axes[key] and value not in table.axes[key] and str(value) not in table.refusals.get(key, {}):
            choices = ", ".join(map(str, table.axes[key]))
            report(key, f"framework {framework} has no {key}={value}; it has {choices}")
        elif not table.has(key, launcher):
            having = " or ".join(table.launcher_axes[key])
            report(key, f"framework {framework} has {key!r} with launcher={having} only, not with {launcher}")
    if launcher not in table.launchers:
        *first, last = table.launchers
        choices = f"{', '.join(first)} or {last}" if first else last
        report("launcher", f"framework {framework} has no launcher={launcher}; it has {choices}")
    if workers % keys.get("hosts", 1):
        report("hosts", f"workers={workers} cannot be spread evenly over hosts={keys['hosts']}")
    if (by := keys.get("launcher")) in ("mpirun", "srun") and keys.get("controller") == "gloo":
        report("controller", f"launcher={by} needs controller=mpi, not gloo: launcher=horovodrun has gloo")
    model_name = keys.get("model", Trial.model)
    if (trained := table.axes.get("model")) and model_name not in trained and "model" not in keys:
        report("model", f"framework {framework} needs a model: it has {', '.join(map(str, trained))}")
    model = MODELS[model_name]
    if model_name.startswith(TIMM) and (known := timm_names()):
        name = model_name.removeprefix(TIMM).partition(".")[0]
        if name not in known:
            report("model", f"the installed timm has no model {name!r}{nearest(name, sorted(known))}")
    weights = keys.get("weights", NONE)
    if weights != NONE and not model.loads_weights:
        report("weights", f"model {model_name} cannot load weights: models of timm (timm:NAME) and tripnet_... can")
    elif weights == IMAGENET and not model.imagenet:
        report("weights", f"model {model_name} knows no weights {IMAGENET!r}: name a file")
    for key in MODEL_KEYS:
        if key in keys and key not in model.keys and not table.foreign:
            whose = "it has" if key in OWN_KEYS else "its samples have"
            report(key, f"model {model_name} has no {key!r}: {whose} {', '.join(model.keys) or 'no such key'}")
    if keys.get("data", "auto") not in ("auto", "synthetic", model.data, *model.also):
        own = " or ".join((model.data, *model.also)) if model.data else "data of its own"
        report("data", f"model {model_name} trains on {own}, not on {keys['data']}")
    for key, message in (
        *models.problems(keys),
        *rules.training_problems(keys, model_name, model, framework),
        *rules.kernel_problems(keys, model_name, model),
    ):
        report(key, message)
    if message := network.no_size(keys.get("min_bytes"), keys.get("max_bytes")):
        report("max_bytes" if "max_bytes" in keys else "min_bytes", message)
    shares = data_shares(framework, keys)
    batch, micro_batches = keys.get("batch_per_worker", Trial.batch_per_worker), keys.get("accumulation", 1)
    if "global_batch" in keys:
        batch = 0 if keys["global_batch"] % shares else keys["global_batch"] // shares  # 0: there is none
    if batch and batch % micro_batches:
        report("accumulation", f"accumulation={micro_batches} does not divide batch_per_worker={batch}")
    if "global_batch" in keys:
        if "target_batch_size" in keys:
            report("global_batch", "give global_batch or target_batch_size, not both: both are the samples of a step")
        if "batch_per_worker" in keys:
            report("global_batch", "give global_batch or batch_per_worker, not both: one follows from the other")
        elif keys["global_batch"] % shares:
            divisor = f"workers={shares}" if shares == workers else f"replicas={shares}"
            report("global_batch", f"{divisor} does not divide global_batch={keys['global_batch']}")
    for key, message in (
        *rules.pipeline_problems(framework, workers, batch, keys),
        *rules.mesh_problems(framework, workers, keys),
        *rules.shard_problems(framework, workers, keys),
        *rules.peer_problems(framework, workers, batch, keys),
    ):
        report(key, message)
    if keys.get("allreduce") == "none" and (alike := reducing(framework, keys)) > 1:
        what = "worker" if alike == workers else "replica"
        report("allreduce", f"allreduce=none with {what}s={alike}: more than one {what} must reduce gradients")
