"""The bottleneck of each step, the change that would help most, and the phases of a step: two tables and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis import findings
from analysis.findings import NOTE, Evidence, Finding
from analysis.frames import configurations
from analysis.frames.configurations import over, usual_batch, values_of
from analysis.frames.measured import of_peers, samples_of_step
from analysis.frames.results import Results, on_wire, once
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.text import change, megabytes, number, percent, three_digits
from analysis.views import allreduce_gain, attribution, steps
from analysis.views.attribution import Attribution
from analysis.views.memory import BatchFamily, family_of, state_bytes
from analysis.views.roofline import Utilisation, utilisations
from analysis.views.steps import (
    AVERAGING,
    COMMUNICATION,
    COMPUTING,
    DATA,
    MATCHMAKING,
    OPTIMIZER,
    UNATTRIBUTED,
    Fixed,
    MeasuredSteps,
)
from analysis.views.view import Drawing, Gap, StudyTable, View
from scaling_study.records.schema import WaitedFor

# The bottleneck of a step, and its evidence in numbers.
#
#     compute         forward and backward, less what is told apart of them below
#     compute far ... computing, where that is the bottleneck and reaches less than FAR_BELOW of its roof (roofline.py)
#     launch          the part of them that no batch size changes: launching kernels
#     communication   what a step waits for after backward, and what collectives add to computing (attribution.py); of
#                     peers, looking for each other (matchmaking) and averaging, each a share of its own
#     input           waiting for the batch
#     memory          updating the weights, which is moving them; and computing, where memory is its lower roof
#                     (roofline.py) and at least so much of it is reached; and whatever was out of memory
#     pipeline bubble stages with nothing to do, wherever they stood meanwhile
#
# The rule is plain: the bottleneck is whichever takes the largest share of the step. Where forward and backward hold
# both computing and communication, and nothing tells them apart, it is named only if it is the same whichever of the
# two all of that is.

COMPUTE, LAUNCH, COMMUNICATE, INPUT, MEMORY, BUBBLE = KINDS = (
    "compute",
    "launch",
    "communication",
    "input",
    "memory",
    "pipeline bubble",
)
FAR, FAR_BELOW = "compute far below its roof", 0.4
OTHER, MIXED, UNKNOWN = "not attributed", "compute or communication", "not known"
FIND, AVERAGE = OF_PEERS = ("matchmaking", "averaging")  # communication, told apart
SHARES = (*KINDS[:3], *OF_PEERS, *KINDS[3:], MIXED, OTHER)
DOING = {
    COMPUTE: "computing (forward and backward)",
    LAUNCH: "the fixed part of computing (launching kernels, reading weights)",
    COMMUNICATE: "communication",
    FIND: "peers that look for each other (matchmaking)",
    AVERAGE: "peers that average",
    INPUT: "waiting for batches",
    MEMORY: "updating the weights",
    BUBBLE: "stages waiting with nothing to do",
    OTHER: "what no phase covers",
    MIXED: "phases in which this framework both computes and communicates",
}
OF_PHASES = {  # before what is told apart of them
    INPUT: DATA,
    COMMUNICATE: COMMUNICATION,
    FIND: MATCHMAKING,
    AVERAGE: AVERAGING,
    MEMORY: OPTIMIZER,
    OTHER: UNATTRIBUTED,
}
WORTH_A_WORD = 0.01  # of a step


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of one configuration. `shares`: of its step, adding up to 1, empty where phases are unknown."""

    row: ConfigurationRow
    kind: str  # of KINDS, FAR or UNKNOWN
    evidence: str  # a sentence
    shares: Mapping[str, float]


@once
def bottlenecks(results: Results) -> list[Bottleneck]:
    """The bottleneck of every configuration, in the order of results.configurations."""
    every = steps.steps(results)
    lines = steps.lines(results)
    lost = attribution.by_name(results)
    used = {str(utilisation.row["configuration"]): utilisation for utilisation in utilisations(results)}
    judged = []
    for row in results.rows:
        name = str(row["configuration"])
        if name in every:
            judged.append(_judged(every[name], shares(every[name], lost.get(name), lines.get(name)), used.get(name)))
        elif row["n"]:
            judged.append(Bottleneck(row, UNKNOWN, "Its phases were not measured.", {}))
        elif row["status"] == "oom":
            judged.append(Bottleneck(row, MEMORY, "Out of memory.", {}))
        else:
            judged.append(Bottleneck(row, UNKNOWN, f"Not measured: {configurations.word(row)}.", {}))
    return judged


