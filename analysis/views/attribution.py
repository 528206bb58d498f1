"""Where each lost percent of efficiency went: parts that add up to the whole, what is not attributed among them.

    lost = 1 - efficiency = (ours - baseline) / ours       in worker-seconds of a sample (steps.py)
         = sum over phases of (ours - baseline) / ours     since phases add up to the step, on both sides

So each phase's growth is a part as it stands, as is that of a pipeline's idle time, which lies in no phase.
Two more things are known:

    collectives that run under computing    what backward grew beyond what forward did, which only computes
    the slowest rank                        of what the others wait, as much as it is behind in what waits for nobody

Both are taken out of the phase in which they were measured, so the sum stays. A part below zero is a gain. Where
neither forward nor a neighbour's says what computing became, its growth is `mixed` and no more is claimed.

Waiting for whichever rank happens to be slow in one step, and for the same rank in the next, look alike in a mean:
`stragglers` are ranks that were behind over the whole window, and so the least that waiting for ranks can be.

Intervals (95 %) are by jackknife over the repeats of both sides, with Welch's degrees of freedom: the mean of a linear
quantity gets exactly its Student interval (Efron and Stein, Ann. Stat. 9, 1981).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from analysis.frames.configurations import known, usual_batch, values_of
from analysis.frames.measured import of_peers
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.text import percent
from analysis.views import pipelines, steps
from analysis.views.steps import (
    AVERAGING,
    COMMUNICATION,
    COMPUTING,
    DATA,
    MATCHMAKING,
    OPTIMIZER,
    UNATTRIBUTED,
    Fixed,
    MeanStep,
    MeasuredSteps,
    Vector,
)
from analysis.views.view import Drawing, Gap, StudyTable, View
from scaling_study.stats.intervals import FEWEST_REPEATS, welch_satterthwaite

NAMES = {
    "input": "input",
    "fixed": "launch and other fixed cost",
    "kernels": "slower kernels",
    "optimizer": "optimizer",
    "exposed": "exposed communication",
    "matchmaking": "matchmaking of peers",
    "averaging": "averaging of peers",
    "within": "overlapped communication",
    "stragglers": "stragglers",
    "bubble": "pipeline bubble",
    "mixed": "kernels or communication",
    "unattributed": "not attributed",
}
PARTS = tuple(NAMES)
INPUT, FIXED, KERNELS, UPDATE, EXPOSED, FOUND, AVERAGED, WITHIN, STRAGGLERS, BUBBLE, MIXED, UNKNOWN = range(len(PARTS))
AS_GROWN = {INPUT: DATA, EXPOSED: COMMUNICATION, FOUND: MATCHMAKING, AVERAGED: AVERAGING, UNKNOWN: UNATTRIBUTED}
WAITING = (EXPOSED, WITHIN, MIXED)  # where waiting for the slowest rank was measured
DISTURBED = 0.1  # of a step: instrumented ones that much longer or shorter are said to be
COMMUNICATED = "communication"
CAUSES: dict[str, tuple[int, ...]] = {COMMUNICATED: (WITHIN, EXPOSED, FOUND, AVERAGED)}  # -> its parts
CAUSES |= {name: (at,) for at, name in enumerate(PARTS) if at not in (*CAUSES[COMMUNICATED], UNKNOWN)}
SUMS = np.array([[float(at in of) for of in CAUSES.values()] for at in range(len(PARTS))])  # (PARTS, CAUSES)
WORTH_A_WORD, MOST_CAUSES = 0.1, 3  # of a loss: causes that in_words() names
LEAST_LOSS, LEAST_PART = 0.05, 0.005  # of linear speed-up: a loss, and a part of communication, that it names


@dataclass(frozen=True)
class Part:
    """A loss with one cause: 0.05 is 5 % of the ideal; negative: a gain. Bounds are None where none are claimed."""

    name: str  # of PARTS
    lost: float
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """Half of the 95 % interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Attribution:
    """One configuration against its baseline. `efficiency` is that of a worker against one of the baseline's, as in the
    tables. Without phases all is `unattributed`, and `why` says so."""

    row: ConfigurationRow
    baseline: str
    efficiency: float
    parts: tuple[Part, ...]  # those that can be, in the order of PARTS; they add up to 1 - efficiency
    disturbance: float | None  # of the instrumented steps, the larger of the two sides
    why: str = ""
    causes: tuple[Part, ...] = ()  # of CAUSES, those that lost something, the largest first
    clear: bool = False  # the first of them is larger than the second (95 %)

    @property
    def lost(self) -> float:
        return 1.0 - self.efficiency

    def part(self, name: str) -> float:
        """The loss with this cause; 0 where there can be none."""
        return sum(part.lost for part in self.parts if part.name == name)


