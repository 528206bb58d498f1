"""What tells configurations of one model and batch size apart: the columns of a table, the lines of a figure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.baseline import known, same
from analysis.configurations import KEYS
from analysis.study import StudyInfo, workers_text
from scaling_study.frameworks import FRAMEWORKS

ALLREDUCE_ORDER = ("none", "fp32", "bf16", "fp16")
MAIN_KEYS = ("framework", "workers", "allreduce")
NOT_A_SERIES = ("model", "batch_per_worker", "global_batch", "machine", "cores_per_worker", "oversubscribe")
OF_A_FRAMEWORK = ("launcher", "controller")  # differ between frameworks as such: said only where one has several


def keys(configurations: pd.DataFrame) -> list[str]:
    """The trial keys that tell series apart: the main ones, and every other that varies in this study."""
    others = [key for key in KEYS if key not in (*MAIN_KEYS, *NOT_A_SERIES)]
    return [*MAIN_KEYS, *(key for key in others if _varies(configurations, key))]


def _varies(configurations: pd.DataFrame, key: str) -> bool:
    if key in OF_A_FRAMEWORK:
        return bool((configurations.groupby("framework")[key].nunique() > 1).any())
    return configurations[key].nunique(dropna=False) > 1


def add(configurations: pd.DataFrame, study: StudyInfo) -> pd.DataFrame:
    """With columns `series` (a short label), `series_order` (0, 1, ... in the order to show them) and `batch`."""
    names = keys(configurations)
    several = configurations.framework.nunique() > 1
    rows = configurations.to_dict("records")
    labels = [label(row, names, several) for row in rows]
    places: dict[str, tuple[Hashable, ...]] = {}
    for row, text in zip(rows, labels, strict=True):
        places.setdefault(text, _place(row, names, study))
    order = {text: index for index, text in enumerate(sorted(places, key=lambda text: places[text]))}
    return configurations.assign(
        series=pd.Series(labels, index=configurations.index, dtype="object"),
        series_order=pd.Series([order[text] for text in labels], index=configurations.index, dtype="int64"),
        batch=configurations[study.batch_key],
    )


def label(row: Mapping[Hashable, Any], names: Sequence[str], several_frameworks: bool) -> str:
    """`horovod, 2 workers, fp16`; `2 workers, fp16` in a study of one framework."""
    table = FRAMEWORKS.get(row["framework"])
    only_one = table is not None and table.axes.get("workers") == (1,)
    parts = [str(row["framework"])] if several_frameworks or only_one else []
    if not only_one:
        parts.append(workers_text(int(row["workers"])))
    if known(row["allreduce"]) and row["allreduce"] != "none":
        parts.append(str(row["allreduce"]))
    extra = [name for name in names if name not in MAIN_KEYS and known(row[name])]
    marked = ["oversubscribed"] if row["oversubscribed"] else []
    return ", ".join([*parts, *(f"{name} {row[name]}" for name in extra), *marked])


def _place(row: Mapping[Hashable, Any], names: Sequence[str], study: StudyInfo) -> tuple[Hashable, ...]:
    """Sorts the baseline's framework first, then by framework, workers and allreduce precision."""
    first = (study.baseline or {}).get("framework")
    allreduce = ALLREDUCE_ORDER.index(row["allreduce"]) if row["allreduce"] in ALLREDUCE_ORDER else 99
    extra = tuple(str(row[name]).rjust(20) for name in names if name not in MAIN_KEYS)  # 2 before 10
    return (not same(row["framework"], first), str(row["framework"]), int(row["workers"]), allreduce, *extra)