def shares(ours: MeasuredSteps, lost: Attribution | None = None, line: Fixed | None = None) -> dict[str, float]:
    """SHARES of the step; those that are nothing are left out.

    `lost` says what of computing is communication, `line` what of it is launching.
    """
    step, busy = ours.mean(), steps.communicates_in(ours.row)
    mean = step.shares
    measured = {kind: float(mean[phase]) for kind, phase in OF_PHASES.items()}
    shares_of = dict.fromkeys(SHARES, 0.0) | measured | {BUBBLE: step.idle}
    apart = lost is not None and not lost.part("mixed") and not lost.why
    for phase in COMPUTING:
        hides = (phase in busy or steps.one_process(ours.row)) and not apart
        shares_of[MIXED if hides else COMPUTE] += float(mean[phase])
    if lost is not None and apart:  # what collectives add to computing
        moved = min(max(0.0, lost.part("within")), shares_of[COMPUTE])
        shares_of[COMPUTE], shares_of[COMMUNICATE] = shares_of[COMPUTE] - moved, shares_of[COMMUNICATE] + moved
    elif OPTIMIZER in busy:
        shares_of[MIXED], shares_of[MEMORY] = shares_of[MIXED] + shares_of[MEMORY], 0.0
    if line is not None and shares_of[COMPUTE] > 0:
        of = sum(float(mean[phase]) for phase in line.phases)
        fixed = min(1.0, line.seconds / float(ours.step_seconds.mean()) / of) if of > 0 else 0.0
        shares_of[LAUNCH], shares_of[COMPUTE] = fixed * shares_of[COMPUTE], (1 - fixed) * shares_of[COMPUTE]
    return {name: share for name, share in shares_of.items() if share > 0}


def named(shares: Mapping[str, float]) -> str | None:
    """The kind with the largest share; None where that depends on what the mixed one is."""
    of_kinds = {kind: shares.get(kind, 0.0) for kind in KINDS}
    of_kinds[COMMUNICATE] += sum(shares.get(part, 0.0) for part in OF_PEERS)
    names = set()
    for meant in (COMPUTE, COMMUNICATE):
        clear = of_kinds | {meant: of_kinds[meant] + shares.get(MIXED, 0.0)}
        names.add(max(clear, key=lambda kind: clear[kind]))
    return names.pop() if len(names) == 1 else None


def _judged(ours: MeasuredSteps, parts: Mapping[str, float], used: Utilisation | None) -> Bottleneck:
    kind = named(parts)
    largest_first = sorted(parts.items(), key=lambda item: item[1], reverse=True)
    first = kind or largest_first[0][0]
    if first == COMMUNICATE and any(parts.get(part) for part in OF_PEERS):
        first = max((COMMUNICATE, *OF_PEERS), key=lambda part: parts.get(part, 0.0))
    rest = [
        f"{percent(share)} into {DOING[name]}"
        for name, share in largest_first
        if name != first and share >= WORTH_A_WORD
    ]
    step = f"a step of {three_digits(1000 * float(ours.step_seconds.mean()))} ms"
    text = ", ".join([f"{percent(parts.get(first, 0.0))} of {step} goes into {DOING[first]}", *rest[:2]])
    if kind is None:
        return Bottleneck(ours.row, UNKNOWN, f"{text}; nothing measured tells the two apart.", parts)
    if kind == MEMORY and (whole := state_bytes(ours.row)):
        text += f"; {megabytes(whole)} MB of parameters, gradients and optimiser state go through memory for it"
    if kind == COMPUTE and used is not None and used.share is not None:
        off = " (above 100 %: the microbenchmark reached less, or fewer FLOPs were needed than counted)"
        text += f"; {percent(used.share)} of the device's measured peak{off * (used.share > 1)}"
        if used.under_memory:
            kind = MEMORY
            text += (
                f", and at {'' if used.counted else 'about '}{number(used.intensity or 0.0)} FLOP/byte memory is the "
                f"lower roof (below {number(used.ridge or 0.0)})"
            )
        reached = (used.roof_share or 0.0) / (parts[COMPUTE] + parts.get(LAUNCH, 0.0))
        if reached < FAR_BELOW:
            kind = FAR
            text += f"; while it computes it reaches {percent(reached)} of its roof"
    return Bottleneck(ours.row, kind, f"{text}.", parts)