@dataclass(frozen=True)
class LossEvidence:
    """Facts beside the two means: how much slower forward became elsewhere, and what is fixed of a step."""

    row: ConfigurationRow
    slower: float | None  # of a neighbour; None: look at our own forward
    fixed: float  # seconds of what the baseline computes at a time that no batch size changes; 0 where none is known
    batches: tuple[float, float]  # samples that one worker computes at a time, ours and the baseline's
    base_busy: frozenset[int] = frozenset()  # phases in which the baseline itself communicates


@once
def attributions(results: Results) -> list[Attribution]:
    """Every configuration with an efficiency that is no baseline itself, in the order of results.configurations."""
    every = steps.steps(results)
    compared = [row for row in results.rows if known(row["efficiency"]) and row["baseline"] != row["configuration"]]
    both = [(every.get(str(row["configuration"])), every.get(str(row["baseline"]))) for row in compared]
    nearby = steps.slower_in((ours, base) for ours, base in both if ours and base and int(ours.row["workers"]) > 1)
    lines = steps.lines(results)
    attributed = []
    for row, (ours, base) in zip(compared, both, strict=True):
        if ours is None or base is None:
            efficiency, whose = float(row["efficiency"]), "its" if ours is None else "its baseline's"
            all_of_it = Part(PARTS[UNKNOWN], 1 - efficiency, None, None)  # under the one name that it can have
            why = f"{whose} phases were not measured"
            attributed.append(Attribution(row, row["baseline"], efficiency, (all_of_it,), None, why))
            continue
        clean = steps.clean(row) or pipelines.is_cut(row)
        slower = None if clean else nearby.get(values_of(row, steps.SURROUNDINGS))
        fixed, batches = _fixed(lines.get(str(row["baseline"])), base.row), (_at_once(row), _at_once(base.row))
        evidence = LossEvidence(row, slower, fixed, batches, steps.communicates_in(base.row))
        attributed.append(attribute(ours, base, evidence))
    return attributed


def by_name(results: Results) -> dict[str, Attribution]:
    """Configuration -> its attribution."""
    return {str(attributed.row["configuration"]): attributed for attributed in attributions(results)}


def losers(results: Results) -> list[Attribution]:
    """Those with more workers than their baseline whose losses in_words() can say, the largest loss first."""
    said = [one for one in attributions(results) if in_words(one)]
    more = [one for one in said if int(one.row["workers"]) > int(results.by_name[one.baseline]["workers"])]
    return sorted(more, key=lambda one: -one.lost)


def attribute(ours: MeasuredSteps, base: MeasuredSteps, evidence: LossEvidence) -> Attribution:
    """The parts of one configuration, each with its interval where both sides have three repeats."""
    whole, before = ours.mean(), base.mean()
    lost, left_out = parts(whole, before, evidence), _left_out(ours, base, evidence)
    bounds, can = _bounds(lost, left_out), _possible(ours)
    shown = [Part(PARTS[at], float(lost[at]), *bounds[at]) for at in range(len(PARTS)) if at in can or lost[at] != 0.0]
    disturbance = max(ours.disturbance, base.disturbance, key=abs)
    causes, clear = _causes(lost, left_out)
    about = ours.row, str(base.row["configuration"]), before.worker_seconds / whole.worker_seconds
    return Attribution(*about, tuple(shown), disturbance, causes=causes, clear=clear)


