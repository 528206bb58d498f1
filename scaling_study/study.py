"""A study file -> a validated `Study`. Every problem is reported at once, with its file, line and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from scaling_study.documents import Document, Place, Problems, read
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.trial import Trial

NOT_FOR_STUDIES = ("framework", "machine", "repeat", "window")  # trial keys that no sweep sets


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; "32" is not 32."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Measure(Strict):
    """How each trial is measured and how often: DESIGN's defaults."""

    warmup_steps: int = Field(5, ge=0)
    min_steps: int = Field(10, ge=1)
    min_seconds: float = Field(2.0, ge=0)
    max_seconds: float = Field(30.0, gt=0)
    max_steps: int | None = Field(None, ge=1)
    repeats: int = Field(3, ge=1, le=1000)
    max_repeats: int = Field(10, ge=1, le=1000)
    target_interval: float = Field(0.02, gt=0, lt=1)  # half-width of the 95 % interval over the mean
    timeout_seconds: float = Field(600.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _repeats_are_at_least_repeats(cls, given: Any) -> Any:
        """`repeats: 12` alone means 12, not a contradiction of the default maximum."""
        if isinstance(given, dict) and isinstance(given.get("repeats"), int) and "max_repeats" not in given:
            return {**given, "max_repeats": max(given["repeats"], cls.model_fields["max_repeats"].default)}
        return given

    @model_validator(mode="after")
    def _ordered(self) -> Measure:
        if self.max_repeats < self.repeats:
            raise ValueError(f"max_repeats={self.max_repeats} is less than repeats={self.repeats}")
        if self.max_steps is not None and self.max_steps < self.min_steps:
            raise ValueError(f"max_steps={self.max_steps} is less than min_steps={self.min_steps}")
        if self.max_seconds < self.min_seconds:
            raise ValueError(f"max_seconds={self.max_seconds:g} is less than min_seconds={self.min_seconds:g}")
        return self


def _trial_key_types() -> dict[str, Any]:
    """Trial key -> its type with the limits that trial.py gives it, for pydantic."""
    names = {"int": int, "float": float, "bool": bool, "str": str}
    result: dict[str, Any] = {"global_batch": Annotated[int, Field(ge=1)]}
    for f in fields(Trial):
        if f.name not in NOT_FOR_STUDIES:
            kind: Any = names[str(f.type).removesuffix(" | None")]
            if choices := f.metadata.get("choices"):
                kind = Literal[choices]
            result[f.name] = Annotated[kind, Field(ge=f.metadata.get("minimum"), gt=f.metadata.get("above"))]
    return result


KEYS = _trial_key_types()
_one: Any = {name: (kind | None, None) for name, kind in KEYS.items()}
_many: Any = {name: (Annotated[list[kind], Field(min_length=1)] | None, None) for name, kind in KEYS.items()}
Keys = create_model("Keys", __base__=Strict, **_one)
PartialKeys = create_model("PartialKeys", __base__=Keys, framework=(Literal[tuple(FRAMEWORKS)] | None, None))  # type: ignore[valid-type]
Matrix = create_model("Matrix", __base__=Strict, **_many)
_measure: Any = {name: (f.annotation | None, None) for name, f in Measure.model_fields.items()}
SweepModel = create_model(
    "SweepModel",
    __base__=create_model("FixedKeys", __base__=Keys, **_measure),
    framework=(Literal[tuple(FRAMEWORKS)], ...),  # type: ignore[valid-type]
    matrix=(Matrix | None, None),
    exclude=(list[Keys], []),  # type: ignore[valid-type]
    include=(list[Keys], []),  # type: ignore[valid-type]
)


class StudyModel(Strict):
    """The file's shape."""

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")  # it names a folder
    description: str | None = None
    scaling: Literal["weak", "strong"] = "weak"
    baseline: PartialKeys | None = None  # type: ignore[valid-type]
    seed: int = 0  # of the order in which trials run
    measure: Measure = Measure()
    sweeps: list[SweepModel] = Field(min_length=1)  # type: ignore[valid-type]
    small: dict[str, Any] | None = None


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


@dataclass(frozen=True)
class Study:
    """A study file that is right on at least some machine, as far as the file alone can tell."""

    name: str
    scaling: str
    baseline: Mapping[str, Any] | None
    seed: int
    measure: Measure
    sweeps: tuple[Sweep, ...]
    document: Document


def load(path: Path, small: bool = False) -> Study:
    """Read and validate. `small` applies the file's `small:` overrides. Raises Problems."""
    document = read(path)
    if not isinstance(document.value, dict):
        raise Problems([f"{path}:1: a study file is a mapping; it starts with `study: some-name`"])
    whole = _validated(document, document.value)
    overrides = document.value.get("small")
    if small and not overrides:
        raise Problems([f"{path}: --small was asked for, but the study has no `small:` section"])
    if overrides:  # wrong overrides are said even when they are not asked for today
        shrunk = _validated(document, _merged({k: v for k, v in document.value.items() if k != "small"}, overrides))
        return shrunk if small else whole
    return whole


def _validated(document: Document, value: dict[str, Any]) -> Study:
    try:
        model = StudyModel.model_validate(value)
    except ValidationError as error:
        raise Problems(sorted({_explained(document, e) for e in error.errors()}, key=_by_line)) from error
    sweeps, problems = [], []
    for index, entry in enumerate(model.sweeps):
        given = entry.model_dump(exclude_none=True)
        place: Place = ("sweeps", index)
        overrides = {k: given.pop(k) for k in Measure.model_fields if k in given}
        matrix = given.pop("matrix", {})
        for key in sorted(set(matrix) & set(given)):
            problems.append(f"{document.at((*place, key))}: {key!r} is both fixed and in the matrix; give it once")
        try:
            measure = Measure.model_validate({**model.measure.model_dump(exclude_unset=True), **overrides})
        except ValidationError as error:
            problems += [f"{document.at(place)}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
            continue
        framework, exclude, include = given.pop("framework"), given.pop("exclude"), given.pop("include")
        sweeps.append(Sweep(framework, given, matrix, exclude, include, measure, place))
    if problems:
        raise Problems(problems)
    baseline = model.baseline.model_dump(exclude_none=True) if model.baseline else None
    return Study(model.study, model.scaling, baseline, model.seed, model.measure, tuple(sweeps), document)


def _merged(base: Any, over: Any) -> Any:
    """Mappings merge key by key, anything else is replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{k: _merged(base.get(k), v) for k, v in over.items()}}
    return over


def _explained(document: Document, error: Any) -> str:
    """One pydantic error as `file:line: key: what is wrong, and what would be right`."""
    place: Place = tuple(part for part in error["loc"] if not (isinstance(part, str) and "[" in part))
    shown = ".".join(str(part) for part in place)
    where = document.at(place)
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {place[-1]!r}{nearest(str(place[-1]), _known(place))}"
    if error["type"] == "missing":
        return f"{where}: {shown!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    given = error["input"]
    if isinstance(given, dict | list):
        return f"{where}: {shown}: {message}"
    hint = nearest(str(given), error.get("ctx", {}).get("expected", "").replace("'", "").replace(" or ", ", ").split(", "))
    return f"{where}: {shown}: {given!r} is not right: {message[0].lower()}{message[1:]}{hint}"


def _known(place: Place) -> list[str]:
    """The keys that could stand where `place` stands."""
    parent = place[-2] if len(place) > 1 else ""
    if parent == "measure":
        return list(Measure.model_fields)
    if len(place) == 1:
        return list(StudyModel.model_fields)
    if parent == "matrix":
        return list(KEYS)
    return ["framework", "matrix", "exclude", "include", *KEYS, *Measure.model_fields]


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'workers'?`, or nothing if nothing is near."""
    near = difflib.get_close_matches(word, [k for k in known if k], n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _by_line(problem: str) -> tuple[int, str]:
    digits = problem.split(":")[1:2]
    return (int(digits[0]) if digits and digits[0].isdigit() else 0, problem)
