"""Where each lost percent of efficiency went: a figure a model, a panel for each configuration at one batch size.

    ideal                      |100
    exposed communication      ███      9.3 ± 4.8
    stragglers               ██         1.7 ± 6.9
    slower kernels           ▒         -0.4 ± 5.1      a gain, to the right
    measured                 |69.9

Every bar begins where the one above it ended, so the last one ends at the efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.figures import marks, style
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.reasons import name_of
from analysis.text.file_names import file_name
from analysis.why.attribution import PARTS, Attribution, attributions

ROW = 0.2  # inches
WIDTH = 2.3
MOST_PANELS, MOST_COLUMNS = 12, 2
MOST_IN_ALL = 48  # of all models together, but a row for each
LEAST_SPAN = 0.12  # of the x axis, in shares of the ideal: a loss of 1 % shall look small
LOST, GAINED = style.colours(3)[1:]
IDEAL, MEASURED = "ideal", "measured"


def draw(results: Results) -> dict[str, Figure]:
    """`waterfall-<model>`, for each model of which phases say anything."""
    every = [attribution for attribution in attributions(results) if not attribution.why]
    figures = {}
    for model in results.models:
        ours = [attribution for attribution in every if attribution.row["model"] == model]
        if ours:
            figures[f"waterfall-{file_name(model)}"] = _figure(model, ours, results)
    return figures


def _figure(model: str, every: Sequence[Attribution], results: Results) -> Figure:
    batch, ours = _one_batch(every)
    most = min(MOST_PANELS, max(4, MOST_IN_ALL // len(results.models)))
    shown = sorted(ours, key=lambda attributed: int(attributed.row["series_order"]))[:most]
    columns = min(len(shown), MOST_COLUMNS)
    parts = [part for part in PARTS if any(part == share.name for attribution in shown for share in attribution.parts)]
    names = [IDEAL, *(name_of(part, results) for part in parts), MEASURED]
    texts = [_texts(attributed, parts) for attributed in shown]
    layout = style.Layout(
        panel_width=WIDTH,
        panel_height=len(names) * ROW + 0.05,
        left=0.2 + max(style.inches(name, style.SMALL) for name in names),
        gutters=(gutter := marks.gutter(text for attribution in texts for text in attribution),),
        above=0.1
        + max(map(len, titles := [_title(attributed, WIDTH + gutter) for attributed in shown])) * style.SIZE * 1.3 / 72,
        below=0.46,
    )
    title = f"Lost efficiency by cause: {model}, batch {batch} ({results.study.name})"
    sheet = style.sheet(-(-len(shown) // columns), columns, layout, title, _footnote(shown, ours, every, results))
    low, high = _limits(shown, parts)
    for index, (attributed, labels) in enumerate(zip(shown, texts, strict=True)):
        axis, _ = sheet.at(index)
        axis.set_title("\n".join(titles[index]), loc="left", weight="bold", linespacing=1.2)
        axis.set_xlim(100 * low, 100 * high)
        _panel(axis, attributed, parts, names, labels)
    for index in range(len(shown), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _title(attribution: Attribution, width: float) -> list[str]:
    """The series, in lines of the room above a panel and its numbers."""
    return style.wrapped(str(attribution.row["series"]), width - 0.1, style.SIZE, bold=True)


def _one_batch(every: Sequence[Attribution]) -> tuple[int, list[Attribution]]:
    """The batch size that most configurations with several workers have, the largest of several."""
    several = [attribution for attribution in every if int(attribution.row["workers"]) > 1] or list(every)
    counts = [int(attribution.row["batch"]) for attribution in several]
    batch = max(counts, key=lambda size: (counts.count(size), size))
    return batch, [attribution for attribution in several if int(attribution.row["batch"]) == batch]


def _panel(
    axis: Axes, attribution: Attribution, parts: Sequence[str], names: Sequence[str], labels: Sequence[str]
) -> None:
    known = {part.name: part for part in attribution.parts}
    at = 100.0
    axis.plot([at, at], [-0.35, 0.5], color=style.DARK, linewidth=1.4, zorder=4)
    for index, name in enumerate(parts, start=1):
        part = known.get(name)
        width = 100 * part.lost if part else 0.0
        axis.barh(index, -width, left=at, height=0.62, color=LOST if width >= 0 else GAINED, linewidth=0, zorder=3)
        at -= width
        if part is not None and part.low is not None and part.high is not None:
            half = 50 * (part.high - part.low)
            axis.plot([at - half, at + half], [index, index], color=style.DARK, linewidth=0.9, zorder=4)
        axis.plot([at, at], [index - 0.31, index + 1.31], color=style.GREY, linewidth=0.6, zorder=2)
    last = len(names) - 1
    axis.plot([at, at], [last - 0.35, last + 0.35], color=style.DARK, linewidth=1.4, zorder=4)
    for index, text in enumerate(labels):
        axis.annotate(
            text, xy=(1.05, index), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL,
            annotation_clip=False,
        )  # fmt: skip
    axis.set_ylim(last + 0.6, -0.6)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g} %"))
    axis.set_xlabel("of the ideal")
    axis.grid(False, axis="y")


def _texts(attribution: Attribution, parts: Sequence[str]) -> list[str]:
    """What stands beside each row: the numbers of the table."""
    known = {part.name: part for part in attribution.parts}
    labels = ["100 %"]
    for name in parts:
        part = known.get(name)
        if part is None:
            labels.append("")
            continue
        half = None if part.low is None or part.high is None else (part.high - part.low) / 2
        value = f"{-100 * part.lost:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0")
        labels.append(f"{value}{'' if half is None else f' ± {100 * half:.1f}'}")
    return [*labels, f"{100 * attribution.efficiency:.1f} %"]


def _limits(shown: Sequence[Attribution], parts: Sequence[str]) -> tuple[float, float]:
    """One scale for all panels: everything that a bar reaches, intervals only as far as they are not absurd."""
    low, high = 1.0, 1.0
    for attribution in shown:
        at = 1.0
        for name in parts:
            at -= attribution.part(name)
            low, high = min(low, at), max(high, at)
    span = max(high - low, LEAST_SPAN)
    return max(0.0, high - 1.12 * span), high + 0.08 * span


def _footnote(
    shown: Sequence[Attribution], ours: Sequence[Attribution], every: Sequence[Attribution], results: Results
) -> list[str]:
    what = (
        "From linear speed-up (100 %) down to the measured efficiency; bars to the left are losses, to the right "
        "gains; they add up."
    )
    if any(part.low is not None for attribution in shown for part in attribution.parts):
        what += " Lines, ±: 95 % interval between repeats."
    if len(ours) > len(shown):
        what += f" The first {len(shown)} of {len(ours)} configurations at this batch size."
    if len(every) > len(ours):
        what += " Other batch sizes: tables/attribution."
    return [what, f"{notes.source(results)}."]
