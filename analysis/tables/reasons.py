"""Why, as tables: where lost efficiency went, bottlenecks, remedies, utilisation, memory against batch size."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.frames import comparability
from analysis.frames.baseline import known
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import giga, number, percent
from analysis.why.attribution import DISTURBED, NAMES, PARTS, Part, attributions
from analysis.why.bottleneck import bottlenecks
from analysis.why.frontier import families
from analysis.why.remedies import HALVE, Remedy, remedies
from analysis.why.steps import steps
from analysis.why.utilisation import NOT_COUNTED, utilisations

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
        "attribution": attribution(results), "bottleneck": bottleneck(results), "remedies": remedy(results),
        "utilisation": utilisation(results), "frontier": frontier(results),
    }  # fmt: skip
    return {name: listing for name, listing in makers.items() if listing is not None}


def listing(results: Results) -> list[Listing]:
    """All of them, in the order in which they are read."""
    return list(named(results).values())


def attribution(results: Results) -> Listing | None:
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


def bottleneck(results: Results) -> Listing | None:
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


def remedy(results: Results) -> Listing | None:
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


def utilisation(results: Results) -> Listing | None:
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


def frontier(results: Results) -> Listing | None:
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
    sign = comparability.sign(row) if known(row["not_comparable"]) else ""
    return f"{model}{row['series']} {sign}".rstrip(), str(row["batch"])


def _listing(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], lines: list[str], results: Results
) -> Listing:
    data = results.configurations
    return Listing(
        f"{title} ({results.heading})", header, tuple(rows),
        (*comparability.sentences(data), *notes.how_it_differs(data), *lines, f"{notes.source(results)}."),
    )  # fmt: skip
