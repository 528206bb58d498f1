"""Model FLOP/s against the device's peaks, measured and of its data sheet, and a step's place on a roofline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis import findings
from analysis.findings import DOUBT, Evidence, Finding, grouped
from analysis.frames.configurations import KEYS, SPREADING_KEYS, known, values_of
from analysis.frames.measured import of_peers, samples_of_step
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.text import flop_rate, giga, number, percent, three_digits
from analysis.views.memory import family_of, stage_of
from analysis.views.pipelines import is_cut
from analysis.views.view import Drawing, Gap, StudyTable, View
from scaling_study.models import IMAGE_KEYS, MODELS

# model FLOP/s       3 x forward FLOPs of a sample x samples a second of one worker        (workloads/workload.py)
#                    of a user's command those that were counted in all of one step: what is frozen has no backward pass
# utilisation        that / the fastest matrix product of the same kind of device           (measure/surroundings.py)
# data sheet         its maker's dense peak in this precision, never the sparse one          (published/data_sheets.csv)
# intensity          model FLOPs of a step / bytes that its operators moved (measure/wire.py); in records
#                    without that count / bytes that it moves at least (USES): an estimate
# roof               min(peak FLOP/s, intensity x peak bytes/s)      Williams, Waterman, Patterson, CACM 52(4), 2009
#
# The peak is the highest that any run of the study measured on such a device, with as many cores and in this precision
# (fp32 and TF32 apart): noise can only make a measured roof too low.

PASSES = 3  # a step's FLOPs over forward's
# Times that each kind of tensor passes through memory, where nothing was counted. Parameters are read by forward,
# backward and update, and written by it; gradients and optimiser state are written and read. What forward keeps is
# written by one operator, read by the next and by backward, and its gradient is written and read; a compiler may fuse
# all but the first and the third.
USES = {"activations_bytes": 5, "parameters_bytes": 4, "gradients_bytes": 2, "optimizer_bytes": 2}
COMPILED_USES = USES | {"activations_bytes": 2}
DEVICE = ("machine", "device", "cores_per_worker", "precision", "tf32")
PEAKS = ("peak_flops_per_second", "peak_bytes_per_second")
NOT_COUNTED, NOT_MEASURED = "its FLOPs were not counted", "its device's peak was not measured"
REPRESENTATIVE = 0.3  # of the measured peak, below which a GPU computes too slowly for its scaling to say much
Row = ConfigurationRow


@cache
def data_sheets() -> tuple[tuple[re.Pattern[str], str, float], ...]:
    """(names of a GPU, precision, dense FLOP/s) of each row of data_sheets.csv."""
    with resources.files("analysis.published").joinpath("data_sheets.csv").open(encoding="utf-8") as stream:
        rows = pd.read_csv(stream).to_dict("records")
    return tuple(
        (
            re.compile(rf"{re.escape(str(row['device']))}(-.*| \d+ ?GB.*)?"),
            str(row["precision"]),
            float(row["flops_per_second"]),
        )
        for row in rows
    )


def data_sheet_flops(device_name: str, precision: str) -> float | None:
    """The dense peak of a whole GPU by its maker; None of one that is not in the file, and of a part of one (MIG)."""
    fits = (flops for names, of, flops in data_sheets() if of == precision and names.fullmatch(device_name))
    return None if "MIG" in device_name else next(fits, None)


@dataclass(frozen=True)
class Utilisation:
    """FLOP/s of one worker of a configuration. None is unknown, and `why` names what was not measured.

    `moved_bytes`: through memory in a step; `counted`: by its operators, else estimated. `sheet_flops_per_second`: the
    dense peak of the device's data sheet. `by_whole_step`: FLOPs are those counted in one, else PASSES of forward.
    """

    row: Row
    flops_per_second: float | None
    peak_flops_per_second: float | None
    peak_bytes_per_second: float | None
    intensity: float | None  # FLOP/byte
    why: str = ""
    moved_bytes: float | None = None
    counted: bool = False
    sheet_flops_per_second: float | None = None
    by_whole_step: bool = False

    @property
    def share(self) -> float | None:
        """Share of the measured peak."""
        return _ratio(self.flops_per_second, self.peak_flops_per_second)

    @property
    def exceeds(self) -> bool:
        """True where training reached more than the measured peak."""
        return (self.share or 0.0) > 1

    @property
    def sheet_share(self) -> float | None:
        """Share of the data sheet's dense peak."""
        return _ratio(self.flops_per_second, self.sheet_flops_per_second)

    @property
    def representative(self) -> bool | None:
        """True where a GPU computes fast enough for scaling to be that of a well-tuned run; None: not a GPU, or not
        known."""
        if str(self.row["device"]) != "cuda" or self.share is None:
            return None
        return self.share >= REPRESENTATIVE

    @property
    def ridge(self) -> float | None:
        """FLOP/byte below which memory is the lower roof."""
        return _ratio(self.peak_flops_per_second, self.peak_bytes_per_second)

    @property
    def under_memory(self) -> bool:
        """True where memory is the lower roof. Where more was reached it is none: caches kept what is taken to have
        moved."""
        if self.intensity is None or self.peak_bytes_per_second is None or self.ridge is None:
            return False
        reached = self.flops_per_second or 0.0
        return self.intensity < self.ridge and reached <= self.intensity * self.peak_bytes_per_second

    @property
    def roof(self) -> float | None:
        """FLOP/s that this intensity allows."""
        if self.intensity is None or self.peak_bytes_per_second is None or self.peak_flops_per_second is None:
            return None
        return self.intensity * self.peak_bytes_per_second if self.under_memory else self.peak_flops_per_second

    @property
    def roof_share(self) -> float | None:
        """Share of the roof; of the measured peak where the bytes that a step moves are not known."""
        return self.share if self.roof is None else _ratio(self.flops_per_second, self.roof)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