def table(results: Results) -> pd.DataFrame:
    """A row for each configuration: the kind, its evidence, and what share of a step goes where."""
    columns = (
        *notes.ABOUT,
        "status",
        "bottleneck",
        "evidence",
        *(f"{kind.replace(' ', '_')}_share" for kind in SHARES),
    )
    rows = [
        (*values_of(one.row, (*notes.ABOUT, "status")), one.kind, one.evidence, *map(one.shares.get, SHARES))
        for one in bottlenecks(results)
    ]
    return pd.DataFrame(rows, columns=list(columns), dtype=object)


def listing(results: Results) -> Listing | None:
    """The table of bottlenecks; None where no phases are known. It says nothing where all have the same."""
    every = bottlenecks(results)
    if not any(limited.shares for limited in every):
        return None
    told = [limited for limited in every if limited.shares or limited.kind != UNKNOWN]
    rows = [(*notes.series_and_batch(limited.row, results), limited.kind, limited.evidence) for limited in told]
    unseen = findings.count(len(every) - len(told), "configuration")
    lines = [
        *([f"Not known of {unseen}, whose phases were not measured."] if len(told) < len(every) else []),
        "The bottleneck is whichever takes the largest share of a step. Memory: updating the weights, computing whose "
        "lower roof is memory, or out of memory. Compute far below its roof: computing takes most, and reaches less "
        f"than {percent(FAR_BELOW)} of the lower of its roofs meanwhile. Launch: the part of forward and backward that "
        "no batch size changes, by the line through the batch sizes that were run; on a CPU reading the weights.",
        *steps.untimed(results),
    ]
    header = ("configuration", "batch", "bottleneck", "evidence")
    made, kinds = notes.listing(results, "Bottlenecks", header, rows, lines, signs=True), {one.kind for one in every}
    alike = f"{every[0].kind} takes the largest share of a step in all {len(every)} configurations"
    return replace(made, nothing=alike) if len(kinds) == 1 < len(every) else made


# The change that would help most: the highest speed of a configuration if one part of its step were less.
#
#     gain <= 1 / (1 - saved share of the step) - 1        Amdahl, AFIPS 30, 1967
#
# Upper bounds, each by itself: nothing else gets worse for it, latency shrinks with the bytes, and what was hidden
# behind the part does not come to light. Real gains are smaller. Shares are those of bottleneck.py.

LEAST = 0.005  # of a gain: what is less is not worth a line
MOST_GAIN = 10.0  # beyond it the bound says nothing: almost all of the step is that part
GAIN = ("gain", "gain_low", "gain_high")  # columns of allreduce_gain


@dataclass(frozen=True)
class Remedy:
    """`saved`: share of the step; `gain`: of throughput, at most (0.04: 4 %). `but`: what stands against it."""

    row: ConfigurationRow
    name: str
    saved: float
    gain: float
    but: str = ""
    way: int = -1  # its place in ways()

    @property
    def measured(self) -> str:
        """` (fp16 was measured: -10 % [-14, -7])`, or nothing."""
        return f" ({self.but})" if self.but else ""

    @property
    def sentence(self) -> str:
        """`Halving the bytes of the gradients would give at most +4.0 %.`"""
        if self.gain > MOST_GAIN:
            return f"{self.name} takes almost all of the step away{self.measured}."
        return f"{self.name} would give at most +{percent(self.gain)}{self.measured}."


