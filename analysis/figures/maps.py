"""Class-activation maps of a few test frames: the frame, where the instruments are, and what models look at.

    row: one instrument in one frame
    frame | masks | class maps of what is recognised, Grad-CAM, HiResCAM, EigenCAM | the same of random weights

Which frames are stored depends on the data alone. Of these, rows are drawn by what became of them: both models' own
class map hits, only one's, none's, in turns. So failures are drawn however rare they are, and the footnote says how
often each is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from analysis.figures import map_pixels, style
from analysis.figures.map_pixels import COLOURS, Pixels
from analysis.frames.maps import About
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.maps import backbone, shown
from analysis.text.file_names import file_name
from analysis.to_target.arms import NOTHING, RANDOM, of_weights
from scaling_study.records.maps import CAMS, COLUMNS, METHODS, OWN
from scaling_study.stats.localisation import highest

PANEL, MOST_ROWS = 1.3, 8  # inches; rows of a figure
TINY = 6.3  # points
SHADES = 24  # of each colour: nobody sees that there are no more, and a figure has half of the bytes
CAM_NAMES = {OWN: "own class maps", "grad_cam": "Grad-CAM", "hires_cam": "HiResCAM", "eigen_cam": "EigenCAM"}
MISS, HIT = "X", "o"  # markers
EDGED: dict[str, Any] = {
    "markerfacecolor": "white", "markeredgecolor": "black", "markeredgewidth": 0.9, "markersize": 5.5,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """One trained model: the columns of a figure that are its."""

    title: str
    trial: str
    about: About
    pictures: dict[str, NDArray[Any]]
    hits: NDArray[np.float64]  # (rows of its scores,) of the own class map


def draw(results: Results) -> dict[str, Figure]:
    """`maps-<model>-<frozen|trained>`, of the first seed that both have; none without pictures."""
    figures: dict[str, Figure] = {}
    for model, freeze, trials in sides(results):
        models = [_model(results, title, trial) for title, trial in trials]
        if all("frame" in one.pictures and len(one.pictures["frame"]) for one in models):
            name = f"maps-{file_name(model)}-{'frozen' if freeze == 'backbone' else 'trained'}"
            figures[name] = _sheet(results, f"{model}, {backbone(freeze)}", models)
    return figures


def sides(results: Results) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(model, freeze, [(title, trial)]): what is drawn side by side, of one seed."""
    about = results.maps.about
    drawn_sides: list[tuple[str, str, list[tuple[str, str]]]] = []
    of = {(one.configuration, one.seed): trial for trial, one in about.items()}
    for ours, theirs in of_weights(results):
        names = [(f"pre-trained ({ours.weights})", ours.configuration), ("random weights", theirs.configuration)]
        seeds = [{seed for name, seed in of if name == configuration} for _, configuration in names]
        common = sorted(set.intersection(*seeds)) or sorted(set.union(*seeds))
        trials = [(title, of[name, common[0]]) for title, name in names if common and (name, common[0]) in of]
        if trials:
            drawn_sides.append((str(ours.chosen["model"]), ours.freeze, trials))
    if not drawn_sides:
        for model, weights, freeze, name, _ in shown(results):
            first = min(seed for other, seed in of if other == name)
            title = "random weights" if weights == RANDOM else f"pre-trained ({weights})"
            drawn_sides.append((model, freeze or NOTHING, [(title, of[name, first])]))
    return drawn_sides


def _model(results: Results, title: str, trial: str) -> Model:
    hits = results.maps.rows[trial][:, COLUMNS.index(f"{OWN}_mask")]
    return Model(title, trial, results.maps.about[trial], results.maps.pictures(trial), hits)


def chosen_rows(hits: Sequence[NDArray[np.bool_]], instruments: NDArray[np.int64]) -> list[int]:
    """Of the stored rows those that are drawn, by kind: which of the models hit. `hits`: (rows,) of each model.

    The kinds take turns, so that each has as many rows as the others while it has some; within a kind those come first
    whose instrument was drawn least.
    """
    kinds: dict[tuple[bool, ...], list[int]] = {}
    for row in range(len(instruments)):
        kinds.setdefault(tuple(bool(one[row]) for one in hits), []).append(row)
    order = sorted(kinds, reverse=True)  # all hit first, none last
    drawn: dict[int, tuple[bool, ...]] = {}
    while len(drawn) < min(MOST_ROWS, len(instruments)):
        for kind in order:
            left = [row for row in kinds[kind] if row not in drawn]
            if left and len(drawn) < MOST_ROWS:
                seen = [int(instruments[row]) for row in drawn]
                drawn[min(left, key=lambda row: (seen.count(int(instruments[row])), row))] = kind
    return sorted(drawn, key=lambda row: order.index(drawn[row]))