@once
def utilisations(results: Results) -> list[Utilisation]:
    """The utilisation of every measured configuration, in the order of results.configurations."""
    ranks = results.details.ranks.groupby("configuration")
    known_of = ranks[["forward_flops_per_sample", "step_flops_per_sample", "tf32", "moved_bytes", *PEAKS]].max()
    known_of = known_of.where(known_of > 0).assign(device_name=ranks.device_name.first())
    measured = results.configurations[results.configurations.n > 0].join(known_of, on="configuration")
    kind = [measured[key].map(lambda value: str(value) if known(value) else "") for key in DEVICE]
    roofs = measured.groupby(kind)[list(PEAKS)].transform("max") if len(measured) else measured[list(PEAKS)]
    rows = as_rows(measured.assign(**{name: roofs[name] for name in PEAKS}))
    return [_utilisation(row) for row in cast("list[Row]", rows)]


def _utilisation(row: Row) -> Utilisation:
    forward, peak, bandwidth, counted = values_of(row, ("forward_flops_per_sample", *PEAKS, "moved_bytes"))
    (whole,) = values_of(row, ("step_flops_per_sample",))
    each = PASSES * forward if whole is None and forward is not None else whole
    per_worker = {"second": float(row["samples_per_second"]), "step": samples_of_step(row)}
    flops = {of: None if each is None else each * count / int(row["workers"]) for of, count in per_worker.items()}
    why = [text for value, text in ((each, NOT_COUNTED), (peak, NOT_MEASURED)) if value is None]
    moved = _bytes(row) if counted is None else counted
    precision = "tf32" if row["precision"] == "fp32" and known(row["tf32"]) else str(row["precision"])
    sheet = data_sheet_flops(str(row["device_name"]), precision) if row["device"] == "cuda" else None
    return Utilisation(
        row,
        flops["second"],
        peak,
        bandwidth,
        _ratio(flops["step"], moved),
        " and ".join(why),
        moved,
        counted is not None,
        sheet,
        whole is not None,
    )


def _bytes(row: Row) -> float | None:
    """Bytes that a worker moves in a step, at least.

    None where memory was not counted by kind, or where more passes than was counted: activations of one of several
    micro-batches, a shard of the weights.
    """
    uses = COMPILED_USES if known(row["compile"]) and row["compile"] else USES
    kinds = values_of(row, uses)
    gathers = stage_of(row) == 3 and int(row["workers"]) > 1  # what passes through memory is more than its shard
    several = (known(row["accumulation"]) and int(row["accumulation"]) > 1) or of_peers(str(row["framework"]))
    if is_cut(row) or gathers or several or not all(known(value) for value in kinds):
        return None
    moved = float(np.dot([float(value) for value in kinds], list(uses.values())))
    return moved if moved > 0 else None


