"""What each stage did when: a step of a pipeline as a picture, and the schedules of a model below each other.

    stage 0   F0 F1 F2 F3 ..... B0 B1 B2 B3        boxes: forward, backward (or its two halves), with the number
    stage 1   .. F0 F1 F2 F3 B0 B1 B2 B3 ..        of the micro-batch; grey: the worker is idle

Where a worker holds several stages, their rows stand together and share its grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.figures import style
from analysis.frames.baseline import known, value_of
from analysis.frames.results import Results
from analysis.frames.row_types import Pipeline
from analysis.frames.rows import as_rows
from analysis.frames.timeline import BACKWARD, FORWARD, INPUT, WEIGHT
from analysis.pipeline import bubble, frame, shape
from analysis.tables import notes

NAMES = {
    FORWARD: "forward", BACKWARD: "backward", INPUT: "backward: input", WEIGHT: "backward: weights",
}  # fmt: skip
COLOURS = dict(zip(NAMES, style.colours(len(NAMES)), strict=True))
IDLE = "#d9d9d9"
ROW, APART = 0.24, 0.3  # inches of a row; of a row, between two workers
WIDTH = 6.4  # inches of a panel
NUMBER = 6.0  # points
MOST_PANELS = 12  # of one figure
LEAST_BOX = 0.02  # inches, below which an edge would hide the box


@dataclass(frozen=True)
class Panel:
    """One step of one replica. `step`: events.COLUMNS with seconds since the step's first event."""

    title: str
    file_name: str
    model: str
    step: pd.DataFrame
    replicas: int

    @property
    def seconds(self) -> float:
        return float(self.step.end_seconds.max())

    @property
    def kinds(self) -> set[str]:
        return set(self.step.kind)

    @property
    def rows(self) -> float:
        return max(self.places().values()) + 0.5

    def places(self) -> dict[int, float]:
        """Stage -> the middle of its row, counted in rows from the top; workers stand apart."""
        places, top, before = {}, 0.0, None
        for worker, stage in sorted({(int(w), int(s)) for w, s in zip(self.step.worker, self.step.stage, strict=True)}):
            top += APART if before not in (None, worker) else 0.0
            places[stage], before, top = top + 0.5, worker, top + 1.0
        return places


def draw(results: Results) -> dict[str, Figure]:
    """`timeline-<shape>` for each pipeline with a timeline, `timelines-<model>` where a model has several."""
    panels = _panels(results)
    figures = {f"timeline-{panel.file_name}": _figure([panel], panel.title, results) for panel in panels}
    for model in results.models:
        ours = [panel for panel in panels if panel.model == model]
        if len(ours) > 1:
            figures[f"timelines-{shape.cleaned(model)}"] = _figure(ours, f"Pipelines of {model}", results)
    return figures


def _panels(results: Results) -> list[Panel]:
    rows = as_rows(frame.table(results), Pipeline)
    shown = [(row, events) for row in rows if not (events := frame.events_of(row, results)).empty]
    names = [shape.file_name(row) for row, _ in shown]
    titles = _titles([row for row, _ in shown])
    panels = []
    for (row, events), name, title in zip(shown, names, titles, strict=True):
        step = bubble.median_step(events)
        zero = step.start_seconds.min()
        step = step.assign(start_seconds=step.start_seconds - zero, end_seconds=step.end_seconds - zero)
        unique = name if names.count(name) == 1 else f"{name}-{str(row['configuration']).rpartition('-')[2]}"
        panels.append(Panel(title, unique, str(row["model"]), step, row["replicas"] or 1))
    return panels


def _titles(rows: Sequence[Pipeline]) -> list[str]:
    """`1f1b, m = 8, 2 stages: bubble 14 % (theory 11 %)`, with cut and batch where they vary."""
    cuts, batches = ({value_of(row, key) for row in rows} for key in ("stage_cut", "global_batch"))
    titles = []
    for row in rows:
        words = shape.words(row, cut=len(cuts) > 1) + (f", batch {row['global_batch']}" if len(batches) > 1 else "")
        should = f"theory {100 * row['theory']:.0f} %" if known(row["theory"]) else "no theory"
        titles.append(f"{words}: bubble {100 * row['bubble']:.0f} % ({should})")
    return titles


