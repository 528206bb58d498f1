"""Model FLOP/s against the device's measured peak, and where that leaves the step on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.frames.configurations import known, values_of
from analysis.frames.measured import of_peers, samples_of_step
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.text import flop_rate, giga, number, percent, three_digits
from analysis.views.memory import stage_of
from analysis.views.steps import cut
from analysis.views.view import Drawing, Gap, StudyTable, View

# model FLOP/s       3 x forward FLOPs of a sample x samples a second of one worker        (workloads/workload.py)
# utilisation        that / the fastest matrix product of the same kind of device           (measure/inspected.py)
# intensity          model FLOPs of a step / bytes that it moves at least (USES): an estimate, good to a factor
# roof               min(peak FLOP/s, intensity x peak bytes/s)      Williams, Waterman, Patterson, CACM 52(4), 2009
#
# The peak is the highest that any run of the study measured on such a device, with as many cores and in this precision
# (fp32 and TF32 apart): noise can only make a measured roof too low.

PASSES = 3  # a step's FLOPs over forward's
# Times that each kind of tensor passes through memory: activations, gradients and optimiser state are written and
# read; parameters are read by forward, backward and update, and written by it. Caches are taken to keep nothing else.
USES = {"activations_bytes": 2, "parameters_bytes": 4, "gradients_bytes": 2, "optimizer_bytes": 2}
DEVICE = ("machine", "device", "cores_per_worker", "precision", "tf32")
PEAKS = ("peak_flops_per_second", "peak_bytes_per_second")
NOT_COUNTED, NOT_MEASURED = "its FLOPs were not counted", "its device's peak was not measured"
Row = ConfigurationRow


@dataclass(frozen=True)
class Utilisation:
    """FLOP/s of one worker of a configuration. None is unknown, and `why` names what was not measured."""

    row: Row
    flops_per_second: float | None
    peak_flops_per_second: float | None
    peak_bytes_per_second: float | None
    intensity: float | None  # FLOP/byte
    why: str = ""

    @property
    def share(self) -> float | None:
        """Share of the peak."""
        return _ratio(self.flops_per_second, self.peak_flops_per_second)

    @property
    def ridge(self) -> float | None:
        """FLOP/byte below which memory is the lower roof."""
        return _ratio(self.peak_flops_per_second, self.peak_bytes_per_second)

    @property
    def roof(self) -> float | None:
        """FLOP/s that this intensity allows."""
        if self.intensity is None or self.peak_bytes_per_second is None or self.peak_flops_per_second is None:
            return None
        return min(self.peak_flops_per_second, self.intensity * self.peak_bytes_per_second)

    @property
    def under_memory(self) -> bool:
        """True where memory is the lower roof."""
        return self.intensity is not None and self.ridge is not None and self.intensity < self.ridge


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


@once
def utilisations(results: Results) -> list[Utilisation]:
    """The utilisation of every measured configuration, in the order of results.configurations."""
    ranks = results.details.ranks.groupby("configuration")
    numbers = ranks[["forward_flops_per_sample", "tf32", *PEAKS]].max()
    numbers = numbers.where(numbers > 0)
    measured = results.configurations[results.configurations.n > 0].join(numbers, on="configuration")
    kind = [measured[key].map(lambda value: str(value) if known(value) else "") for key in DEVICE]
    roofs = measured.groupby(kind)[list(PEAKS)].transform("max") if len(measured) else measured[list(PEAKS)]
    rows = as_rows(measured.assign(**{name: roofs[name] for name in PEAKS}))
    return [_utilisation(row) for row in cast("list[Row]", rows)]


def _utilisation(row: Row) -> Utilisation:
    forward, peak, bandwidth = values_of(row, ("forward_flops_per_sample", *PEAKS))
    each = None if forward is None else PASSES * forward
    per_worker = {"second": float(row["samples_per_second"]), "step": samples_of_step(row)}
    flops = {of: None if each is None else each * count / int(row["workers"]) for of, count in per_worker.items()}
    why = [text for value, text in ((forward, NOT_COUNTED), (peak, NOT_MEASURED)) if value is None]
    return Utilisation(row, flops["second"], peak, bandwidth, _ratio(flops["step"], _bytes(row)), " and ".join(why))


def _bytes(row: Row) -> float | None:
    """Bytes that a worker moves in a step, at least.

    None where memory was not counted by kind, or where more passes than was counted: activations of one of several
    micro-batches, a shard of the weights.
    """
    kinds = values_of(row, USES)
    gathers = stage_of(row) == 3 and int(row["workers"]) > 1  # what passes through memory is more than its shard
    several = (known(row["accumulation"]) and int(row["accumulation"]) > 1) or of_peers(str(row["framework"]))
    if cut(row) or gathers or several or not all(known(value) for value in kinds):
        return None
    moved = float(np.dot([float(value) for value in kinds], list(USES.values())))
    return moved if moved > 0 else None


def table(results: Results) -> pd.DataFrame:
    """A row for one worker of each configuration: FLOP/s, the device's measured peaks, intensity, roof."""
    rows = [
        {
            **{key: used.row[key] for key in notes.ABOUT},
            "model_flops_per_second": used.flops_per_second,
            "peak_flops_per_second": used.peak_flops_per_second,
            "utilisation": used.share,
            "peak_bytes_per_second": used.peak_bytes_per_second,
            "intensity": used.intensity,
            "ridge": used.ridge,
            "roof_flops_per_second": used.roof,
            "why": used.why,
        }
        for used in utilisations(results)
    ]
    return pd.DataFrame(rows, dtype=object)


