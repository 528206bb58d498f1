"""Seconds that a peer loses when the other one is killed, against the averaging timeout, a line an expiration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import publish
from benchmarks.paired import Finding


def write(findings: Sequence[Finding]) -> None:
    """leaving_peers.png and .svg beside the numbers."""
    killed = [finding for finding in findings if finding.evidence["measured"] == "killed_seconds"]
    publish.write_figure("leaving_peers", lambda: draw(killed))


def draw(findings: Sequence[Finding]) -> Any:
    """One axes: averaging timeout, and seconds lost with their 95 % interval."""
    from matplotlib.figure import Figure

    from analysis.show import style

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    expirations = sorted({finding.evidence["metadata_expiration_seconds"] for finding in findings})
    for place, (expiration, colour) in enumerate(zip(expirations, style.style_colours(len(expirations)), strict=True)):
        mine = [each for each in findings if each.evidence["metadata_expiration_seconds"] == expiration]
        mine.sort(key=lambda each: each.evidence["averaging_timeout_seconds"])
        x = [each.evidence["averaging_timeout_seconds"] + 0.4 * place for each in mine]  # so that intervals are seen
        y = [each.figure.mean for each in mine]
        half = [each.figure.half_width or 0.0 for each in mine]
        axes.errorbar(x, y, yerr=half, color=colour, marker=style.MARKERS[place], capsize=2, label=f"{expiration:g} s")
    axes.set(xlabel="averaging timeout, s", ylabel="lost by the peer that stays, s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, title="metadata expiration")
    axes.set_title("Hivemind, two peers, one is killed; 95 % intervals", fontsize=style.SMALL, loc="left")
    return figure
