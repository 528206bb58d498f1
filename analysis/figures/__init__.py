"""Figures for a paper, as PNG and SVG. The only part of the analysis that imports seaborn."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures import frameworks, gain, network, speedup, style, throughput, timeline
from analysis.names import file_name
from analysis.results import Results


def draw(results: Results) -> dict[str, Figure]:
    """File name without its ending -> figure; those that this study has nothing to show on are left out."""
    with style.applied():
        only_probed = results.configurations.empty and not results.nothing_yet
        figures: dict[str, Figure | None] = {"throughput": None if only_probed else throughput.draw(results)}
        figures |= {"frameworks": frameworks.draw(results)}
        figures |= {f"speedup-{file_name(model)}": speedup.draw(results, model) for model in results.models}
        figures |= {"allreduce-gain": gain.draw(results)}
        figures |= timeline.draw(results)
        figures |= network.draw(results)
    return {name: figure for name, figure in figures.items() if figure is not None}
