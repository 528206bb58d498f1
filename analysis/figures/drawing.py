"""Figures, drawn and written: of a large study several kinds at once, each by a process of its own.

What comes back of a process is words and paths, as the figures themselves are on disk by then. Where one dies, the
others' work stays and the rest is drawn here.
"""

from __future__ import annotations

import gc
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from analysis import figures
from analysis.execution import garbage_collection, process_pool
from analysis.execution.atomic_files import replaced
from analysis.execution.lost_parts import NOTHING, Salvage
from analysis.figures import captions, style
from analysis.frames.results import Results

UNDATED = {"Date": None}  # the same results are the same file
SEVERAL_FROM = 500  # trials; of fewer, drawing takes less than it would take to share it out
DPI, MOST_PIXELS = 200, 8_000_000  # of a PNG; whoever looks closer at a poster has the SVG
TAG = re.compile(rb"<[^>]+>")  # matplotlib writes no > in an attribute
GEOMETRY = re.compile(rb'\b(?:d|x|y|x1|x2|y1|y2|width|height|points|transform)="[^"]*"')
FURTHER = re.compile(rb"(\.\d\d)\d+")
FAST = {"compress_level": 3}  # of PNG: figures are no larger for it than with the usual 6
Kind = tuple[str, Callable[[], figures.Made]]


@dataclass(frozen=True)
class Drawn:
    """One figure on disk: its name, its files, its title, and all that is written around its panels."""

    name: str
    paths: tuple[Path, ...]
    title: str
    text: str


def write(results: Results, folder: Path, salvage: Salvage = NOTHING, processes: int = 1) -> list[Drawn]:
    """Every figure of the study, in the order in which they are looked at. Raises OSError."""
    kinds = list(figures.kinds(results))
    drawn: list[Drawn] = []
    with garbage_collection.only_new():
        files = (
            _at_once(results, folder, kinds, salvage.strict, processes) if len(results.trials) > SEVERAL_FROM else {}
        )
        for index, kind in enumerate(kinds):
            if index not in files:
                drawn += _kind(results, folder, kind, salvage)
            else:
                some, lost = files[index]
                drawn += some
                salvage.lost += [message for message in lost if message not in salvage.lost]
    return drawn


def _at_once(
    results: Results, folder: Path, kinds: Sequence[Kind], strict: bool, processes: int
) -> dict[int, tuple[list[Drawn], list[str]]]:
    """Place in `kinds` -> its figures, and what was lost, by several processes (process_pool)."""

    def task(index: int) -> tuple[list[Drawn], list[str]]:
        salvage = Salvage(strict=strict)
        return _kind(results, folder, kinds[index], salvage), salvage.lost

    order = range(len(kinds))[::-1]  # last ones first: those draw a figure of every model
    files = process_pool.run_tasks(task, order, processes)
    if processes > 1 and len(files) < len(order):
        for kind in ("png", "svg"):  # what one of them was writing when it died
            for half in folder.glob(f".*.{kind}.????????"):
                half.unlink(missing_ok=True)
    return files


def _kind(results: Results, folder: Path, kind: Kind, salvage: Salvage) -> list[Drawn]:
    name, make = kind
    with garbage_collection.ignored(), style.applied():
        of_kind = figures.of_kind(name, make, results, salvage)
        drawn = [save(name, figure, folder) for name, figure in of_kind.items()]
        del of_kind
        gc.collect(0)  # what is young: the figures, and none of what was derived for those before
    return drawn


def save(name: str, figure: Figure, folder: Path) -> Drawn:
    """As PNG, for looking at, and as SVG, for a paper."""
    with style.applied():
        across, up = figure.get_size_inches()
        dpi = min(DPI, math.sqrt(MOST_PIXELS / (across * up)))
        png = partial(figure.savefig, format="png", dpi=dpi, pil_kwargs=FAST)
        paths = replaced(folder / f"{name}.png", png), replaced(folder / f"{name}.svg", partial(_vectors, figure))
    return Drawn(name, paths, *captions.words(figure))


def _vectors(figure: Figure, path: Path) -> None:
    """SVG to a hundredth of a point: of the six digits that matplotlib writes nobody sees the last four."""
    whole = io.BytesIO()
    figure.savefig(whole, format="svg", metadata=UNDATED)
    path.write_bytes(TAG.sub(_rounded, whole.getvalue()))


def _rounded(tag: re.Match[bytes]) -> bytes:
    return GEOMETRY.sub(lambda place: FURTHER.sub(rb"\1", place[0]), tag[0])


def paths(drawn: Iterable[Drawn]) -> list[Path]:
    return [path for figure in drawn for path in figure.paths]
