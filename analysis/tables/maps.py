"""The table of class-activation maps: how often each kind points at the instrument, beside what needs no model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.to_target.arms import RANDOM, begins_with, frozen, of_weights
from scaling_study.records.maps import CAMS, CENTRE, CHANCE, HIDDEN, METHODS, OWN, SCORED
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval, between_repeats

NAMES = {
    OWN: "the model's own class map", "grad_cam": "Grad-CAM", "hires_cam": "HiResCAM", "eigen_cam": "EigenCAM",
    HIDDEN: "hidden channel of the least likely class (F12's choice)", CENTRE: "no model: the frame's centre",
    CHANCE: "no model: chance",
}  # fmt: skip
OF_A_MODEL = (OWN, *CAMS, HIDDEN)
HEADER = (
    "map", "weights, backbone", "points at the instrument", "points at the tip", "energy on the instrument",
    "points at the instrument: pre-trained less random", "seeds",
)  # fmt: skip
COLUMNS = (
    *("model", "configuration", "weights", "freeze", "method", "seeds", "videos", "maps"),
    *(f"{score}{bound}" for score in SCORED for bound in ("", "_low", "_high")),
    *(f"{score}_difference{bound}" for score in SCORED for bound in ("", "_low", "_high")),
)


def shown(results: Results) -> list[tuple[str, str, str, str, str | None]]:
    """(model, weights, freeze, configuration, the configuration of random weights beside it) of what is shown: the
    arms' chosen ones, where there are arms; else all that have maps."""
    having = set(results.maps.videos.configuration)
    by_configuration: dict[str, tuple[str, str, str, str, str | None]] = {}
    for pair in of_weights(results):
        beside = pair[1].configuration if pair[1].configuration in having else None
        for arm in pair:
            other = beside if arm.weights != RANDOM else None
            by_configuration[arm.configuration] = (
                str(arm.chosen["model"]),
                arm.weights,
                arm.freeze,
                arm.configuration,
                other,
            )
    if not having & set(by_configuration):
        for row in results.rows:
            name = str(row["configuration"])
            by_configuration[name] = (str(row["model"]), begins_with(row), frozen(row), name, None)
    return [one for name, one in by_configuration.items() if name in having]


def table(results: Results) -> pd.DataFrame:
    """COLUMNS: a row for each configuration that is shown and each method; the two that need no model once a model."""
    rows: list[dict[str, Any]] = []
    for model, weights, freeze, name, other in shown(results):
        for method in METHODS:
            without = method not in OF_A_MODEL
            if without and any(row["method"] == method and row["model"] == model for row in rows):
                continue
            ours = of_videos(results, name, method)
            theirs = None if other is None or without else of_videos(results, other, method)
            keys = {"model": model, "configuration": "" if without else name, "method": method}
            keys |= {"weights": "" if without else weights, "freeze": "" if without else freeze}
            rows.append({**keys, **_counts(results, name), **_scores(ours, theirs)})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def of_videos(results: Results, configuration: str, method: str) -> pd.DataFrame:
    """Video -> SCORED, means over the seeds."""
    videos = results.maps.videos
    ours = videos[(videos.configuration == configuration) & (videos.method == method)]
    means: pd.DataFrame = ours.groupby("video")[list(SCORED)].mean()
    return means


def interval(values: pd.Series[float]) -> Interval | None:
    """Over the videos; None where nothing was scored."""
    there = values.dropna()
    return between_repeats(there.to_list()) if len(there) else None


def _scores(ours: pd.DataFrame, theirs: pd.DataFrame | None) -> dict[str, float | None]:
    bounds: dict[str, float | None] = {}
    for score in SCORED:
        differences = None if theirs is None else interval(ours[score] - theirs[score])
        for name, of in ((score, interval(ours[score])), (f"{score}_difference", differences)):
            for end, value in _ends(of):
                bounds[f"{name}{end}"] = value
    return bounds


def _ends(of: Interval | None) -> list[tuple[str, float | None]]:
    return [("", None)] if of is None else [("", of.mean), ("_low", of.low), ("_high", of.high)]


def _counts(results: Results, configuration: str) -> dict[str, int]:
    ours = results.maps.videos[results.maps.videos.configuration == configuration]
    each = ours[ours.method == OWN]
    return {"seeds": each.seed.nunique(), "videos": each.video.nunique(), "maps": int(each.maps.sum())}


def listing(results: Results) -> Listing | None:
    """None where no trial has maps that could be scored."""
    rows = as_rows(table(results))
    if not any(known(row["mask"]) for row in rows):
        return None
    several = len({row["model"] for row in rows}) > 1
    order = sorted(rows, key=lambda row: (row["model"], METHODS.index(row["method"])))
    cells = tuple(_cells(row, several) for row in order)
    return Listing(f"Do the maps show the instrument? ({results.heading})", HEADER, cells, tuple(_lines(results, rows)))


def _cells(row: dict[Any, Any], several: bool) -> tuple[str, ...]:
    model = f"{row['model']}: " if several else ""
    arm = f"{row['weights']}, {backbone(row['freeze'])}" if row["configuration"] else ""
    scores = (bounded(row, score) for score in SCORED)
    return (
        model + NAMES[row["method"]], arm, *scores, bounded(row, "mask_difference", "+"),
        str(row["seeds"]) if row["configuration"] else "",
    )  # fmt: skip


def backbone(freeze: str) -> str:
    """`backbone frozen` or `backbone trained`."""
    return "backbone frozen" if freeze == "backbone" else "backbone trained"


def bounded(row: dict[Any, Any], name: str, sign: str = "") -> str:
    """`.465 [.412, .518]`; empty where it is not known."""
    if not known(row[name]):
        return ""
    bounds = [f"{row[f'{name}{end}']:{sign}.3f}" if known(row[f"{name}{end}"]) else "?" for end in ("_low", "_high")]
    return f"{row[name]:{sign}.3f}" + (f" [{', '.join(bounds)}]" if bounds != ["?", "?"] else "")


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
