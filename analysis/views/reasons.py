"""Why, as tables: lost efficiency, bottlenecks, remedies, utilisation, memory against batch size; and a waterfall."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.frames import configurations
from analysis.frames.configurations import known, values_of
from analysis.frames.results import Results, once
from analysis.frames.row_types import ConfigurationRow
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.text import file_name, giga, number, percent
from analysis.views.attribution import DISTURBED, NAMES, PARTS, Attribution, Part, attributions
from analysis.views.bottleneck import HALVE, SHARES, Remedy, bottlenecks, remedies
from analysis.views.memory import families
from analysis.views.roofline import NOT_COUNTED, utilisations
from analysis.views.steps import steps

# Why, as frames: a row a configuration, numbers as they are. The columns behind each table of tables/reasons.py.

FRAME_NAMES = ("configuration", "model", "series", "batch", "workers")
Row = ConfigurationRow


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """All of them, by the names of listing.named()."""
    makers = {"attribution": attribution, "bottleneck": bottleneck, "remedies": remedy, "utilisation": utilisation}
    return {name: table(results) for name, table in {**makers, "frontier": frontier}.items()}


def attribution(results: Results) -> pd.DataFrame:
    """`<part>_lost` of the ideal with its bounds, `efficiency` and `lost`; empty where a part cannot be."""
    kept = ("baseline", "efficiency", "lost")
    columns = [*kept, *(f"{part}_{what}" for part in PARTS for what in ("lost", "low", "high")), "disturbance", "why"]
    rows = []
    for attributed in attributions(results):
        row = _named(attributed.row) | {
            "baseline": attributed.baseline,
            "efficiency": attributed.efficiency,
            "lost": attributed.lost,
        }
        for part in attributed.parts:
            row |= {f"{part.name}_lost": part.lost, f"{part.name}_low": part.low, f"{part.name}_high": part.high}
        rows.append(row | {"disturbance": attributed.disturbance, "why": attributed.why})
    return _frame(rows, columns)


def bottleneck(results: Results) -> pd.DataFrame:
    """The kind, its evidence, and what share of a step goes where."""
    shares = {kind: f"{kind.replace(' ', '_')}_share" for kind in SHARES}
    rows = [
        _named(limited.row)
        | {"status": limited.row["status"], "bottleneck": limited.kind, "evidence": limited.evidence}
        | {shares[kind]: share for kind, share in limited.shares.items()}
        for limited in bottlenecks(results)
    ]  # fmt: skip
    return _frame(rows, ["status", "bottleneck", "evidence", *shares.values()])


def remedy(results: Results) -> pd.DataFrame:
    """A row for each thing that would help a configuration, the most first: `gain` of throughput at most."""
    rows = [
        _named(remedy.row)
        | {"remedy": remedy.name, "saved": remedy.saved, "gain_at_most": remedy.gain, "but": remedy.but}
        for listed in remedies(results).values() for remedy in listed
    ]  # fmt: skip
    return _frame(rows, ["remedy", "saved", "gain_at_most", "but"])


def utilisation(results: Results) -> pd.DataFrame:
    """Of one worker: FLOP/s, the device's measured peaks, intensity, roof."""
    columns = ["model_flops_per_second", "peak_flops_per_second", "utilisation", "peak_bytes_per_second", "intensity",
               "ridge", "roof_flops_per_second", "why"]  # fmt: skip
    rows = [
        _named(used.row) | dict(zip(columns, (
            used.flops_per_second, used.peak_flops_per_second, used.share, used.peak_bytes_per_second, used.intensity,
            used.ridge, used.roof, used.why,
        ), strict=True))
        for used in utilisations(results)
    ]  # fmt: skip
    return _frame(rows, columns)


def frontier(results: Results) -> pd.DataFrame:
    """A row for each family of batch sizes: what fits, what did not, and the line through the peaks."""
    columns = ["measured_batches", "largest_batch", "smallest_out_of_memory", "out_of_memory", "implied",
               "fixed_bytes", "bytes_per_sample", "peak_memory_bytes", "bytes_at_out_of_memory", "growth",
               "growth_low", "growth_high"]  # fmt: skip
    rows = []
    for family in families(results):
        fixed, slope = family.line or (None, None)
        grown = family.growth[2] if family.growth else None
        rows.append(_named(family.about) | dict(zip(columns, (
            _list(family.batches), family.largest, family.smallest_out, _list(family.out), _list(family.implied),
            fixed, slope, max(family.peaks, default=None),
            None if family.smallest_out is None else family.bytes_at(family.smallest_out),
            *((grown.mean, grown.low, grown.high) if grown else (None,) * 3),
        ), strict=True)))  # fmt: skip
    return _frame(rows, columns).drop(columns="batch")


