"""Class-activation maps: how often each kind points at the instrument, and the maps as pictures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

from analysis import findings
from analysis.findings import WRONG, Evidence, Finding
from analysis.frames.configurations import known
from analysis.frames.results import About, Results, once
from analysis.frames.rows import as_rows, bounded
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.statistics.arms import NOTHING, RANDOM, begins_with, frozen, of_weights
from analysis.text import estimate_of, file_name
from analysis.views.view import Drawing, StudyTable, View
from scaling_study.records.maps import CAMS, CENTRE, CHANCE, COLUMNS, HIDDEN, METHODS, OWN, PICTURE, RIGHT, SCORED
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats
from scaling_study.stats.scores import enlarged, highest

NAMES = {
    OWN: "the model's own class map",
    "grad_cam": "Grad-CAM",
    "hires_cam": "HiResCAM",
    "eigen_cam": "EigenCAM",
    HIDDEN: "hidden channel of the least likely class (F12's choice)",
    CENTRE: "no model: the frame's centre",
    CHANCE: "no model: chance",
}
OF_A_MODEL = (OWN, *CAMS, HIDDEN)
Shown = tuple[str, str, str, str, str | None]  # model, weights, freeze, configuration, that of random weights beside it


def shown(results: Results) -> list[Shown]:
    """The configurations that are shown: those that arms chose, where there are arms; else all that have maps."""
    having = set(results.maps.videos.configuration)
    chosen: dict[str, Shown] = {}
    for pair in of_weights(results):
        beside = pair[1].configuration if pair[1].configuration in having else None
        for arm in pair:
            other = beside if arm.weights != RANDOM else None
            chosen[arm.configuration] = str(arm.chosen["model"]), arm.weights, arm.freeze, arm.configuration, other
    if not having & set(chosen):
        chosen = {
            name: (str(row["model"]), begins_with(row), frozen(row), name, None)
            for name, row in results.by_name.items()
        }
    return [one for name, one in chosen.items() if name in having]


@once
def maps_table(results: Results) -> pd.DataFrame:
    """A row for each configuration that is shown and each method; the two that need no model once a model."""
    rows: list[dict[str, Any]] = []
    for model, weights, freeze, name, other in shown(results):
        videos = results.maps.videos
        each = videos[(videos.configuration == name) & (videos.method == OWN)]
        for method in METHODS:
            without = method not in OF_A_MODEL
            if without and any(row["method"] == method and row["model"] == model for row in rows):
                continue
            ours = of_videos(results, name, method)
            theirs = None if other is None or without else of_videos(results, other, method)
            made: dict[str, Any] = {
                "model": model,
                "configuration": "" if without else name,
                "weights": "" if without else weights,
                "freeze": "" if without else freeze,
                "method": method,
                "seeds": each.seed.nunique(),
                "videos": each.video.nunique(),
                "maps": int(each.maps.sum()),
            }
            for score in SCORED:
                made |= _over_videos(score, ours[score])
            for score in SCORED:
                difference = () if theirs is None else ours[score] - theirs[score]
                made |= _over_videos(f"{score}_difference", difference)
            rows.append(made)
    return pd.DataFrame(rows)


def of_videos(results: Results, configuration: str, method: str) -> pd.DataFrame:
    """Video -> SCORED, means over the seeds."""
    videos = results.maps.videos
    ours = videos[(videos.configuration == configuration) & (videos.method == method)]
    means: pd.DataFrame = ours.groupby("video")[list(SCORED)].mean()
    return means


def _over_videos(name: str, values: Iterable[float]) -> dict[str, Any]:
    """The mean over the videos with its interval; None where nothing was scored."""
    there = [value for value in values if known(value)]
    over = between_repeats(there) if there else None
    return bounded(name, over and over.mean, over and over.low, over and over.high)


def listing(results: Results) -> Listing | None:
    """None where no trial has maps that could be scored."""
    rows = as_rows(maps_table(results))
    if not any(known(row["mask"]) for row in rows):
        return None
    several = len({row["model"] for row in rows}) > 1
    order = sorted(rows, key=lambda row: (row["model"], METHODS.index(row["method"])))
    cells = [_cells(row, several) for row in order]
    return Listing.from_rows(f"Do the maps show the instrument? ({results.heading})", cells, _lines(results, rows))


def _cells(row: dict[Any, Any], several: bool) -> dict[str, str]:
    mask, tip, energy = (bounds_text(row, score) for score in SCORED)
    return {
        "map": (f"{row['model']}: " if several else "") + NAMES[row["method"]],
        "weights, backbone": f"{row['weights']}, {backbone(row['freeze'])}" if row["configuration"] else "",
        "points at the instrument": mask,
        "points at the tip": tip,
        "energy on the instrument": energy,
        "points at the instrument: pre-trained less random": bounds_text(row, "mask_difference", "+"),
        "seeds": str(row["seeds"]) if row["configuration"] else "",
    }


def begun(weights: str) -> str:
    """`random weights` or `pre-trained (imagenet)`."""
    return "random weights" if weights == RANDOM else f"pre-trained ({weights})"


def backbone(freeze: str) -> str:
    """`backbone frozen` or `backbone trained`."""
    return "backbone frozen" if freeze == "backbone" else "backbone trained"


def bounds_text(row: dict[Any, Any], name: str, sign: str = "") -> str:
    """`.465 [.412, .518]`; empty where it is not known."""
    return estimate_of(row, name, f"{{:{sign}.3f}}".format)


def _lines(results: Results, rows: list[dict[Any, Any]]) -> Iterator[str]:
    videos = [row["videos"] for row in rows]
    yield (
        "A map is scored for every instrument that is in a test frame, recognised or not. It points to the cell with "
        "its highest value: at the instrument where a part of that is in this cell; at the tip where that is at most a "
        "cell from its middle. Energy: the share of the map's sum that is on the instrument. Several cells with the "
        "highest value count as the share of them that hit."
    )
    yield (
        f"Mean of the means of {min(videos)} test videos, over the seeds "
        "[95 % interval over the videos]: how much other videos like these would differ. Differences are taken video "
        "by video."
        + ("" if min(videos) >= FEWEST_REPEATS else f" With fewer than {FEWEST_REPEATS} videos no interval is claimed.")
    )
    yield (
        "Without a model: a cell chosen at random, and a Gaussian in the middle of every frame. F12's choice: what a "
        "published study showed as a class map, the channel of the head's hidden layer whose number is that of the "
        "least likely class. A kind of map is worth looking at only where it is above all three."
    )
    yield (
        "The CAMs are of the backbone's last stage and the instrument's score, by the package grad-cam; EigenCAM knows "
        "no class. The model is the best on validation data of each training (best.pt)."
    )
    yield notes.source(results)


# Okabe and Ito's, which the colour-blind can tell apart; those of them that are seen on grey (https://jfly.uni-koeln.de/color).
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#cc79a7")
DARKEST, LIGHTEST = 0.16, 0.86  # of the grey under the colours
STRONGEST, OF_A_MASK = 0.85, 0.6  # of a colour: some of the frame is always seen
Pixels = NDArray[np.float64]  # (height, width, 3) from 0 to 1
Layer = tuple[NDArray[np.floating[Any]], int]  # (h, w) from 0 to 1, and whose


def frame_pixels(pictures: dict[str, NDArray[Any]], row: int) -> Pixels:
    """A stored test frame in its own colours."""
    with Image.open(io.BytesIO(pictures[PICTURE.format(row)].tobytes())) as image:
        return np.asarray(image.convert("RGB"), np.float64) / 255


def grey(pixels: Pixels) -> Pixels:
    """Its luminance (Rec. 601), from the darkest to the lightest hundredth, so that no colour is lost in it."""
    light = pixels @ np.array([0.299, 0.587, 0.114])
    low, high = np.percentile(light, (1, 99))
    stretched = np.clip((light - low) / max(high - low, 1e-6), 0, 1)
    return np.repeat((DARKEST + (LIGHTEST - DARKEST) * stretched)[..., None], 3, axis=2)


def tinted(under: Pixels, layers: Iterable[Layer]) -> Pixels:
    """`under`, with each map enlarged to it; the colour of the instrument is as strong as the map's value."""
    pixels = under
    for shown, instrument in layers:
        strength = STRONGEST * np.clip(enlarged(shown.astype(np.float64), (under.shape[0], under.shape[1])), 0, 1)
        colour = np.array(mpl.colors.to_rgb(COLOURS[instrument % len(COLOURS)]))
        pixels = pixels * (1 - strength[..., None]) + colour * strength[..., None]
    return pixels


