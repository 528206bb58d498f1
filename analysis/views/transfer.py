"""Does pre-training help, and does training the backbone? Test figures, seed by seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.findings import grouped
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.frames.training import METRICS
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.statistics import arms
from analysis.statistics.arms import POINTING, Arm
from analysis.text import number
from analysis.views import target
from analysis.views.maps import backbone, bounds_text
from analysis.views.view import StudyTable, View
from scaling_study.targets import CHOSEN_BY, HEADS, OF_TRIPLETS, TRIPLETS
from scaling_study.targets import METRICS as DIRECTIONS

PARTS = {
    "i": "instruments",
    "v": "verbs",
    "t": "targets",
    "ivt": "triplets",
    "iv": "instrument and verb",
    "it": "instrument and target",
}
FIGURES = {
    "ap_heads": "mean AP of the four heads",
    **{f"ap_{name}": f"AP of {what}" for name, what in PARTS.items()},
    **{f"ap_{name}_of_triplets": f"AP of {what}, of triplet scores" for name, what in PARTS.items()},
    "top5_ivt": "triplets among the five likeliest",
    POINTING: "own class map points at the instrument",
}
RISING = 0.005  # of a metric, over the last quarter of the steps


SHOWN = (POINTING, CHOSEN_BY, *HEADS, "top5_ivt")


def listing(results: Results) -> Listing | None:
    """None where no two trainings differ in the weights that they begin with, or in what is frozen, alone."""
    rows = as_rows(arms.arm_pairs_table(results))
    if not rows:
        return None
    there = {row["figure"] for row in rows}
    order = [name for name in SHOWN if name in there] or [name for name in METRICS if name in there]
    several = len({row["model"] for row in rows}) > 1
    cells = [_cells(row, several) for row in rows if row["figure"] in order]
    title = f"Does pre-training help, and does training the backbone? ({results.heading})"
    return Listing.from_rows(title, cells, _lines(results))


def _cells(row: dict[Any, Any], several: bool) -> dict[str, str]:
    compared, at = "backbone trained less frozen", begun(row["weights"])
    if row["varied"] == "weights":
        compared, at = f"weights {row['weights']} less random", backbone(row["freeze"])
    return {
        "compared": f"{row['model']}: {compared}" if several else compared,
        "at": at,
        "figure": FIGURES.get(row["figure"], row["figure"]),
        "first": bounds_text(row, "ours"),
        "second": bounds_text(row, "theirs"),
        "difference": bounds_text(row, "difference", "+"),
        "seeds": str(row["seeds"]),
        "the first one": row["verdict"],
    }


def answers(results: Results) -> Iterator[str]:
    """`Weights imagenet instead of random: mean AP of the four heads +0.43 [+0.41, +0.45] (backbone frozen: helps).`,
    by the metric that chose the learning rates, else the first figure; a sentence for each thing that is compared."""
    rows = as_rows(arms.arm_pairs_table(results))
    figures = list(dict.fromkeys(row["figure"] for row in rows))
    first = CHOSEN_BY if CHOSEN_BY in figures else next(iter(figures), "")
    several = len({row["model"] for row in rows}) > 1
    cells = [_cells(row, several) for row in rows if row["figure"] == first]
    for compared, ours in grouped(cells, lambda cell: cell["compared"]).items():
        each = "; ".join(f"{cell['difference']} ({cell['at']}: {cell['the first one']})" for cell in ours)
        said = compared.replace(" less ", " instead of ")
        yield f"{said[0].upper()}{said[1:]}: {ours[0]['figure']} {each}."


def begun(weights: str) -> str:
    """`random weights`, or `weights imagenet`."""
    return "random weights" if weights == arms.RANDOM else f"weights {weights}"


def _lines(results: Results) -> Iterator[str]:
    yield (
        "Of the test set: means over the seeds [95 % interval, Student's t]. Differences are taken seed by seed: one "
        "seed is one order of the data and one set of heads. The first helps, or harms: the interval of the difference "
        "leaves out 0; each interval is one by itself, not corrected for their number. transfer.csv has all figures."
    )
    each = {arm.configuration: arm for pair in arms.pairs(results) for arm in (pair.ours, pair.theirs)}
    yield from notes.how_it_differs(results.among(each))
    yield from map(_choice, each.values())
    yield _budget(results, list(each.values()))
    yield notes.source(results)


def _choice(arm: Arm) -> str:
    """The chosen rate, of how many; and the arms in which another might have been better."""
    values = [(arms.rate(row), arm.validation[str(row["configuration"])]) for row in arm.rows]
    tried = "; ".join(f"{rate}: {number(value) if known(value) else 'not known'}" for rate, value in values)
    chosen = (
        f"The {len(arm.rows)} learning rates tried with it, and the mean {arm.metric} of each on validation data: "
        f"{tried}. Chosen: {arms.rate(arm.chosen)}"
        if len(arm.rows) > 1
        else f"One learning rate was tried with it: {arms.rate(arm.chosen)}"
    )
    edge = f", the {arm.at_edge} that was tried: one beyond may be better" if arm.at_edge else ""
    return f"{begun(arm.weights).capitalize()}, {backbone(arm.freeze)}. {chosen}{edge}."


def _budget(results: Results, each: list[Arm]) -> str:
    """A sentence on the budget that the answer holds for, and if a larger one may change it."""
    trained = results.details.trained
    ours = trained[trained.configuration.isin([arm.configuration for arm in each])]
    steps, seen = (
        f"{'' if counts.nunique() == 1 else 'up to '}{counts.max():,.0f}" for counts in (ours.steps, ours.samples)
    )
    rising = [
        f"{begun(arm.weights)}, {backbone(arm.freeze)} ({arm.rise:+.3f})"
        for arm in each
        if arm.rise is not None and (arm.rise if DIRECTIONS[arm.metric][0] else -arm.rise) > RISING
    ]
    more = (
        "Their validation figure was still becoming better over the last quarter of the steps: "
        f"{'; '.join(rising)}. With more steps, more frames or other rates the answer may be another."
        if rising
        else "No validation figure became better by more than "
        f"{RISING:g} over the last quarter of the steps; with more frames or other rates the answer may be another."
    )
    return f"At this budget: {steps} steps, {seen} frames seen in each training. {more}"


OF_HEADS = tuple(name for name in TRIPLETS if name not in (CHOSEN_BY, *OF_TRIPLETS, "top5_ivt"))
NAMES = {"ap_i": "I", "ap_v": "V", "ap_t": "T", "ap_ivt": "IVT", "ap_iv": "IV", "ap_it": "IT", "top5_ivt": "top 5"}
PUBLISHED = {"I": 89.9, "V": 59.9, "T": 37.4, "IV": 31.8, "IT": 27.1, "IVT": 24.4}  # Tripnet: arXiv 2204.05235


def recognition_table(results: Results) -> pd.DataFrame:
    """A row for each configuration: its metrics on the test set with their intervals, as shares of 1."""
    rows = target.trained_configurations(results)
    if rows.empty:
        return rows
    columns = [f"test_{name}{bound}" for name in TRIPLETS for bound in ("", "_low", "_high")]
    ours: pd.DataFrame = rows.loc[
        rows[f"test_{CHOSEN_BY}"].notna(), ["configuration", "series", "model", "seeds", *columns]
    ]
    return ours


def recognition_listing(results: Results) -> Listing | None:
    """None where no triplets were recognised."""
    rows = recognition_table(results)
    if rows.empty:
        return None
    several = rows.model.nunique() > 1
    cells = [
        {
            "configuration": f"{row['model']}, {row['series']}" if several else str(row["series"]),
            "seeds": str(row["seeds"]),
            **{NAMES[name]: _percent(row, f"test_{name}") for name in OF_HEADS},
            **{
                f"{NAMES[name.removesuffix('_of_triplets')]}, of triplets": _percent(row, f"test_{name}")
                for name in OF_TRIPLETS
            },
            NAMES["top5_ivt"]: _percent(row, "test_top5_ivt"),
        }
        for row in rows.to_dict("records")
    ]
    return Listing.from_rows(f"Recognising triplets ({results.heading})", cells, _recognition_lines(results))


def _percent(row: dict[Any, Any], name: str) -> str:
    """`66.1 ± 2.0`; empty where it is not known."""
    if not known(row[name]):
        return ""
    half = f" ± {50 * (row[f'{name}_high'] - row[f'{name}_low']):.1f}" if known(row[f"{name}_low"]) else ""
    return f"{100 * row[name]:.1f}{half}"


def _recognition_lines(results: Results) -> list[str]:
    published = ", ".join(f"{name} {value}" for name, value in PUBLISHED.items())
    return [
        "Average precision on the test videos in per cent: of each class within each video that has it, mean over "
        "those videos, then over the classes; mean over the seeds ± half of the 95 % interval. A class that no frame "
        "of a video has says nothing of it and is left out; counted as 0, a perfect model would score a few per cent.",
        "I, V, T, IVT: of the heads of instrument, verb, target and triplet. IV, IT: the product of two heads' "
        "probabilities, which cannot tell which instrument does what where a frame has several. Of triplets: the "
        "likeliest triplet with that class or pair, from the triplet head alone, as the field publishes it; the two "
        "kinds are not to be compared with each other. Top 5: how many of all triplets are among their frame's five "
        "likeliest.",
        f"Published Tripnet on CholecT45, of triplets: {published} (arXiv 2204.05235). Only figures on CholecT45's "
        "own test videos compare with these.",
        *notes.how_it_differs(results.configurations),
        notes.source(results),
    ]


VIEW = View("Does pre-training help?", (StudyTable("transfer", listing, arms.arm_pairs_table),))


RECOGNITION = View(
    "What are surgical triplets recognised by?",
    (StudyTable("recognition", recognition_listing, recognition_table),),
)
