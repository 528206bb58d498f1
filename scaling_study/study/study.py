"""A study file -> a validated `Study`. Every problem is reported at once, with its file, line and remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scaling_study.errors import MOST_PROBLEMS, StudyError
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Host
from scaling_study.quoting import MOST_SHOWN, quoted, shortened
from scaling_study.study.documents import Document, Place, read
from scaling_study.study.schema import KEYS, Measure, StudyModel
from scaling_study.targets import TRAIN, Target
from scaling_study.trial import WINDOW_FLAGS, Window

LONGEST_SLIP = 40  # characters of a word that could be meant for one of ours


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

    @cached_property
    def window(self) -> Window:
        """What `measure` says of a run's timed window."""
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


def load(path: Path, small: bool = False) -> Study:
    """Read and validate. `small` applies the file's `small:` overrides. Raises StudyError."""
    document = read(path)
    if not isinstance(document.value, dict):
        raise StudyError([f"{path}:1: a study file is a mapping; it starts with `study: some-name`"])
    whole = _validated(document, document.value)
    overrides = document.value.get("small")
    if small and not overrides:
        raise StudyError([f"{path}: --small was asked for, but the study has no `small:` section"])
    if overrides:  # wrong overrides are reported even without --small
        shrunk = _validated(*_overlaid(document, overrides))
        return shrunk if small else whole
    return whole


def _validated(document: Document, value: dict[str, Any]) -> Study:
    try:
        model = StudyModel.model_validate(value)
    except ValidationError as error:
        raise _refused(document, error) from error
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
        train = {**_train_keys(model.train), **_train_keys(entry.train)}
        given.pop("train", None)
        seeds = tuple(train.pop("seeds", ()))
        given = {**{key: value for key, value in train.items() if key not in matrix}, **given}
        if seeds:
            problems += _wrong_seeds(document, place, seeds, {**matrix, **given})
            measure = measure.model_copy(update={"repeats": len(seeds), "max_repeats": len(seeds)})
        framework, exclude, include = given.pop("framework"), given.pop("exclude"), given.pop("include")
        sweeps.append(Sweep(framework, given, matrix, exclude, include, measure, place, seeds))
    words = enumerate(model.hosts or ())
    try:
        named = hosts.parse_hosts((document.at(("hosts", index)), word) for index, word in words)
    except StudyError as wrong:
        problems += wrong.problems
    if problems:
        raise StudyError(problems)
    baseline, sentinel = (
        keys.model_dump(exclude_none=True) if keys else None for keys in (model.baseline, model.sentinel)
    )
    return Study(
        model.study, model.scaling, baseline, model.order_seed, model.measure, tuple(sweeps), document, model.parity,
        named, sentinel,
    )  # fmt: skip


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
    wrong = [f"{line}: train.seeds: {seed} is there twice: each repeat has a seed of its own" for seed in twice]
    if "seed" in keys:
        wrong.append(f"{line}: train.seeds: a `seed` is given too; the seeds are those of the repeats")
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


def _refused(document: Document, error: ValidationError) -> StudyError:
    """The first problems in the order of their lines; to explain thousands would take minutes."""
    by_place = sorted(error.errors(include_url=False), key=lambda e: document.line(tuple(e["loc"])))
    first = {_explained(document, e) for e in by_place[:MOST_PROBLEMS]}
    return StudyError(sorted(first, key=by_line), more=max(0, len(by_place) - MOST_PROBLEMS))


def _explained(document: Document, error: Any) -> str:
    """One pydantic error as `file:line: key: what is wrong, and what would be right`."""
    place: Place = tuple(error["loc"])
    shown = shortened(".".join(str(part) for part in place), MOST_SHOWN)
    where = document.at(place)
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {quoted(place[-1])}{nearest(str(place[-1]), _known(place))}"
    if error["type"] == "missing":
        return f"{where}: {shown!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    given = error["input"]
    if isinstance(given, dict | list):
        return f"{where}: {shown}: {message}"
    hint = nearest(
        str(given), error.get("ctx", {}).get("expected", "").replace("'", "").replace(" or ", ", ").split(", ")
    )
    return f"{where}: {shown}: {quoted(given)} is not right: {message[0].lower()}{message[1:]}{hint}"


def _known(place: Place) -> list[str]:
    """The keys that could stand where `place` stands."""
    parent = place[-2] if len(place) > 1 else ""
    if parent == "measure":
        return list(Measure.model_fields)
    if len(place) == 1:
        return list(StudyModel.model_fields)
    if parent == "matrix":
        return list(KEYS)
    if parent == "train":
        return [*TRAIN, "seeds"]
    return ["framework", "matrix", "exclude", "include", "train", *KEYS, *Measure.model_fields]


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'workers'?`, or nothing if nothing is near."""
    if len(word) > LONGEST_SLIP:
        return ""
    near = difflib.get_close_matches(word, [k for k in known if k], n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def by_line(problem: str) -> tuple[int, str]:
    """Sorts problems as the file has them."""
    match = re.match(r"[^:]*:([0-9]{1,9}):", problem)
    return (int(match[1]) if match else 0, problem)