def masked(under: Pixels, mask: NDArray[np.uint8]) -> Pixels:
    """`under`, with each instrument that is seen in its colour. `mask`: (height, width) of 1 + instrument, 0: none."""
    pixels = under.copy()
    for instrument, colour in enumerate(COLOURS, start=1):
        there = mask == instrument
        pixels[there] = (1 - OF_A_MASK) * pixels[there] + OF_A_MASK * np.array(mpl.colors.to_rgb(colour))
    return pixels


# Class-activation maps of a few test frames: the frame, where the instruments are, and what models look at.
#
#     row: one instrument in one frame
#     frame | masks | class maps of what is recognised, Grad-CAM, HiResCAM, EigenCAM | the same of random weights
#
# Which frames are stored depends on the data alone. Of these, rows are drawn by what became of them: both models' own
# class map hits, only one's, none's, in turns. So failures are drawn however rare they are, and the footnote says how
# often each is.

PANEL, MOST_ROWS = 1.3, 8  # inches; rows of a figure
TINY = 6.3  # points
SHADES = 24  # of each colour: nobody sees that there are no more, and a figure has half of the bytes
CAM_NAMES = {OWN: "own class maps", "grad_cam": "Grad-CAM", "hires_cam": "HiResCAM", "eigen_cam": "EigenCAM"}
MISS, HIT = "X", "o"  # markers
EDGED: dict[str, Any] = {
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.9,
    "markersize": 5.5,
}


