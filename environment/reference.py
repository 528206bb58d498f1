"""Writes docs/reference from the declarations: `python -m environment.reference`. A line a key, and no prose.

    study-file.md   study/study.py, trial.py, study/machine_file.py, frameworks.py, models.py
    record.md       records/schema.py, records/manifest.py, trial.py
    columns.md      analysis/frames/columns.py, docs/reference/tables.csv
    commands.md     scaling_study/cli.py
    settings.md     docs/reference/settings.csv

The meaning of a field is its `help`, or the comment behind or above its declaration.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import inspect
import io
import re
import sys
import tokenize
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from analysis.frames import columns
from scaling_study import cli, models
from scaling_study.frameworks import COMMAND, FRAMEWORKS
from scaling_study.records import manifest, schema
from scaling_study.settings import CHECKOUT
from scaling_study.study import machine_file, study
from scaling_study.targets import METRICS
from scaling_study.trial import RENAMED, Trial, Window

FOLDER = CHECKOUT / "docs" / "reference"
NO_VALUE = "–"
SEVERAL = 4  # metrics of a model, beyond which the others are left out
FEW_MODELS = 12  # of a framework, that its row names
MOST = 1e6  # a limit beyond it is beyond what anybody means, and not shown
UNITS = {  # end of a name -> its unit
    "flops_per_second": "FLOP/s",
    "bytes_per_second": "B/s",
    "seconds": "s",
    "bytes": "B",
    "gib": "GiB",
    "tflops": "TFLOP/s",
    "percent": "%",
    "joules": "J",
}
WORDS: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Any: "any value",
    Trial: "trial keys",
    study.Keys: "[trial keys](#trial-keys)",
    study.PartialKeys: "[trial keys](#trial-keys)",
    study.Matrix: "lists of values, by trial key",
    study.Measure: "[measure](#measure)",
    study.Train: "[train](#train)",
    study.Expect: "[expect](#expect)",
    study.SweepModel: "[sweep](#an-entry-of-sweeps)",
}
BY_NAME = {"env": "mapping (text)", "framework": "[framework](#frameworks)"}  # keys whose types say less
EXIT_CODES = (
    ("0", "done: every trial is ok, unsupported or implied; a verdict, of `bench`"),
    ("1", "some trial is failed, timeout or oom; data, disk or folder are in the way; a regression, of `compare`"),
    ("2", "the study or the command line is wrong on every machine; refused, of `compare`"),
    ("3", "not resolved, of `bench` and `compare`"),
    ("130", "interrupted by Ctrl-C, TERM or HUP"),
)
Row = Sequence[str]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    return {
        "study-file.md": _page("The study file", "study/study.py, trial.py, frameworks.py", _study_file()),
        "record.md": _page("The record", "records/schema.py and records/manifest.py", _records()),
        "columns.md": _page("Columns", "analysis/frames/columns.py and docs/reference/tables.csv", _columns()),
        "commands.md": _page("Commands", "scaling_study/cli.py", _commands()),
        "settings.md": _page("Settings of the frameworks", "docs/reference/settings.csv", _settings()),
    }


def _page(title: str, source: str, sections: Iterator[str]) -> str:
    written = f"Written by `python -m environment.reference` from {source}."
    return "\n\n".join([f"# {title}", written, *sections]) + "\n"


def _table(header: Row, rows: Iterable[Row]) -> str:
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _section(heading: str, header: Row, rows: Iterable[Row], level: str = "##") -> str:
    return f"{level} {heading}\n\n{_table(header, rows)}"


def data(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of docs/reference. Raises ValueError for one with other columns than the header."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    return [dict(zip(header, row, strict=True)) for row in rows]


# --- what declarations say


@functools.cache
def _source(module: str) -> tuple[ast.Module, Mapping[int, str], Sequence[str]]:
    """(syntax tree, line -> comment on it, lines) of a module."""
    text = inspect.getsource(sys.modules[module])
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    return ast.parse(text), comments, text.splitlines()


def _comment(module: str, node: ast.AST, above: bool = True) -> str:
    """The comment above a declaration and behind it."""
    _, comments, lines = _source(module)
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    found = [comments.get(last, "")]
    while above and (first := first - 1) in comments and lines[first - 1].lstrip().startswith("#"):
        found.insert(0, comments[first])
    words = " ".join(re.sub(r"^#\s*(type: ignore\S*\s*(#\s*)?)?", "", each) for each in found)
    return words.strip().replace("None", "null")


def _meanings(kind: type) -> dict[str, str]:
    """Field -> its comment, of a class and those of this project that it extends."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("scaling_study"):
            tree, _, _ = _source(base.__module__)
            bodies = [each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == base.__name__]
            for node in (node for body in bodies for node in body if isinstance(node, ast.AnnAssign)):
                found[ast.unparse(node.target)] = _comment(base.__module__, node)
    return found