def parts(ours: MeanStep, base: MeanStep, evidence: LossEvidence) -> Vector:
    """(PARTS,) shares of our worker-seconds; they add up to 1 - base / ours."""
    row = evidence.row
    grown = np.array([ours.spent(phase) - base.spent(phase) for phase in range(len(ours.shares))])
    lost = np.zeros(len(PARTS))
    lost[list(AS_GROWN)] = grown[list(AS_GROWN.values())]
    lost[BUBBLE] = ours.idle * ours.worker_seconds - base.idle * base.worker_seconds
    busy = steps.communicates_in(row)
    lost[MIXED if OPTIMIZER in evidence.base_busy else WITHIN if OPTIMIZER in busy else UPDATE] = grown[OPTIMIZER]
    slower = evidence.slower or (steps.slower(ours, base) if steps.clean(row) else None)
    for phase in COMPUTING:
        if steps.one_process(row) or phase in evidence.base_busy or (phase in busy and slower is None):
            lost[MIXED] += grown[phase]
        elif phase in busy:
            assert slower is not None
            lost[KERNELS] += base.spent(phase) * (slower - 1.0)
            lost[WITHIN] += grown[phase] - base.spent(phase) * (slower - 1.0)
        else:
            lost[KERNELS] += grown[phase]
    _take(lost, _smaller(evidence), (KERNELS,), FIXED)
    _take(lost, ours.lag * ours.worker_seconds - base.lag * base.worker_seconds, WAITING, STRAGGLERS)
    return np.asarray(lost / ours.worker_seconds, dtype=np.float64)


def _take(lost: Vector, most: float, places: Sequence[int], to: int) -> None:
    """Move up to `most` from these places, in their order, as far as something was lost there."""
    for place in places:
        taken = min(max(0.0, lost[place]), max(0.0, most))
        lost[place], lost[to], most = lost[place] - taken, lost[to] + taken, most - taken


def _smaller(evidence: LossEvidence) -> float:
    """Worker-seconds of a sample that the baseline's own fixed cost adds, shared by fewer samples at a time."""
    ours, base = evidence.batches
    return evidence.fixed * (1 / ours - 1 / base) if ours < base else 0.0


def _fixed(line: Fixed | None, base: ConfigurationRow) -> float:
    """Of a line through whole steps, which pay it once for each micro-batch that the baseline accumulates."""
    return line.seconds / (base["accumulation"] or 1) if line else 0.0


def _at_once(row: ConfigurationRow) -> float:
    """Samples that a worker computes at a time."""
    parts = [row["accumulation"] or 1, row["micro_batches"] or 1]
    return float(row["batch_per_worker"]) / math.prod(parts)


def _possible(ours: MeasuredSteps) -> set[int]:
    """Parts that are shown though nothing was lost there: their phases were measured."""
    several = int(ours.row["workers"]) > 1
    apart = pipelines.is_cut(ours.row) or steps.one_process(ours.row) or of_peers(str(ours.row["framework"]))
    can = {
        KERNELS: True,
        WITHIN if OPTIMIZER in steps.communicates_in(ours.row) else UPDATE: True,
        INPUT: ours.exposed[DATA],
        EXPOSED: several and ours.exposed[COMMUNICATION],
        FOUND: ours.exposed[MATCHMAKING],
        AVERAGED: ours.exposed[AVERAGING],
        STRAGGLERS: several and not apart,
        BUBBLE: ours.idle is not None,
        UNKNOWN: True,
    }
    return {part for part, shown in can.items() if shown}


def _left_out(ours: MeasuredSteps, base: MeasuredSteps, evidence: LossEvidence) -> list[Vector]:
    """(repeats, PARTS) for each side: the parts with one of its repeats left out. Empty where fewer than 3 repeats of a
    side were looked at."""
    counts = [len(ours.rates), len(base.rates)]
    if min(*counts, *(side.looked_at for side in (ours, base) if side.looked_at)) < FEWEST_REPEATS:
        return []
    whole, before = ours.mean(), base.mean()
    return [
        np.stack([parts(ours.mean(at), before, evidence) for at in range(counts[0])]),
        np.stack([parts(whole, base.mean(at), evidence) for at in range(counts[1])]),
    ]