@dataclass(frozen=True)
class ScoredModel:
    """One trained model: the columns of a figure that are its."""

    title: str
    about: About
    pictures: dict[str, NDArray[Any]]
    hits: NDArray[np.float64]  # (rows of its scores,) of the own class map


def draw_maps(results: Results) -> dict[str, Figure]:
    """`maps-<model>-<frozen|trained>`, of the first seed that both have; none without pictures."""
    figures: dict[str, Figure] = {}
    about, own = results.maps.about, COLUMNS.index(f"{OWN}_mask")
    for model, freeze, trials in sides(results):
        models = [
            ScoredModel(title, about[trial], results.maps.pictures(trial), results.maps.rows[trial][:, own])
            for title, trial in trials
        ]
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
        names = [(begun(arm.weights), arm.configuration) for arm in (ours, theirs)]
        seeds = [{seed for name, seed in of if name == configuration} for _, configuration in names]
        common = sorted(set.intersection(*seeds)) or sorted(set.union(*seeds))
        trials = [(title, of[name, common[0]]) for title, name in names if common and (name, common[0]) in of]
        if trials:
            drawn_sides.append((str(ours.chosen["model"]), ours.freeze, trials))
    if not drawn_sides:
        for model, weights, freeze, name, _ in shown(results):
            first = min(seed for other, seed in of if other == name)
            drawn_sides.append((model, freeze or NOTHING, [(begun(weights), of[name, first])]))
    return drawn_sides


