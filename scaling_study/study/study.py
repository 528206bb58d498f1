"""A study file -> a validated `Study`. Every problem is reported at once, with its file, line and remedy."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)

from scaling_study.errors import MOST_PROBLEMS, MOST_SHOWN, StudyError, quoted, shortened
from scaling_study.frameworks import COMMAND, FRAMEWORKS
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Host
from scaling_study.models import Names
from scaling_study.study import command
from scaling_study.study.defaults import AUTO, FOLLOWING, YEAR
from scaling_study.study.documents import Document, Place, read, renamed
from scaling_study.targets import METRICS, TRAIN, Target
from scaling_study.trial import RENAMED, WINDOW_FLAGS, Trial, Window

# The shape of a study file, as pydantic models made from trial.py: a new trial key is a study key by itself.

NOT_FOR_STUDIES = ("framework", "machine", "repeat", "warm", "window")  # trial keys that no sweep sets
# Beyond what any study means. A product of two such integers is still one that tables can hold (64 bits), and the
# system can wait for so many seconds.
MOST: dict[type, Any] = {int: 2**31 - 1, float: 1e9}
MOST_SECONDS = 1e7  # some four months
MOST_BYTES = 2**40
LONGEST_WORD = 200  # characters


Shape = TypeVar("Shape", bound="Strict")


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; "32" is not 32."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Measure(Strict):
    """The key `measure`: the timing of each trial, and its launches."""

    warmup_steps: int = Field(default=5, ge=0, le=MOST[int])  # untimed steps before the clock starts; at least 4, or 0
    min_steps: int = Field(default=10, ge=1, le=MOST[int])  # time at least this many steps
    min_seconds: float = Field(default=2.0, ge=0, le=MOST_SECONDS)  # time at least this many seconds
    max_seconds: float = Field(default=30.0, gt=0, le=MOST_SECONDS)  # stop timing after this; of hivemind 120
    max_steps: int | None = Field(default=None, ge=1, le=MOST[int])  # stop timing after this many steps
    warm: bool = False  # time configurations in interleaved blocks of shared launches, where they can be
    rounds: int = Field(default=8, ge=1, le=1000)  # blocks of each configuration in an interleaved launch
    block_seconds: float = Field(default=0.5, gt=0, le=MOST_SECONDS)  # length of a block: the nearest number of steps
    interleave_gpus: bool = False  # interleave on several GPUs too, and what was not tried so on a GPU: untested
    repeats: int = Field(default=3, ge=1, le=1000)  # launches in which each configuration is measured, at least
    max_repeats: int = Field(default=10, ge=1, le=1000)  # at most, where the spread of the planned ones asks for more
    target_interval: float = Field(default=0.02, ge=1e-4, lt=1)  # margin to reach: of a mean, interleaved of a ratio
    settled_by: Literal["interval", "sign"] = "interval"  # sign: a ratio that surely is not 1 needs no more launches
    timeout_seconds: float = Field(default=600.0, gt=0, le=MOST_SECONDS)  # end a trial that takes longer
    retries: int = Field(default=2, ge=0, le=10)  # new starts after a port was taken or ranks did not meet

    @model_validator(mode="after")
    def _ordered(self) -> Measure:
        if "max_repeats" not in self.model_fields_set:  # `repeats: 12` alone means 12, and max_repeats stays not given
            self.__dict__["max_repeats"] = max(self.repeats, self.max_repeats)
        for least, most in (("repeats", "max_repeats"), ("min_steps", "max_steps"), ("min_seconds", "max_seconds")):
            low, high = getattr(self, least), getattr(self, most)
            if high is not None and high < low:
                raise ValueError(f"{most}={high:.10g} is less than {least}={low:.10g}")
        if self.interleave_gpus and not self.warm:
            raise ValueError("interleave_gpus=true needs interleave: true beside it")
        return self


def _trial_key_types() -> dict[str, Any]:
    """Trial key -> its type with the limits that trial.py gives it, for pydantic."""
    names = {"int": int, "float": float, "bool": bool, "str": str}
    result: dict[str, Any] = {"global_batch": Annotated[int, Field(ge=1, le=MOST[int])]}
    for f in fields(Trial):
        if f.name not in NOT_FOR_STUDIES:
            choices = f.metadata.get("choices") or ()
            if f.name in FOLLOWING and choices:
                choices = (*choices, AUTO)
            kind: Any = _one_of(choices) or names[str(f.type).removesuffix(" | None")]
            if f.name in FOLLOWING and kind is bool:
                kind = Annotated[Any, AfterValidator(_true_false_or_auto)]
            least, above, below = (f.metadata.get(limit) for limit in ("minimum", "above", "below"))
            most = MOST_BYTES if f.name.endswith("_bytes") else MOST.get(kind)
            longest = f.metadata.get("longest", LONGEST_WORD) if kind is str else None
            result[f.name] = Annotated[kind, Field(ge=least, gt=above, lt=below, le=most, max_length=longest)]
    for name, validate in (("env", command.variables_text), ("command", command.joined)):
        result[name] = Annotated[result[name], BeforeValidator(validate)]
    return result


def _one_of(choices: Iterable[Any]) -> Any:
    """The type of exactly these values, with the names that a library adds to those of models; None for none."""
    if not choices:
        return None
    exact = Literal[tuple(choices)]  # type: ignore[valid-type]
    if not isinstance(choices, Names):
        return exact

    def named(value: Any, listed: Callable[[Any], Any]) -> Any:
        if value in choices:
            return value
        if isinstance(value, str) and ".py" in value:
            raise ValueError("a model of your own is a file and a function in it, like my_model.py:load")
        return listed(value)

    return Annotated[exact, WrapValidator(named)]


def _true_false_or_auto(value: Any) -> Any:
    if value != AUTO and not isinstance(value, bool):
        raise ValueError(f"expected true, false or {AUTO}")
    return value


def _of_a_year(year: int) -> int:
    if year != YEAR:
        raise ValueError(f"the only defaults are those of {YEAR}; leave the key out for the older ones")
    return year


def _not_empty(value: Any) -> Any:
    if not value:
        raise ValueError("it is empty; give it keys, or leave it out")
    return value


KEYS = _trial_key_types()
VARIABLES = KEYS["env"]
FRAMEWORK = _one_of((*FRAMEWORKS, COMMAND))
_one: dict[str, Any] = {name: (kind, None) for name, kind in KEYS.items()}  # None: not given; `workers: ~` is refused
_many: dict[str, Any] = {
    name: (Annotated[list[kind], Field(min_length=1)], None)  # type: ignore[valid-type]
    for name, kind in KEYS.items()
}
_measure: dict[str, Any] = {
    name: (Annotated[f.annotation, *f.metadata] if f.metadata else f.annotation, None)
    for name, f in Measure.model_fields.items()
}

Keys: Any = create_model("Keys", __base__=Strict, **_one)
PartialKeys: Any = create_model("PartialKeys", __base__=Keys, framework=(FRAMEWORK | None, None))
Matrix: Any = create_model("Matrix", __base__=Strict, **_many)
FixedKeys: Any = create_model("FixedKeys", __base__=Keys, **_measure)


class TargetModel(Strict):
    """`target` of `train`."""

    metric: Literal[tuple(METRICS)]  # type: ignore[valid-type]  # figure of the validation data
    value: float  # of that figure: the run ends once it is reached


_train: dict[str, Any] = {name: (KEYS[f"train_{name}"] | None, None) for name in TRAIN if name != "target"}
Train: Any = create_model("Train", __base__=Strict, **_train, target=(TargetModel | None, None), seeds=_many["seed"])


class Expect(Strict):
    """The key `expect`: arithmetic of what a command does (study/command.py)."""

    global_batch: Annotated[str, Field(max_length=LONGEST_WORD)]  # samples of a step, like {workers} * {batch}


class SweepModel(FixedKeys):
    """One entry of `sweeps`: any trial key and any key of `measure` may stand beside the matrix."""

    framework: FRAMEWORK  # type: ignore[valid-type]  # a name of the table of frameworks, or command
    matrix: Matrix | None = None  # trial key -> list of values: each combination is one configuration
    exclude: list[Keys] = Field(default_factory=list)  # partial matches: combinations that are left out
    include: list[Keys] = Field(default_factory=list)  # whole trials that are added
    train: Train | None = None  # run to a target or an end instead of a timed window
    expect: Expect | None = None  # samples of a step of a command, where its own batch is an axis

    _matrix_given = field_validator("matrix", mode="before")(_not_empty)


class StudyModel(Strict):
    """The file's shape."""

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")  # name of the study, and of its results' folder
    description: str | None = None  # one sentence for people
    defaults: Annotated[int, AfterValidator(_of_a_year)] | None = None  # 2026: trial keys follow the device
    scaling: Literal["weak", "strong"] = "weak"  # the batch of one worker (weak) or of all (strong) stays the same
    baseline: PartialKeys | None = None  # keys of the configurations that speed-ups are over
    order_seed: int = 0  # seed of the order in which trials run
    sentinel: PartialKeys | None = None  # keys of the configuration that is repeated through the whole sweep
    parity: bool = True  # check first that each framework trains what one process would
    # hosts that its trials may run on, as name:slots
    hosts: list[Annotated[str, Field(max_length=LONGEST_WORD + 60)]] | None = Field(default=None, min_length=1)
    env: VARIABLES | None = None  # type: ignore[valid-type]  # variables of all its commands
    measure: Measure = Measure()  # timing and launches of each trial
    train: Train | None = None  # run to a target or an end instead of a timed window; a sweep's own keys come first
    sweeps: list[SweepModel] = Field(min_length=1)  # what is run
    small: dict[str, Any] | None = None  # overrides for --small

    _keys_given = field_validator("baseline", "sentinel", mode="before")(_not_empty)


