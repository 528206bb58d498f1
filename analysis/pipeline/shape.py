"""The shape of a pipeline in words: `1f1b, m = 8`, and as the name of a file.

A row here is one of configurations.COLUMNS. Two frameworks have one order only, and no trial key for it.
"""

from __future__ import annotations

from analysis.frames.baseline import known
from analysis.frames.row_types import ConfigurationRow
from analysis.pipeline.theory import NAIVE
from analysis.text.file_names import file_name as cleaned
from scaling_study.frameworks import FRAMEWORKS

Row = ConfigurationRow
OWN_SCHEDULE = {"naive_model_parallel": NAIVE, "fairscale_pipe": "gpipe"}


def is_cut(row: Row) -> bool:
    """Whether its workers hold stages of one model."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def schedule(row: Row) -> str:
    """As asked for, or as its framework does by itself; empty where unknown."""
    return str(row["schedule"]) if known(row["schedule"]) else OWN_SCHEDULE.get(str(row["framework"]), "")


def workers(row: Row) -> int:
    """Workers along one pipeline."""
    return int(row["stages"]) if known(row["stages"]) else int(row["workers"])


def micro_batches(row: Row) -> int:
    return int(row["micro_batches"]) if known(row["micro_batches"]) else 1


def virtual_stages(row: Row) -> int:
    return int(row["virtual_stages"]) if known(row["virtual_stages"]) else 1


def replicas(row: Row) -> int:
    return max(1, int(row["workers"]) // workers(row))


def words(row: Row, cut: bool = False) -> str:
    """`interleaved_1f1b, m = 8, 2 workers x 2 stages, 2 replicas`, with `cut` where the model is cut."""
    parts = [schedule(row) or str(row["framework"])]
    if OWN_SCHEDULE.get(str(row["framework"]), NAIVE) != NAIVE:
        parts[0] += f" ({row['framework']})"
    if schedule(row) != NAIVE:
        parts.append(f"m = {micro_batches(row)}")
    p, v, copies = workers(row), virtual_stages(row), replicas(row)
    parts.append(f"{p} workers × {v} stages" if v > 1 else f"{p} stages")
    parts += [f"{copies} replicas"] if copies > 1 else []
    parts += [f"cut {row['stage_cut']}"] if cut and known(row["stage_cut"]) else []
    return ", ".join(parts)


def file_name(row: Row) -> str:
    """`transformer_lm-1f1b-p2-m8`; of two configurations that have no more to tell them apart, both have the same."""
    parts = [str(row["model"]), schedule(row) or str(row["framework"]), f"p{workers(row)}"]
    parts += [f"v{virtual_stages(row)}"] if virtual_stages(row) > 1 else []
    parts += [f"m{micro_batches(row)}"] if schedule(row) != NAIVE else []
    parts += [f"r{replicas(row)}"] if replicas(row) > 1 else []
    return cleaned("-".join(parts))