def _noted(module: str, constant: str) -> dict[str, str]:
    """Entry -> the comment behind it, of a tuple or a dictionary that a module has under this name."""
    for node in _source(module)[0].body:
        names = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if constant in map(ast.unparse, names):
            value = node.value  # type: ignore[attr-defined]
            keys, places = (value.keys, value.values) if isinstance(value, ast.Dict) else (value.elts, value.elts)
            entries = [(key, place) for key, place in zip(keys, places, strict=True) if isinstance(key, ast.Constant)]
            return {str(key.value): _comment(module, place, above=False) for key, place in entries}
    raise KeyError(constant)


def _type(kind: Any) -> str:
    """A type in words."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type(inside[0]) + _limits(inside[1:])
    if origin is typing.Literal:
        return " ".join(map(_code, inside))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(each) for each in inside if each is not types.NoneType)
    if origin is tuple:
        return f"({', '.join(map(_type, inside))})"
    if inside:
        return f"{'mapping' if len(inside) > 1 else 'list'} ({_type(inside[-1])})"
    if kind not in WORDS:
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return WORDS[kind]


def _limits(notes: Iterable[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    notes = [each for note in notes for each in (note, *getattr(note, "metadata", ()))]
    found = [(sign, getattr(note, name, None)) for note in notes for name, sign in signs.items()]
    shown = [f"{sign} {value:g}" for sign, value in found if value is not None and abs(value) <= MOST]
    return f" {', '.join(shown)}" if shown else ""


def _code(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _default(value: Any) -> str:
    if value is PydanticUndefined or value is dataclasses.MISSING:
        return "required"
    return NO_VALUE if value is None or value == "" or isinstance(value, BaseModel) else _code(value)


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


KEY = ("key", "type", "default", "unit", "meaning")


def _of_model(model: type[BaseModel]) -> Iterator[Row]:
    """A row a field of a pydantic model that has them in its own class."""
    meanings = _meanings(model)
    for name in model.__annotations__:
        if name in (fields := model.model_fields):
            info = fields[name]
            default = NO_VALUE if info.default_factory else _default(info.default)
            shown = RENAMED.get(name, name) if model in (study.StudyModel, study.Measure) else info.alias or name
            words = BY_NAME.get(name) or _type(info.annotation) + _limits(info.metadata)
            yield _code(shown), words, default, _unit(name), meanings[name]


def _of_dataclass(kind: type) -> Iterator[Row]:
    """A row a field of a dataclass, by what its JSON has."""
    hints, meanings = typing.get_type_hints(kind, include_extras=True), _meanings(kind)
    for each in dataclasses.fields(kind):
        words = _type(hints[each.name]) + (" or null" if types.NoneType in typing.get_args(hints[each.name]) else "")
        yield _code(each.name), words, _unit(each.name), each.metadata.get("help") or meanings[each.name]


# --- the pages


def _study_file() -> Iterator[str]:
    yield _section("Top level", KEY, _of_model(study.StudyModel))
    yield _section("measure", KEY, _of_model(study.Measure))
    more = [("any trial key", "as below", NO_VALUE, "", "fixed for the whole sweep, and for what `include` adds")]
    more += [("any key of `measure`", "as above", NO_VALUE, "", "for this sweep only")]
    yield _section("An entry of sweeps", KEY, [*_of_model(study.SweepModel), *more])
    yield _section("expect", KEY, _of_model(study.Expect))
    header = ("key", "type", "default", "unit", "frameworks", "meaning")
    yield _section("Trial keys", header, _trial_keys())
    yield _section("train", KEY, _train_keys())
    yield f"Metrics of a target: {', '.join(map(_code, METRICS))}."
    yield _section("Frameworks", ("framework", "title", "launchers", "needs"), _frameworks())
    yield _section("Models", ("model", "data", "metrics", "needs", "meaning"), _models())
    older = [(_code(older), _code(name)) for older, name in RENAMED.items()]
    yield _section("Older names", ("older name, valid for ever", "name"), older)
    yield _section("Machine file", KEY, _of_model(machine_file.MachineFile))
    parts = (machine_file.Hardware, machine_file.Gpus, machine_file.Topology, machine_file.WrittenLink)
    for part in parts:
        yield _section(part.__name__, KEY, _of_model(part), "###")


def _trial_keys() -> Iterator[Row]:
    for each in dataclasses.fields(Trial):
        name = each.name
        if name in study.KEYS and not name.startswith("train_"):
            words = BY_NAME.get(name) or _type_of_key(each)
            default, meaning = _help(each)
            yield _code(RENAMED.get(name, name)), words, default, _unit(name), _having(name), meaning
        if name == "batch_per_worker":
            meaning = "samples of all workers in one step, in place of batch_per_worker"
            yield _code("global_batch"), "integer ≥ 1", NO_VALUE, "", _having(name), meaning


def _help(key: Any) -> tuple[str, str]:
    """(default, meaning) of a trial key; a default that is no constant stands in its help."""
    told = re.search(r" ?\(default: ([^)]*)\)", key.metadata["help"])
    meaning = key.metadata["help"].replace(told[0], "") if told else key.metadata["help"]
    return told[1] if told else _default(key.default), meaning


def _type_of_key(key: Any) -> str:
    if key.name == "model":
        return "[model](#models)"
    kind = str(key.type).removesuffix(" | None")
    words = " ".join(map(_code, key.metadata.get("choices", ()))) or {"int": "integer", "float": "number"}.get(kind)
    limits = {"minimum": "≥", "above": ">", "below": "<"}
    shown = [f"{sign} {key.metadata[name]:g}" for name, sign in limits.items() if name in key.metadata]
    return f"{words or {'bool': 'true or false'}.get(kind, 'text')} {', '.join(shown)}".strip()


def _having(key: str) -> str:
    """The frameworks that have a trial key, with the values of those that have not the usual ones."""
    tables = {**FRAMEWORKS, COMMAND: FRAMEWORKS[COMMAND]}
    having = {name: table.axes[key] for name, table in tables.items() if key in table.axes}
    if key == "launcher":
        return "all"
    without = [name for name in tables if name not in having]
    few = f"all but {', '.join(without)}" if without else "all"
    words = few if len(without) < len(having) else ", ".join(having)
    values: dict[tuple[object, ...], list[str]] = {}
    for name, some in having.items():
        values.setdefault(tuple(some), []).append(name)
    usual = max(values, key=lambda some: (len(values[some]), len(some)))
    choices = {each.name: each.metadata.get("choices") for each in dataclasses.fields(Trial) if each.metadata}.get(key)
    for some, names in values.items():
        if key == "model" and (some == usual or not 0 < len(some) <= FEW_MODELS):
            continue  # in the table of models
        if some != usual:
            words += f"; {', '.join(names)}: {' '.join(map(_code, some)) or 'any'}"
    if key != "model" and choices and usual and {*usual} != {*choices}:
        words += f"; {'others' if len(values) > 1 else 'each'}: {' '.join(map(_code, usual))}"
    return words


def _train_keys() -> Iterator[Row]:
    keys = {each.name: each for each in dataclasses.fields(Trial)}
    for name in study.Train.model_fields:
        if name == "target":
            yield _code(name), "`metric` and `value`", NO_VALUE, "", keys["train_target"].metadata["help"]
        elif name == "seeds":
            yield _code(name), "list (integer)", NO_VALUE, "", "seeds of the launches, one each; in place of launches"
        else:
            key = keys[f"train_{name}"]
            default, meaning = _help(key)
            yield _code(name), _type_of_key(key), default, _unit(name), meaning


def _frameworks() -> Iterator[Row]:
    for name, table in FRAMEWORKS.items():
        needs = [library for library in table.needs if library != "torch"]
        needs += [f"{', '.join(more)} for `{by}`" for by, more in table.launcher_needs.items()]
        needs += ["a GPU"] if table.needs_gpu else []
        needs += ["a GPU for its speed to be compared"] if table.not_comparable_on_cpu else []
        yield f"[`{name}`](../../{table.script})", table.title, ", ".join(map(_code, table.launchers)), ", ".join(needs)
    yield _code(COMMAND), FRAMEWORKS[COMMAND].title, "its own", ""


def _models() -> Iterator[Row]:
    notes = _noted("scaling_study.models", "OURS")
    for name, model in models.OURS.items():
        shape = model.decoder
        note = model.departs or notes.get(name, "")
        if shape:
            note = f"a Llama of {shape.layers} layers, {shape.parameters:,} parameters, sequences of {shape.length:,}"
        data = ", ".join(map(_code, filter(None, (model.data, *model.also))))
        needs = [*model.needs, *([f"{model.imagenet} for `weights: imagenet`"] if model.imagenet else [])]
        metrics = model.metrics if len(model.metrics) <= SEVERAL else (*model.metrics[:SEVERAL], "...")
        yield _code(name), data, ", ".join(metrics), ", ".join(needs), note
    timm = models.MODELS["timm:resnet18"]
    yield "`timm:NAME`", _code(timm.data), ", ".join(timm.metrics), ", ".join(timm.needs), "any classifier of timm"


def _records() -> Iterator[str]:
    header = ("field", "type", "unit", "meaning")
    yield _section("record.json", header, _of_dataclass(schema.Record))
    statuses = _noted(schema.__name__, "STATUSES").items()
    yield _section("Status", ("status", "meaning"), ((_code(name), meaning) for name, meaning in statuses))
    yield _section("window", header, _of_dataclass(Window))
    for kind in (
        *(schema.RankReport, schema.Phases, schema.Block, schema.Epoch, schema.AveragingRound, schema.StageRecord),
        *(schema.Transfer, schema.GroupBytes, schema.Lateness, schema.TrainingReport, schema.ParameterGroup),
        *(schema.GradientNoise, schema.GpuUse, schema.RankError),
    ):
        yield _section(kind.__name__, header, _of_dataclass(kind))
    yield _section("study.json", KEY, _of_model(manifest.Manifest))


def _columns() -> Iterator[str]:
    other: dict[str, list[Row]] = {}
    for line in data("tables.csv"):
        other.setdefault(line["table"], []).append((" ".join(map(_code, line["columns"].split())), line["meaning"]))
    own = [column for column in columns.TRIALS if column not in columns.TRIAL_KEYS]
    rows = [(_code(c.name), columns.TYPES[c.type], c.unit, columns.fold_in_words(c.ranks), c.doc) for c in own]
    keys = ("every trial key", "", "", "", "as in the [study file](study-file.md#trial-keys), by its older name")
    header = ("column", "type", "unit", "over the ranks", "meaning")
    yield _section("results.csv", header, [*rows[:3], keys, *rows[3:]])
    header = ("column", "type", "unit", "over the repeats", "meaning")
    before = [column for column in columns.BEFORE if column not in columns.TRIAL_KEYS]
    rows = [(_code(c.name), columns.TYPES[c.type], c.unit, "", c.doc) for c in (*before, *columns.AFTER)]
    folded = [
        (_code(c.name), columns.TYPES[c.type], c.unit, columns.fold_in_words(c.repeats), "as in results.csv")
        for c in columns.folded()
        if c not in columns.BEFORE
    ]
    yield _section("configurations.csv", header, [*rows[:2], keys, *rows[2:], *folded])
    for name, lines in other.items():
        yield _section(name, ("column", "meaning"), lines)


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(cli.program())
    for name, command in _flat(group, ""):
        about = (command.help or "").split("\n\n")[0].replace("\n", " ")
        rows = [row for each in command.params if not getattr(each, "hidden", False) for row in _option(each)]
        parts = [f"## {name}", about, _table(("option", "value", "default", "meaning"), rows) if rows else ""]
        yield "\n\n".join(filter(None, parts))
    yield _section("Exit codes", ("code", "meaning"), EXIT_CODES)


def _flat(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    """(name, command) of a group and of those in it, but for hidden ones."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _flat(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


def _option(option: Any) -> Iterator[Row]:
    if option.param_type_name == "argument":
        yield _code(option.metavar or option.name.upper()), "", "", option.help or ""
    elif option.name != "help":
        names = ", ".join(map(_code, sorted((*option.opts, *option.secondary_opts), key=len)))
        value = "" if option.is_flag else option.metavar or str(option.name).upper()
        default = "" if option.is_flag or option.default in (None, "") else _code(option.default)
        yield names, value, default, option.help or ""


def _settings() -> Iterator[str]:
    lines = data("settings.csv")
    for heading, left in (("Set here", False), ("Recommended by the library, and left as default", True)):
        names = ("framework", "setting", "why") if left else ("framework", "setting", "here", "default", "why")
        rows = [line for line in lines if (line["here"] == "left") == left]
        cells = [[*(line[n] for n in names), f"[source]({line['source']})" if line["source"] else ""] for line in rows]
        yield _section(heading, (*names, "source"), cells)


if __name__ == "__main__":
    main()