def _named(row: Row) -> dict[str, Any]:
    return dict(zip(FRAME_NAMES, values_of(row, FRAME_NAMES), strict=True))


def _frame(rows: Sequence[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*FRAME_NAMES, *columns], dtype=object)


def _list(numbers: Iterable[int]) -> str:
    return ";".join(map(str, numbers))


# Why, as tables: where lost efficiency went, bottlenecks, remedies, utilisation, memory against batch size.

MOST_REMEDIES = 3  # of a configuration, in a table
MEANINGS = {
    "input": "waiting for batches",
    "fixed": "what the baseline's own fixed cost of a step (launching kernels) adds when fewer samples share it",
    "kernels": "forward and backward take longer for a sample, as forward shows, which communicates nothing",
    "optimizer": "updating the weights",
    "exposed": "what a step still waits for once backward is over",
    "matchmaking": "peers that look for each other when all batches of a round are computed",
    "averaging": "peers that exchange gradients and weights, likewise",
    "within": "what backward (and an update in which it communicates) grew beyond what forward did: collectives that "
              "run beside computing, or are waited for inside it",
    "stragglers": "waiting for ranks that were behind over the whole window; at least this much",
    "bubble": "stages with nothing to do, wherever they stood meanwhile",
    "mixed": "forward and backward of a framework that communicates in both; nothing measured tells the two apart",
    "unattributed": "what no phase covers",
}  # fmt: skip


def named(results: Results) -> dict[str, Listing]:
    """File name -> table; those that this study has nothing to say of are left out."""
    makers = {
        "attribution": reasons_attribution(results),
        "bottleneck": reasons_bottleneck(results),
        "remedies": reasons_remedy(results),
        "utilisation": reasons_utilisation(results),
        "frontier": reasons_frontier(results),
    }
    return {name: listing for name, listing in makers.items() if listing is not None}


def listing(results: Results) -> list[Listing]:
    """All of them, in the order in which they are read."""
    return list(named(results).values())


def reasons_attribution(results: Results) -> Listing | None:
    """A row for each configuration with an efficiency, a column for each part that any of them has."""
    every = attributions(results)
    if not every:
        return None
    present = [part for part in PARTS if any(part == share.name for attributed in every for share in attributed.parts)]
    rows = []
    for attributed in every:
        parts = {part.name: _part(part) for part in attributed.parts}
        cells = [parts.get(part, "") for part in present]
        rows.append(
            (
                *_who(attributed.row, results),
                f"{100 * attributed.efficiency:.1f} %",
                f"{100 * attributed.lost:.1f} %",
                *cells,
            )
        )
    meanings = "; ".join(f"{name_of(part, results)}: {MEANINGS[part]}" for part in present)
    lines = [
        "Percent of linear speed-up over the baseline. The parts add up to the loss; a negative part is a gain. "
        "±: half of the 95 % interval between repeats.",
        f"{meanings[0].upper()}{meanings[1:]}.",
        "Phases are shares of instrumented steps, taken as shares of the timed ones.",
    ]
    disturbed = [
        attributed
        for attributed in every
        if attributed.disturbance is not None and abs(attributed.disturbance) > DISTURBED
    ]
    if disturbed:
        worst = max(disturbed, key=lambda attributed: abs(attributed.disturbance or 0.0))
        lines.append(
            f"Of {len(disturbed)} of {len(every)} rows instrumented steps differed from timed ones by more than "
            f"{100 * DISTURBED:.0f} %, at most {100 * (worst.disturbance or 0.0):+.0f} %: their parts are less certain."
        )
    lines += untimed(results)
    for why in dict.fromkeys(attributed.why for attributed in every if attributed.why):
        lines.append(f"All not attributed, because {why}: {sum(attributed.why == why for attributed in every)} rows.")
    header = ("configuration", "batch", "efficiency", "lost", *(name_of(part, results) for part in present))
    return _listing("Lost efficiency by cause", header, rows, lines, results)