def _sheet(results: Results, title: str, models: Sequence[Model]) -> Figure:
    first = models[0].pictures
    at = [METHODS.index(OWN)] * len(models)
    hits = [one.pictures["hits"][:, place] >= 0.5 for one, place in zip(models, at, strict=True)]
    rows = chosen_rows(hits, first["instrument"])
    height, width = first["mask"].shape[1:]
    panel = PANEL * height / width
    gutters = (0.02, 0.14, *((0.02, 0.02, 0.02, 0.16) * len(models))[:-1], 0.1)
    layout = style.Layout(
        panel_width=PANEL, left=0.04, gutters=gutters, above=0.15, below=0.03,
        panel_heights=(0.2, *[panel] * len(rows), 0.34),
    )  # fmt: skip
    columns = 2 + 4 * len(models)
    title = f"What the model looks at: {title}: {results.study.name}"
    sheet = style.sheet(2 + len(rows), columns, layout, title, _footnote(results, models))
    _heading(sheet, models)
    for line, row in enumerate(rows, start=1):
        _row(sheet.axes[line], models, row, hits)
    _legend(sheet, models[0])
    return sheet.figure


def _heading(sheet: style.Sheet, models: Sequence[Model]) -> None:
    names = ["frame", "masks", *(list(CAM_NAMES.values()) * len(models))]
    for axis, name in zip(sheet.axes[0], names, strict=True):
        axis.set_axis_off()
        axis.text(0.0, -0.1, name, fontsize=style.SMALL, va="bottom", transform=axis.transAxes)
    for place, model in enumerate(models):
        axis = sheet.axes[0][2 + 4 * place]
        axis.text(0.0, 0.62, model.title, fontsize=style.SIZE, weight="bold", va="bottom", transform=axis.transAxes)


def _row(axes: Sequence[Axes], models: Sequence[Model], row: int, hits: Sequence[NDArray[np.bool_]]) -> None:
    first, names = models[0].pictures, models[0].about.instruments
    frame = map_pixels.frame(first, row)
    under, mask, instrument = map_pixels.grey(frame), first["mask"][row], int(first["instrument"][row])
    _show(axes[0], frame, f"video {first['video'][row]}, frame {first['frame'][row]}")
    others = int(first["present"][row].sum()) - 1
    _show(axes[1], map_pixels.masked(under, mask), names[instrument] + (f" (and {others} more)" if others > 0 else ""))
    if np.isfinite(first["tip"][row]).all():
        axes[1].plot(*first["tip"][row], marker="+", color="black", markersize=6, markeredgewidth=1.4)
    for place, model in enumerate(models):
        pictures, ours = model.pictures, axes[2 + 4 * place : 6 + 4 * place]
        own = 1 / (1 + np.exp(-pictures["own"][row].astype(np.float64)))
        recognised = np.flatnonzero(pictures["probability"][row] >= model.about.threshold)
        pixels = map_pixels.tinted(under, ((own[number], int(number)) for number in recognised))
        _show(ours[0], pixels, _recognised(model, row, instrument))
        _point(ours[0], own[instrument], mask, instrument, bool(hits[place][row]), instrument in recognised)
        for axis, method in zip(ours[1:], CAMS, strict=True):
            shown = pictures[method][row].astype(np.float64)
            _show(axis, map_pixels.tinted(under, [(shown, instrument)]))
            _point(axis, shown, mask, instrument, pictures["hits"][row, METHODS.index(method)] >= 0.5)


def _show(axis: Axes, pixels: Pixels, title: str = "") -> None:
    shades = np.round(np.clip(pixels, 0, 1) * (SHADES - 1)) / (SHADES - 1)
    axis.imshow(shades, interpolation="none", aspect="auto")
    axis.grid(False)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.text(0.0, 1.03, title, fontsize=TINY, va="bottom", transform=axis.transAxes)


