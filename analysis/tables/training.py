"""The table of what trainings to a result took of their machine, beside what they came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.frames import comparability
from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.trained import METRICS, SHOWN
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.tables.target import interval
from analysis.text.number_formats import megabytes
from analysis.to_target import frame

HEADER = ("configuration", "seeds", "seconds", "samples/s", "cores busy")
COLUMNS = (
    *("configuration", "series", "model", "global_batch", "seeds", "train_seconds", "train_seconds_low"),
    *("train_seconds_high", "evaluate_share", "samples_per_second", "cores_busy", "gpu_utilization_percent"),
    *("peak_memory_bytes", "steps", "best_step"),
    *(f"test_{name}{bound}" for name in METRICS for bound in ("", "_low", "_high")),
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS of to_target/frame.py."""
    return frame.table(results)[list(COLUMNS)]


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = table(results)
    if rows.empty:
        return None
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    on_gpus = bool(rows.gpu_utilization_percent.notna().any())
    several = rows.model.nunique() > 1
    signs = {row["configuration"]: comparability.sign(row) for row in results.rows}
    cells = [_cells(row, metrics, several, on_gpus, signs[row["configuration"]]) for row in rows.to_dict("records")]
    ours = results.configurations[results.configurations.configuration.isin(rows.configuration)]
    lines = (
        *comparability.sentences(ours),
        *notes.how_it_differs(ours),
        "Means over the seeds [95 %], of seconds geometric. Seconds: of training steps alone; samples a second: all "
        "samples over them.",
        "Cores busy: CPU time of all workers over the seconds of training, evaluation, checkpoints and logs"
        + (", as is the use of GPUs, in per cent." if on_gpus else "."),
        "Memory: of the worker that has most; on a GPU the allocator's peak, on a CPU the sum of tensors of all kinds.",
        "Best step: of the evaluation with the best figures on validation data. Test: of that model with patience, "
        "else of the last one.",
        notes.source(results),
    )
    gpus = ("GPUs busy (%)",) if on_gpus else ()
    header = (*HEADER, *gpus, "memory (MB a worker)", "best step", *(f"test {name}" for name in metrics))
    return Listing(f"What a training took ({results.heading})", header, tuple(cells), lines)


def _cells(row: Mapping[Any, Any], metrics: list[str], several: bool, on_gpus: bool, sign: str) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    gpus = (_number(row["gpu_utilization_percent"]),) if on_gpus else ()
    best = f"{row['best_step']:,.0f} of {row['steps']:,.0f}" if known(row["best_step"]) else ""
    return (
        f"{model}{row['series']}, batch {row['global_batch']} {sign}".rstrip(), str(row["seeds"]),
        interval(row, "train_seconds"), f"{row['samples_per_second']:,.0f}",
        f"{row['cores_busy']:.2f}" if known(row["cores_busy"]) else "", *gpus,
        megabytes(row["peak_memory_bytes"]), best, *(interval(row, f"test_{metric}", 3) for metric in metrics),
    )  # fmt: skip


def _number(value: Any) -> str:
    return f"{value:.0f}" if known(value) else ""