def untimed(results: Results) -> list[str]:
    """That some pipelines' bubbles are less sure, if so."""
    count = sum(not step.timed and step.idle is not None for step in steps(results).values())
    if not count:
        return []
    return [
        f"Without a timeline: {count} pipeline{'s' * (count != 1)}. The bubble there is what no phase covers, and what "
        "a rank's update took longer than the shortest of its pipeline, which may be waiting or a larger update."
    ]


def name_of(part: str, results: Results) -> str:
    """A part as it is called: under strong scaling kernels are not slower but smaller."""
    return "smaller kernels" if part == "kernels" and results.study.scaling == "strong" else NAMES[part]


def reasons_bottleneck(results: Results) -> Listing | None:
    """What takes most of each configuration's step."""
    every = bottlenecks(results)
    if not any(limited.shares for limited in every):
        return None
    rows = [(*_who(limited.row, results), limited.kind, limited.evidence) for limited in every]
    lines = [
        "The bottleneck is whichever takes the largest share of a step. Memory: updating the weights, computing whose "
        "lower roof is memory, or out of memory. Launch: what of forward and backward no batch size changes, by the "
        "line through the batch sizes that were run; on a CPU that is mostly reading the weights.",
        *untimed(results),
    ]
    return _listing("Bottlenecks", ("configuration", "batch", "bottleneck", "evidence"), rows, lines, results)


def reasons_remedy(results: Results) -> Listing | None:
    """What would help each configuration most."""
    listed = [every for every in remedies(results).values() if every]
    if not listed:
        return None
    rows = []
    for every in listed:
        shown = [suggested.sentence for suggested in every[:MOST_REMEDIES]]
        halved = next((_bound(suggested) for suggested in every if suggested.way == HALVE), "")
        rows.append((*_who(every[0].row, results), *shown, *[""] * (MOST_REMEDIES - len(shown)), halved))
    lines = [
        "Upper bounds, each by itself (Amdahl): 1 / (1 - the share of a step that it saves) - 1. Assumed: the rest of "
        "the step stays as it is. In brackets: the same change as measured by this study.",
    ]
    header = ("configuration", "batch", "most", "second", "third", "half the bytes of the allreduce")
    return _listing("What would help most", header, rows, lines, results)


def reasons_utilisation(results: Results) -> Listing | None:
    """Model FLOP/s of each configuration; None where no FLOPs were counted."""
    every = utilisations(results)
    counted = [used for used in every if used.flops_per_second is not None]
    if not counted:
        return None
    rows = []
    for used in counted:
        peak = "not measured" if used.peak_flops_per_second is None else giga(used.peak_flops_per_second)
        share = "" if used.share is None else percent(used.share)
        intensity = "not counted" if used.intensity is None else number(used.intensity)
        roof = "" if used.roof is None else giga(used.roof) + (" (memory)" if used.under_memory else "")
        rows.append((*_who(used.row, results), giga(used.flops_per_second or 0.0), peak, share, intensity, roof))
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
    header = ("configuration", "batch", "GFLOP/s", "peak", "utilisation", "FLOP/byte", "roof")
    return _listing("Model FLOP/s and utilisation", header, rows, lines, results)


def reasons_frontier(results: Results) -> Listing | None:
    """Memory by batch of each family that has several sizes, or of which something was out of memory."""
    every_family = [family for model in results.models for family in families(results, model)]
    every = [family for family in every_family if len(family.batches) > 1 or family.out]
    if not every:
        return None
    rows = []
    for family in every:
        fixed, slope = (number(part / 1e6) for part in family.line) if family.line else ("", "")
        out = "none" if family.smallest_out is None else str(family.smallest_out)
        between = ""
        if family.smallest_out is not None and family.largest and family.line:
            low, high = family.bytes_at(family.largest), family.bytes_at(family.smallest_out)
            between = f"{number((low or 0) / 1e6)} to {number((high or 0) / 1e6)}"
        grown = ""
        if family.growth:
            before, after, ratio = family.growth
            bounds = (
                "" if ratio.low is None else f" [{100 * (ratio.low - 1):+.0f}, {100 * ((ratio.high or 0) - 1):+.0f}]"
            )
            grown = f"{100 * (ratio.mean - 1):+.0f} %{bounds} from {before} to {after}"
        name = (f"{family.about['model']}, " if _several(results) else "") + family.series
        searched = " (searched)" if family.searched and family.searched == family.largest else ""
        rows.append((name, f"{family.largest or 'none'}{searched}", out, fixed, slope, between, grown))
    lines = [
        "Peak bytes of one worker = fixed + per sample x batch, by the line through the sizes that were run. What a "
        "worker's memory can hold lies between the line at the largest batch that fitted and at the smallest that did "
        "not. Throughput: what the last step up in batch still brought.",
    ]
    header = ("configuration", "largest batch that fits", "smallest out of memory", "fixed MB", "MB a sample",
              "limit, MB", "throughput")  # fmt: skip
    return _listing("Memory against batch", header, rows, lines, results)


