"""Cost against time for a million samples: a panel for each model, the front that nothing beats drawn as steps."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.frames.results import Results
from analysis.scaling.pareto import BEATEN, ON, PERHAPS, Point, points
from analysis.tables import notes

MOST_LABELS, MOST_COLUMNS = 14, 2
ROOM = 6  # names, beyond which lines to them would cross
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
LOGARITHMIC_FROM = 8  # largest over smallest


def draw(results: Results) -> Figure | None:
    """The figure, or None where no model has two configurations to choose between."""
    of_model = {model: points(results, model) for model in results.models}
    panels = [(model, ours) for model, ours in of_model.items() if len(ours) > 1]
    if not panels:
        return None
    columns = min(len(panels), MOST_COLUMNS)
    labels = [[_name(point) for point in _labelled(ours)] for _, ours in panels]
    most = max(point.cost for _, ours in panels for point in ours)
    layout = style.Layout(
        panel_width=2.5,
        panel_height=max(2.1, (max(map(len, labels)) + 1) * 1.3 * marks.GAP),
        left=style.left_of([f"{most:,.4g}0"]),
        below=0.46,
        gutters=tuple(
            marks.gutter(
                (text for of_model in labels[place::columns] for text in of_model),
                (model for model, _ in panels[place::columns]),
                2.5,
            )
            for place in range(columns)
        ),
    )
    title = f"Cost against time: {results.study.name}"
    sheet = style.sheet(-(-len(panels) // columns), columns, layout, title, _footnote(panels, results))
    for index, (model, ours) in enumerate(panels):
        axis, _ = sheet.at(index)
        axis.set_title(model, loc="left", weight="bold")
        priced = all(point.of.money is not None for point in ours)
        style.name_y(axis, "money" if priced else "worker-hours", layout)
        _panel(axis, ours, layout)
    for index in range(len(panels), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _panel(axis: Axes, ours: Sequence[Point], layout: style.Layout) -> None:
    blue = style.colours(1)[0]
    scale, unit = _unit(max(point.of.seconds for point in ours))
    times = [point.of.seconds / scale for point in ours]
    front = [point for point in ours if point.place == ON]
    x, y = [point.of.seconds / scale for point in front], [point.cost for point in front]
    axis.plot(x, y, color=blue, linewidth=1.0, drawstyle="steps-post", zorder=2)
    for place in (BEATEN, PERHAPS, ON):
        beaten, here = place == BEATEN, [index for index, point in enumerate(ours) if point.place == place]
        axis.plot(
            [times[index] for index in here], [ours[index].cost for index in here], marker="o", linestyle="",
            markeredgecolor=style.GREY if beaten else blue, markerfacecolor=blue if place == ON else "white",
            markersize=4.0 if beaten else 5.5, zorder=4 if place == ON else 3,
        )  # fmt: skip
    axis.set_xlabel(f"{unit} for a million samples")
    _scale(axis, "x", times)
    _scale(axis, "y", [point.cost for point in ours])
    ends = [EndLabel(point.of.seconds / scale, point.cost, _name(point), blue) for point in _labelled(ours)]
    marks.end_labels(axis, ends, layout.panel_height)


def _unit(most_seconds: float) -> tuple[float, str]:
    """(seconds, name) of the unit in which the slowest has at least 2."""
    return next((unit for unit in UNITS if most_seconds >= 2 * unit[0]), UNITS[-1])


def _scale(axis: Axes, which: str, values: Sequence[float]) -> None:
    """From 0, unless that would press the best together."""
    each = axis.xaxis if which == "x" else axis.yaxis
    if max(values) > LOGARITHMIC_FROM * min(values):
        axis.set(**{f"{which}scale": "log", f"{which}lim": (0.8 * min(values), 1.25 * max(values))})
        each.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    else:
        axis.set(**{f"{which}lim": (0, 1.07 * max(values))})
        each.set_major_locator(MaxNLocator(5))
    each.set_minor_locator(NullLocator())
    each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _labelled(ours: Sequence[Point]) -> list[Point]:
    """The front, and who may be on it where names have room beside each other."""
    front, perhaps = ([point for point in ours if point.place == place] for place in (ON, PERHAPS))
    return (front + perhaps if len(front) + len(perhaps) <= ROOM else front)[:MOST_LABELS]


def _name(point: Point) -> str:
    return f"{point.row['series']}, batch {point.row['batch']}"


def _footnote(panels: Sequence[tuple[str, Sequence[Point]]], results: Results) -> list[str]:
    what = (
        "Of a million samples. Filled, with the line: nothing is both faster and cheaper. Hollow: what beats it is "
        "tied with it (95 %). Small and grey: beaten."
    )
    if any(point.of.price is None for _, ours in panels for point in ours):
        what += " No price is set: cost is in worker-hours."
    if any(sum(point.place != BEATEN for point in ours) > len(_labelled(ours)) for _, ours in panels):
        what += " Not all are named; tables/cost has all."
    return [what, f"{notes.source(results)}."]
