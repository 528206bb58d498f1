"""The network that a study ran on, as table and figure: seconds and bandwidth by size, and the line that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import network
from analysis.statistics.network import Probe, probes_table
from analysis.text import binary_size, byte_rate, duration, first_few, giga
from analysis.views.view import Drawing, StudyTable, View
from scaling_study.stats.network import COLLECTIVES, AlphaBeta, bounded

STRAIGHT = 0.1  # sizes further off the line than this are said to be no line
HEADER = (
    "network",
    "collective",
    "cores",
    "latency (µs)",
    "bandwidth (GB/s)",
    "of the bus (GB/s)",
    "sent (of size)",
    "by sockets (of size)",
    "off the line by",
    "at most",
    "smallest size",
    "takes",
    "largest size",
    "takes",
)


def listing(results: Results) -> Listing | None:
    """A row for each probe, collective and state of the cores; None where the study probed no network."""
    if results.probes.empty:
        return None
    probes = network.probes(results)
    sizes = probes_table(results)
    rows = [_cells(probe, key, fitted, sizes) for probe in probes for key, fitted in probe.fits.items()]
    lines = [*_crooked(probes), *_failed(results), *_disturbed(results), *_legend(sizes), f"{notes.source(results)}."]
    return Listing(f"The network ({results.study.name})", HEADER, tuple(rows), tuple(lines))


def brief(results: Results) -> Listing | None:
    """A short listing of the network for a terminal: latency, bandwidth and the notes that matter most."""
    whole = listing(results)
    if whole is None:
        return None
    at = [HEADER.index(name) for name in ("latency (µs)", "bandwidth (GB/s)")]
    rows = tuple((", ".join(filter(None, row[:3])), *(row[i] for i in at)) for row in whole.rows)
    loud = tuple(note for note in whole.notes if note.startswith("**") or not note.endswith("."))
    return Listing(whole.title, ("network", *(HEADER[i] for i in at)), rows, loud)


def _cells(probe: Probe, key: network.Key, fitted: AlphaBeta, sizes: pd.DataFrame) -> tuple[str, ...]:
    collective, busy = key
    ours = sizes[(sizes.configuration == probe.configuration) & (sizes.collective == collective) & (sizes.busy == busy)]
    smallest, largest = ours.iloc[0], ours.iloc[-1]
    bounds = None if fitted.alpha_low is None or fitted.alpha_high is None else (fitted.alpha_low, fitted.alpha_high)
    return (
        probe.name,
        collective.replace("_", "-"),
        state_text(probe, busy),
        bounded(fitted.alpha_seconds, bounds, 1e6),
        bounded(fitted.bytes_per_second, fitted.bytes_per_second_bounds, 1e-9),
        giga(probe.bus_factor(collective) * fitted.bytes_per_second),
        f"{largest.algorithm_bytes / largest.bytes:.3f}",
        f"{largest.sent_bytes / largest.bytes:.3f}" if known(largest.sent_bytes) else "",
        f"{100 * fitted.misfit:.0f} %",
        f"{100 * fitted.worst:+.0f} % at {binary_size(fitted.worst_bytes)}",
        binary_size(int(smallest.bytes)),
        duration(smallest.seconds),
        binary_size(int(largest.bytes)),
        duration(largest.seconds),
    )


def state_text(probe: Probe, busy: bool) -> str:
    """`busy` or `idle` cores during a probe; empty where the probe did not tell them apart."""
    return "busy" if busy else "idle" if any(key[1] for key in probe.fits) else ""


def _crooked(probes: Sequence[Probe]) -> Iterator[str]:
    """One sentence for those whose sizes are no line, worst first."""
    every = [(fitted.misfit, probe, key) for probe in probes for key, fitted in probe.fits.items()]
    names = [
        ", ".join(filter(None, (probe.name, collective.replace("_", "-"), state_text(probe, busy))))
        for misfit, probe, (collective, busy) in sorted(every, key=lambda item: -item[0])
        if misfit > STRAIGHT
    ]
    if names:
        yield (
            f"**No straight line**: sizes are off it by more than {100 * STRAIGHT:.0f} % beyond their noise, as where "
            f"a protocol changes with the size, or a cache ends ({first_few(names, 4)}). The two numbers are a "
            "summary there; network.csv has each size."
        )


def _failed(results: Results) -> Iterator[str]:
    bad = results.probes[results.probes.status != "ok"].drop_duplicates("configuration")
    for row in bad.itertuples():
        yield f"{row.status}: {row.reason} ({row.configuration})."


def _disturbed(results: Results) -> Iterator[str]:
    if busy := notes.busy(results.probes, "probes"):
        yield f"**The machine was not quiet**: {busy}."


def _legend(sizes: pd.DataFrame) -> Iterator[str]:
    yield (
        "Seconds of a call = latency + size / bandwidth, by least squares of relative errors over the sizes [95 %]. "
        "Size as in nccl-tests: of an all-gather and a reduce-scatter the whole. Sent: what a rank sends by the "
        "library's algorithm, mean over ranks, over the size: 2(n-1)/n for an allreduce, (n-1)/n for the others; "
        "torch.distributed's reduce-scatter over Gloo is an allreduce of which each rank keeps a part. By sockets: "
        "what the ranks' TCP sockets sent in a call of the largest size (near 0: shared memory carried it). Bandwidth "
        "of the bus: times sent, of a broadcast times 1, as in nccl-tests."
    )
    yield (
        "A call takes as long as its slowest rank, from a barrier on; every result was checked on every rank. Cores "
        "busy: they multiplied matrices meanwhile, as training does while gradients travel."
    )
    if kinds := " and ".join(sorted(set(sizes.interval))):
        yield f"Off the line by: beyond what the sizes' noise ({kinds}) explains; at most: the largest residual."


# The figure: a row of panels for each collective, a colour for each probe, hollow where the cores computed meanwhile.

MOST_PROBES = len(style.PALETTE)
Values = NDArray[np.float64]
SECONDS, BUS = "time of a call", "bus bandwidth"


@dataclass(frozen=True)
class FittedLine:
    """One probe's sizes (rows of probes_table) of one collective, with its fit where there is one."""

    name: str
    probe: Probe
    sizes: pd.DataFrame
    fitted: AlphaBeta | None
    colour: str
    hollow: bool

    def shown(self, kind: str, column: str) -> Values:
        """The seconds in this column, or the bus bandwidth that they make."""
        seconds: Values = self.sizes[column].to_numpy(dtype=float)
        return seconds if kind == SECONDS else self.bandwidth(self.sizes.bytes.to_numpy(dtype=float), seconds)

    def bandwidth(self, bytes: Values, seconds: Values) -> Values:
        factor = self.probe.bus_factor(str(self.sizes.collective.iloc[0]))
        with np.errstate(divide="ignore"):  # an interval of seconds may reach down to none
            return np.asarray(factor * bytes / seconds, dtype=np.float64)


