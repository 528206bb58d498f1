"""The roofline: model FLOP/s of a worker against arithmetic intensity, under what the device was measured to reach.

A panel for each model; declined where FLOPs were not counted or no peak was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.figures import marks, series_styles, style
from analysis.figures.marks import EndLabel
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.text.number_formats import flop_rate, three_digits
from analysis.why.utilisation import DEVICE, Utilisation, utilisations

MOST_LABELS, MOST_COLUMNS = 14, 2
FEW_DECADES = 300  # end over beginning of an axis, below which powers of ten alone would be too few ticks


def draw(results: Results) -> Figure | None:
    """The figure, or None where there is nothing to hold under a roof."""
    every = [
        utilisation
        for utilisation in utilisations(results)
        if utilisation.roof is not None and utilisation.flops_per_second is not None
    ]
    models = [model for model in results.models if any(utilisation.row["model"] == model for utilisation in every)]
    if not models:
        return None
    look = series_styles.of(results.configurations)
    panels = [[utilisation for utilisation in every if utilisation.row["model"] == model] for model in models]
    columns = min(len(models), MOST_COLUMNS)
    labels = [_labels(panel) for panel in panels]
    layout = style.Layout(
        panel_width=2.6,
        panel_height=max(2.2, (max(map(len, labels)) + 1) * 1.3 * marks.GAP),
        left=style.left_of(["100 TFLOP/s"]),
        below=0.46,
        gutters=tuple(
            marks.gutter((text for texts in labels[place::columns] for text in texts), models[place::columns], 2.6)
            for place in range(columns)
        ),
    )
    footnote = (
        "Lines: the fastest matrix product and the fastest copy that any run of the study measured on such a device. "
        "Model FLOPs: 3 x forward. Intensity is an estimate: each tensor passes through memory once for each use. "
        "Larger batches lie further right."
    )
    if any((utilisation.share or 0.0) > 1.0 for utilisation in every):
        footnote += " Points above the roof: training exceeded the microbenchmark."
    foot = [footnote, f"{notes.source(results)}."]
    sheet = style.sheet(-(-len(models) // columns), columns, layout, f"Roofline: {results.study.name}", foot)
    for index, (model, panel) in enumerate(zip(models, panels, strict=True)):
        axis, _ = sheet.at(index)
        axis.set_title(model, loc="left", weight="bold")
        style.name_y(axis, "model FLOP/s of a worker", layout)
        _panel(axis, panel, look, layout)
    for index in range(len(models), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _labels(panel: Sequence[Utilisation]) -> list[str]:
    """One for each series, at its largest intensity; the first and the last where they would be too many."""
    names = list(dict.fromkeys(str(utilisation.row["series"]) for utilisation in panel))
    return names if len(names) <= MOST_LABELS else [names[0], names[-1]]


def _panel(axis: Axes, panel: Sequence[Utilisation], look: dict[str, series_styles.Look], layout: style.Layout) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    intensities = [utilisation.intensity for utilisation in panel if utilisation.intensity]
    ridges = [utilisation.ridge for utilisation in panel if utilisation.ridge]
    low, high = min(*intensities, *ridges) / 3, max(*intensities, *ridges) * 3
    for utilisation in {
        tuple(str(utilisation.row.get(key)) for key in DEVICE): utilisation for utilisation in panel
    }.values():
        assert utilisation.peak_flops_per_second is not None and utilisation.peak_bytes_per_second is not None
        x = np.geomspace(low, high, 200)
        roof = np.minimum(utilisation.peak_flops_per_second, x * utilisation.peak_bytes_per_second)
        axis.plot(x, roof, color=style.DARK, linewidth=1.3, zorder=2)
    ends: dict[str, EndLabel] = {}
    for utilisation in sorted(panel, key=lambda utilisation: utilisation.intensity or 0.0):
        name = str(utilisation.row["series"])
        ours = look[name]
        assert utilisation.intensity is not None and utilisation.flops_per_second is not None
        axis.plot(
            utilisation.intensity, utilisation.flops_per_second, marker=ours.marker, linestyle="", color=ours.colour,
            markerfacecolor="white" if ours.hollow else ours.colour, markeredgecolor=ours.colour, zorder=3,
        )  # fmt: skip
        ends[name] = EndLabel(utilisation.intensity, utilisation.flops_per_second, name, ours.colour)
    least = min(utilisation.flops_per_second or 0.0 for utilisation in panel)
    most = max(
        max(utilisation.peak_flops_per_second or 0.0, utilisation.flops_per_second or 0.0) for utilisation in panel
    )
    axis.set_xlim(low, high)
    axis.set_ylim(least / 3, 2 * most)
    axis.set_xlabel("arithmetic intensity (FLOP/byte)")
    for each, ends_of in ((axis.xaxis, (low, high)), (axis.yaxis, (least / 3, 2 * most))):
        few = ends_of[1] < FEW_DECADES * ends_of[0]
        each.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=7))
        each.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: three_digits(value)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: flop_rate(value)))
    marks.end_labels(axis, [ends[name] for name in _labels(panel)], layout.panel_height)
