"""Every framework side by side at one batch size: a panel for each model, a row for each series, the fastest on top."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.figures import captions, marks, style
from analysis.figures.captions import MEAN
from analysis.frames import comparability, outcomes
from analysis.frames.baseline import known
from analysis.frames.results import Results, unit
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from analysis.frames.series import ALLREDUCE_ORDER
from analysis.text.number_formats import number

FEWEST = 3  # frameworks of a model, below which the figure would say nothing that the others do not
ROW = 0.19  # inches
MOST_ROWS = 48
MOST_COLUMNS = 2


def draw(results: Results) -> Figure | None:
    """The figure, or None where no model was measured with several frameworks."""
    data = results.configurations
    measured = data[data.n > 0].groupby("model").framework.nunique()
    panels = {model: _rows(data[data.model == model]) for model in results.models if measured.get(model, 0) >= FEWEST}
    if not panels:
        return None
    most = max(map(len, panels.values()))
    panels = {model: rows.head(MOST_ROWS) for model, rows in panels.items()}
    columns = min(len(panels), MOST_COLUMNS)
    titles = {model: f"{model}, batch {rows.batch.iloc[0]}" for model, rows in panels.items()}
    layout = style.Layout(
        left=0.3 + max(style.inches(name, style.SMALL) for rows in panels.values() for name in rows.name),
        gutters=tuple(
            marks.gutter(text for rows in list(panels.values())[column::columns] for text in rows.text)
            for column in range(columns)
        ),
        panel_height=max(map(len, panels.values())) * ROW + 0.1,
    )
    narrow = "16-bit or 8-bit" if (data.allreduce == "int8").any() else "16-bit"
    what = f"Colour: workers; squares: {narrow} allreduce."
    if most > MOST_ROWS:
        what += f" The first {MOST_ROWS} of up to {most} rows of a model; tables/ has all."
    shown = data[data.model.isin(panels)]
    hollow = "Hollow and grey: not comparable."
    footnote = captions.footnote(results, shown, what, MEAN, captions.BETWEEN_REPEATS, drawn=hollow)
    title = f"Throughput by framework: {results.study.name}"
    sheet = style.sheet(-(-len(panels) // columns), columns, layout, title, footnote)
    workers = sorted(int(count) for count in data.workers.unique())
    colour = dict(zip(workers, style.colours(len(workers)), strict=True))
    for index, (model, rows) in enumerate(panels.items()):
        axis, _ = sheet.at(index)
        axis.set_title(titles[model], loc="left", weight="bold")
        axis.set_xlabel(f"throughput ({unit(rows)}/s)")
        _panel(axis, rows, colour)
    for index in range(len(panels), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _rows(data: pd.DataFrame) -> pd.DataFrame:
    """The batch size that most series have: what may be compared by speed, then what may not, then what failed."""
    count = data[data.n > 0].groupby("batch").series.nunique()
    rows: pd.DataFrame = data[data.batch == max(count.index, key=lambda batch: (count[batch], batch))]
    typed = as_rows(rows, ConfigurationRow)
    signs = [comparability.sign(row) for row in typed]
    rows = rows.assign(
        sign=signs,
        name=[f"{row['series']} {sign}".rstrip() for row, sign in zip(typed, signs, strict=True)],
        text=[_text(row) for row in typed],
        place=[2 if not row["n"] else 1 if sign else 0 for row, sign in zip(typed, signs, strict=True)],
    )
    return rows.sort_values(["place", "samples_per_second"], ascending=[True, False], kind="stable")


class Shown(ConfigurationRow):
    sign: str
    text: str


def _panel(axis: Axes, rows: pd.DataFrame, colour: dict[int, str]) -> None:
    for index, row in enumerate(as_rows(rows, Shown)):
        edge = style.GREY if row["sign"] else colour[int(row["workers"])]
        marker = "s" if row["allreduce"] in ALLREDUCE_ORDER[2:] else "o"
        if known(row["interval_low"]):
            axis.plot([row["interval_low"], row["interval_high"]], [index, index], color=edge, linewidth=1.3, zorder=3)
        if row["n"]:
            axis.plot(
                row["samples_per_second"], index, marker=marker, linestyle="", markersize=5.0, markeredgecolor=edge,
                markerfacecolor="white" if row["sign"] else edge, zorder=4,
            )  # fmt: skip
        else:
            marks.cross(axis, 0, index, style.DARK, outcomes.implied(row))
        axis.annotate(
            row["text"], xy=(1.05, index), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL,
            annotation_clip=False,
        )  # fmt: skip
    good = rows[rows.n > 0]
    highest = max(
        good.samples_per_second.max(), min(good.interval_high.fillna(0).max(), 2 * good.samples_per_second.max())
    )
    axis.set_xlim(0, 1.06 * highest)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_yticks(range(len(rows)), rows.name)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.grid(False, axis="y")


def _text(row: ConfigurationRow) -> str:
    if not row["n"]:
        return outcomes.word(row)
    low, high = row["interval_low"], row["interval_high"]
    return number(row["samples_per_second"], (high - low) / 2 if known(low) else None)