def numbers(results: Results) -> pd.DataFrame:
    """A row for one worker of each configuration: FLOP/s, its device's peaks, bytes of a step, intensity, roof."""
    rows = [
        {
            **{key: used.row[key] for key in notes.ABOUT},
            "model_flops_per_second": used.flops_per_second,
            "peak_flops_per_second": used.peak_flops_per_second,
            "utilisation": used.share,
            "data_sheet_flops_per_second": used.sheet_flops_per_second,
            "data_sheet_share": used.sheet_share,
            "representative": used.representative,
            "peak_bytes_per_second": used.peak_bytes_per_second,
            "moved_bytes": used.moved_bytes,
            "moved_bytes_are": "" if used.moved_bytes is None else "counted" if used.counted else "estimated",
            "intensity": used.intensity,
            "ridge": used.ridge,
            "roof_flops_per_second": used.roof,
            "roof_share": used.roof_share,
            "why": used.why,
        }
        for used in utilisations(results)
    ]
    return pd.DataFrame(rows, dtype=object)


def table(results: Results) -> Listing | None:
    """Model FLOP/s of each configuration; None where no FLOPs were counted."""
    every = utilisations(results)
    counted = [used for used in every if used.flops_per_second is not None]
    if not counted:
        return None
    on_gpus = any(str(used.row["device"]) == "cuda" for used in counted)
    rows = [_cells(used, results, on_gpus) for used in counted]
    too_fast, missing = sum(used.exceeds for used in counted), len(every) - len(counted)
    whole = sum(used.by_whole_step for used in counted)
    lines = [
        "GFLOP/s of one worker: 3 x the forward FLOPs of a sample (matrix products, convolutions, attention; two a "
        "multiply-add) x its samples a second. Peak: the fastest matrix product in this precision that any run of the "
        "study measured on such a device, right after its training.",
        "Intensity: model FLOPs of a step over the bytes that its operators read and wrote, as if no cache kept any; "
        "with ~: over an estimate of them. Roof: the lower of peak and intensity x the measured bandwidth of memory; "
        "the peak alone where more was reached, since caches then kept what was counted.",
        *notes.holding(
            (whole, f"FLOPs of {whole} commands are those counted in a whole step, with what is computed again."),
            (
                on_gpus,
                "Data sheet: share of the dense peak by the device's maker (analysis/published/data_sheets.csv), never "
                f"of the sparse one. Representative: at least {percent(REPRESENTATIVE)} of the measured peak; below, "
                "computing takes longer than in a tuned run, so that communication looks cheaper than it is.",
            ),
            (
                too_fast,
                f"**{too_fast} above their peak**: the microbenchmark did not reach what training does, or the model "
                "needs fewer FLOPs than were counted. Their utilisation is not meaningful.",
            ),
            (missing, f"{missing} configurations are left out: {NOT_COUNTED}."),
        ),
    ]
    return notes.study_listing(results, "Model FLOP/s and utilisation", rows, lines, signs=True)


def _cells(used: Utilisation, results: Results, on_gpus: bool) -> dict[str, str]:
    name, batch = notes.series_and_batch(used.row, results)
    peak, roof, about = used.peak_flops_per_second, used.roof, "" if used.counted else "~"
    sheet = "not known" if used.sheet_share is None else percent(used.sheet_share)
    said = {None: "not known", True: "yes", False: "no"}[used.representative]
    return {
        "configuration": name,
        "batch": batch,
        "GFLOP/s": giga(used.flops_per_second or 0.0),
        "peak": "not measured" if peak is None else giga(peak),
        "utilisation": "above its peak" if used.exceeds else percent(used.share),
        **({"data sheet": sheet, "representative": said} if on_gpus else {}),
        "FLOP/byte": "not counted" if used.intensity is None else about + number(used.intensity),
        "roof": "" if roof is None else giga(roof) + " (memory)" * used.under_memory,
    }