LONGEST_SLIP = 40  # characters of a word that could be meant for one of ours
MOST_NEAR, AS_NEAR = 3, 0.1  # values that a message suggests; the ratio of difflib by which they may differ


@dataclass(frozen=True)
class Sweep:
    """One entry of `sweeps`."""

    framework: str
    fixed: Mapping[str, Any]
    matrix: Mapping[str, Sequence[Any]]
    exclude: Sequence[Mapping[str, Any]]
    include: Sequence[Mapping[str, Any]]
    measure: Measure
    place: Place  # where it stands in the document
    seeds: tuple[int, ...] = ()  # of the repeats, where `train` lists them
    expect: str = ""  # arithmetic of the global batch of a command

    @cached_property
    def window(self) -> Window:
        """The timed window of a run, from `measure`."""
        return Window(**{f.name: getattr(self.measure, f.name) for f in WINDOW_FLAGS})


@dataclass(frozen=True)
class Study:
    """A study file that is right on at least some machine, as far as the file alone can tell."""

    name: str
    scaling: str
    baseline: Mapping[str, Any] | None
    order_seed: int  # of the order in which trials run
    measure: Measure
    sweeps: tuple[Sweep, ...]
    document: Document
    parity: bool = True  # run the gates of its frameworks first
    hosts: tuple[Host, ...] = ()  # that it may use, where no option gives others
    sentinel: Mapping[str, Any] | None = None  # matches the configuration that is repeated through the sweep
    defaults: int | None = None  # the year of its defaults of trial keys; None: those of before there were several

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of files that define models: that of the study file, and the current one."""
        return tuple(dict.fromkeys((str(self.document.path.resolve().parent), str(Path.cwd()))))


def contents(path: Path) -> Document:
    """A study file as it is, with the program's names of its keys (documents.renamed). Raises StudyError."""
    document = read(path)
    if not isinstance(document.value, dict):
        raise StudyError([f"{path}:1: a study file is a mapping; it starts with `study: some-name`"])
    return renamed(document)


