"""The gain of fp16 over fp32 allreduce against the link's bandwidth, a line for each model, with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import publish
from benchmarks.paired import Finding

UNLIMITED_BITS = 100e9  # where "unlimited" stands on the axis, beyond a break
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits(rate: str | None) -> float:
    """`100mbit` -> 1e8 bits per second."""
    return float(rate[:-4]) * UNITS[rate[-4:]] if rate else UNLIMITED_BITS


def named(rate: str | None) -> str:
    """`100 Mbit/s`"""
    return f"{rate[:-4]} {rate[-4:].capitalize()}/s" if rate else "unlimited"


def write(findings: Sequence[Finding]) -> None:
    """links.png and links.svg beside the numbers."""
    publish.write_figure("links", lambda: draw(findings))


def draw(findings: Sequence[Finding]) -> Any:
    """One axes: bandwidth on a log scale, gain as a ratio, and the line at which fp16 neither gains nor loses."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from analysis.show import style

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    models = list(dict.fromkeys(finding.evidence["model"] for finding in findings))
    rates = sorted({finding.evidence["rate"] for finding in findings}, key=bits)
    axes.axhline(1.0, color=style.DARK, linewidth=0.8, linestyle="--")
    for text, side, down in (
        ("fp16 pays", "bottom", 3),
        ("fp16 costs", "top", -3),
    ):
        axes.annotate(text, (1.0, 1.0), xycoords=axes.get_yaxis_transform(), xytext=(3, down), va=side,
                      textcoords="offset points", fontsize=style.SMALL, color=style.GREY)  # fmt: skip
    for place, (model, colour) in enumerate(zip(models, style.style_colours(len(models)), strict=True)):
        mine = sorted((f for f in findings if f.evidence["model"] == model), key=lambda f: bits(f.evidence["rate"]))
        x = [bits(f.evidence["rate"]) * (1 + 0.06 * place) for f in mine]  # side by side, so that intervals are seen
        y = [f.figure.mean for f in mine]
        below = [f.figure.mean - (f.figure.low if f.figure.low is not None else f.figure.mean) for f in mine]
        above = [(f.figure.high if f.figure.high is not None else f.figure.mean) - f.figure.mean for f in mine]
        axes.errorbar(x, y, yerr=[below, above], color=colour, marker=style.MARKERS[place], capsize=2, label=model)
    axes.set(
        xscale="log", xlabel="bandwidth of the link between two hosts", ylabel="throughput, fp16 over fp32 allreduce"
    )
    axes.set_xticks([bits(rate) for rate in rates], [named(rate) for rate in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(bits(rates[0]) / 2, bits(rates[-1]) * 2.2)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, title="model")
    axes.set_title("Horovod over Gloo, one worker on each of two hosts; 95 % intervals", fontsize=style.SMALL,
                   loc="left")  # fmt: skip
    return figure
