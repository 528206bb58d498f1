"""How often each kind of map points at the instrument, pre-trained and random side by side, and what needs no model."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import style
from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.maps import OF_A_MODEL, backbone, of_videos, table
from analysis.text.file_names import file_name
from analysis.to_target.arms import RANDOM
from scaling_study.records.maps import CENTRE, CHANCE

NAMES = ("own class map", "Grad-CAM", "HiResCAM", "EigenCAM", "hidden channel (F12)")
ROW, DODGE = 0.36, 0.16  # inches a method; of a row, between two arms
LOOKS = {True: ("o", 0), False: ("s", 1)}  # pre-trained? -> marker, colour


def draw(results: Results) -> dict[str, Figure]:
    """`pointing-<model>`; none where nothing was scored."""
    rows = table(results)
    rows = rows[rows["mask"].notna()]
    return {
        f"pointing-{file_name(str(model))}": _sheet(results, str(model), ours) for model, ours in rows.groupby("model")
    }


def _sheet(results: Results, model: str, rows: pd.DataFrame) -> Figure:
    kinds = list(dict.fromkeys(rows.freeze[rows.configuration != ""]))
    layout = style.Layout(
        panel_width=2.6,
        panel_height=ROW * len(NAMES),
        left=style.left_of(NAMES) - 0.35,
        gutters=(0.1, 0.25),
        above=0.62,
    )
    videos, models = int(rows.videos.max()), rows[rows.configuration != ""]
    fewest, most_seeds = int(models.seeds.min()), int(models.seeds.max())
    seeds = f"{most_seeds}" if fewest == most_seeds else f"{fewest} to {most_seeds}"
    footnote = [
        f"Share of maps whose highest cell has a part of the instrument in it: mean of {videos} test videos, {seeds} "
        f"seed{'s' * (most_seeds != 1)}, bars: 95 % interval over the videos; below it each video.",
        "Lines: what needs no model. Dashed: a place chosen at random; dotted: the frame's centre. Hidden channel "
        "(F12): what a published study showed, of the least likely class.",
        f"{notes.source(results)}.",
    ]
    sheet = style.sheet(
        1, len(kinds), layout, f"Do the maps show the instrument? {model}: {results.study.name}", footnote
    )
    colours = style.colours(2)
    most = min(1.0, 1.1 * float(np.nanmax([rows.mask_high.max(), rows["mask"].max(), _highest(results, rows)])))
    for index, freeze in enumerate(kinds):
        axis, _ = sheet.at(index)
        _panel(results, axis, rows, freeze, colours)
        axis.set_xlim(0, most)
        axis.set_ylim(len(NAMES) - 0.4, -0.6)
        axis.set_yticks(range(len(NAMES)), NAMES if index == 0 else [""] * len(NAMES))
        axis.set_xlabel("share that points at the instrument")
        axis.text(0, 1.2, backbone(freeze), weight="bold", transform=axis.transAxes)
        axis.legend(
            handles=_handles(rows[rows.freeze == freeze], colours), loc="lower left", bbox_to_anchor=(-0.02, 0.99),
            ncols=2, frameon=False, fontsize=style.SMALL, handletextpad=0.2, columnspacing=1.0, borderpad=0.2,
        )  # fmt: skip
    return sheet.figure


def _panel(results: Results, axis: Axes, rows: pd.DataFrame, freeze: str, colours: list[str]) -> None:
    ours = rows[(rows.freeze == freeze) & (rows.configuration != "")]
    for method, dashes in ((CHANCE, "--"), (CENTRE, ":")):
        for value in rows.loc[rows.method == method, "mask"]:
            axis.axvline(float(value), color=style.DARK, linestyle=dashes, linewidth=1.0, zorder=1)
    for row in ours.to_dict("records"):
        marker, place = LOOKS[row["weights"] != RANDOM]
        y = OF_A_MODEL.index(row["method"]) + (place - 0.5) * 2 * DODGE
        each = of_videos(results, str(row["configuration"]), str(row["method"]))["mask"].dropna()
        axis.plot(each, [y + 0.11] * len(each), ".", color=colours[place], alpha=0.5, markersize=3.5, zorder=2)
        if known(row["mask_low"]):
            axis.plot([row["mask_low"], row["mask_high"]], [y, y], color=colours[place], linewidth=1.6, zorder=3)
        axis.plot(
            [row["mask"]], [y], marker, color=colours[place], markersize=5.5, markeredgecolor="white",
            markeredgewidth=0.6, zorder=4,
        )  # fmt: skip


def _handles(rows: pd.DataFrame, colours: list[str]) -> list[Line2D]:
    handles = []
    for weights in dict.fromkeys(rows.weights):
        marker, place = LOOKS[weights != RANDOM]
        label = "random weights" if weights == RANDOM else f"pre-trained ({weights})"
        handles.append(Line2D([], [], linestyle="", marker=marker, color=colours[place], markersize=5.5, label=label))
    return handles


def _highest(results: Results, rows: pd.DataFrame) -> float:
    names = rows.configuration[rows.configuration != ""].unique()
    return max(
        (float(of_videos(results, str(name), method)["mask"].max()) for name in names for method in OF_A_MODEL),
        default=0.0,
    )