def load(path: Path, small: bool = False) -> Study:
    """Read and validate. `small` applies the file's `small:` overrides. Raises StudyError."""
    document = contents(path)
    whole = _validated(document, document.value)
    overrides = document.value.get("small")
    if small and not overrides:
        raise StudyError([f"{path}: the study has no `small:` section, which --small needs"])
    if overrides:  # wrong overrides are reported even without --small
        shrunk = _validated(*_overlaid(document, overrides))
        return shrunk if small else whole
    return whole


ROUNDS_SECONDS = 120.0  # in place of 30: ten averaging rounds of decentralised training take about so long at most


def _validated(document: Document, value: dict[str, Any]) -> Study:
    model = validated(StudyModel, document, _with_free_axes(document, value))
    sweeps, problems = [], []
    for index, entry in enumerate(model.sweeps):
        given = entry.model_dump(exclude_none=True)
        place: Place = ("sweeps", index)
        overrides = {k: given.pop(k) for k in Measure.model_fields if k in given}
        matrix = given.pop("matrix", {})
        for key in sorted(set(matrix) & set(given)):
            problems.append(f"{document.at((*place, key))}: {key!r} is both fixed and in the matrix; give it once")
        try:
            usual = {"max_seconds": ROUNDS_SECONDS} if FRAMEWORKS[entry.framework].has_rounds else {}
            measure = Measure.model_validate({**usual, **model.measure.model_dump(exclude_unset=True), **overrides})
        except ValidationError as error:
            placed = ({**e, "loc": (*place, *e["loc"])} for e in error.errors())
            problems += [_explained(StudyModel, document, e, set()) for e in placed]
            continue
        train = {**_train_keys(model.train), **_train_keys(entry.train)}
        given.pop("train", None)
        expect = given.pop("expect", {}).get("global_batch", "")
        seeds = tuple(train.pop("seeds", ()))
        given = {**{key: value for key, value in train.items() if key not in matrix}, **given}
        if seeds:
            problems += _wrong_seeds(document, place, seeds, {**matrix, **given})
            measure = measure.model_copy(update={"repeats": len(seeds), "max_repeats": len(seeds)})
        framework, exclude, include = given.pop("framework"), given.pop("exclude"), given.pop("include")
        if model.env and framework == COMMAND:
            matrix, exclude, include = _with_variables([matrix, exclude, include], model.env)
            given = given if "env" in matrix else _with_variables({"env": "", **given}, model.env)
        sweeps.append(Sweep(framework, given, matrix, exclude, include, measure, place, seeds, expect))
    words = enumerate(model.hosts or ())
    try:
        named = hosts.parse_hosts((document.at(("hosts", index)), word) for index, word in words)
    except StudyError as wrong:
        problems += wrong.problems
    if model.env and not any(sweep.framework == COMMAND for sweep in sweeps):
        problems.append(f"{document.at(('env',))}: env is for sweeps of framework command, and there is none")
    for which in ("baseline", "sentinel"):
        partial = getattr(model, which)
        for name in FOLLOWING if partial else ():
            if getattr(partial, name) == AUTO:
                line = document.at((which, name))
                said = f"{name}=auto has a value for each machine: name one, or leave it out"
                problems.append(f"{line}: {document.names.get(which, which)}: {said}")
    if problems:
        raise StudyError([document.worded(problem) for problem in problems])
    baseline, sentinel = (
        _with_variables(keys.model_dump(exclude_none=True), model.env) if keys else None
        for keys in (model.baseline, model.sentinel)
    )
    return Study(
        model.study,
        model.scaling,
        baseline,
        model.order_seed,
        model.measure,
        tuple(sweeps),
        document,
        model.parity,
        named,
        sentinel,
        model.defaults,
    )