def listing(results: Results) -> Listing | None:
    """Model FLOP/s of each configuration; None where no FLOPs were counted."""
    every = utilisations(results)
    counted = [used for used in every if used.flops_per_second is not None]
    if not counted:
        return None
    rows = []
    for used in counted:
        name, batch = notes.series_and_batch(used.row, results)
        peak, share, roof = used.peak_flops_per_second, used.share, used.roof
        rows.append(
            {
                "configuration": name,
                "batch": batch,
                "GFLOP/s": giga(used.flops_per_second or 0.0),
                "peak": "not measured" if peak is None else giga(peak),
                "utilisation": "" if share is None else percent(share),
                "FLOP/byte": "not counted" if used.intensity is None else number(used.intensity),
                "roof": "" if roof is None else giga(roof) + " (memory)" * used.under_memory,
            }
        )
    lines = [
        "GFLOP/s of one worker: 3 x the forward FLOPs of a sample (matrix products, convolutions, attention; two a "
        "multiply-add) x its samples a second. Peak: the fastest matrix product in this precision that any run of the "
        "study measured on such a device, right after its training.",
        "Intensity: model FLOPs of a step over the bytes it moves if each tensor passes through memory once for each "
        "use; an estimate, too low where caches hold the model. Roof: the lower of peak and intensity x the measured "
        "bandwidth of memory.",
    ]
    if too_fast := sum(used.share is not None and used.share > 1.0 for used in counted):
        lines.append(
            f"**{too_fast} above their peak**: the microbenchmark did not reach what training does, or the model needs "
            "fewer FLOPs than were counted. Their utilisation is not meaningful."
        )
    if missing := len(every) - len(counted):
        lines.append(f"{missing} configurations are left out: {NOT_COUNTED}.")
    return notes.study_listing(results, "Model FLOP/s and utilisation", rows, lines, signs=True)


MOST_LABELS = 14
FEW_DECADES = 300  # end over beginning of an axis, below which powers of ten alone would be too few ticks


def draw(results: Results) -> Figure | None:
    """The figure, or None where there is nothing to hold under a roof."""
    every = [used for used in utilisations(results) if used.roof is not None and used.flops_per_second is not None]
    panels = {
        model: ours for model in results.models if (ours := [used for used in every if used.row["model"] == model])
    }
    if not panels:
        return None
    look = style.series_looks(results.configurations)
    labels = {model: _labels(panel) for model, panel in panels.items()}
    footnote = (
        "Lines: the fastest matrix product and the fastest copy that any run of the study measured on such a device. "
        "Model FLOPs: 3 x forward. Intensity is an estimate: each tensor passes through memory once for each use. "
        "Larger batches lie further right."
    )
    if any((used.share or 0.0) > 1.0 for used in every):
        footnote += " Points above the roof: training exceeded the microbenchmark."
    return style.figure_of(
        f"Roofline: {results.study.name}",
        [
            style.Panel(
                model,
                partial(_panel, panel=panel, look=look),
                x="arithmetic intensity (FLOP/byte)",
                y="model FLOP/s of a worker",
                labels=labels[model],
            )
            for model, panel in panels.items()
        ],
        [footnote, f"{notes.source(results)}."],
        panel_width=2.6,
        panel_height=max(2.2, (max(map(len, labels.values())) + 1) * 1.3 * style.GAP),
        left=style.left_of(["100 TFLOP/s"]),
        below=0.46,
    )


def _labels(panel: Sequence[Utilisation]) -> list[str]:
    """One for each series, at its largest intensity; the first and the last where they would be too many."""
    names = list(dict.fromkeys(str(used.row["series"]) for used in panel))
    return names if len(names) <= MOST_LABELS else [names[0], names[-1]]


def _panel(axis: Axes, layout: style.Layout, panel: Sequence[Utilisation], look: dict[str, style.SeriesLook]) -> None:
    """`panel`: those that have a roof."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    intensity, flops, peak, bandwidth = np.array(
        [
            (used.intensity, used.flops_per_second, used.peak_flops_per_second, used.peak_bytes_per_second)
            for used in panel
        ],
        dtype=float,
    ).T
    turns = [*intensity, *peak / bandwidth]
    low, high = min(turns) / 3, max(turns) * 3
    x = np.geomspace(low, high, 200)
    for roof in dict.fromkeys(zip(peak, bandwidth, strict=True)):
        axis.plot(x, np.minimum(roof[0], x * roof[1]), color=style.DARK, linewidth=1.3, zorder=2)
    ends: dict[str, EndLabel] = {}
    for index in np.argsort(intensity, kind="stable"):
        name = str(panel[index].row["series"])
        ours = look[name]
        axis.plot(
            intensity[index],
            flops[index],
            marker=ours.marker,
            linestyle="",
            color=ours.colour,
            markerfacecolor="white" if ours.hollow else ours.colour,
            markeredgecolor=ours.colour,
            zorder=3,
        )
        ends[name] = EndLabel(intensity[index], flops[index], name, ours.colour)
    bottom, top = flops.min() / 3, 2 * max(peak.max(), flops.max())
    axis.set_xlim(low, high)
    axis.set_ylim(bottom, top)
    for each, decades in ((axis.xaxis, high / low), (axis.yaxis, top / bottom)):
        each.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < FEW_DECADES else (1,), numticks=7))
        each.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: three_digits(value)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: flop_rate(value)))
    style.end_labels(axis, [ends[name] for name in _labels(panel)], layout.panel_height)


VIEW = View(
    "How much of the device is used?",
    (
        StudyTable(
            "utilisation",
            listing,
            table,
            "Model FLOP/s and utilisation",
            "why",
            Gap("Model FLOP/s and utilisation: not known", "no record counts its FLOPs"),
        ),
    ),
    (Drawing("roofline", draw, section="why", beside="utilisation"),),
)
