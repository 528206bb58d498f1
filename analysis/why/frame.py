"""Why, as frames: a row a configuration, numbers as they are. The columns behind each table of tables/reasons.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from analysis.frames.baseline import values_of
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.why.attribution import PARTS, attributions
from analysis.why.bottleneck import SHARES, bottlenecks
from analysis.why.frontier import families
from analysis.why.remedies import remedies
from analysis.why.utilisation import utilisations

NAMES = ("configuration", "model", "series", "batch", "workers")
Row = ConfigurationRow


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """All of them, by the names of listing.named()."""
    makers = {"attribution": attribution, "bottleneck": bottleneck, "remedies": remedy, "utilisation": utilisation}
    return {name: table(results) for name, table in {**makers, "frontier": frontier}.items()}


def attribution(results: Results) -> pd.DataFrame:
    """`<part>_lost` of the ideal with its bounds, `efficiency` and `lost`; empty where a part cannot be."""
    kept = ("baseline", "efficiency", "lost")
    columns = [*kept, *(f"{part}_{what}" for part in PARTS for what in ("lost", "low", "high")), "disturbance", "why"]
    rows = []
    for attributed in attributions(results):
        row = _named(attributed.row) | {
            "baseline": attributed.baseline,
            "efficiency": attributed.efficiency,
            "lost": attributed.lost,
        }
        for part in attributed.parts:
            row |= {f"{part.name}_lost": part.lost, f"{part.name}_low": part.low, f"{part.name}_high": part.high}
        rows.append(row | {"disturbance": attributed.disturbance, "why": attributed.why})
    return _frame(rows, columns)


def bottleneck(results: Results) -> pd.DataFrame:
    """The kind, its evidence, and what share of a step goes where."""
    shares = {kind: f"{kind.replace(' ', '_')}_share" for kind in SHARES}
    rows = [
        _named(limited.row)
        | {"status": limited.row["status"], "bottleneck": limited.kind, "evidence": limited.evidence}
        | {shares[kind]: share for kind, share in limited.shares.items()}
        for limited in bottlenecks(results)
    ]  # fmt: skip
    return _frame(rows, ["status", "bottleneck", "evidence", *shares.values()])


def remedy(results: Results) -> pd.DataFrame:
    """A row for each thing that would help a configuration, the most first: `gain` of throughput at most."""
    rows = [
        _named(remedy.row)
        | {"remedy": remedy.name, "saved": remedy.saved, "gain_at_most": remedy.gain, "but": remedy.but}
        for listed in remedies(results).values() for remedy in listed
    ]  # fmt: skip
    return _frame(rows, ["remedy", "saved", "gain_at_most", "but"])


def utilisation(results: Results) -> pd.DataFrame:
    """Of one worker: FLOP/s, the device's measured peaks, intensity, roof."""
    columns = ["model_flops_per_second", "peak_flops_per_second", "utilisation", "peak_bytes_per_second", "intensity",
               "ridge", "roof_flops_per_second", "why"]  # fmt: skip
    rows = [
        _named(used.row) | dict(zip(columns, (
            used.flops_per_second, used.peak_flops_per_second, used.share, used.peak_bytes_per_second, used.intensity,
            used.ridge, used.roof, used.why,
        ), strict=True))
        for used in utilisations(results)
    ]  # fmt: skip
    return _frame(rows, columns)


def frontier(results: Results) -> pd.DataFrame:
    """A row for each family of batch sizes: what fits, what did not, and the line through the peaks."""
    columns = ["measured_batches", "largest_batch", "smallest_out_of_memory", "out_of_memory", "implied",
               "fixed_bytes", "bytes_per_sample", "peak_memory_bytes", "bytes_at_out_of_memory", "growth",
               "growth_low", "growth_high"]  # fmt: skip
    rows = []
    for family in families(results):
        fixed, slope = family.line or (None, None)
        grown = family.growth[2] if family.growth else None
        rows.append(_named(family.about) | dict(zip(columns, (
            _list(family.batches), family.largest, family.smallest_out, _list(family.out), _list(family.implied),
            fixed, slope, max(family.peaks, default=None),
            None if family.smallest_out is None else family.bytes_at(family.smallest_out),
            *((grown.mean, grown.low, grown.high) if grown else (None,) * 3),
        ), strict=True)))  # fmt: skip
    return _frame(rows, columns).drop(columns="batch")


def _named(row: Row) -> dict[str, Any]:
    return dict(zip(NAMES, values_of(row, NAMES), strict=True))


def _frame(rows: Sequence[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*NAMES, *columns], dtype=object)


def _list(numbers: Iterable[int]) -> str:
    return ";".join(map(str, numbers))