def _bound(suggested: Remedy) -> str:
    """`at most +4.0 % (fp16 was measured: -10 % [-14, -7])`."""
    return f"at most +{percent(suggested.gain)}" + (f" ({suggested.but})" if suggested.but else "")


def _part(part: Part) -> str:
    half = None if part.low is None or part.high is None else (part.high - part.low) / 2
    return f"{100 * part.lost:.1f}".replace("-0.0", "0.0") + ("" if half is None else f" ± {100 * half:.1f}")


@once
def _several(results: Results) -> bool:
    """Whether rows have to say of which model they are."""
    return len(results.models) > 1


def _who(row: ConfigurationRow, results: Results) -> tuple[str, str]:
    """Series, with the model where there are several, and batch."""
    model = f"{row['model']}, " if _several(results) else ""
    sign = configurations.sign(row) if known(row["not_comparable"]) else ""
    return f"{model}{row['series']} {sign}".rstrip(), str(row["batch"])


def _listing(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], lines: list[str], results: Results
) -> Listing:
    data = results.configurations
    return Listing(
        f"{title} ({results.heading})", header, tuple(rows),
        (*configurations.sentences(data), *notes.how_it_differs(data), *lines, f"{notes.source(results)}."),
    )  # fmt: skip


# Where each lost percent of efficiency went: a figure a model, a panel for each configuration at one batch size.
#
#     ideal                      |100
#     exposed communication      ███      9.3 ± 4.8
#     stragglers               ██         1.7 ± 6.9
#     slower kernels           ▒         -0.4 ± 5.1      a gain, to the right
#     measured                 |69.9
#
# Every bar begins where the one above it ended, so the last one ends at the efficiency.

ROW = 0.2  # inches
WIDTH = 2.3
MOST_PANELS, MOST_COLUMNS = 12, 2
MOST_IN_ALL = 48  # of all models together, but a row for each
LEAST_SPAN = 0.12  # of the x axis, in shares of the ideal: a loss of 1 % shall look small
LOST, GAINED = style.style_colours(3)[1:]
IDEAL, MEASURED = "ideal", "measured"


def draw(results: Results) -> dict[str, Figure]:
    """`waterfall-<model>`, for each model of which phases say anything."""
    every = [attribution for attribution in attributions(results) if not attribution.why]
    figures = {}
    for model in results.models:
        ours = [attribution for attribution in every if attribution.row["model"] == model]
        if ours:
            figures[f"waterfall-{file_name(model)}"] = _figure(model, ours, results)
    return figures


