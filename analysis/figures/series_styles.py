"""How each series is drawn, the same in every panel: colour, marker, line style; hollow and grey if not comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.figures import style
from analysis.frames import comparability
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from analysis.frames.study import workers_text
from scaling_study.frameworks import FRAMEWORKS

MOST_COLOURS = 12  # series that each have a look of their own; beyond, frameworks have panels and share their looks
DASHES = {"none": "-", "fp32": "-", "fp16": "--", "bf16": "-.", "int8": ":"}


@dataclass(frozen=True)
class Look:
    """One series. `sign` stands beside its name and refers to the footnote."""

    colour: str
    marker: str = "o"
    dashes: str = "-"
    sign: str = ""

    @property
    def hollow(self) -> bool:
        return bool(self.sign)


def of(rows: pd.DataFrame) -> dict[str, Look]:
    """Series -> look, in the order of the series."""
    first = as_rows(rows.sort_values("series_order").drop_duplicates("series"), ConfigurationRow)
    names = [str(row["series"]) for row in first]
    kinds = [name.removeprefix(f"{row['framework']}, ") for name, row in zip(names, first, strict=True)]
    if len(names) <= MOST_COLOURS:
        looks = _distinct(names)
    elif len(set(kinds)) <= MOST_COLOURS:  # `2 workers, fp16` looks the same in the panel of every framework
        shared = _distinct(list(dict.fromkeys(kinds)))
        looks = {name: shared[kind] for name, kind in zip(names, kinds, strict=True)}
    else:
        looks = _shaded(first)
    signs = {str(row["series"]): comparability.sign(row) for row in first}
    return {
        name: replace(look, colour=style.GREY, sign=signs[name]) if signs[name] else look
        for name, look in looks.items()
    }


def _distinct(names: Sequence[str]) -> dict[str, Look]:
    """The palette is shorter than MOST_COLOURS: its second round is dashed, and no marker comes twice."""
    colours, turn = style.colours(len(names)), len(style.PALETTE)
    return {name: Look(colours[i], style.MARKERS[i], "-" if i < turn else "--") for i, name in enumerate(names)}


def _shaded(first: Sequence[ConfigurationRow]) -> dict[str, Look]:
    """Too many to tell apart: shades say workers, dashes precision, markers the rest (or, with no rest, workers)."""
    workers = sorted({int(row["workers"]) for row in first})
    shade = dict(zip(workers, style.shades(len(workers)), strict=True))
    rests = {str(row["series"]): _rest(row) for row in first}
    kinds = sorted(set(rests.values()))
    if len(kinds) == 1:
        rests, kinds = {str(row["series"]): str(row["workers"]) for row in first}, [str(count) for count in workers]
    return {
        str(row["series"]): Look(
            style.DARK if alone(row["framework"]) else shade[row["workers"]],
            style.MARKERS[kinds.index(rests[str(row["series"])]) % len(style.MARKERS)],
            DASHES.get(row["allreduce"], "-"),
        )
        for row in first
    }


def _rest(row: ConfigurationRow) -> str:
    """What a label says beside framework, workers and precision: `ZeRO-3`."""
    main = (str(row["framework"]), workers_text(int(row["workers"])), str(row["allreduce"]))
    return ", ".join(part for part in str(row["series"]).split(", ") if part not in main)


def alone(framework: str) -> bool:
    """Whether it only ever has one worker: a reference to the others."""
    return framework in FRAMEWORKS and FRAMEWORKS[framework].axes.get("workers") == (1,)
