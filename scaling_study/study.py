"""A study file -> a validated `Study`. Every problem is reported at once, with its file, line and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scaling_study.documents import Document, Place, read
from scaling_study.errors import Problems
from scaling_study.study_schema import KEYS, Measure, StudyModel


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
    order_seed: int  # of the order in which trials run
    measure: Measure
    sweeps: tuple[Sweep, ...]
    document: Document
    parity: bool = True  # run the gates of its frameworks first


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
        shrunk = _validated(*_overlaid(document, overrides))
        return shrunk if small else whole
    return whole


def _validated(document: Document, value: dict[str, Any]) -> Study:
    try:
        model = StudyModel.model_validate(value)
    except ValidationError as error:
        raise Problems(sorted({_explained(document, e) for e in error.errors()}, key=by_line)) from error
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
            problems += [_explained(document, {**e, "loc": (*place, *e["loc"])}) for e in error.errors()]
            continue
        framework, exclude, include = given.pop("framework"), given.pop("exclude"), given.pop("include")
        sweeps.append(Sweep(framework, given, matrix, exclude, include, measure, place))
    if problems:
        raise Problems(problems)
    baseline = model.baseline.model_dump(exclude_none=True) if model.baseline else None
    return Study(
        model.study, model.scaling, baseline, model.order_seed, model.measure, tuple(sweeps), document, model.parity
    )


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


def _explained(document: Document, error: Any) -> str:
    """One pydantic error as `file:line: key: what is wrong, and what would be right`."""
    place: Place = tuple(error["loc"])
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
    hint = nearest(
        str(given), error.get("ctx", {}).get("expected", "").replace("'", "").replace(" or ", ", ").split(", ")
    )
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


def by_line(problem: str) -> tuple[int, str]:
    """Sorts problems as the file has them."""
    digits = problem.split(":")[1:2]
    return (int(digits[0]) if digits and digits[0].isdigit() else 0, problem)