def chosen_rows(hits: Sequence[NDArray[np.bool_]], instruments: NDArray[np.int64]) -> list[int]:
    """The stored rows that are drawn, by kind: which of the models hit. `hits`: (rows,) of each model.

    The kinds take turns, so that each has as many rows as the others while it has some; within a kind those come first
    whose instrument was drawn least.
    """
    kinds = findings.grouped(range(len(instruments)), lambda row: tuple(bool(one[row]) for one in hits))
    order = sorted(kinds, reverse=True)  # all hit first, none last
    drawn: dict[int, tuple[bool, ...]] = {}
    while len(drawn) < min(MOST_ROWS, len(instruments)):
        for kind in order:
            left = [row for row in kinds[kind] if row not in drawn]
            if left and len(drawn) < MOST_ROWS:
                seen = [int(instruments[row]) for row in drawn]
                drawn[min(left, key=lambda row: (seen.count(int(instruments[row])), row))] = kind
    return sorted(drawn, key=lambda row: order.index(drawn[row]))


def _sheet(results: Results, title: str, models: Sequence[ScoredModel]) -> Figure:
    first = models[0].pictures
    hits = [one.pictures["hits"][:, METHODS.index(OWN)] >= 0.5 for one in models]
    rows = chosen_rows(hits, first["instrument"])
    height, width = first["mask"].shape[1:]
    panel = PANEL * height / width
    gutters = (0.02, 0.14, *((0.02, 0.02, 0.02, 0.16) * len(models))[:-1], 0.1)
    layout = style.Layout(
        panel_width=PANEL,
        left=0.04,
        gutters=gutters,
        above=0.15,
        below=0.03,
        panel_heights=(0.2, *[panel] * len(rows), 0.34),
    )
    columns = 2 + 4 * len(models)
    title = f"What the model looks at: {title}: {results.study.name}"
    sheet = style.sheet(2 + len(rows), columns, layout, title, _footnote(results, models))
    _heading(sheet, models)
    for line, row in enumerate(rows, start=1):
        _row(sheet.axes[line], models, row, hits)
    _legend(sheet, models[0])
    return sheet.figure


def _heading(sheet: style.Sheet, models: Sequence[ScoredModel]) -> None:
    names = ["frame", "masks", *(list(CAM_NAMES.values()) * len(models))]
    for axis, name in zip(sheet.axes[0], names, strict=True):
        axis.set_axis_off()
        axis.text(0.0, -0.1, name, fontsize=style.SMALL, va="bottom", transform=axis.transAxes)
    for place, model in enumerate(models):
        axis = sheet.axes[0][2 + 4 * place]
        axis.text(0.0, 0.62, model.title, fontsize=style.SIZE, weight="bold", va="bottom", transform=axis.transAxes)


def _row(axes: Sequence[Axes], models: Sequence[ScoredModel], row: int, hits: Sequence[NDArray[np.bool_]]) -> None:
    first, names = models[0].pictures, models[0].about.instruments
    frame = frame_pixels(first, row)
    under, mask, instrument = grey(frame), first["mask"][row], int(first["instrument"][row])
    _show(axes[0], frame, f"video {first['video'][row]}, frame {first['frame'][row]}")
    others = int(first["present"][row].sum()) - 1
    _show(axes[1], masked(under, mask), names[instrument] + (f" (and {others} more)" if others > 0 else ""))
    if np.isfinite(first["tip"][row]).all():
        axes[1].plot(*first["tip"][row], marker="+", color="black", markersize=6, markeredgewidth=1.4)
    for place, model in enumerate(models):
        pictures, ours = model.pictures, axes[2 + 4 * place : 6 + 4 * place]
        own = 1 / (1 + np.exp(-pictures["own"][row].astype(np.float64)))
        recognised = np.flatnonzero(pictures["probability"][row] >= model.about.threshold)
        pixels = tinted(under, ((own[number], int(number)) for number in recognised))
        _show(ours[0], pixels, _recognised(model, row, instrument))
        _point(ours[0], own[instrument], mask, instrument, bool(hits[place][row]), instrument in recognised)
        for axis, method in zip(ours[1:], CAMS, strict=True):
            shown = pictures[method][row].astype(np.float64)
            _show(axis, tinted(under, [(shown, instrument)]))
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


