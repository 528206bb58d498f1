"""The table of what surgical triplets are recognised by: average precision of the heads, and of triplet scores."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.to_target import frame
from scaling_study.targets import CHOSEN_BY, OF_TRIPLETS, TRIPLETS

OF_HEADS = tuple(name for name in TRIPLETS if name not in (CHOSEN_BY, *OF_TRIPLETS, "top5_ivt"))
NAMES = {"ap_i": "I", "ap_v": "V", "ap_t": "T", "ap_ivt": "IVT", "ap_iv": "IV", "ap_it": "IT", "top5_ivt": "top 5"}
PUBLISHED = {"I": 89.9, "V": 59.9, "T": 37.4, "IV": 31.8, "IT": 27.1, "IVT": 24.4}  # Tripnet: arXiv 2204.05235


def table(results: Results) -> pd.DataFrame:
    """A row for each configuration: its metrics on the test set with their intervals, as shares of 1."""
    rows = frame.table(results)
    columns = [f"test_{name}{bound}" for name in TRIPLETS for bound in ("", "_low", "_high")]
    ours: pd.DataFrame = rows.loc[
        rows[f"test_{CHOSEN_BY}"].notna(), ["configuration", "series", "model", "seeds", *columns]
    ]
    return ours


def listing(results: Results) -> Listing | None:
    """None where no triplets were recognised."""
    rows = table(results)
    if rows.empty:
        return None
    header = (
        "configuration", "seeds", *(NAMES[name] for name in OF_HEADS),
        *(f"{NAMES[name.removesuffix('_of_triplets')]}, of triplets" for name in OF_TRIPLETS), NAMES["top5_ivt"],
    )  # fmt: skip
    several = rows.model.nunique() > 1
    cells = tuple(_cells(row, several) for row in rows.to_dict("records"))
    return Listing(f"Recognising triplets ({results.heading})", header, cells, tuple(_lines(results)))


def _cells(row: dict[Any, Any], several: bool) -> tuple[str, ...]:
    name = f"{row['model']}, {row['series']}" if several else str(row["series"])
    return name, str(row["seeds"]), *(_percent(row, f"test_{key}") for key in (*OF_HEADS, *OF_TRIPLETS, "top5_ivt"))


def _percent(row: dict[Any, Any], name: str) -> str:
    """`66.1 ± 2.0`; empty where it is not known."""
    if not known(row[name]):
        return ""
    half = f" ± {50 * (row[f'{name}_high'] - row[f'{name}_low']):.1f}" if known(row[f"{name}_low"]) else ""
    return f"{100 * row[name]:.1f}{half}"


def _lines(results: Results) -> list[str]:
    published = ", ".join(f"{name} {value}" for name, value in PUBLISHED.items())
    return [
        "Average precision on the test videos in per cent: of each class within each video that has it, mean over "
        "those videos, then over the classes; mean over the seeds ± half of the 95 % interval. A class that no frame "
        "of a video has says nothing of it and is left out; counted as 0, a perfect model would score a few per cent.",
        "I, V, T, IVT: of the heads of instrument, verb, target and triplet. IV, IT: the product of two heads' "
        "probabilities, which cannot tell which instrument does what where a frame has several. Of triplets: the "
        "likeliest triplet with that class or pair, from the triplet head alone, as the field publishes it; the two "
        "kinds are not to be compared with each other. Top 5: how many of all triplets are among their frame's five "
        "likeliest.",
        f"Published Tripnet on CholecT45, of triplets: {published} (arXiv 2204.05235). Only figures on CholecT45's "
        "own test videos compare with these.",
        *notes.how_it_differs(results.configurations),
        notes.source(results),
    ]