OF_A_ROUND = (*OF_PEERS, MEMORY)  # shares that a larger target batch spreads over more samples
HALVED = {
    "fp32": "Halving the bytes of the gradients (16 bits)",
    "fp16": "Halving the bytes of the gradients again",
    "bf16": "Halving the bytes of the gradients again",
}
FIXED_SHARES = (COMMUNICATE, LAUNCH, MEMORY, OTHER)  # that a larger batch spreads over more samples
HALVE, LARGER_BATCH, HALF_THE_TIME = 0, 4, 5  # places in ways(); the last says nothing that the bottleneck does not


def ways(row: ConfigurationRow, shares: Mapping[str, float], lag: float) -> list[tuple[str, float]]:
    """(a change, the share of the step that it saves) of each; without a name where it cannot be made. `lag`: the share
    of waiting for the slowest rank."""
    part = dict.fromkeys(SHARES, 0.0) | dict(shares)
    peers = of_peers(str(row["framework"]))
    return [
        (HALVED.get(on_wire(row), ""), max(0.0, part[COMMUNICATE] + part[AVERAGE] - lag) / 2),
        ("Hiding all communication behind computing", part[COMMUNICATE] + part[FIND] + part[AVERAGE]),
        ("Ranks that are equally fast", lag),
        ("Input that never keeps a step waiting", part[INPUT]),
        ("" if peers else "Twice the batch on each worker", sum(part[name] for name in FIXED_SHARES) / 2),
        ("Computing in half the time", (part[COMPUTE] + part[LAUNCH]) / 2),
        ("Computing without its fixed part (fewer, larger kernels)", part[LAUNCH]),
        ("Updating weights at no cost", part[MEMORY]),
        ("A pipeline without a bubble", part[BUBBLE]),
        ("Twice the target batch of a round" if peers else "", sum(part[name] for name in OF_A_ROUND) / 2),
        ("Peers that find each other at once" if peers else "", part[FIND]),
    ]


@once
def remedies(results: Results) -> dict[str, list[Remedy]]:
    """Configuration -> what would help it, the most first; of those whose phases are known."""
    lost = attribution.by_name(results)
    gains = allreduce_gain.gains(results).dropna(subset="gain")
    narrow = {
        str(pair["reference"]): f"{pair['allreduce']} was measured: {change(*(pair[name] for name in GAIN))}"
        for pair in as_rows(gains)
    }
    by_configuration = {}
    for limit in bottlenecks(results):
        name = str(limit.row["configuration"])
        if limit.shares:
            tried = {HALVE: narrow.get(name, ""), LARGER_BATCH: _larger(limit.row, family_of(results).get(name))}
            by_configuration[name] = remedies_of(limit, lost.get(name), tried)
    return by_configuration


def remedies_of(
    bottleneck: Bottleneck, lost: Attribution | None = None, tried: Mapping[int, str] | None = None
) -> list[Remedy]:
    """The remedies of one configuration, the largest gain first.

    `tried`: place in ways() -> what the study itself has measured of it.
    """
    lag = max(0.0, lost.part("stragglers")) if lost else 0.0
    found = []
    for index, (name, saved) in enumerate(ways(bottleneck.row, bottleneck.shares, lag)):
        share = min(saved, 1.0 - 1e-9)
        most = 1 / (1 - share) - 1
        if name and most >= LEAST:
            found.append(Remedy(bottleneck.row, name, share, most, (tried or {}).get(index, ""), index))
    return sorted(found, key=lambda remedy: remedy.gain, reverse=True)


def _larger(row: ConfigurationRow, memory: BatchFamily | None) -> str:
    """Words on twice the batch, where the study tried it."""
    if memory is None:
        return ""
    twice, out = 2 * int(row["batch_per_worker"]), memory.smallest_out
    if out is not None and out <= twice:
        return f"batch {out} was out of memory"
    larger = next((other for other in memory.rows if int(other["batch_per_worker"]) == twice), None)
    if larger is None:
        return ""
    measured = over(larger, row)
    return f"batch {twice} was measured: {change(measured.mean, measured.low, measured.high)}"


MOST_REMEDIES = 3  # of a configuration, in a table


def remedies_table(results: Results) -> pd.DataFrame:
    """A row for each thing that would help a configuration, the most first: `gain_at_most` of throughput."""
    columns = (*notes.ABOUT, "remedy", "saved", "gain_at_most", "but")
    rows = [
        (*values_of(one.row, notes.ABOUT), one.name, one.saved, one.gain, one.but)
        for listed in remedies(results).values()
        for one in listed
    ]
    return pd.DataFrame(rows, columns=list(columns), dtype=object)