def draw(results: Results) -> dict[str, Figure]:
    """`network`, where the study probed one."""
    sizes, probes = network.probes_table(results), network.probes(results)[:MOST_PROBES]
    present = [name for name in COLLECTIVES if (sizes.collective == name).any()]
    if not present:
        return {}
    rows = [list(_lines(sizes[sizes.collective == name], probes)) for name in present]
    layout = style.Layout(
        left=style.left_of(["100 MB/s"]),
        panel_width=2.0,
        panel_height=1.7,
        below=0.46,
        gutters=(0.35, style.gutter(line.name for lines in rows for line in lines)),
    )
    sheet = style.sheet(len(rows), 2, layout, f"The network: {results.study.name}", _footnote(results, sizes))
    for axes, name, lines in zip(sheet.axes, present, rows, strict=True):
        axes[0].set_title(name.replace("_", "-"), loc="left", weight="bold")
        for axis, kind in zip(axes, (SECONDS, BUS), strict=True):
            style.name_y(axis, kind, layout)
            _panel(axis, lines, kind, layout)
    return {"network": sheet.figure}


def _lines(sizes: pd.DataFrame, probes: Sequence[network.Probe]) -> list[FittedLine]:
    colours = zip(probes, style.style_colours(len(probes)), strict=True)
    lines = []
    for (probe, colour), busy in product(colours, (False, True)):
        ours = sizes[(sizes.configuration == probe.configuration) & (sizes.busy == busy)]
        if len(ours):
            name = ", ".join(filter(None, (probe.name, state_text(probe, busy))))
            fitted = probe.fits.get((str(ours.collective.iloc[0]), busy))
            lines.append(FittedLine(name, probe, ours, fitted, colour, busy))
    return lines


def _panel(axis: Axes, lines: Sequence[FittedLine], kind: str, layout: style.Layout) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    labels = []
    for line in lines:
        x, mean = line.sizes.bytes.to_numpy(dtype=float), line.shown(kind, "seconds")
        ends = [line.shown(kind, f"seconds_{end}") for end in ("low", "high")]
        low, high = (np.nan_to_num(bound, nan=0.0, posinf=0.0) for bound in (np.fmin(*ends), np.fmax(*ends)))
        bars = np.vstack([np.where(low > 0, mean - low, 0.0), np.where(high > 0, high - mean, 0.0)])
        axis.errorbar(
            x,
            mean,
            yerr=np.clip(bars, 0, None),
            color=line.colour,
            marker="o",
            markersize=4,
            linestyle="",
            markerfacecolor="white" if line.hollow else line.colour,
            markeredgecolor=line.colour,
            markeredgewidth=1.0,
            elinewidth=0.9,
            capsize=2,
            zorder=3,
        )
        if line.fitted:
            along = np.geomspace(x[0], x[-1], 100)
            seconds = np.array([line.fitted.seconds(size) for size in along])
            axis.plot(
                along,
                seconds if kind == SECONDS else line.bandwidth(along, seconds),
                color=line.colour,
                linestyle="--" if line.hollow else "-",
                linewidth=1.1,
                zorder=2,
            )
        labels.append(EndLabel(float(x[-1]), float(mean[-1]), line.name, line.colour))
    sizes = sorted({int(size) for line in lines for size in line.sizes.bytes})
    axis.set_xlim(sizes[0] / 1.8, sizes[-1] * 1.8)
    axis.set_xlabel("size")
    axis.grid(False, axis="x")
    style.even_ticks(axis, sizes, [binary_size(size) for size in sizes], layout.panel_width)
    style.ticked(axis.yaxis, LogLocator(numticks=8), duration if kind == SECONDS else byte_rate)
    if kind == BUS:
        style.end_labels(axis, labels, layout.panel_height)


def _footnote(results: Results, sizes: pd.DataFrame) -> list[str]:
    kinds, probes = " and ".join(sorted(set(sizes.interval))), sizes.configuration.nunique()
    return notes.under_figure(
        results,
        "Points: mean seconds of a call's slowest rank, and the bus bandwidth that they make (nccl-tests); bars: 95 % "
        f"interval {kinds}. Lines: seconds = latency + size / bandwidth, fitted to relative errors.",
        (sizes.busy.any(), "Hollow, dashed: with busy cores (matrix products)."),
        (probes > MOST_PROBES, f"The first {MOST_PROBES} of {probes} probes; tables/ has all."),
    )


VIEW = View(
    "How fast is the network?",
    (StudyTable("network", listing, probes_table, brief=brief),),
    (Drawing("network", draw, several=True),),
)