def _recognised(model: ScoredModel, row: int, instrument: int) -> str:
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


def _legend(sheet: style.Sheet, model: ScoredModel) -> None:
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
        Line2D([], [], linestyle="", marker=HIT, label="highest cell, with the instrument in it: hit", **EDGED),
        Line2D([], [], linestyle="", marker=MISS, label="without: miss", **EDGED),
        Line2D([], [], linestyle="", marker="+", color="black", markeredgewidth=1.4, label="tip"),
    ]
    axis.legend(
        handles=handles,
        ncols=len(handles),
        loc="center left",
        fontsize=style.SMALL,
        frameon=True,
        facecolor="#b5b5b5",
        edgecolor="none",
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0,
    )


def _footnote(results: Results, models: Sequence[ScoredModel]) -> list[str]:
    about = models[0].about
    return [
        "A row is one instrument in one test frame. Own class maps: of every instrument that is recognised "
        f"(probability of at least {about.threshold:g}), as strong as its probability at each place; numbers: the "
        "head's probabilities. Grad-CAM, HiResCAM and EigenCAM (backbone's last stage): of the row's instrument, each "
        "scaled to its own maximum. White outline: the row's instrument.",
        f"Frames were chosen by the data, rows by what became of them, so failures are shown. {_often(models)}",
        f"Seed {about.seed}, the best model on validation data. {notes.source(results)}.",
    ]


def _often(models: Sequence[ScoredModel]) -> str:
    """Sentences on how often each model's own class map hits, among all scored rows."""
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


POINTING_NAMES = ("own class map", "Grad-CAM", "HiResCAM", "EigenCAM", "hidden channel (F12)")
ROW, DODGE = 0.36, 0.16  # inches a method; of a row, between two arms
LOOKS = {True: ("o", 0), False: ("s", 1)}  # pre-trained? -> marker, colour


def draw_pointing(results: Results, model: str) -> Figure | None:
    """The figure of one model; None where nothing was scored."""
    rows = maps_table(results)
    if not rows.empty:
        rows = rows[(rows.model == model) & rows["mask"].notna()]
    if rows.empty:
        return None
    kinds = list(dict.fromkeys(rows.freeze[rows.configuration != ""]))
    layout = style.Layout(
        panel_width=2.3,
        panel_height=ROW * len(POINTING_NAMES),
        left=0.15,
        first_left=0.1 + max(style.inches(name, style.SMALL) for name in POINTING_NAMES),
        gutters=(0.1, 0.25),
        above=0.62,
    )
    videos, models = int(rows.videos.max()), rows[rows.configuration != ""]
    fewest, most_seeds = int(models.seeds.min()), int(models.seeds.max())
    seeds = f"{most_seeds}" if fewest == most_seeds else f"{fewest} to {most_seeds}"
    chance, centre = (" and ".join(f"{value:.2f}" for value in _without(rows, method)) for method in (CHANCE, CENTRE))
    footnote = [
        f"Share of maps whose highest cell has a part of the instrument in it: mean of {videos} test videos, {seeds} "
        f"seed{'s' * (most_seeds != 1)}; bars: 95 % interval over the videos; small dots: each video.",
        f"Lines need no model. Dashed: a place chosen at random ({chance}); dotted: the frame's centre ({centre}). "
        "Hidden channel (F12): the least likely class, as a published study showed it.",
        f"{notes.source(results)}.",
    ]
    sheet = style.sheet(
        1, len(kinds), layout, f"Do the maps show the instrument? {model}: {results.study.name}", footnote
    )
    colours = style.style_colours(2)
    most = min(1.0, 1.1 * float(np.nanmax([rows.mask_high.max(), rows["mask"].max(), _highest(results, rows)])))
    for index, freeze in enumerate(kinds):
        axis, _ = sheet.at(index)
        _panel(results, axis, rows, freeze, colours)
        axis.set_xlim(0, most)
        axis.set_ylim(len(POINTING_NAMES) - 0.4, -0.6)
        axis.set_yticks(range(len(POINTING_NAMES)), POINTING_NAMES if index == 0 else [""] * len(POINTING_NAMES))
        axis.set_xlabel("share that points at the instrument")
        axis.text(0, 1.2, backbone(freeze), weight="bold", transform=axis.transAxes)
        axis.legend(
            handles=_handles(rows[rows.freeze == freeze], colours),
            loc="lower left",
            bbox_to_anchor=(-0.02, 0.99),
            ncols=2,
            frameon=False,
            fontsize=style.SMALL,
            handletextpad=0.2,
            columnspacing=1.0,
            borderpad=0.2,
        )
    return sheet.figure