def _figure(model: str, every: Sequence[Attribution], results: Results) -> Figure:
    batch, ours = _one_batch(every)
    most = min(MOST_PANELS, max(4, MOST_IN_ALL // len(results.models)))
    shown = sorted(ours, key=lambda attributed: int(attributed.row["series_order"]))[:most]
    columns = min(len(shown), MOST_COLUMNS)
    parts = [part for part in PARTS if any(part == share.name for attribution in shown for share in attribution.parts)]
    names = [IDEAL, *(name_of(part, results) for part in parts), MEASURED]
    texts = [_texts(attributed, parts) for attributed in shown]
    layout = style.Layout(
        panel_width=WIDTH,
        panel_height=len(names) * ROW + 0.05,
        left=0.2 + max(style.inches(name, style.SMALL) for name in names),
        gutters=(gutter := style.gutter(text for attribution in texts for text in attribution),),
        above=0.1
        + max(map(len, titles := [_title(attributed, WIDTH + gutter) for attributed in shown])) * style.SIZE * 1.3 / 72,
        below=0.46,
    )
    title = f"Lost efficiency by cause: {model}, batch {batch} ({results.study.name})"
    sheet = style.sheet(-(-len(shown) // columns), columns, layout, title, _footnote(shown, ours, every, results))
    low, high = _limits(shown, parts)
    for index, (attributed, labels) in enumerate(zip(shown, texts, strict=True)):
        axis, _ = sheet.at(index)
        axis.set_title("\n".join(titles[index]), loc="left", weight="bold", linespacing=1.2)
        axis.set_xlim(100 * low, 100 * high)
        _panel(axis, attributed, parts, names, labels)
    for index in range(len(shown), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _title(attribution: Attribution, width: float) -> list[str]:
    """The series, in lines of the room above a panel and its numbers."""
    return style.wrapped(str(attribution.row["series"]), width - 0.1, style.SIZE, bold=True)


def _one_batch(every: Sequence[Attribution]) -> tuple[int, list[Attribution]]:
    """The batch size that most configurations with several workers have, the largest of several."""
    several = [attribution for attribution in every if int(attribution.row["workers"]) > 1] or list(every)
    counts = [int(attribution.row["batch"]) for attribution in several]
    batch = max(counts, key=lambda size: (counts.count(size), size))
    return batch, [attribution for attribution in several if int(attribution.row["batch"]) == batch]


def _panel(
    axis: Axes, attribution: Attribution, parts: Sequence[str], names: Sequence[str], labels: Sequence[str]
) -> None:
    known = {part.name: part for part in attribution.parts}
    at = 100.0
    axis.plot([at, at], [-0.35, 0.5], color=style.DARK, linewidth=1.4, zorder=4)
    for index, name in enumerate(parts, start=1):
        part = known.get(name)
        width = 100 * part.lost if part else 0.0
        axis.barh(index, -width, left=at, height=0.62, color=LOST if width >= 0 else GAINED, linewidth=0, zorder=3)
        at -= width
        if part is not None and part.low is not None and part.high is not None:
            half = 50 * (part.high - part.low)
            axis.plot([at - half, at + half], [index, index], color=style.DARK, linewidth=0.9, zorder=4)
        axis.plot([at, at], [index - 0.31, index + 1.31], color=style.GREY, linewidth=0.6, zorder=2)
    last = len(names) - 1
    axis.plot([at, at], [last - 0.35, last + 0.35], color=style.DARK, linewidth=1.4, zorder=4)
    for index, text in enumerate(labels):
        axis.annotate(
            text, xy=(1.05, index), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL,
            annotation_clip=False,
        )  # fmt: skip
    axis.set_ylim(last + 0.6, -0.6)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g} %"))
    axis.set_xlabel("of the ideal")
    axis.grid(False, axis="y")


def _texts(attribution: Attribution, parts: Sequence[str]) -> list[str]:
    """What stands beside each row: the numbers of the table."""
    known = {part.name: part for part in attribution.parts}
    labels = ["100 %"]
    for name in parts:
        part = known.get(name)
        if part is None:
            labels.append("")
            continue
        half = None if part.low is None or part.high is None else (part.high - part.low) / 2
        value = f"{-100 * part.lost:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0")
        labels.append(f"{value}{'' if half is None else f' ± {100 * half:.1f}'}")
    return [*labels, f"{100 * attribution.efficiency:.1f} %"]


def _limits(shown: Sequence[Attribution], parts: Sequence[str]) -> tuple[float, float]:
    """One scale for all panels: everything that a bar reaches, intervals only as far as they are not absurd."""
    low, high = 1.0, 1.0
    for attribution in shown:
        at = 1.0
        for name in parts:
            at -= attribution.part(name)
            low, high = min(low, at), max(high, at)
    span = max(high - low, LEAST_SPAN)
    return max(0.0, high - 1.12 * span), high + 0.08 * span


def _footnote(
    shown: Sequence[Attribution], ours: Sequence[Attribution], every: Sequence[Attribution], results: Results
) -> list[str]:
    what = (
        "From linear speed-up (100 %) down to the measured efficiency; bars to the left are losses, to the right "
        "gains; they add up."
    )
    if any(part.low is not None for attribution in shown for part in attribution.parts):
        what += " Lines, ±: 95 % interval between repeats."
    if len(ours) > len(shown):
        what += f" The first {len(shown)} of {len(ours)} configurations at this batch size."
    if len(every) > len(ours):
        what += " Other batch sizes: tables/attribution."
    return [what, f"{notes.source(results)}."]