def _bounds(values: Vector, left_out: Sequence[Vector]) -> list[tuple[float, float] | tuple[None, None]]:
    """(low, high) of each of the values, 95 %, from the same with one repeat left out; else (None, None)."""
    if not left_out:
        return [(None, None)] * len(values)
    from scipy.special import stdtrit  # of scipy.special: scipy.stats takes half a second to import

    variances = np.stack([(len(each) - 1) * each.var(axis=0) for each in left_out])
    total = variances.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = welch_satterthwaite(list(variances), [np.full(len(values), len(each) - 1.0) for each in left_out])
    half = np.where(total > 0, stdtrit(np.where(total > 0, freedom, 1.0), 0.975) * np.sqrt(total), 0.0)
    return [(float(value - width), float(value + width)) for value, width in zip(values, half, strict=True)]


def _causes(lost: Vector, left_out: Sequence[Vector]) -> tuple[tuple[Part, ...], bool]:
    """The causes that lost something, the largest first; True where the first is shown to be larger than the second."""
    summed, without = lost @ SUMS, [each @ SUMS for each in left_out]
    bounds, names = _bounds(summed, without), list(CAUSES)
    order = [at for at in np.argsort(-summed, kind="stable").tolist() if summed[at] > 0]
    causes = tuple(Part(names[at], float(summed[at]), *bounds[at]) for at in order)
    if len(order) < 2:
        return causes, bool(order)
    first, second = order[:2]
    ((low, _),) = _bounds(summed[[first]] - summed[[second]], [of[:, [first]] - of[:, [second]] for of in without])
    return causes, low is not None and low > 0


def in_words(of: Attribution) -> str:
    """`53 % of linear speed-up: slower kernels 23.0 ± 10.9 and overlapped communication 22.8 ± 7.7 (too close to call),
    optimizer 6.0 ± 1.7`: the largest causes, in percent of linear speed-up; empty where nothing is attributed."""
    causes = [cause for cause in of.causes if cause.lost >= WORTH_A_WORD * of.lost][:MOST_CAUSES]
    texts = [_cause(cause, of) for cause in causes]
    if not texts or of.lost < LEAST_LOSS:
        return ""
    sure = causes[0].half is not None
    if sure and len(texts) > 1 and not of.clear:
        texts[:2] = [f"{texts[0]} and {texts[1]} (too close to call)"]
    return f"{percent(of.lost)} of linear speed-up: {', '.join(texts)}{'' if sure else '; no intervals'}"


def _cause(cause: Part, of: Attribution) -> str:
    """`slower kernels 23.0 ± 10.9`, `exposed communication 9.1`, `communication 16.8 (exposed 1.7, overlapped 15.1)`,
    with the numbers of the table."""
    if cause.name != COMMUNICATED:
        return f"{NAMES[cause.name]} {_part(cause)}"
    inner = [part for part in of.parts if PARTS.index(part.name) in CAUSES[COMMUNICATED] and part.lost > LEAST_PART]
    if len(inner) < 2:
        return f"{NAMES[inner[0].name] if inner else COMMUNICATED} {_part(cause)}"
    split = [f"{NAMES[part.name].removesuffix(f' {COMMUNICATED}')} {100 * part.lost:.1f}" for part in inner]
    return f"{COMMUNICATED} {_part(cause)} ({', '.join(split)})"


MEANINGS = {
    "input": "waiting for batches",
    "fixed": "what the baseline's own fixed cost of a step (launching kernels) adds when fewer samples share it",
    "kernels": "forward and backward take longer for a sample, as forward shows, which communicates nothing: memory, "
    "caches or clock are shared, or a worker has fewer samples at a time",
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
}


def table(results: Results) -> pd.DataFrame:
    """A row for each configuration with an efficiency: `<part>_lost` of the ideal with its bounds; empty where a part
    cannot be."""
    rows = []
    for one in attributions(results):
        row: dict[str, Any] = dict(zip(notes.ABOUT, values_of(one.row, notes.ABOUT), strict=True))
        row |= {"baseline": one.baseline, "efficiency": one.efficiency, "lost": one.lost}
        row |= dict.fromkeys(f"{part}_{what}" for part in PARTS for what in ("lost", "low", "high"))
        for part in one.parts:
            row |= {f"{part.name}_lost": part.lost, f"{part.name}_low": part.low, f"{part.name}_high": part.high}
        rows.append(row | {"disturbance": one.disturbance, "why": one.why})
    return pd.DataFrame(rows, dtype=object)


