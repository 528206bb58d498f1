"""What every figure says of itself in its footnote: how to read it, the study, the machine, the date, the data."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.frames import comparability, outcomes
from analysis.frames.results import Results
from analysis.tables import notes

MEAN, RATIO = "mean", "ratio of means"  # what a point is
BETWEEN_REPEATS = "between repeats (Student t)"


def footnote(
    results: Results, rows: pd.DataFrame, what: str, points: str, method: str, shown: str = "", drawn: str = ""
) -> list[str]:
    """Sentences: `what` is drawn of `rows`, what its `points` are, what the interval is of (`method`), how a
    lone repeat is `shown`, and how that which may not be compared is `drawn`."""
    counts = results.configurations.n
    lines = [what]
    if (counts > 0).any():
        bars = f"; bars: 95 % interval {method}" if (counts >= 3).any() else ""
        lines.append(f"Points: {points} of {results.repeats}{bars}.")
    if counts.between(1, 2).any():
        lines.append("With fewer than 3 repeats no interval is claimed" + (f"; {shown}." if shown else "."))
    if (rows.status != "ok").any():
        lines.append("Crosses: not measured, with the reason at the right.")
    if (outcomes.words(rows) == outcomes.IMPLIED).any():
        lines.append("Hollow crosses: not run, as a smaller batch was out of memory.")
    marked = comparability.sentences(rows)
    if marked and drawn:
        lines.append(drawn)
    return [" ".join(line for line in lines if line), *marked, *notes.how_it_differs(rows), f"{notes.source(results)}."]


def words(figure: Figure) -> tuple[str, str]:
    """(title, everything that is written around the panels) of a figure made by style.sheet."""
    lines = [(text.get_text(), text.get_fontweight() == "bold") for text in figure.texts]
    title = " ".join(text for text, bold in lines if bold)
    return title, " ".join([f"{title}.", *(text for text, bold in lines if not bold)])


def empty(title: str, why: str, results: Results) -> Figure:
    """A figure that says why there is nothing on it."""
    figure = style.sheet(
        1, 1, style.Layout(gutters=(0.6,)), f"{title}: {results.study.name}", [f"{notes.source(results)}."]
    )
    axis = figure.axes[0][0]
    axis.set_axis_off()
    axis.text(0.5, 0.5, "\n".join(why.split(": ")), ha="center", va="center", transform=axis.transAxes)
    return figure.figure