def _recognised(model: Model, row: int, instrument: int) -> str:
    """`grasper 0.93, hook 0.71 (not there); misses clipper 0.12`."""
    probability, present = model.pictures["probability"][row], model.pictures["present"][row]
    names, threshold = model.about.instruments, model.about.threshold
    names_seen = [
        f"{names[number]} {probability[number]:.2f}" + ("" if present[number] else " (not there)")
        for number in np.flatnonzero(probability >= threshold)
    ]
    missed = f"misses {names[instrument]} {probability[instrument]:.2f}" if probability[instrument] < threshold else ""
    return "; ".join(filter(None, (", ".join(names_seen), missed)))


def _point(
    axis: Axes, shown: NDArray[np.float64], mask: NDArray[np.uint8], instrument: int, hit: bool, drawn: bool = True
) -> None:
    """The outline of the instrument, and the middle of the map's highest cell: a circle for a hit, else a cross."""
    there = (mask == 1 + instrument).astype(float)
    if there.any():
        axis.contour(there, levels=[0.5], colors="white", linewidths=0.7)
    if shown.max() > shown.min():
        x, y = highest(shown, (mask.shape[0], mask.shape[1]))
        axis.plot([x], [y], marker=HIT if hit else MISS, linestyle="", alpha=1.0 if drawn else 0.6, **EDGED)


def _legend(sheet: style.Sheet, model: Model) -> None:
    """In the last row, over its whole width."""
    for axis in sheet.axes[-1][1:]:
        axis.remove()
    axis = sheet.axes[-1][0]
    place = axis.get_position()
    axis.set_position((place.x0, place.y0, 1 - 2 * place.x0, place.height))
    axis.set_axis_off()
    handles: list[Any] = [
        Patch(color=colour, label=name) for colour, name in zip(COLOURS, model.about.instruments, strict=False)
    ]
    handles += [
        Line2D(
            [],
            [],
            linestyle="",
            marker=HIT,
            label="highest cell, with the instrument in it: hit",
            **EDGED,
        ),
        Line2D([], [], linestyle="", marker=MISS, label="without: miss", **EDGED),
        Line2D([], [], linestyle="", marker="+", color="black", markeredgewidth=1.4, label="tip"),
    ]
    axis.legend(
        handles=handles, ncols=len(handles), loc="center left", fontsize=style.SMALL, frameon=True, facecolor="#b5b5b5",
        edgecolor="none", handlelength=1.2, columnspacing=1.4, borderaxespad=0,
    )  # fmt: skip


def _footnote(results: Results, models: Sequence[Model]) -> list[str]:
    about = models[0].about
    lines = [
        "A row is one instrument in one test frame. Own class maps: of every instrument that is recognised "
        f"(probability of at least {about.threshold:g}), as strong as its probability at each place; numbers: the "
        "head's probabilities. Grad-CAM, HiResCAM and EigenCAM (backbone's last stage): of the row's instrument, each "
        "scaled to its own maximum. White outline: the row's instrument.",
        f"Frames were chosen by the data, rows by what became of them, so failures are shown. {_often(models)}",
        f"Seed {about.seed}, the best model on validation data. {notes.source(results)}.",
    ]
    return lines


def _often(models: Sequence[Model]) -> str:
    """Of all that was scored, how often which own class map hits."""
    if len({len(one.hits) for one in models}) > 1:
        return ""
    scored = np.isfinite([one.hits for one in models]).all(axis=0)
    hits, count = [one.hits[scored] >= 0.5 for one in models], int(scored.sum())
    if not count:
        return ""
    if len(hits) == 1:
        return f"Of all {count:,} maps of this model {100 * hits[0].mean():.0f} % hit."
    both, first = float((hits[0] & hits[1]).mean()), float((hits[0] & ~hits[1]).mean())
    second = float((~hits[0] & hits[1]).mean())
    return (
        f"Of all {count:,} own class maps of these two models: both hit {100 * both:.0f} %, only the pre-trained one "
        f"{100 * first:.0f} %, only the one of random weights {100 * second:.0f} %, "
        f"neither {100 * (1 - both - first - second):.0f} %."
    )
