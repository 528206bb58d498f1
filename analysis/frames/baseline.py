"""Which configuration another one's speed-up is measured against.

The baseline adds no trials: it is looked for among the study's own. It matches the study's `baseline` and equals
the compared configuration in every key, except those that say how the work is spread over workers. Under weak
scaling and in data parallelism that leaves the same batch_per_worker; under strong scaling, and in a pipeline,
whose workers share one batch, the same global_batch.

A variant of a model (models.py: `like`) is another model, and has no baseline in its original. Only the table of epochs
sets the two beside each other, because people do, and says what is wrong with it: find(..., model=the original).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard, TypeVar

import pandas as pd

from analysis.frames.study import StudyInfo
from analysis.frames.trials import TRIAL_KEYS
from scaling_study.frameworks import FRAMEWORKS

PIPELINE_KEYS = ("schedule", "stages", "virtual_stages", "micro_batches", "replicas", "stage_cut")
# The order matters where several configurations match: the one nearest to the compared one is taken.
SPREADING_KEYS = (
    *("framework", "launcher", "controller", "allreduce", "hosts", "schedule", "workers"),
    *(key for key in PIPELINE_KEYS if key != "schedule"),
    *("zero_stage", "bucket_bytes", "fusion_bytes", "cycle_seconds", "buffers", "tuned_for", "wrap"),
    *("target_batch_size", "matchmaking_seconds", "averaging_timeout_seconds", "average_state_every", "updates"),
    "train_loop",
)
FOR_ALL = ("machine", "warm")  # keys that are no axes of frameworks
BATCH_KEYS = ("batch_per_worker", "global_batch")
DECIDING_KEYS = tuple(key for key in TRIAL_KEYS if key not in (*SPREADING_KEYS, *BATCH_KEYS, "repeat"))
T = TypeVar("T")
Row = TypeVar("Row", bound=Mapping[str, Any])
Configuration = Mapping[str, Any]  # the trial keys of one configuration, and `configuration`, its id


def find(
    compared: Row,
    among: Sequence[Row],
    study: StudyInfo,
    *,
    model: str | None = None,
    batch: str | None = None,
) -> Row | str:
    """The baseline of `compared`, itself if it is one; or, in one clause, why there is none.

    `model`: look among those of this model instead. `batch`: hold this one of BATCH_KEYS equal, and no other.
    """
    if study.baseline is None:
        return "the study declares no baseline"
    if _is_baseline(compared, study.baseline) and model is None:
        return compared
    batch = batch or _batch_key(compared, study)
    like: Configuration = compared if model is None else {**compared, "model": model}
    matching = [c for c in among if _comparable(c, like, batch) and _is_baseline(c, study.baseline)]
    if not matching:
        wanted = ", ".join(f"{k}={v}" for k, v in study.baseline.items())
        return f"no baseline trial with {wanted} and {batch}={like.get(batch)} that is otherwise the same was run"
    ranked = sorted(matching, key=lambda c: _nearness(c, like), reverse=True)
    if len(ranked) > 1 and _nearness(ranked[0], like) == _nearness(ranked[1], like):
        return f"{len(ranked)} configurations match the baseline: {', '.join(str(c['configuration']) for c in ranked)}"
    return ranked[0]


def candidates(among: Iterable[Configuration], study: StudyInfo) -> dict[str, list[Configuration]]:
    """Model -> those of it that can be a baseline: all that find() need look at."""
    by_model: dict[str, list[Configuration]] = {}
    for c in among:
        if study.baseline is not None and _is_baseline(c, study.baseline):
            by_model.setdefault(str(c.get("model")), []).append(c)
    return by_model


def _is_baseline(configuration: Configuration, partial: Mapping[str, Any]) -> bool:
    return all(same(configuration.get(key), value) for key, value in partial.items())


def is_pipeline(configuration: Mapping[Any, Any]) -> bool:
    """Whether its workers share one batch. Plain data parallelism has none of the keys."""
    return any(known(configuration.get(key)) for key in PIPELINE_KEYS)


def _batch_key(configuration: Configuration, study: StudyInfo) -> str:
    return "global_batch" if is_pipeline(configuration) else study.batch_key


def _comparable(a: Configuration, b: Configuration, batch: str) -> bool:
    """Equal in all that decides what is computed. A key that one framework does not have cannot differ."""
    if not (same(a.get(batch), b.get(batch)) and same(a.get("model"), b.get("model"))):  # most are told apart by these
        return False
    shared = _deciding(str(a.get("framework")), str(b.get("framework")))
    return all(same(a.get(key), b.get(key)) for key in shared)


@cache
def _deciding(*frameworks: str) -> list[str]:
    """Those of DECIDING_KEYS that all of these have."""
    return [key for key in DECIDING_KEYS if all(has(name, key) for name in frameworks)]


def has(framework: str, key: str) -> bool:
    """Whether `key` exists for the framework: FOR_ALL do, and every key for one not in the table."""
    table = FRAMEWORKS.get(framework)
    return table is None or key in FOR_ALL or key in table.axes


def _nearness(candidate: Configuration, compared: Configuration) -> tuple[bool, ...]:
    return tuple(same(candidate.get(key), compared.get(key)) for key in SPREADING_KEYS)


def known(value: T | None) -> TypeGuard[T]:
    """False for None and for what pandas makes of it."""
    return value is not None and not pd.isna(value)  # type: ignore[call-overload]


def value_of(row: Mapping[str, object], key: str) -> Any:
    """For keys that are known at run time only: a TypedDict takes literal ones."""
    return row[key]


def values_of(row: Mapping[Any, Any], keys: Iterable[str]) -> tuple[Any, ...]:
    """Equal for two rows where `same` holds of each of these keys: to look one up among thousands."""
    return tuple(value if known(value := row[key]) else None for key in keys)


def same(a: Any, b: Any) -> bool:
    """Equality in which unknown equals unknown."""
    if type(a) is str and type(b) is str:  # most are, and this is asked a million times of a large study
        return a == b
    return bool(a == b) if known(a) and known(b) else known(a) == known(b)
