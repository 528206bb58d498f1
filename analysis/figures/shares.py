"""Where a step goes: a figure a model, a row for each series at one batch size, its parts side by side to 100 %."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from analysis.figures import marks, style
from analysis.frames.results import Results
from analysis.frames.rounds import samples_of_step
from analysis.tables import notes
from analysis.text.file_names import file_name
from analysis.text.number_formats import three_digits
from analysis.why.bottleneck import (
    AVERAGE,
    BUBBLE,
    COMMUNICATE,
    COMPUTE,
    FIND,
    INPUT,
    LAUNCH,
    MEMORY,
    MIXED,
    OTHER,
    SHARES,
    Bottleneck,
    bottlenecks,
)

ROW = 0.2  # inches
WIDTH = 3.6
MOST_ROWS = 40
NAMES = {
    COMPUTE: "computing", LAUNCH: "computing, fixed part", COMMUNICATE: "communication", INPUT: "waiting for batches",
    FIND: "matchmaking of peers", AVERAGE: "averaging of peers",
    MEMORY: "updating weights", BUBBLE: "stages idle", MIXED: "computing or communication", OTHER: "not attributed",
}  # fmt: skip
_BLUE, _ORANGE, _GREEN, _PINK, _RED, _SKY, _BROWN = style.colours(7)
COLOURS = {
    COMPUTE: _BLUE, LAUNCH: _SKY, COMMUNICATE: _ORANGE, INPUT: _RED, MEMORY: _GREEN, BUBBLE: _PINK, MIXED: _BROWN,
    OTHER: "#bdbdbd", FIND: "#fdd0a2", AVERAGE: "#6b3d00",  # communication's orange, pale and dark
}  # fmt: skip
PALE = (LAUNCH, OTHER, FIND)  # colours on which white cannot be read
LEAST_NUMBER = 0.065  # of a step: a part as wide as its own number


def draw(results: Results) -> dict[str, Figure]:
    """`steps-<model>`, for each model whose phases are known."""
    figures = {}
    for model in results.models:
        ours = [
            bottleneck for bottleneck in bottlenecks(results) if bottleneck.shares and bottleneck.row["model"] == model
        ]
        if ours:
            figures[f"steps-{file_name(model)}"] = _figure(model, ours, results)
    return figures


def _figure(model: str, every: Sequence[Bottleneck], results: Results) -> Figure:
    counts = [int(bottleneck.row["batch"]) for bottleneck in every]
    batch = max(counts, key=lambda size: (counts.count(size), size))
    ours = sorted(
        (bottleneck for bottleneck in every if bottleneck.row["batch"] == batch),
        key=lambda bottleneck: int(bottleneck.row["series_order"]),
    )
    shown = ours[:MOST_ROWS]
    present = [kind for kind in SHARES if any(bottleneck.shares.get(kind, 0.0) >= 0.001 for bottleneck in shown)]
    names = [str(bottleneck.row["series"]) for bottleneck in shown]
    texts = [f"{three_digits(1000 * _seconds(bottleneck))} ms" for bottleneck in shown]
    key = [NAMES[kind] for kind in present]
    layout = style.Layout(
        panel_width=WIDTH,
        panel_height=max(len(shown), len(key)) * ROW + 0.1,
        left=0.25 + max(style.inches(name, style.SMALL) for name in names),
        gutters=(0.75 + max(style.inches(text, style.SMALL) for text in texts) + marks.gutter(key),),
        below=0.46,
        above=0.2,
    )
    title = f"Where a step goes: {model}, batch {batch} ({results.study.name})"
    sheet = style.sheet(1, 1, layout, title, _footnote(shown, ours, every, results))
    axis, _ = sheet.at(0)
    _panel(axis, shown, names, texts)
    _key(axis, present, max(style.inches(text, style.SMALL) for text in texts))
    return sheet.figure


def _seconds(bottleneck: Bottleneck) -> float:
    """Of a step."""
    return samples_of_step(bottleneck.row) / float(bottleneck.row["samples_per_second"])


def _panel(axis: Axes, shown: Sequence[Bottleneck], names: Sequence[str], texts: Sequence[str]) -> None:
    for index, bottleneck in enumerate(shown):
        at = 0.0
        for kind in SHARES:
            share = bottleneck.shares.get(kind, 0.0)
            if not share:
                continue
            axis.barh(index, 100 * share, left=100 * at, height=0.72, color=COLOURS[kind], linewidth=0, zorder=3)
            if share >= LEAST_NUMBER:
                axis.text(
                    100 * (at + share / 2), index, f"{100 * share:.0f}", ha="center", va="center_baseline",
                    fontsize=style.SMALL, color=style.DARK if kind in PALE else "white", weight="bold", zorder=4,
                )  # fmt: skip
            at += share
        axis.annotate(
            texts[index], xy=(1.03, index), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL,
            annotation_clip=False,
        )  # fmt: skip
    axis.set_xlim(0, 100)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axis.set_xlabel("share of a step")
    axis.grid(False)


def _key(axis: Axes, present: Sequence[str], beside: float) -> None:
    """What the colours are, right of the steps' lengths, which are `beside` inches wide."""
    for index, kind in enumerate(present):
        down = -(index + 0.5) * ROW * 72
        for right, text, ink in ((0.0, "■", COLOURS[kind]), (11.0, NAMES[kind], style.DARK)):
            axis.annotate(
                text, xy=(1, 1), xycoords="axes fraction", xytext=(72 * (beside + 0.4) + right, down),
                textcoords="offset points", va="center", ha="left", fontsize=style.SMALL, color=ink,
                annotation_clip=False,
            )  # fmt: skip


def _footnote(
    shown: Sequence[Bottleneck], ours: Sequence[Bottleneck], every: Sequence[Bottleneck], results: Results
) -> list[str]:
    what = "Shares of a step, from instrumented steps; beside them the time of a timed step."
    if any(bottleneck.shares.get(LAUNCH) for bottleneck in shown):
        what += " Fixed part: the intercept of a line through the batch sizes."
    if any(bottleneck.shares.get(MIXED) for bottleneck in shown):
        what += " Computing or communication: a framework that communicates inside forward or backward."
    if len(ours) > len(shown):
        what += f" The first {len(shown)} of {len(ours)} series."
    if len(every) > len(ours):
        what += " Other batch sizes: tables/bottleneck."
    return [what, f"{notes.source(results)}."]
