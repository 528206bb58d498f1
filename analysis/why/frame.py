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
    for one in attributions(results):
        row = _named(one.row) | {"baseline": one.baseline, "efficiency": one.efficiency, "lost": one.lost}
        for part in one.parts:
            row |= {f"{part.name}_lost": part.lost, f"{part.name}_low": part.low, f"{part.name}_high": part.high}
        rows.append(row | {"disturbance": one.disturbance, "why": one.why})
    return _frame(rows, columns)


def bottleneck(results: Results) -> pd.DataFrame:
    """The kind, its evidence, and what share of a step goes where."""
    shares = {kind: f"{kind.replace(' ', '_')}_share" for kind in SHARES}
    rows = [
        _named(one.row) | {"status": one.row["status"], "bottleneck": one.kind, "evidence": one.evidence}
        | {shares[kind]: share for kind, share in one.shares.items()}
        for one in bottlenecks(results)
    ]  # fmt: skip
    return _frame(rows, ["status", "bottleneck", "evidence", *shares.values()])


def remedy(results: Results) -> pd.DataFrame:
    """A row for each thing that would help a configuration, the most first: `gain` of throughput at most."""
    rows = [
        _named(one.row) | {"remedy": one.name, "saved": one.saved, "gain_at_most": one.gain, "but": one.but}
        for listed in remedies(results).values() for one in listed
    ]  # fmt: skip
    return _frame(rows, ["remedy", "saved", "gain_at_most", "but"])


def utilisation(results: Results) -> pd.DataFrame:
    """Of one worker: FLOP/s, the device's measured peaks, intensity, roof."""
    columns = ["model_flops_per_second", "peak_flops_per_second", "utilisation", "peak_bytes_per_second", "intensity",
               "ridge", "roof_flops_per_second", "why"]  # fmt: skip
    rows = [
        _named(one.row) | dict(zip(columns, (
            one.flops_per_second, one.peak_flops_per_second, one.share, one.peak_bytes_per_second, one.intensity,
            one.ridge, one.roof, one.why,
        ), strict=True))
        for one in utilisations(results)
    ]  # fmt: skip
    return _frame(rows, columns)


def frontier(results: Results) -> pd.DataFrame:
    """A row for each family of batch sizes: what fits, what did not, and the line through the peaks."""
    columns = ["measured_batches", "largest_batch", "smallest_out_of_memory", "out_of_memory", "implied",
               "fixed_bytes", "bytes_per_sample", "peak_memory_bytes", "bytes_at_out_of_memory", "growth",
               "growth_low", "growth_high"]  # fmt: skip
    rows = []
    for one in families(results):
        fixed, slope = one.line or (None, None)
        grown = one.growth[2] if one.growth else None
        rows.append(_named(one.about) | dict(zip(columns, (
            _list(one.batches), one.largest, one.smallest_out, _list(one.out), _list(one.implied), fixed, slope,
            max(one.peaks, default=None), None if one.smallest_out is None else one.bytes_at(one.smallest_out),
            *((grown.mean, grown.low, grown.high) if grown else (None,) * 3),
        ), strict=True)))  # fmt: skip
    return _frame(rows, columns).drop(columns="batch")


def _named(row: Row) -> dict[str, Any]:
    return dict(zip(NAMES, values_of(row, NAMES), strict=True))


def _frame(rows: Sequence[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*NAMES, *columns], dtype=object)


def _list(numbers: Iterable[int]) -> str:
    return ";".join(map(str, numbers))