def sentence(results: Results, configuration: str) -> str:
    """`21 % of its GPU's measured peak, 16 % of its data sheet's`; empty of anything but a GPU whose peak is known."""
    used = next((one for one in utilisations(results) if one.row["configuration"] == configuration), None)
    if used is None or used.representative is None:
        return ""
    sheet = f", {percent(used.sheet_share)} of its data sheet's" if used.sheet_share is not None else ""
    slow = "" if used.representative else ": slow compute, whose scaling would look better than that of a tuned run"
    return f"{percent(used.share)} of its GPU's measured peak{sheet}{slow}"


# Does scaling say anything where one worker computes far below its GPU's peak? Communication hides behind slow compute.

SHARED = tuple(key for key in KEYS if key not in (*SPREADING_KEYS, "cores_per_worker", "machine", "oversubscribe"))


def compute_is_slow(evidence: Evidence) -> Iterator[Finding]:
    """Rows of several GPUs whose one worker, measured in the same study, is below REPRESENTATIVE."""
    alone = [used for used in utilisations(evidence.results) if int(used.row["workers"]) == 1]
    by_name = {str(used.row["configuration"]): used for used in alone}
    alike = {values_of(used.row, SHARED): used for used in alone}
    fit = [row for row in evidence.on_gpus if not row["oversubscribed"]]
    pairs = [(row, by_name.get(str(row["baseline"])) or alike.get(values_of(row, SHARED))) for row in fit]
    slow = [(row, one) for row, one in pairs if one is not None and one.representative is False]
    for ours in grouped(slow, lambda pair: str(pair[1].row["configuration"])).values():
        one, rows = ours[0][1], [row for row, _ in ours]
        text = (
            f"One worker of {findings.name_of(one.row)} computes at {percent(one.share)} of its GPU's measured peak, "
            f"below {percent(REPRESENTATIVE)}. Communication hides behind slow compute, so these scale better than a "
            f"tuned run would: {findings.named(rows, evidence.on_gpus)}. {switches(one.row, evidence.results)}"
        )
        yield findings.about("slow-compute", "Scaling of slow compute", text, DOUBT, rows)


def switches(row: Row, results: Results) -> str:
    """Says which settings that make kernels faster this configuration lacks: `Switch on: precision: bf16.`"""
    images = str(row["model"]) in MODELS and set(IMAGE_KEYS) <= set(MODELS[str(row["model"])].keys)
    family = family_of(results).get(str(row["configuration"]))
    out = family.smallest_out if family else None
    found = [
        "`precision: bf16`" if row["precision"] in ("fp32", "fp64") else "",
        "`compile: true`" if known(row["compile"]) and not row["compile"] else "",
        "`memory_format: channels_last`" if images and row["memory_format"] == "contiguous" else "",
        "a larger batch" if out is None or out > 2 * int(row["batch_per_worker"]) else "",
    ]
    named = [text for text in found if text]
    return f"Switch on: {'; '.join(named)}." if named else "No setting of the study file is left to switch on."


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
    hollow = any(look[str(used.row["series"])].hollow for used in every)
    footnote = notes.under_figure(
        results,
        "Lines: the fastest matrix product and the fastest copy that any run of the study measured on such a device. "
        "Model FLOPs: 3 x forward. Intensity: by the bytes that operators read and wrote, or an estimate of them. "
        "A point for each configuration.",
        (any(used.by_whole_step for used in every), "Of commands: FLOPs that were counted in a whole step."),
        (any(used.exceeds for used in every), "Points above the roof: training exceeded the microbenchmark."),
        (hollow, "Hollow and grey: not comparable."),
    )
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
        footnote,
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
    for each, decades, text in ((axis.xaxis, high / low, three_digits), (axis.yaxis, top / bottom, flop_rate)):
        style.ticked(each, LogLocator(subs=(1, 2, 5) if decades < FEW_DECADES else (1,), numticks=7), text)
    style.end_labels(axis, [ends[name] for name in _labels(panel)], layout.panel_height)


VIEW = View(
    "How much of the device is used?",
    (
        StudyTable(
            "utilisation",
            table,
            numbers,
            "Model FLOP/s and utilisation",
            "why",
            Gap("Model FLOP/s and utilisation: not known", "no record counts its FLOPs"),
        ),
    ),
    (Drawing("roofline", draw, section="why", beside="utilisation"),),
    (compute_is_slow,),
)