def remedies_listing(results: Results) -> Listing | None:
    """The table of remedies; None where no phases are known."""
    listed = [every for every in remedies(results).values() if every]
    if not listed:
        return None
    rows = []
    for every in listed:
        shown = [suggested.sentence for suggested in every if suggested.way != HALF_THE_TIME][:MOST_REMEDIES]
        halved = next((f"at most +{percent(one.gain)}{one.measured}" for one in every if one.way == HALVE), "")
        unused = [""] * (MOST_REMEDIES - len(shown))
        rows.append((*notes.series_and_batch(every[0].row, results), *shown, *unused, halved))
    lines = [
        "Upper bounds, each by itself (Amdahl): 1 / (1 - the share of a step that it saves) - 1. Assumed: the rest of "
        "the step stays as it is. In brackets: the same change as measured by this study.",
    ]
    header = ("configuration", "batch", "most", "second", "third", "half the bytes of the gradients")
    return notes.listing(results, "What would help most", header, rows, lines, signs=True)


# One step of each configuration, part by part, in milliseconds: all bars have one scale, so that they compare.

ROW, KEY_ROW = 0.2, 0.16  # inches of a row; of a line of the key
WIDTH = 3.2
MOST_ROWS = 40
NAMES = {
    COMPUTE: "computing",
    LAUNCH: "computing, fixed part",
    COMMUNICATE: "communication",
    INPUT: "waiting for batches",
    FIND: "matchmaking of peers",
    AVERAGE: "averaging of peers",
    MEMORY: "updating weights",
    BUBBLE: "stages idle",
    MIXED: "computing or communication",
    OTHER: "not attributed",
}
_BLUE, _ORANGE, _GREEN, _PINK, _RED, _SKY, _BROWN = style.style_colours(7)
COLOURS = {
    COMPUTE: _BLUE,
    LAUNCH: _SKY,
    COMMUNICATE: _ORANGE,
    INPUT: _RED,
    MEMORY: _GREEN,
    BUBBLE: _PINK,
    MIXED: _BROWN,
    OTHER: "#bdbdbd",
    FIND: "#fdd0a2",
    AVERAGE: "#6b3d00",  # communication's orange, pale and dark
}
PALE = (LAUNCH, OTHER, FIND)  # colours on which white cannot be read


