"""Figures for a paper, as PNG and SVG. The only part of the analysis that imports seaborn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from matplotlib.figure import Figure

from analysis.execution.lost_parts import NOTHING, Salvage
from analysis.figures import (
    captions,
    distributions,
    drift,
    efficiency,
    frameworks,
    frontier,
    gain,
    maps,
    network,
    pareto,
    pointing,
    roofline,
    scaling,
    shares,
    speedup,
    style,
    target,
    throughput,
    timeline,
    waterfall,
)
from analysis.frames.results import Results
from analysis.text.file_names import file_name

Made = Mapping[str, Figure] | Figure | None


def draw(results: Results, salvage: Salvage = NOTHING) -> dict[str, Figure]:
    """File name without its ending -> figure; those that this study has nothing to show on are left out, and one that
    cannot be drawn says so."""
    figures: dict[str, Figure] = {}
    with style.applied():
        for name, make in kinds(results):
            figures |= of_kind(name, make, results, salvage)
    return figures


def of_kind(name: str, make: Callable[[], Made], results: Results, salvage: Salvage) -> dict[str, Figure]:
    """Those that one of kinds() makes."""
    lost = partial(_lost, name, results)
    figures = salvage.or_else(f"figure {name}", partial(_drawn, name, make), lost)
    return {name: figure for name, figure in figures.items() if figure is not None}


def kinds(results: Results) -> Iterator[tuple[str, Callable[[], Made]]]:
    """What each figure, or each kind of them, is drawn by; in the order in which they are looked at."""
    only_probed = results.configurations.empty and not results.nothing_yet
    if not only_probed:
        yield "throughput", partial(throughput.draw, results)
    yield "frameworks", partial(frameworks.draw, results)
    for model in results.models:
        yield f"speedup-{file_name(model)}", partial(speedup.draw, results, model)
    yield "allreduce-gain", partial(gain.draw, results)
    for name, several in (
        *(("distributions", distributions), ("timeline", timeline), ("network", network), ("drift", drift)),
        *(("waterfall", waterfall), ("steps", shares), ("scaling-law", scaling), ("target", target)),
        *(("efficiency", efficiency), ("pointing", pointing), ("maps", maps)),
    ):
        yield name, partial(several.draw, results)
    for name, module in (("roofline", roofline), ("frontier", frontier), ("pareto", pareto)):
        yield name, partial(module.draw, results)


def _drawn(name: str, make: Callable[[], Made]) -> dict[str, Figure | None]:
    figures = make()
    return dict(figures) if isinstance(figures, Mapping) else {name: figures}


def _lost(name: str, results: Results, why: str) -> dict[str, Figure | None]:
    return {name: captions.empty(f"Could not be drawn: {name}", why, results)}