def _with_free_axes(document: Document, value: dict[str, Any]) -> dict[str, Any]:
    """The study with the free axes of each command as one, `arguments`, and with a model named after its script.

    Raises StudyError for a value that YAML has read as a truth value or as nothing: commands get words.
    """
    problems: list[str] = []

    def spelled(index: int, entry: Any) -> Any:
        text = entry.get("command") if isinstance(entry, dict) and entry.get("framework") == COMMAND else None
        if not isinstance(text, str):
            return entry
        matrix = entry.get("matrix")
        has_model = "model" in entry or (isinstance(matrix, dict) and "model" in matrix)
        named = {} if has_model else {"model": command.script_name(text)}
        if not isinstance(matrix, dict):
            return {**entry, **named}
        texts = f"{text} {[each.get('env') for each in (entry, matrix, value)]}"
        free = command.free_axes(texts, matrix, [*KEYS])
        if not free or not all(isinstance(matrix[name], list) for name in free):
            return {**entry, **named}
        kept = {name: values for name, values in matrix.items() if name not in free}
        for name, (at, found) in ((axis, each) for axis in free for each in enumerate(matrix[axis])):
            if found is None or isinstance(found, bool | list | dict):
                where, seen = document.at(("sweeps", index, "matrix", name, at)), json.dumps(found, default=str)
                problems.append(f"{where}: {name}: YAML reads {seen}; text such as on, no, true or ~ needs quotes")
        words = {name: [str(each) for each in matrix[name]] for name in free}
        return {**entry, **named, "matrix": {**kept, "arguments": command.combined(words)}}

    sweeps = value.get("sweeps")
    made = {**value, "sweeps": [spelled(*each) for each in enumerate(sweeps)]} if isinstance(sweeps, list) else value
    if problems:
        raise StudyError(problems)
    return made


