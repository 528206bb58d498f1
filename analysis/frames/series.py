"""What tells configurations of one model and batch size apart: the columns of a table, the lines of a figure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.frames import comparability
from analysis.frames.baseline import has, known, same
from analysis.frames.configurations import KEYS
from analysis.frames.rows import as_rows, distinct
from analysis.frames.study import StudyInfo, workers_text
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.targets import ENDS

ALLREDUCE_ORDER = ("none", "fp32", "bf16", "fp16", "int8")
MAIN_KEYS = ("framework", "workers", "allreduce")
NOT_A_SERIES = (
    *("model", "batch_per_worker", "global_batch", "machine", "cores_per_worker", "oversubscribe"),
    "stages",  # what is left of the workers when the replicas are known
)
OF_A_FRAMEWORK = ("launcher", "controller")  # differ between frameworks as such: said only where one has several
OF_ONE_KIND = ("learning_rate", "epochs", "warmup_epochs")  # with train_*: only what is trained, or timed, has them
WORDS: Mapping[str, Callable[[Any], str]] = {  # how the field says it; any other key: its name and value
    "zero_stage": lambda stage: f"ZeRO-{stage}",
    "accumulation": lambda parts: f"accumulation {parts}" if parts > 1 else "",
    "compile": lambda compiled: "compiled" if compiled else "",
    "allocator": lambda kind: "" if kind == "fixed" else f"allocator {kind}",
    "padding": lambda kind: f"{kind} padding",
    "sequence_length": lambda tokens: f"{tokens} tokens",
    "input": lambda kind: f"{kind} input",
    "damaged_images": lambda kind: "damaged images replaced" if kind == "replace" else "",
    "image_size": lambda side: f"{side} px",
    "image_width": lambda side: f"{side} px wide",
    "memory_format": str,
    "data": lambda name: f"{name} data",
    "bucket_bytes": lambda size: f"buckets of {size / 2**20:g} MiB",
    "fusion_bytes": lambda size: f"fusion of {size / 2**20:g} MiB",
    "cycle_seconds": lambda seconds: f"cycle of {1000 * seconds:g} ms",
    "target_batch_size": lambda samples: f"target of {samples:,}",
    "matchmaking_seconds": lambda seconds: f"matchmaking of {seconds:g} s",
    "averaging_timeout_seconds": lambda seconds: f"time-out of {seconds:g} s",
    "average_state_every": lambda rounds: f"weights averaged every {rounds} rounds" if rounds > 1 else "",
    "updates": lambda how: "" if how == "synchronous" else how,
    "learning_rate": lambda rate: f"learning rate {rate:g}",
    "schedule": str,
    "micro_batches": lambda count: f"{count} micro-batch{'es' * (count != 1)}",
    "virtual_stages": lambda count: f"{count} stages a worker" if count > 1 else "",
    "replicas": lambda count: f"{count} replicas" if count > 1 else "",
    "buffers": lambda kind: f"{kind} buffers",
    "tuned_for": lambda aim: "" if aim == "speed" else f"tuned for {aim}",
    "wrap": lambda units: "one unit" if units == "none" else "",
    "weights": lambda file: f"weights {file}",
    "freeze": lambda part: f"{part} frozen",
    "part_learning_rates": lambda rates: f"learning rates {rates}",
    "stage_cut": lambda cut: f"cut {cut}",
    "train_loop": lambda whose: "its own loop" if whose == "native" else "",
    "warm": lambda _: "in rounds",
    "epochs": lambda count: f"{count} epoch{'s' * (count != 1)}",
    "warmup_epochs": lambda count: f"{count} warm-up epoch{'s' * (count != 1)}",
}


def keys(configurations: pd.DataFrame) -> list[str]:
    """The trial keys that tell series apart: the main ones, and every other that varies in this study."""
    others = [key for key in KEYS if key not in (*MAIN_KEYS, *NOT_A_SERIES)]
    return [*MAIN_KEYS, *(key for key in others if _varies(configurations, key) or _always(configurations, key))]


def _always(configurations: pd.DataFrame, key: str) -> bool:
    """Whether it is said though all peers have it: what steps otherwise than every other framework stands apart."""
    return key == "updates" and bool(configurations[key].isin(list(comparability.UPDATES)).any())


def _varies(configurations: pd.DataFrame, key: str) -> bool:
    """Within a model, as images have no tokens; among the frameworks that have the key at all; and of what only one
    kind has, trained to a result or timed, within that kind."""
    if len(distinct(configurations[key])) < 2:  # most keys of most studies, without a groupby
        return False
    if key in OF_A_FRAMEWORK:
        return bool((configurations.groupby(["model", "framework"])[key].nunique(dropna=False) > 1).any())
    having = [name for name in configurations.framework.unique() if has(str(name), key)]
    rows = configurations[configurations.framework.isin(having)]
    kinds = [_trained(rows)] if key in OF_ONE_KIND or key.startswith("train_") else []
    return bool((rows.groupby([rows.model, *kinds])[key].nunique(dropna=False) > 1).any())


def _trains(row: Mapping[Any, Any]) -> bool:
    return any(known(row[key]) for key in ENDS)


def _trained(configurations: pd.DataFrame) -> pd.Series[bool]:
    return configurations[list(ENDS)].notna().any(axis=1)


def add(configurations: pd.DataFrame, study: StudyInfo) -> pd.DataFrame:
    """With columns `series` (a short label), `series_order` (0, 1, ... in the order to show them) and `batch`."""
    names = keys(configurations)
    several = configurations.framework.nunique() > 1
    mixed = _trained(configurations).nunique() > 1
    rows = as_rows(configurations)
    labels = [label(row, names, several) + ", trained" * (mixed and _trains(row)) for row in rows]
    places: dict[str, tuple[Hashable, ...]] = {}
    for row, text in zip(rows, labels, strict=True):
        places.setdefault(text, _place(row, names, study))
    order = {text: index for index, text in enumerate(sorted(places, key=lambda text: places[text]))}
    return configurations.assign(
        series=pd.Series(labels, index=configurations.index, dtype="object"),
        series_order=pd.Series([order[text] for text in labels], index=configurations.index, dtype="int64"),
        batch=configurations[study.batch_key],
    )


def label(row: Mapping[Any, Any], names: Sequence[str], several_frameworks: bool) -> str:
    """`torch_fsdp2, 2 workers, fp16, ZeRO-3`; `2 workers, fp16` in a study of one framework."""
    table = FRAMEWORKS.get(row["framework"])
    only_one = table is not None and table.axes.get("workers") == (1,)
    parts = [str(row["framework"])] if several_frameworks or only_one else []
    if not only_one:
        parts.append(workers_text(int(row["workers"])))
    if known(row["allreduce"]) and row["allreduce"] != "none":
        parts.append(str(row["allreduce"]))
    marked = ["oversubscribed"] if row["oversubscribed"] else []
    return ", ".join([*parts, *words(row, (name for name in names if name not in MAIN_KEYS)), *marked])


def words(row: Mapping[Any, Any], names: Iterable[str]) -> list[str]:
    """`["ZeRO-3", "128 tokens"]`: what these keys say of a row, without those that do not apply to it."""
    given = ((name, row[name]) for name in names if known(row[name]))
    return [text for name, value in given if (text := WORDS[name](value) if name in WORDS else f"{name} {value}")]


def _place(row: Mapping[Hashable, Any], names: Sequence[str], study: StudyInfo) -> tuple[Hashable, ...]:
    """Sorts the baseline's framework first, then by framework, workers and allreduce precision."""
    first = (study.baseline or {}).get("framework")
    allreduce = ALLREDUCE_ORDER.index(row["allreduce"]) if row["allreduce"] in ALLREDUCE_ORDER else 99
    others = (row[name] for name in names if name not in MAIN_KEYS)
    extra = tuple(str(int(v) if isinstance(v, bool) else v).rjust(20) for v in others)  # 2 before 10, plain before not
    return (not same(row["framework"], first), str(row["framework"]), int(row["workers"]), allreduce, *extra)
