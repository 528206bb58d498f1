"""Latency and bandwidth of every network that a study probed: seconds = alpha + beta x bytes.

    fit(results)[("allreduce", False)]  ->  AlphaBeta: alpha_seconds, beta_seconds_per_byte, intervals, seconds(bytes)

Bytes are sizes as nccl-tests has them, and alpha and beta are those of the collective on as many workers as the probe
had: for a ring of other n, take them apart by its formula (scaling_study/stats/collectives.py has the factors).

The intervals are the wider of two: of the line through the means, where sizes are off it (alpha_beta.py), and, with
three repeats or more, of the repeats' own lines, since processes that are started again find another network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.frames.results import Results
from analysis.network import frame
from scaling_study.stats.alpha_beta import AlphaBeta, Point
from scaling_study.stats.alpha_beta import fit as line
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats

Key = tuple[str, bool]  # (collective, cores busy)


@dataclass(frozen=True)
class Probe:
    """One configuration of a network probe. `fits` has no collective that was measured at fewer than two sizes."""

    configuration: str
    name: str  # `torch.distributed (gloo), 2 workers`
    launcher: str
    controller: str | None
    workers: int
    device: str
    fits: dict[Key, AlphaBeta]


def probes(results: Results) -> list[Probe]:
    """Every probe of the study that was measured, in the order of their names."""
    sizes = frame.table(results)
    probes = []
    for configuration, ours in sizes.groupby("configuration", sort=False):
        about = ours.iloc[0]
        fits = {
            (str(collective), bool(busy)): _fitted(group, results, str(configuration))
            for (collective, busy), group in ours.groupby(["collective", "busy"], sort=False)
            if group.bytes.nunique() > 1
        }
        controller = None if pd.isna(about.controller) else str(about.controller)
        probes.append(
            Probe(str(configuration), str(about.probe), str(about.launcher), controller, int(about.workers),
                  str(about.device), fits)
        )  # fmt: skip
    return probes


def fit(results: Results, configuration: str | None = None) -> dict[Key, AlphaBeta]:
    """Of the study's probe; where it has several, `configuration` says which.

    Empty where there is none. Raises ValueError where there are several and none is named.
    """
    matching = [probe for probe in probes(results) if configuration in (None, probe.configuration)]
    if len(matching) > 1:
        names = ", ".join(probe.configuration for probe in matching)
        raise ValueError(f"several networks were probed, say which: {names}")
    return matching[0].fits if matching else {}


def _fitted(sizes: pd.DataFrame, results: Results, configuration: str) -> AlphaBeta:
    """`sizes`: the rows of table.COLUMNS of one probe, collective and state of the cores."""
    rows = results.details.network
    rows = rows[(rows.configuration == configuration) & (rows.collective == sizes.collective.iloc[0])]
    rows = rows[rows.busy == sizes.busy.iloc[0]]
    if rows.repeat.nunique() < FEWEST_REPEATS:
        return _line(sizes)
    each = rows.assign(seconds_error=(rows.seconds_high - rows.seconds_low) / 4).groupby("repeat")
    return _widened(_line(sizes), [_line(ours) for _, ours in each])


def _widened(whole: AlphaBeta, each: Sequence[AlphaBeta]) -> AlphaBeta:
    """The line through all repeats, with intervals that hold for the repeats' own lines too."""
    alpha = between_repeats([fitted.alpha_seconds for fitted in each]).half_width or 0.0
    beta = between_repeats([fitted.beta_seconds_per_byte for fitted in each]).half_width or 0.0
    a, b = whole.alpha_seconds, whole.beta_seconds_per_byte
    return replace(
        whole,
        alpha_low=max(0.0, min(a - alpha, a if whole.alpha_low is None else whole.alpha_low)),
        alpha_high=max(a + alpha, whole.alpha_high or 0.0),
        beta_low=max(0.0, min(b - beta, b if whole.beta_low is None else whole.beta_low)),
        beta_high=max(b + beta, whole.beta_high or 0.0),
    )


def _line(sizes: pd.DataFrame) -> AlphaBeta:
    """Through the mean seconds of each size."""
    known = zip(sizes.bytes, sizes.seconds, sizes.seconds_error, strict=True)
    return line(
        [Point(int(size), float(mean), None if pd.isna(error) else float(error)) for size, mean, error in known]
    )