def _with_variables(keys: Any, shared: str | None) -> Any:
    """Keys of trials with the study's variables in each `env`, whose own come over them."""
    if isinstance(keys, list):
        return [_with_variables(each, shared) for each in keys]
    own = keys.get("env")
    if own is None or shared is None:
        return keys
    several = isinstance(own, list)
    return {**keys, "env": [command.merged(shared, e) for e in own] if several else command.merged(shared, own)}


def _train_keys(train: Any) -> dict[str, Any]:
    """A `train:` mapping as trial keys, with `seeds` beside them."""
    given = train.model_dump(exclude_none=True) if train else {}
    if target := given.get("target"):
        given["target"] = str(Target(**target))
    return {name if name == "seeds" else f"train_{name}": value for name, value in given.items()}


def _wrong_seeds(document: Document, place: Place, seeds: Sequence[int], keys: Mapping[str, Any]) -> list[str]:
    places: list[Place] = [(*place, "train", "seeds"), ("train", "seeds")]
    line = document.at(next(p for p in places if p in document.lines))
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    wrong = [f"{line}: train.seeds: {seed} is given twice; each launch needs a seed of its own" for seed in twice]
    if "seed" in keys:
        wrong.append(f"{line}: train.seeds and seed exclude each other: give one of the two")
    return wrong


def _overlaid(document: Document, overrides: Any) -> tuple[Document, dict[str, Any]]:
    """The study with its overrides in place, each on the line on which it stands."""
    over = {place[1:]: line for place, line in document.lines.items() if place[:1] == ("small",) and len(place) > 1}
    kept = {  # a list is replaced as a whole
        place: line
        for place, line in document.lines.items()
        if not any(isinstance(part, int) and place[:i] in over for i, part in enumerate(place))
    }
    value = _merged({k: v for k, v in document.value.items() if k != "small"}, overrides)
    return replace(document, lines={**kept, **over}), value