def listing(results: Results) -> Listing | None:
    """A row for each configuration with an efficiency, a column for each part that any of them has."""
    every = attributions(results)
    if not every:
        return None
    present = _present(every)
    rows = []
    for attributed in every:
        cells = {part.name: _part(part) for part in attributed.parts}
        about = (*notes.series_and_batch(attributed.row, results), percent(attributed.efficiency, 1))
        rows.append((*about, percent(attributed.lost, 1), *(cells.get(part, "") for part in present)))
    meanings = "; ".join(f"{NAMES[part]}: {MEANINGS[part]}" for part in present)
    lines = [
        "Percent of linear speed-up over the baseline. The parts add up to the loss; a negative part is a gain. "
        "±: half of the 95 % interval between repeats.",
        f"{meanings[0].upper()}{meanings[1:]}.",
        "Phases are shares of instrumented steps, taken as shares of the timed ones.",
    ]
    if few := [each for each in steps.steps(results).values() if each.looked_at]:
        lines.append(
            f"Of {len(few)} interleaved configurations one launch was looked at: its shares stand for all launches, "
            "and have no interval."
        )
    if disturbed := [change for one in every if abs(change := one.disturbance or 0.0) > DISTURBED]:
        lines.append(
            f"Of {len(disturbed)} of {len(every)} rows instrumented steps differed from timed ones by more than "
            f"{100 * DISTURBED:.0f} %, at most {100 * max(disturbed, key=abs):+.0f} %: their parts are less certain."
        )
    lines += steps.untimed(results)
    reasons = Counter(attributed.why for attributed in every if attributed.why)
    lines += [f"All not attributed, because {why}: {count} rows." for why, count in reasons.items()]
    header = ("configuration", "batch", "efficiency", "lost", *(NAMES[part] for part in present))
    made = notes.listing(results, "Lost efficiency by cause", header, rows, lines, signs=True)
    unknown = reasons.total() == len(every)
    return replace(made, nothing="of no pair were the phases of both sides measured") if unknown else made


def _present(every: Sequence[Attribution]) -> list[str]:
    """The names of the parts that any of these has."""
    names = {part.name for attributed in every for part in attributed.parts}
    return [name for name in PARTS if name in names]


def _part(part: Part) -> str:
    half = f" ± {100 * part.half:.1f}" if part.half is not None else ""
    return f"{100 * part.lost:.1f}".replace("-0.0", "0.0") + half


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
WIDTH = 1.8
MOST_PANELS, MOST_COLUMNS = 12, 2
MOST_IN_ALL = 48  # of all models together, but a row for each
LEAST_SPAN = 0.12  # of the x axis, in shares of the ideal: a loss of 1 % shall look small
LOST, GAINED = style.style_colours(3)[1:]
IDEAL, MEASURED = "ideal", "measured"


