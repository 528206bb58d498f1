"""Published ratios beside the same ratios of a study, with its intervals, wherever it measured both configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, TypeVar

import pandas as pd

from analysis.epochs import frame as epochs
from analysis.frames.baseline import SPREADING_KEYS, has, known, same, value_of
from analysis.frames.configurations import KEYS, over
from analysis.frames.results import Results
from analysis.frames.row_types import ComparedEpoch, ConfigurationRow, Named
from analysis.frames.rows import as_rows
from analysis.published.claims import EPOCH, Claim, Keys, published

Row = TypeVar("Row", bound=Named)
Kinds = dict[tuple[str, str], list[Row]]
AGREES, DIFFERS, NO_INTERVAL = "agrees", "differs", "no interval"
COLUMNS = (
    *("study", "kind", "what", "series", "published", "flaws", "measured", "measured_low", "measured_high"),
    *("equal_work", "verdict", "configuration", "reference"),
)


def table(results: Results) -> pd.DataFrame:
    """A row of COLUMNS for each published ratio that this study has too, and for each way in which it has it.

    `verdict`: whether the 95 % interval of the measured ratio contains the published one. `equal_work`: of an epoch,
    the ratio at equal work. `flaws`: known ones of the published ratio, as a tuple.
    """
    shown = results.configurations
    usable = shown[(shown.n > 0) & ~shown.oversubscribed.fillna(False) & (shown.not_comparable.fillna("") == "")]
    rows = _by_kind(as_rows(usable, ConfigurationRow))
    timed = _by_kind(as_rows(epochs.table(results), ComparedEpoch))
    rows_made: list[dict[str, Any]] = []
    for claim in published():
        rows_made += _epochs(claim, _of(claim.of, timed)) if claim.kind == EPOCH else _rates(claim, rows)
    return pd.DataFrame(rows_made, columns=list(COLUMNS), dtype=object)


def _by_kind(rows: Sequence[Row]) -> Kinds[Row]:
    """(framework, model) -> rows: what every claim names."""
    kinds: Kinds[Row] = {}
    for row in rows:
        kinds.setdefault((str(value_of(row, "framework")), str(row["model"])), []).append(row)
    return kinds


def _of(keys: Keys, kinds: Kinds[Row]) -> list[Row]:
    """Those that have these keys."""
    alike = kinds.get((keys["framework"], keys["model"]), ())
    return [row for row in alike if all(same(row.get(key), value) for key, value in keys.items())]


def _rates(claim: Claim, rows: Kinds[ConfigurationRow]) -> Iterator[dict[str, Any]]:
    """Of each pair that is what the claim divides, and otherwise the same."""
    divided = {key for key in {*claim.of, *claim.over} if claim.of.get(key) != claim.over.get(key)}
    spread = {*SPREADING_KEYS} if "framework" in divided else set()
    alike = [key for key in KEYS if key not in {*divided, *spread, "global_batch"}]
    for row, other in product(_of(claim.of, rows), _of(claim.over, rows)):
        shared = (key for key in alike if all(has(str(side["framework"]), key) for side in (row, other)))
        if all(same(value_of(row, key), value_of(other, key)) for key in shared):
            gain = over(row, other)
            yield _row(claim, row, str(other["configuration"]), gain.mean, gain.low, gain.high)


def _epochs(claim: Claim, rows: Sequence[ComparedEpoch]) -> Iterator[dict[str, Any]]:
    """Of each configuration that ran epochs as the claim's did, against whatever baseline it has."""
    for row in rows:
        if known(row["epoch_ratio"]) and row["epoch_baseline"] != row["configuration"]:
            low, high = (bound if known(bound) else None for bound in (row["epoch_ratio_low"], row["epoch_ratio_high"]))
            columns = _row(claim, row, str(row["epoch_baseline"]), float(row["epoch_ratio"]), low, high)
            yield columns | {"equal_work": row["equal_work_ratio"]}


def _row(claim: Claim, row: Named, reference: str, ratio: float, low: Any, high: Any) -> dict[str, Any]:
    verdict = NO_INTERVAL if low is None else AGREES if low <= claim.value <= high else DIFFERS
    return {
        "study": claim.study, "kind": claim.kind, "what": claim.what, "series": str(row["series"]),
        "published": claim.value, "flaws": claim.flaws, "measured": ratio, "measured_low": low, "measured_high": high,
        "equal_work": None, "verdict": verdict, "configuration": str(row["configuration"]), "reference": reference,
    }  # fmt: skip
