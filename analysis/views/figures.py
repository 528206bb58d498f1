"""The figures of all views, drawn, and written as PNG and SVG."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from analysis.execution import NOTHING, Salvage
from analysis.frames.results import Results
from analysis.show import style
from analysis.views import catalog
from analysis.views.view import Figures
from scaling_study.records.store import replaced


def draw(results: Results, salvage: Salvage = NOTHING) -> dict[str, Figure]:
    """File name without its ending -> figure; those that this study has nothing to show on are left out, and one that
    cannot be drawn says so."""
    figures: dict[str, Figure] = {}
    with style.applied():
        for name, make in figure_kinds(results):
            figures |= figures_of_kind(name, make, results, salvage)
    return figures


def figures_of_kind(name: str, make: Callable[[], Figures], results: Results, salvage: Salvage) -> dict[str, Figure]:
    """The figures that one of figure_kinds() makes; one that cannot be drawn says so."""

    def drawn() -> dict[str, Figure]:
        figures = make()
        named = figures if isinstance(figures, Mapping) else {name: figures}
        return {name: figure for name, figure in named.items() if figure is not None}

    def lost(why: str) -> dict[str, Figure]:
        return {name: style.empty(f"Could not be drawn: {name}", why, results)}

    return salvage.or_else(f"figure {name}", drawn, lost)


def figure_kinds(results: Results) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """(name, function that draws it) of each figure, or of each kind of figures. None shows plumbing."""
    shown = results.without_plumbing()
    for view in catalog.VIEWS:
        for drawing in view.figures:
            yield drawing.name, partial(drawing.draw, shown)


UNDATED = {"Date": None}  # the same results are the same file
DPI, MOST_PIXELS = 200, 8_000_000  # of a PNG; whoever looks closer at a poster has the SVG
TAG = re.compile(rb"<[^>]+>")  # matplotlib writes no > in an attribute
GEOMETRY = re.compile(rb'\b(?:d|x|y|x1|x2|y1|y2|width|height|points|transform)="[^"]*"')
FURTHER = re.compile(rb"(\.\d\d)\d+")
FAST = {"compress_level": 3}  # of PNG: figures are no larger for it than with the usual 6


@dataclass(frozen=True)
class DrawnFigure:
    """One figure on disk: its name, its files, its title, and all that is written around its panels."""

    name: str
    paths: tuple[Path, ...]
    title: str
    text: str


def write(results: Results, folder: Path, salvage: Salvage = NOTHING) -> list[DrawnFigure]:
    """Every figure of the study, in the order in which they are looked at. Raises OSError."""
    drawn: list[DrawnFigure] = []
    with style.applied():
        for kind, make in figure_kinds(results):
            figures = figures_of_kind(kind, make, results, salvage)
            drawn += [save(name, figure, folder) for name, figure in figures.items()]
    return drawn


def save(name: str, figure: Figure, folder: Path) -> DrawnFigure:
    """As PNG, for looking at, and as SVG, for a paper."""
    with style.applied():
        across, up = figure.get_size_inches()
        dpi = min(DPI, math.sqrt(MOST_PIXELS / (across * up)))
        png = partial(figure.savefig, format="png", dpi=dpi, pil_kwargs=FAST)
        paths = (
            replaced(folder / f"{name}.png", png, durable=False),
            replaced(folder / f"{name}.svg", partial(_vectors, figure), durable=False),
        )
    return DrawnFigure(name, paths, *style.words(figure))


def _vectors(figure: Figure, path: Path) -> None:
    """SVG to a hundredth of a point: of the six digits that matplotlib writes nobody sees the last four."""
    whole = io.BytesIO()
    figure.savefig(whole, format="svg", metadata=UNDATED)
    path.write_bytes(TAG.sub(_rounded, whole.getvalue()))


def _rounded(tag: re.Match[bytes]) -> bytes:
    return GEOMETRY.sub(lambda place: FURTHER.sub(rb"\1", place[0]), tag[0])


def paths(drawn: Iterable[DrawnFigure]) -> list[Path]:
    return [path for figure in drawn for path in figure.paths]