def _panel(results: Results, axis: Axes, rows: pd.DataFrame, freeze: str, colours: list[str]) -> None:
    ours = rows[(rows.freeze == freeze) & (rows.configuration != "")]
    for method, dashes in ((CHANCE, "--"), (CENTRE, ":")):
        for value in _without(rows, method):
            axis.axvline(value, color=style.DARK, linestyle=dashes, linewidth=1.0, zorder=1)
    for row in ours.to_dict("records"):
        marker, place = LOOKS[row["weights"] != RANDOM]
        y = OF_A_MODEL.index(row["method"]) + (place - 0.5) * 2 * DODGE
        each = of_videos(results, str(row["configuration"]), str(row["method"]))["mask"].dropna()
        axis.plot(each, [y + 0.11] * len(each), ".", color=colours[place], alpha=0.5, markersize=3.5, zorder=2)
        if known(row["mask_low"]):
            axis.plot([row["mask_low"], row["mask_high"]], [y, y], color=colours[place], linewidth=1.6, zorder=3)
        axis.plot(
            [row["mask"]],
            [y],
            marker,
            color=colours[place],
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=4,
        )


def _handles(rows: pd.DataFrame, colours: list[str]) -> list[Line2D]:
    handles = []
    for weights in dict.fromkeys(rows.weights):
        (marker, place), label = LOOKS[weights != RANDOM], begun(weights)
        handles.append(Line2D([], [], linestyle="", marker=marker, color=colours[place], markersize=5.5, label=label))
    return handles


def _without(rows: pd.DataFrame, method: str) -> list[float]:
    """The shares that this method has without a model."""
    return [float(value) for value in rows.loc[rows.method == method, "mask"]]


def _highest(results: Results, rows: pd.DataFrame) -> float:
    names = rows.configuration[rows.configuration != ""].unique()
    return max(
        (float(of_videos(results, str(name), method)["mask"].max()) for name in names for method in OF_A_MODEL),
        default=0.0,
    )


# Class-activation maps that are no class maps (F12): as `scaling-study maps` saw the model that it drew.
#
# What a training itself says of maps is in its record (training_flaws.py).


def maps_of_something_else(evidence: Evidence) -> Iterator[Finding]:
    """F12, once for each thing that is shown in their place."""
    others: dict[tuple[str, ...], set[str]] = {}
    for about in evidence.results.maps.about.values():
        shown = tuple(about.shown.get(key, right) for key, right in RIGHT.items())
        if shown != tuple(RIGHT.values()):
            others.setdefault(shown, set()).add(about.configuration)
    for (channels, kind), names in others.items():
        rows = evidence.among(names)
        text = (
            f"What is drawn as the model's own maps are {channels} channels, of the {kind} class "
            f"({findings.named(rows)}). Show the maps whose maxima are the classes' scores, of what is recognised."
        )
        yield findings.about("F12", "Maps of something else", text, WRONG, rows)


VIEW = View(
    "What does a model look at?",
    (StudyTable("maps", listing, maps_table),),
    (Drawing("maps", draw_maps, several=True, rank=-1), Drawing.of_models("pointing", draw_pointing, rank=-1)),
    (maps_of_something_else,),
)