def draw(results: Results, model: str) -> Figure | None:
    """The figure of one model; None where its phases are not known."""
    every = [one for one in bottlenecks(results) if one.row["model"] == model and one.shares]
    if not every:
        return None
    batch = usual_batch(bottleneck.row for bottleneck in every)
    ours = [bottleneck for bottleneck in every if bottleneck.row["batch"] == batch]
    shown = sorted(ours, key=lambda bottleneck: int(bottleneck.row["series_order"]))[:MOST_ROWS]
    present = [kind for kind in SHARES if any(bottleneck.shares.get(kind) for bottleneck in shown)]
    names, shared = style.told_apart([str(bottleneck.row["series"]) for bottleneck in shown])
    seconds = [samples_of_step(one.row) / float(one.row["samples_per_second"]) for one in shown]
    texts = [f"{three_digits(1000 * each)} ms" for each in seconds]
    key = [NAMES[kind] for kind in present]
    left, gutter = 0.25 + max(style.inches(name, style.SMALL) for name in names), style.gutter(texts)
    columns = max(1, int((left + WIDTH + gutter) / (0.5 + max(style.inches(name, style.SMALL) for name in key))))
    below = 0.5 + -(-len(key) // columns) * KEY_ROW
    layout = style.Layout(
        panel_width=WIDTH,
        panel_height=len(shown) * ROW + 0.1,
        left=left,
        gutters=(gutter,),
        below=below,
        above=0.2,
    )
    footnote = notes.under_figure(
        results,
        "Parts of a timed step, in proportion to those of instrumented steps.",
        (LAUNCH in present, "Fixed part: the intercept of a line through the batch sizes."),
        (MIXED in present, "Computing or communication: a framework that communicates inside forward or backward."),
        (shared, style.all_of(shared).strip()),
        (len(ours) > len(shown), f"The first {len(shown)} of {len(ours)} series."),
        (len(every) > len(ours), "Other batch sizes: tables/bottleneck."),
    )
    sheet = style.sheet(1, 1, layout, f"Where a step goes: {model}, batch {batch} ({results.study.name})", footnote)
    axis, _ = sheet.at(0)
    _panel(axis, shown, seconds)
    style.name_rows(axis, names, texts, right=1.03)
    axis.legend(
        handles=[Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in present],
        loc="upper left",
        bbox_to_anchor=(0.05 - left / WIDTH, -0.45 / layout.panel_height),
        ncols=columns,
        frameon=False,
        fontsize=style.SMALL,
        handlelength=1.0,
        borderaxespad=0.0,
    )
    return sheet.figure


def _panel(axis: Axes, shown: Sequence[Bottleneck], seconds: Sequence[float]) -> None:
    """`seconds`: of a step. All bars have one scale."""
    longest = 1000 * max(seconds)
    for index, (bottleneck, each) in enumerate(zip(shown, seconds, strict=True)):
        at = 0.0
        for kind in SHARES:
            part = 1000 * each * bottleneck.shares.get(kind, 0.0)
            if not part:
                continue
            axis.barh(index, part, left=at, height=0.72, color=COLOURS[kind], linewidth=0, zorder=3)
            text = three_digits(part)
            if style.inches(text, style.SMALL, bold=True) + 0.06 < WIDTH * part / longest:
                axis.text(
                    at + part / 2,
                    index,
                    text,
                    ha="center",
                    va="center_baseline",
                    fontsize=style.SMALL,
                    color=style.DARK if kind in PALE else "white",
                    weight="bold",
                    zorder=4,
                )
            at += part
    axis.set_xlim(0, longest)
    style.ticked(axis.xaxis, MaxNLocator(5, steps=style.STEPS))
    axis.set_xlabel("milliseconds of a step")
    axis.grid(False)


def one_rank_waited_for(evidence: Evidence) -> Iterator[Finding]:
    """Configurations in whose every launch the others wait for the same rank."""
    seen: list[tuple[ConfigurationRow, list[WaitedFor]]] = []
    for row in evidence.rows:
        last = evidence.fact(row, "waited_for")
        everywhere = len(last) == len(evidence.facts.get(str(row["configuration"]), ()))
        if last and everywhere and len({(one.host, one.rank) for one in last}) == 1:
            seen.append((row, last))
    if not seen:
        return
    _, worst = max(seen, key=lambda pair: _share(pair[1]))
    one, low, high = worst[0], min(one.late.low for one in worst), max(one.late.high for one in worst)
    mean = sum(each.late.seconds for each in worst) / len(worst)
    rows = [row for row, _ in seen]
    text = (
        f"Rank {one.rank} on {one.host} comes to its backward pass {1e3 * mean:.3g} ms [{1e3 * low:.3g}, "
        f"{1e3 * high:.3g}] after the last of the others, {percent(_share(worst))} of the median step (launches: "
        f"{len(worst)}): {findings.named(rows, evidence.rows)}. They wait for it, so look at its input, its cores and "
        "its host."
    )
    yield findings.about("straggler", "One rank that the others wait for", text, NOTE, rows)


def _share(last: Sequence[WaitedFor]) -> float:
    """Of the median step."""
    return sum(one.late.seconds / one.step_seconds for one in last) / len(last)


VIEW = View(
    "What holds each configuration back?",
    (
        StudyTable(
            "bottleneck",
            listing,
            table,
            "Bottlenecks",
            "why",
            Gap("Bottlenecks: not known", "no configuration has phases, or a failure, to tell by"),
        ),
    ),
    (Drawing.of_models("steps", draw, section="why", beside="bottleneck"),),
    (one_rank_waited_for,),
)


REMEDIES = View(
    "What would help?",
    (
        StudyTable(
            "remedies",
            remedies_listing,
            remedies_table,
            "What would help",
            "why",
            Gap("What would help: not known", "no configuration has phases to tell by"),
        ),
    ),
)
