"""The networks that a study probed: seconds and bus bandwidth by size, on log axes, each with the line that fits.

A row of panels for each collective; a colour for each probe, filled where the cores were idle and hollow where they
computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.frames.results import Results
from analysis.network import fit, frame
from analysis.tables import network, notes
from analysis.text.number_formats import binary_size, byte_rate, duration
from scaling_study.stats.alpha_beta import AlphaBeta
from scaling_study.stats.collectives import COLLECTIVES, bus_factor

MOST_PROBES = len(style.PALETTE)
Values = NDArray[np.float64]
SECONDS, BUS = "time of a call", "bus bandwidth"


@dataclass(frozen=True)
class Line:
    """One probe's sizes (table.COLUMNS) of one collective, with its fit where there is one."""

    name: str
    sizes: pd.DataFrame
    fitted: AlphaBeta | None
    colour: str
    hollow: bool

    def shown(self, kind: str, column: str) -> Values:
        """The seconds in this column, or the bus bandwidth that they make."""
        seconds: Values = self.sizes[column].to_numpy(dtype=float)
        return seconds if kind == SECONDS else self.bandwidth(self.sizes.bytes.to_numpy(dtype=float), seconds)

    def bandwidth(self, bytes: Values, seconds: Values) -> Values:
        factor = bus_factor(str(self.sizes.collective.iloc[0]), int(self.sizes.workers.iloc[0]))
        with np.errstate(divide="ignore"):  # an interval of seconds may reach down to none
            return np.asarray(factor * bytes / seconds, dtype=np.float64)


def draw(results: Results) -> dict[str, Figure]:
    """`network`, where the study probed one."""
    sizes, probes = frame.table(results), fit.probes(results)[:MOST_PROBES]
    present = [name for name in COLLECTIVES if (sizes.collective == name).any()]
    if not present:
        return {}
    rows = [list(_lines(sizes[sizes.collective == name], probes)) for name in present]
    layout = style.Layout(
        left=style.left_of(["100 MB/s"]), panel_width=2.5, panel_height=1.9, below=0.46,
        gutters=(0.35, marks.gutter(line.name for lines in rows for line in lines)),
    )  # fmt: skip
    sheet = style.sheet(len(rows), 2, layout, f"The network: {results.study.name}", _footnote(results, sizes))
    for index, (name, lines) in enumerate(zip(present, rows, strict=True)):
        for column, kind in enumerate((SECONDS, BUS)):
            axis, _ = sheet.at(2 * index + column)
            axis.set_title(name.replace("_", "-") if column == 0 else "", loc="left", weight="bold")
            style.name_y(axis, kind, layout)
            _panel(axis, lines, kind, layout)
    return {"network": sheet.figure}


def _lines(sizes: pd.DataFrame, probes: Sequence[fit.Probe]) -> list[Line]:
    lines = []
    for probe, colour in zip(probes, style.colours(len(probes)), strict=True):
        for busy in (False, True):
            ours = sizes[(sizes.configuration == probe.configuration) & (sizes.busy == busy)]
            if len(ours):
                state = network.state_text(probe, busy)
                name = probe.name + (f", {state}" if state else "")
                key = (str(ours.collective.iloc[0]), busy)
                lines.append(Line(name, ours, probe.fits.get(key), colour, busy))
    return lines


def _panel(axis: Axes, lines: Sequence[Line], kind: str, layout: style.Layout) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    labels = []
    for line in lines:
        x, mean = line.sizes.bytes.to_numpy(dtype=float), line.shown(kind, "seconds")
        ends = [line.shown(kind, f"seconds_{end}") for end in ("low", "high")]
        low, high = (np.nan_to_num(bound, nan=0.0, posinf=0.0) for bound in (np.fmin(*ends), np.fmax(*ends)))
        bars = np.vstack([np.where(low > 0, mean - low, 0.0), np.where(high > 0, high - mean, 0.0)])
        axis.errorbar(
            x, mean, yerr=np.clip(bars, 0, None), color=line.colour, marker="o", markersize=4, linestyle="",
            markerfacecolor="white" if line.hollow else line.colour, markeredgecolor=line.colour, markeredgewidth=1.0,
            elinewidth=0.9, capsize=2, zorder=3,
        )  # fmt: skip
        if line.fitted:
            along = np.geomspace(x[0], x[-1], 100)
            seconds = np.array([line.fitted.seconds(size) for size in along])
            axis.plot(
                along, seconds if kind == SECONDS else line.bandwidth(along, seconds), color=line.colour,
                linestyle="--" if line.hollow else "-", linewidth=1.1, zorder=2,
            )  # fmt: skip
        labels.append(EndLabel(float(x[-1]), float(mean[-1]), line.name, line.colour))
    sizes = sorted({int(size) for line in lines for size in line.sizes.bytes})
    axis.set_xlim(sizes[0] / 1.8, sizes[-1] * 1.8)
    axis.set_xlabel("size")
    axis.grid(False, axis="x")
    _size_ticks(axis, sizes, layout.panel_width)
    axis.yaxis.set_major_locator(LogLocator(numticks=8))
    axis.yaxis.set_minor_locator(NullLocator())
    number_format = duration if kind == SECONDS else byte_rate
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_format(value)))
    if kind == BUS:
        marks.end_labels(axis, labels, layout.panel_height)


def _size_ticks(axis: Axes, sizes: Sequence[int], width: float) -> None:
    """As many of the sizes as have room for their names."""
    widest = max(style.inches(binary_size(size), style.SMALL) for size in sizes) + 0.08
    every = max(1, int(np.ceil(len(sizes) * widest / width)))
    axis.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes[::every]]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: binary_size(round(value))))
    axis.xaxis.set_minor_locator(NullLocator())


def _footnote(results: Results, sizes: pd.DataFrame) -> list[str]:
    kinds = " and ".join(sorted(set(sizes.interval)))
    lines = [
        f"Points: mean seconds of a call's slowest rank, and the bus bandwidth that they make (nccl-tests); bars: 95 % "
        f"interval {kinds}. Lines: seconds = latency + size / bandwidth, fitted to relative errors."
    ]
    if sizes.busy.any():
        lines[0] += " Hollow, dashed: with busy cores (matrix products)."
    if sizes.configuration.nunique() > MOST_PROBES:
        lines[0] += f" The first {MOST_PROBES} of {sizes.configuration.nunique()} probes; tables/ has all."
    return [*lines, f"{notes.source(results)}."]