def _merged(base: Any, over: Any) -> Any:
    """Mappings merge key by key, anything else is replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{k: _merged(base.get(k), v) for k, v in over.items()}}
    return over


def validated(model: type[Shape], document: Document, value: dict[str, Any]) -> Shape:
    """`value` in a model's shape.

    Raises StudyError with the first problems in the order of their lines; to explain thousands would take minutes.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        by_place = sorted(error.errors(include_url=False), key=lambda e: document.line(tuple(e["loc"])))
        listed = set[str]()
        first = {_explained(model, document, e, listed) for e in by_place[:MOST_PROBLEMS]}
        more = max(0, len(by_place) - MOST_PROBLEMS)
        raise StudyError(sorted(without_shorter(first), key=by_line), more) from error


def without_shorter(problems: Iterable[str]) -> list[str]:
    """The problems, each once, without those that begin another one: a list of choices stands in one of them."""
    every = list(dict.fromkeys(problems))
    return [each for each in every if not any(other != each and other.startswith(each) for other in every)]


def _explained(model: type[Strict], document: Document, error: Any, listed: set[str]) -> str:
    """One pydantic error of a model as `file:line: key: what is wrong, and what would be right`.

    `listed`: the long lists of choices that stand in a problem before this one, and are not given again.
    """
    place: Place = tuple(part for part in error["loc"] if part != "[key]")
    where = document.at(place)
    if error["type"] == "extra_forbidden":
        names = keys_at(model, place)
        hint = nearest(str(place[-1]), [*names, *(RENAMED[name] for name in names if name in RENAMED)])
        return f"{where}: unknown key {quoted(place[-1])}{document.worded(hint)}"
    keys = place
    if place[:1] == ("sweeps",):  # the line says where in them
        keys = tuple(part for part in place[2:] if isinstance(part, str) and part != "matrix") or place
    shown = shortened(".".join(document.names.get(str(part), str(part)) for part in keys), MOST_SHOWN)
    if error["type"] == "missing":
        return f"{where}: {shown!r} is missing"
    message = document.worded(error["msg"].removeprefix("Value error, "))
    given = error["input"]
    if isinstance(given, dict | list):
        return f"{where}: {shown}: {message}"
    wrong = f"{where}: {shown}: {quoted(given)} is not right"
    choices = error.get("ctx", {}).get("expected", "")
    hint = nearest(str(given), choices.replace("'", "").replace(" or ", ", ").split(", "), MOST_NEAR)
    if choices in listed:
        return wrong + hint
    if len(choices) > MOST_SHOWN:
        listed.add(choices)
    return f"{wrong}{hint} {message}" if hint else f"{wrong}: {message[0].lower()}{message[1:]}"


def keys_at(model: type[Strict], place: Place) -> list[str]:
    """The keys of a model that could stand where `place` stands."""
    for part in place[:-1]:
        if isinstance(part, str):  # not the number of an entry
            model = _model_in(model.model_fields[part].annotation)
    return list(model.model_fields)


def _model_in(annotation: Any) -> Any:
    """The model in an annotation such as `list[Keys] | None`; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def nearest(word: str, known: Sequence[str], most: int = 1) -> str:
    """`; did you mean 'workers'?`, or nothing if nothing is near. `most`: names at most, about as near as the first."""
    if len(word) > LONGEST_SLIP:
        return ""
    names = [name for name in known if name]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    near = near or [name for name in names if name.startswith(f"{word}_")][:1]  # batch -> batch_per_worker
    if near and most > 1:
        nearness = difflib.SequenceMatcher(None, near[0], word).ratio()
        near = difflib.get_close_matches(word, names, n=most, cutoff=max(0.6, nearness - AS_NEAR))
    suggested = " or ".join(filter(None, [", ".join(map(repr, near[:-1])), *map(repr, near[-1:])]))
    return f"; did you mean {suggested}?" if near else ""


def by_line(problem: str) -> tuple[int, str]:
    """Sorts problems as the file has them."""
    match = re.match(r"[^:]*:([0-9]{1,9}):", problem)
    return (int(match[1]) if match else 0, problem)
