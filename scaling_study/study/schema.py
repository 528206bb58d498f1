"""The shape of a study file, as pydantic models made from trial.py: a new trial key is a study key by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WrapValidator, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import Names
from scaling_study.targets import METRICS, TRAIN
from scaling_study.trial import Trial

NOT_FOR_STUDIES = ("framework", "machine", "repeat", "warm", "window")  # trial keys that no sweep sets
# Beyond what any study means. A product of two such integers is still one that tables can hold (64 bits), and the
# system can wait for so many seconds.
MOST: dict[type, Any] = {int: 2**31 - 1, float: 1e9}
MOST_SECONDS = 1e7  # some four months
MOST_BYTES = 2**40
LONGEST_WORD = 200  # characters


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; "32" is not 32."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Measure(Strict):
    """How each trial is measured and how often."""

    warmup_steps: int = Field(default=5, ge=0, le=MOST[int])
    min_steps: int = Field(default=10, ge=1, le=MOST[int])
    min_seconds: float = Field(default=2.0, ge=0, le=MOST_SECONDS)
    max_seconds: float = Field(default=30.0, gt=0, le=MOST_SECONDS)
    max_steps: int | None = Field(default=None, ge=1, le=MOST[int])
    warm: bool = False  # in rounds, by processes that several configurations share, where they can
    rounds: int = Field(default=8, ge=1, le=1000)  # of such a launch
    block_seconds: float = Field(default=0.5, gt=0, le=MOST_SECONDS)  # of one configuration in one round
    repeats: int = Field(default=3, ge=1, le=1000)
    max_repeats: int = Field(default=10, ge=1, le=1000)
    target_interval: float = Field(default=0.02, ge=1e-4, lt=1)  # half-width of the 95 % interval over the mean
    timeout_seconds: float = Field(default=600.0, gt=0, le=MOST_SECONDS)
    retries: int = Field(default=2, ge=0, le=10)  # after failures to find a port or each other (transient.py)

    @model_validator(mode="after")
    def _ordered(self) -> Measure:
        if "max_repeats" not in self.model_fields_set:  # `repeats: 12` alone means 12, and max_repeats stays not given
            self.__dict__["max_repeats"] = max(self.repeats, self.max_repeats)
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
    result: dict[str, Any] = {"global_batch": Annotated[int, Field(ge=1, le=MOST[int])]}
    for f in fields(Trial):
        if f.name not in NOT_FOR_STUDIES:
            kind: Any = _one_of(f.metadata.get("choices") or ()) or names[str(f.type).removesuffix(" | None")]
            least, above, below = (f.metadata.get(limit) for limit in ("minimum", "above", "below"))
            most = MOST_BYTES if f.name.endswith("_bytes") else MOST.get(kind)
            longest = LONGEST_WORD if kind is str else None
            result[f.name] = Annotated[kind, Field(ge=least, gt=above, lt=below, le=most, max_length=longest)]
    return result


def _one_of(choices: Iterable[Any]) -> Any:
    """The type of exactly these values, with the names that a library adds to those of models; None for none."""
    if not choices:
        return None
    exact = Literal[tuple(choices)]  # type: ignore[valid-type]
    if not isinstance(choices, Names):
        return exact
    return Annotated[exact, WrapValidator(lambda value, listed: value if value in choices else listed(value))]


def _list_of(kind: Any) -> Any:
    return Annotated[list[kind], Field(min_length=1)]


def _limited(field: FieldInfo) -> Any:
    """A field's type with its limits."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _not_empty(value: Any) -> Any:
    if not value:
        raise ValueError("it is empty; give it keys, or leave it out")
    return value


KEYS = _trial_key_types()
FRAMEWORK = _one_of(FRAMEWORKS)
_one: dict[str, Any] = {name: (kind, None) for name, kind in KEYS.items()}  # None: not given; `workers: ~` is refused
_many: dict[str, Any] = {name: (_list_of(kind), None) for name, kind in KEYS.items()}
_measure: dict[str, Any] = {name: (_limited(f), None) for name, f in Measure.model_fields.items()}

Keys: Any = create_model("Keys", __base__=Strict, **_one)
PartialKeys: Any = create_model("PartialKeys", __base__=Keys, framework=(FRAMEWORK | None, None))
Matrix: Any = create_model("Matrix", __base__=Strict, **_many)
FixedKeys: Any = create_model("FixedKeys", __base__=Keys, **_measure)


class TargetModel(Strict):
    """`target` of `train`."""

    metric: Literal[tuple(METRICS)]  # type: ignore[valid-type]
    value: float


_train: dict[str, Any] = {name: (KEYS[f"train_{name}"] | None, None) for name in TRAIN if name != "target"}
Train: Any = create_model(
    "Train", __base__=Strict, **_train, target=(TargetModel | None, None), seeds=(_list_of(KEYS["seed"]), None)
)


class SweepModel(FixedKeys):
    """One entry of `sweeps`: any trial key and any key of `measure` may stand beside the matrix."""

    framework: FRAMEWORK  # type: ignore[valid-type]
    matrix: Matrix | None = None
    exclude: list[Keys] = Field(default_factory=list)
    include: list[Keys] = Field(default_factory=list)
    train: Train | None = None

    _matrix_given = field_validator("matrix", mode="before")(_not_empty)


class StudyModel(Strict):
    """The file's shape."""

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")  # it names a folder
    description: str | None = None
    scaling: Literal["weak", "strong"] = "weak"
    baseline: PartialKeys | None = None
    order_seed: int = 0  # of the order in which trials run
    sentinel: PartialKeys | None = None  # a configuration that is repeated through the whole sweep
    parity: bool = True  # show first that every framework trains what one process would
    hosts: list[Annotated[str, Field(max_length=LONGEST_WORD + 60)]] | None = Field(default=None, min_length=1)
    measure: Measure = Measure()
    train: Train | None = None  # to a result, instead of being timed; a sweep's own keys come first
    sweeps: list[SweepModel] = Field(min_length=1)
    small: dict[str, Any] | None = None

    _keys_given = field_validator("baseline", "sentinel", mode="before")(_not_empty)