def _figure(panels: Sequence[Panel], title: str, results: Results) -> Figure:
    """Panels below each other on one scale of time, which stands under the last."""
    alone, shown = len(panels) == 1, panels[:MOST_PANELS]
    longest = max(panel.seconds for panel in shown)
    layout = style.Layout(
        panel_width=WIDTH,
        panel_heights=tuple(panel.rows * ROW for panel in shown),
        left=0.2 + max(style.inches(text, style.SMALL) for panel in shown for text in _labels(panel)),
        gutters=(0.5 + max(style.inches(name, style.SMALL) for name in [*NAMES.values(), "idle"]),),
        above=0.12 if alone else 0.26,
        below=0.1,
        last_below=0.36,
    )
    heading = f"{panels[0].model}, {title}" if alone else f"{title}: {results.study.name}"
    sheet = style.sheet(len(shown), 1, layout, heading, _footnote(panels, shown, results))
    for index, panel in enumerate(shown):
        axis, _ = sheet.at(index)
        if not alone:
            axis.set_title(panel.title, loc="left", weight="bold")
        _panel(axis, panel, 1000 * longest)
        axis.tick_params(labelbottom=panel is shown[-1])
    axis.set_xlabel("time in the step (ms)")
    _key(sheet.at(0)[0], [kind for kind in NAMES if any(kind in panel.kinds for panel in shown)])
    return sheet.figure


def _footnote(panels: Sequence[Panel], shown: Sequence[Panel], results: Results) -> list[str]:
    what = "One instrumented step of the first repeat, the median one by makespan; numbers are micro-batches."
    if len(shown) > 1:
        what += " All on one scale of time."
    if any(panel.replicas > 1 for panel in shown):
        what += " Of several replicas, the first."
    if len(panels) > len(shown):
        what += f" The first {len(shown)} of {len(panels)}; each has a figure of its own."
    return [what, f"{notes.source(results)}."]


def _panel(axis: Axes, panel: Panel, milliseconds: float) -> None:
    axis.set_xlim(0, milliseconds)
    places = panel.places()
    inch = WIDTH / milliseconds
    for _, ours in panel.step.groupby("worker"):
        rows = [places[int(stage)] for stage in ours.stage]
        top, height = min(rows) - 0.5, max(rows) - min(rows) + 1.0
        axis.add_patch(Rectangle((0, top), 1000 * panel.seconds, height, facecolor=IDLE, edgecolor="none", zorder=1))
        for start, end in zip(ours.start_seconds, ours.end_seconds, strict=True):  # busy, with whichever stage
            box = (1000 * start, top), 1000 * (end - start), height
            axis.add_patch(Rectangle(*box, facecolor="white", edgecolor="white", linewidth=0.2, zorder=2))
    for kind, micro_batch, stage, start, end in zip(
        panel.step.kind, panel.step.micro_batch, panel.step.stage, panel.step.start_seconds, panel.step.end_seconds,
        strict=True,
    ):  # fmt: skip
        left, wide, middle = 1000 * start, 1000 * (end - start), places[int(stage)]
        edge = 0.5 if wide * inch > LEAST_BOX else 0.0
        axis.add_patch(
            Rectangle((left, middle - 0.46), wide, 0.92, facecolor=COLOURS[kind], edgecolor="white", linewidth=edge,
                      zorder=3)
        )  # fmt: skip
        if style.inches(str(micro_batch), NUMBER) + 0.03 < wide * inch:
            axis.text(
                left + wide / 2, middle, str(micro_batch), ha="center", va="center_baseline", fontsize=NUMBER,
                color="white", weight="bold", zorder=4,
            )  # fmt: skip
    axis.set_ylim(panel.rows, 0)
    axis.set_yticks(list(places.values()), _labels(panel))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(8))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.grid(False, axis="y")
    axis.spines["left"].set_visible(False)


def _labels(panel: Panel) -> list[str]:
    """`stage 0`, or `worker 0: stage 3` where a worker has several."""
    held = dict(zip(panel.step.stage.astype(int), panel.step.worker.astype(int), strict=True))
    several = len(held) > len(set(held.values()))
    return [f"worker {held[stage]}: stage {stage}" if several else f"stage {stage}" for stage in panel.places()]


def _key(axis: Axes, kinds: Sequence[str]) -> None:
    """What the colours are, at the right of the first panel."""
    entries = [*((COLOURS[kind], NAMES[kind]) for kind in kinds), (IDLE, "idle")]
    for index, (colour, name) in enumerate(entries):
        down = -(index + 0.5) * style.SMALL * style.LINE
        for right, text, ink in ((6, "■", colour), (16, name, style.DARK)):
            axis.annotate(
                text, xy=(1, 1), xycoords="axes fraction", xytext=(right, down), textcoords="offset points",
                va="center", ha="left", fontsize=style.SMALL, color=ink, annotation_clip=False,
            )  # fmt: skip