def draw(results: Results, model: str) -> Figure | None:
    """The figure of one model; None where its phases say nothing."""
    every = [one for one in attributions(results) if one.row["model"] == model and not one.why]
    if not every:
        return None
    several = [attributed for attributed in every if int(attributed.row["workers"]) > 1] or every
    batch = usual_batch(attributed.row for attributed in several)
    ours = [attributed for attributed in several if int(attributed.row["batch"]) == batch]
    most = min(MOST_PANELS, max(4, MOST_IN_ALL // len(results.models)))
    shown = sorted(ours, key=lambda attributed: int(attributed.row["series_order"]))[:most]
    columns = min(len(shown), MOST_COLUMNS)
    parts = _present(shown)
    names = [IDEAL, *(NAMES[part] for part in parts), MEASURED]
    titles, shared = style.told_apart([str(attributed.row["series"]) for attributed in shown])
    limits = _limits(shown, parts)
    sure = any(part.low is not None for attributed in shown for part in attributed.parts)
    panels = []
    for place, (attributed, title) in enumerate(zip(shown, titles, strict=True)):
        texts, beside = _texts(attributed, parts), names if place % columns == 0 else [""] * len(names)
        draw_panel = partial(_panel, attribution=attributed, parts=parts, names=beside, labels=texts, limits=limits)
        panels.append(style.Panel(title, draw_panel, x="% of linear speed-up", labels=texts))
    footnote = notes.under_figure(
        results,
        "From linear speed-up (100 %) down to the measured efficiency. Bars to the left are losses, bars to the right "
        "gains (numbers below 0); they add up.",
        (sure, "Lines, ±: 95 % interval between repeats."),
        (shared, style.all_of(shared).strip()),
        (len(ours) > len(shown), f"The first {len(shown)} of {len(ours)} configurations at this batch size."),
        (len(every) > len(ours), "Other batch sizes: tables/attribution."),
    )
    return style.figure_of(
        f"Lost efficiency by cause: {model}, batch {batch} ({results.study.name})",
        panels,
        footnote,
        columns,
        panel_width=WIDTH,
        panel_height=len(names) * ROW + 0.05,
        left=0.1,
        first_left=0.1 + max(style.inches(name, style.SMALL) for name in names),
        above=0.28,
        below=0.46,
    )


def _panel(
    axis: Axes,
    _: style.Layout,
    attribution: Attribution,
    parts: Sequence[str],
    names: Sequence[str],
    labels: Sequence[str],
    limits: tuple[float, float],
) -> None:
    known = {part.name: part for part in attribution.parts}
    at = 100.0
    axis.plot([at, at], [-0.35, 0.5], color=style.DARK, linewidth=1.4, zorder=4)
    for index, name in enumerate(parts, start=1):
        part = known.get(name)
        width = 100 * part.lost if part else 0.0
        axis.barh(index, -width, left=at, height=0.62, color=LOST if width >= 0 else GAINED, linewidth=0, zorder=3)
        at -= width
        if part is not None and part.half is not None:
            half = 100 * part.half
            axis.plot([at - half, at + half], [index, index], color=style.DARK, linewidth=0.9, zorder=4)
        axis.plot([at, at], [index - 0.31, index + 1.31], color=style.GREY, linewidth=0.6, zorder=2)
    last = len(names) - 1
    axis.plot([at, at], [last - 0.35, last + 0.35], color=style.DARK, linewidth=1.4, zorder=4)
    style.name_rows(axis, names, labels)
    axis.set_xlim(*limits)
    style.ticked(axis.xaxis, FixedLocator(style.ticks_through(100.0, limits, 5)))


def _texts(attribution: Attribution, parts: Sequence[str]) -> list[str]:
    """The numbers of the table that stand beside each row."""
    texts = {part.name: _part(part) for part in attribution.parts}
    return ["100 %", *(texts.get(name, "") for name in parts), f"{100 * attribution.efficiency:.1f} %"]


def _limits(shown: Sequence[Attribution], parts: Sequence[str]) -> tuple[float, float]:
    """One scale for all panels, in % of linear speed-up: it has 100 %, and every bar with its whole interval."""
    lost = np.array([[attribution.part(name) for name in parts] for attribution in shown])
    found = [{part.name: part.half or 0.0 for part in attribution.parts} for attribution in shown]
    halves = np.array([[half.get(name, 0.0) for name in parts] for half in found])
    reached = 1 - np.cumsum(lost, axis=1)
    low, high = min(1.0, float((reached - halves).min())), max(1.0, float((reached + halves).max()))
    span = max(high - low, LEAST_SPAN)
    return 100 * (high - 1.08 * span), 100 * (high + 0.08 * span)


VIEW = View(
    "Where did the efficiency go?",
    (
        StudyTable(
            "attribution",
            listing,
            table,
            "Lost efficiency",
            "why",
            Gap(
                "Lost efficiency: not known",
                "no configuration of more than one worker has an efficiency and phases",
            ),
        ),
    ),
    (
        Drawing.of_models(
            "waterfall",
            draw,
            gap=Gap("No waterfall of efficiency", "phases of a configuration with a speed-up were not measured"),
        ),
    ),
)
