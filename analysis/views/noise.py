"""The machine itself: noise, drift, other processes, and how the steps of each run were spread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis import findings
from analysis.findings import DOUBT, NOTE, Evidence, Finding, count, grouped
from analysis.frames import configurations as launches
from analysis.frames.configurations import usual_batch
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, by_configuration
from analysis.frames.trials import began
from analysis.show import notes, style
from analysis.show.style import EndLabel
from analysis.statistics import noise_levels
from analysis.statistics.noise_levels import Levels
from analysis.text import three_digits, two_figure_percentage
from analysis.views.view import Drawing, Gap, View
from scaling_study.datasets import SCENES
from scaling_study.records.schema import BUSY_CORES
from scaling_study.stats.intervals import student_t
from scaling_study.stats.launches import together
from scaling_study.study.groups import UNTESTED

# floor    relative spread between repeats: of the sentinel, the one configuration that is repeated through the whole
#          sweep (scaling_study/study/plan.py), or pooled over all where the study has none. Said to be too much
#          only where its whole interval is above the study's target
# drift    do later repeats of a configuration tend to be slower, or faster, than its earlier ones? Kendall's S,
#          configuration by configuration and added up (Hirsch, Slack and Smith, Water Resour. Res. 18, 1982, whose
#          seasons our configurations are). Only the order within each counts, so nothing is assumed of how noisy they
#          are. Runs close in time are alike, so the sweep is cut into blocks of time, which are taken to be
#          exchangeable where nothing drifts: the null distribution is that of all orders of the blocks.
#          Within a launch that configurations share, the sentinel's first and last blocks show it, in the same
#          processes (scaling_study/launch/shared_launch.py): the study's own, or the quickest of its baseline

CONFIDENCE = 0.999  # with which a launch has changed
FALSE_ALARMS = 0.02  # of studies without drift; the test is exact, so at most so many
FEWEST = 3  # degrees of freedom; below, a spread says nothing
BLOCK = 4  # runs of a block, at least: neighbours in time correlate, blocks of so many hardly
FEWEST_BLOCKS, MOST_BLOCKS = 5, 10  # below, no order of them is rarer than FALSE_ALARMS: 2 / 4! = 0.08
MOST_EXACT = 7  # blocks, of which all orders are counted; beyond, DRAWS of them are drawn, from a fixed seed
DRAWS = 20_000
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Floor:
    """The relative standard deviation between repeats, with its 95 % interval (chi-squared)."""

    spread: float
    low: float
    high: float
    configurations: int
    sentinel: bool  # of the sentinel alone, else pooled

    def smallest(self, repeats: int) -> float:
        """The least relative difference that two configurations of so many repeats each show at 95 %."""
        from scipy.special import stdtrit

        return float(stdtrit(2 * (repeats - 1), 0.975)) * self.spread * math.sqrt(2 / repeats)


@dataclass(frozen=True)
class Drift:
    """From the first to the last trial (`total`: -0.03 is 3 % slower), and how often chance alone shows as much."""

    total: float
    p: float
    trials: int
    configurations: int
    blocks: int

    @property
    def found(self) -> bool:
        return self.p <= FALSE_ALARMS


@dataclass(frozen=True)
class LaunchDrift:
    """Changes of log throughput between a sentinel's first and last block of launches, in the same processes."""

    configurations: Sequence[str]  # one, but where launches have none in common
    changes: Mapping[str, float]  # launch -> from its first block to its last
    noise: float  # standard deviation of such a change, by the blocks between the two
    freedom: float  # of that; 0 where they are too few

    @property
    def changed(self) -> list[str]:
        """The launches in which that is more than noise."""
        if not self.freedom:
            return []
        limit = student_t(CONFIDENCE, self.freedom) * self.noise
        return [name for name, change in self.changes.items() if abs(change) > limit]


def noise_and_drift(evidence: Evidence) -> Iterator[Finding]:
    target, runs = evidence.results.study.target_interval, table(evidence.results)
    # Repeats that shared launches differ by what came over all at once, which cancels in their ratios.
    shared = [row["configuration"] for row in evidence.rows if launches.launches_names(row)]
    least, moved = floor(runs[~runs.configuration.isin(shared)]), drift(runs)
    if moved is not None and moved.found:
        small = abs(moved.total) <= target
        text = (
            f"Later repeats of a configuration tend to be {'slower' if moved.total < 0 else 'faster'}: "
            f"{100 * moved.total:+.1f} % from the first to the last of {moved.trials} trials (p = {moved.p:.2g}). "
            "Repeats are interleaved, so it favours none but widens every interval: let the machine settle, and run "
            "again."
        )
        yield Finding("drift", "The machine drifts", text, NOTE if small else DOUBT)
    if least is not None and least.low > target:
        repeats = int(median(int(row["n"]) for row in evidence.rows if row["n"] > 1))
        text = (
            f"Two runs of one configuration differ by {100 * least.spread:.1f} % (one standard deviation, "
            f"{100 * least.low:.1f} to {100 * least.high:.1f}), more than the target of ±{100 * target:.2g} %. With "
            f"{repeats} repeats a side take differences below {100 * least.smallest(repeats):.0f} % for noise, or "
            "repeat more often."
        )
        yield Finding("noise", "A noisy machine", text, NOTE)


def table(results: Results) -> pd.DataFrame:
    """A row for each trial that is ok of a configuration with two or more, in the order in which they ran.

    `hours` since the first, `place` in the order (0 to 1), `relative`: samples per second over the geometric mean of
    its configuration, less 1; `launch` that it shared, and whether it is of the `sentinel`.
    """
    runs = Evidence(results).runs
    runs = runs.assign(began=began(runs), launch=[together(str(name or "")) for name in runs.launch.fillna("")])
    good = (runs.status == "ok") & runs.samples_per_second.notna() & runs.began.notna()
    runs = runs[good & runs.configuration.isin(results.configurations.configuration)]
    runs = runs.astype({"configuration": object}).sort_values(["began", "repeat"], kind="stable", ignore_index=True)
    logs = pd.Series(np.log(runs.samples_per_second.to_numpy(float)), dtype="float64").groupby(runs.configuration)
    relative = np.expm1(np.log(runs.samples_per_second.to_numpy(float)) - logs.transform("mean"))
    runs = runs.assign(relative=relative)[logs.transform("size") > 1].reset_index(drop=True)
    return runs.assign(
        hours=(runs.began - runs.began.min()).dt.total_seconds() / 3600,
        place=np.arange(len(runs)) / max(1, len(runs) - 1),
        sentinel=runs.configuration == (results.study.sentinel or ""),
    )


def floor(runs: pd.DataFrame) -> Floor | None:
    """The noise floor: of the sentinel if it has enough repeats, else pooled; None where there are too few for either.

    `runs`: of table().
    """
    from scipy.special import chdtri

    alone = runs[runs.sentinel]
    single = len(alone) > FEWEST
    ours = alone if single else runs
    configurations = ours.configuration.nunique()
    freedom = len(ours) - configurations
    if freedom < FEWEST:
        return None
    squares = float((np.log1p(ours.relative.to_numpy(float)) ** 2).sum())
    low, high = (math.sqrt(squares / float(chdtri(freedom, tail))) for tail in (0.025, 0.975))
    return Floor(math.sqrt(squares / freedom), low, high, configurations, single)


def drift(runs: pd.DataFrame) -> Drift | None:
    """Over all configurations of `runs` (of table()); None for fewer than FEWEST_BLOCKS blocks."""
    block = blocks(list(runs.launch))
    if not len(block) or block[-1] + 1 < FEWEST_BLOCKS:
        return None
    indices = runs.groupby("configuration", sort=False).indices.values()
    relative, place = runs.relative.to_numpy(float), runs.place.to_numpy(float)
    series = [relative[at] for at in indices]
    total = _slope([place[at] for at in indices], series)
    p = trend(series, [block[at] for at in indices])
    return Drift(total, p, len(runs), len(series), int(block[-1]) + 1)


def drift_in_launches(results: Results) -> LaunchDrift | None:
    """None where most of a study's launches did not begin and end with the same configuration."""
    timed = results.details.blocks.dropna(subset="at")
    timed = timed[timed.configuration.isin([row["configuration"] for row in results.rows])]
    timed = timed[~timed.together.str.contains(".", regex=False)]  # those that ended early
    changes, names, squares, freedom = dict[str, float](), list[str](), 0.0, 0
    for name, launch in timed.groupby("together", sort=False):
        ordered = launch.sort_values("at", kind="stable")
        first, last = ordered.iloc[0], ordered.iloc[-1]
        if first.configuration == last.configuration and first["round"] < last["round"]:
            names.append(str(first.configuration))
            changes[str(name)] = float(first.log_seconds - last.log_seconds)
            between = ordered[ordered.configuration == first.configuration].log_seconds.iloc[1:-1]
            if len(between) > 1:
                squares, freedom = squares + float(between.var()) * (len(between) - 1), freedom + len(between) - 1
    if 2 * len(changes) <= timed.together.nunique():
        return None
    noise = math.sqrt(2 * squares / freedom) if freedom else math.nan
    return LaunchDrift(list(dict.fromkeys(names)), changes, noise, freedom)


def blocks(shared: Sequence[str]) -> NDArray[np.intp]:
    """(n,) of each run, in the order of time, the number of its block, from 0: as many as there may be. Those that
    `shared` a launch, by its name, are of one block: what came over it is in all of them."""
    count, firsts = len(shared), dict[str, int]()
    number = np.arange(count) * min(MOST_BLOCKS, count // BLOCK) // max(1, count)
    whole = [number[firsts.setdefault(name, at) if name else at] for at, name in enumerate(shared)]
    return np.unique(np.array(whole, dtype=np.intp), return_inverse=True)[1].astype(np.intp)


def trend(series: Sequence[Values], blocks: Sequence[NDArray[np.intp]]) -> float:
    """The two-sided p-value of a common trend over blocks of time.

    Each series in the order of time and of any scale of its own, with the block (0, 1, ...) of each of its values.
    """
    count = 1 + max(int(own.max()) for own in blocks)
    rises = np.zeros((count, count))  # [a, b]: of values in block b over those in block a
    for values, own in zip(series, blocks, strict=True):
        np.add.at(rises, (own[:, None], own[None, :]), np.sign(values[None, :] - values[:, None]))
    orders = _orders(count)
    earlier, later = np.triu_indices(count, 1)
    scores = rises[orders[:, earlier], orders[:, later]].sum(axis=1)
    return float(np.mean(np.abs(scores) >= abs(scores[0])))  # the first is the order that was


@cache
def _orders(count: int) -> NDArray[np.intp]:
    """(k, count) orders of so many blocks: all of them, or DRAWS and the one that was, which is the first."""
    if count <= MOST_EXACT:
        return np.array(list(itertools.permutations(range(count))))
    rng = np.random.default_rng(count)
    return np.array([np.arange(count), *(rng.permutation(count) for _ in range(DRAWS))])


def _slope(places: Sequence[Values], series: Sequence[Values]) -> float:
    """The median slope over all pairs within a configuration (Theil and Sen), from the first trial to the last."""
    slopes = [
        (y[later] - y[earlier]) / (x[later] - x[earlier])
        for x, y in zip(places, map(np.log1p, series), strict=True)
        for earlier, later in [np.triu_indices(len(x), 1)]
    ]
    return float(np.expm1(np.median(np.concatenate(slopes))))


MOST_THROTTLED = 0.01  # of the timed window


def disturbances(evidence: Evidence) -> Iterator[Finding]:
    runs = evidence.runs
    if busy := notes.busy(runs):
        disturbed = evidence.among({*runs[runs.busy_elsewhere_cores > BUSY_CORES].configuration})
        text = f"D{busy[1:]}, and were measured too. Quiet the machine, and run them again: --retry ok."
        yield findings.about("busy", "The machine was not quiet", text, DOUBT, disturbed)
    if uses := [(row, use) for row in evidence.rows for use in evidence.fact(row, "gpus_in_use") if use]:
        text = (
            f"Before {count(len(uses), 'run')} began, others used a GPU of theirs: {uses[0][1][0]}. End what runs "
            "there, or name other GPUs in CUDA_VISIBLE_DEVICES, and run them again: --retry ok."
        )
        yield findings.about("gpus in use", "A GPU that others used", text, DOUBT, [row for row, _ in uses])
    if in_turns := [row for row in evidence.on_gpus if row["warm"] is True]:
        text = f"{UNTESTED[0].upper()}{UNTESTED[1:]}. Quote no figure of it before some agree with `interleave: false`."
        yield findings.about("untested rounds", "Interleaved over several GPUs", text, DOUBT, in_turns)
    throttled = runs[runs.throttled_seconds > MOST_THROTTLED * runs.steps * runs.step_seconds_mean]
    if len(throttled):
        text = (
            f"In {count(len(throttled), 'run')} a CPU quota stopped processes for more than {MOST_THROTTLED:.0%} of "
            f"the window, for {throttled.throttled_seconds.max():.1f} s at most. Give the container, slice or job as "
            "many cores as there are workers, and run them again: --retry ok."
        )
        stopped = evidence.among({*throttled.configuration})
        yield findings.about("throttled", "A CPU quota was in the numbers", text, DOUBT, stopped)
    if evidence.results.synthetic:
        rows = [row for row in evidence.rows if "synthetic" in str(row["data_source"])]
        who = findings.named(rows, evidence.rows)
        drawn = all(str(row["data_source"]).startswith(SCENES) for row in rows)
        figures = "figures are of drawn scenes, and of no operation" if drawn else "quote no loss"
        text = f"Trained on generated data: {who}. Speeds may be those of real data; {figures}."
        yield findings.about("synthetic", "Synthetic data", text, NOTE, rows)


def not_interleaved(evidence: Evidence) -> Iterator[Finding]:
    """Compared configurations whose repeats were not interleaved: the last of one began before the first of another."""
    runs = evidence.runs[evidence.runs.status == "ok"]
    at = began(runs)
    seconds_of = (at - at.min()).dt.total_seconds().groupby(runs.configuration)
    spans = {str(name): (min(own), max(own)) for name, own in seconds_of if len(own) > 1}
    groups = grouped(evidence.rows, lambda row: (row["model"], row["batch"])).values()
    compared = [*evidence.pairs, *((ours[0], row) for ours in groups for row in ours[1:])]
    apart = []
    for row, other in compared:
        a, b = (spans.get(str(side["configuration"])) for side in (row, other))
        if a and b and (gap := max(a[0], b[0]) - min(a[1], b[1])) > 0:
            apart.append((gap, row, other))
    if apart:
        seconds, row, other = max(apart, key=lambda pair: pair[0])
        text = (
            f"{count(len(apart), 'comparison')} of configurations that were not interleaved, up to "
            f"{seconds / 60:.0f} minutes apart ({findings.named([row, other])}): a machine that changed in between is "
            "in the ratio. Measure them together: --retry ok."
        )
        rows = [side for _, *pair in apart for side in pair]
        yield findings.about("apart", "Compared, but measured at different times", text, DOUBT, rows)


# How the steps of each run were spread: a figure a model, a row for each series at one batch size, a box a repeat.
#
# A mean says nothing of the step in a hundred that takes twice as long, nor of a repeat that was slower throughout.
# Steps are against the configuration's own median, or the slowest series would be all that one sees.

MOST_ROWS, MOST_REPEATS = 40, 10
REPEAT, ROW = 0.065, 0.2  # inches: a repeat, and what a row has at least
WIDEST = (-0.6, 1.0)  # of the axis; what lies beyond is a mark at its edge
INNER, OUTER = style.style_colours(1)[0], style.GREY
HEADINGS = ("median", "1 in 100")


@dataclass(frozen=True)
class RepeatSpread:
    """One configuration: its median step in seconds, and each repeat's quantiles against it, (repeats, quantiles)."""

    row: ConfigurationRow
    median_seconds: float
    repeats: pd.DataFrame

    @property
    def slow(self) -> float:
        """By how much the slowest hundredth of its steps are slower than the median, in its median repeat."""
        return float(self.repeats.p99.median())


def draw_distributions(results: Results, model: str) -> Figure | None:
    """The figure of one model, at the batch size that most of its series have; None where no steps were timed."""
    rows = sorted((row for row in results.rows_of(model) if row["n"]), key=lambda row: row["series_order"])
    batch = usual_batch(rows)
    every = [made for row in rows if row["batch"] == batch and (made := spread(results, row))]
    return _figure(model, batch, every, len(rows), results) if every else None


def spread(results: Results, row: ConfigurationRow) -> RepeatSpread | None:
    """None where no repeat has timed steps."""
    ours = _steps(results).get(str(row["configuration"]))
    if ours is None:
        return None
    median = float(ours.p50_seconds.median())
    quantiles = ours.filter(like="_seconds") / median - 1
    return RepeatSpread(row, median, quantiles.rename(columns=lambda name: name.removesuffix("_seconds")))


@once
def _steps(results: Results) -> dict[str, pd.DataFrame]:
    """Configuration -> what is known of its steps, a row a repeat."""
    return by_configuration(results.details.steps.sort_values("repeat", kind="stable"))


def _figure(model: str, batch: int, every: Sequence[RepeatSpread], of: int, results: Results) -> Figure:
    shown = every[:MOST_ROWS]
    names, shared = style.told_apart([str(one.row["series"]) for one in shown])
    texts = [(f"{three_digits(1000 * one.median_seconds)} ms", f"{100 * one.slow:+.0f} %") for one in shown]
    most = max(min(len(one.repeats), MOST_REPEATS) for one in shown)
    first = 0.2 + max(style.inches(text, style.SMALL) for text, _ in [*texts, HEADINGS])
    layout = style.Layout(
        panel_width=2.8,
        panel_height=len(shown) * max(ROW, REPEAT * most + 0.07) + 0.1,
        above=0.34,
        below=0.45,
        left=0.25 + max(style.inches(name, style.SMALL) for name in names),
        gutters=(first + 0.3 + style.inches(HEADINGS[1], style.SMALL),),
    )
    title = f"Step times: {model}, batch {batch} ({results.study.name})"
    sheet = style.sheet(1, 1, layout, title, _footnote(shown, every, of, shared, results))
    axis, _ = sheet.at(0)
    low, high = _bounds(shown)
    _lines(axis, shown, high)
    for index, text in enumerate(texts):
        _beside(axis, text, xy=(1.0, index), units="data", first=first)
    _beside(axis, HEADINGS, xy=(1.0, 1.0), units="axes fraction", first=first, up=7)
    axis.axvline(0.0, color=style.GREY, linewidth=0.8, zorder=1)
    axis.set_xlim(low, high)
    axis.set_ylim(len(shown) - 0.45, -0.55)
    style.row_names(axis, range(len(names)), names)
    _relative_ticks(axis.xaxis, 5, "median")
    axis.set_xlabel("step time relative to the median")
    return sheet.figure


def _relative_ticks(each: Axis, most: int, middle: str) -> None:
    """Ticks in per cent beside the `middle`."""
    locator = MaxNLocator(nbins=most, steps=[1, 2, 5, 10])
    style.ticked(each, locator, lambda value: f"{100 * value:+.3g} %" if value else middle)


def _bounds(shown: Sequence[RepeatSpread]) -> tuple[float, float]:
    """Where the axis begins and ends: every repeat's 5 to 99 %, if that is within WIDEST."""
    every = pd.concat([one.repeats for one in shown])
    least, most = float(every.p5.min()), float(every.p99.max())
    room = max(0.05 * (most - least), 0.005)
    return max(WIDEST[0], least - room), min(WIDEST[1], most + room)


def _lines(axis: Axes, shown: Sequence[RepeatSpread], high: float) -> None:
    """Lines from 5 to 95 %, boxes from 25 to 75 %, a tick at the median; the slowest hundredth and the slowest."""
    repeats = [one.repeats.iloc[:MOST_REPEATS] for one in shown]
    offsets = [0.66 * ((np.arange(len(ours)) + 0.5) / len(ours) - 0.5) for ours in repeats]
    at = np.concatenate([index + offset for index, offset in enumerate(offsets)])
    every = pd.concat(repeats)
    axis.hlines(at, every.p5, every.p95, color=INNER, linewidth=0.9, alpha=0.75, zorder=2)
    axis.hlines(at, every.p25, every.p75, color=INNER, linewidth=2.6, zorder=3)
    axis.plot(every.p50, at, linestyle="", marker="|", markersize=3.2, color=style.DARK, markeredgewidth=1.0, zorder=5)
    for name, sign in (("p99", "|"), ("most", ".")):
        values = every[name].to_numpy(float)
        for beyond, marker in ((values > high, ">"), (values <= high, sign)):
            axis.plot(
                np.minimum(values, high)[beyond],
                at[beyond],
                linestyle="",
                marker=marker,
                markersize=2.6,
                color=OUTER,
                markeredgewidth=0.8,
                clip_on=False,
                zorder=4,
            )


def _beside(
    axis: Axes, texts: tuple[str, str], xy: tuple[float, float], units: str, first: float, up: float = 0
) -> None:
    """Two texts right of the panel, in columns; `units`: of the height."""
    for text, right in zip(texts, (0.1, first + 0.1), strict=True):
        axis.annotate(
            text,
            xy=xy,
            xycoords=("axes fraction", units),
            xytext=(72 * right, up),
            textcoords="offset points",
            va="center",
            fontsize=style.SMALL,
            color=style.DARK if not up else style.GREY,
            annotation_clip=False,
        )


def _footnote(
    shown: Sequence[RepeatSpread], every: Sequence[RepeatSpread], of: int, shared: Sequence[str], results: Results
) -> list[str]:
    what = (
        "Each line is one repeat: timed steps of the slowest rank, relative to the median step of the configuration. "
        "Thin: 5 to 95 %; thick: 25 to 75 %; black tick: the median. Grey: a tick at the 99th percentile, a dot at the "
        "slowest step. 1 in 100: how much slower the slowest hundredth is, at least."
    )
    return notes.under_figure(
        results,
        what,
        (any((one.repeats.most > _bounds(shown)[1]).any() for one in shown), "Triangles: beyond the axis."),
        (shared, style.all_of(shared).strip()),
        (any(len(one.repeats) > MOST_REPEATS for one in shown), f"The first {MOST_REPEATS} repeats."),
        (len(every) > len(shown), f"The first {len(shown)} of {len(every)} series."),
        (of > len(every), "Other batch sizes: samples.npz."),
    )


def machine(results: Results) -> list[str]:
    """The noise floor, any drift, and the noise between rounds."""
    runs = table(results)
    least, levels = floor(runs), noise_levels.levels(results)
    return [
        "Noise floor: not known, too few repeats." if least is None else floor_text(least, results.repeats_word),
        drift_text(drift(runs)) + launch_drift_text(drift_in_launches(results), results),
        *([levels_text(levels)] if levels else []),
    ]


def floor_text(least: Floor, apart: str) -> str:
    """`Noise floor: ±1.2 %, one standard deviation between repeats of the drift check (95 % interval 0.9 to 1.8 %).`
    `apart`: repeats or launches."""
    whose = "the drift check" if least.sentinel else f"{least.configurations} configurations, pooled"
    return (
        f"Noise floor: ±{two_figure_percentage(least.spread)} %, one standard deviation between {apart} of {whose} "
        f"(95 % interval {two_figure_percentage(least.low)} to {two_figure_percentage(least.high)} %)."
    )


WHAT_HELPS = {
    "processes": "processes that are faster in one launch than in another: more launches narrow it",
    "launches": "configurations that are faster in one launch than in another: more launches narrow it",
    "rounds": "blocks of unequal speed: more or longer ones narrow it",
}


def levels_text(levels: Levels) -> str:
    """`Noise by level: ±6 % between the steps of a block, ±2.1 % between blocks, ...`"""
    spreads = {
        "the steps of a block": levels.steps,
        "blocks": levels.rounds,
        "launches of one configuration": levels.alone,
        "launches of one set of processes": levels.processes,
    }
    each = ", ".join(f"±{two_figure_percentage(sd)} % between {name}" for name, sd in spreads.items() if sd == sd)
    most = max(levels.parts.items(), key=lambda part: part[1], default=None)
    largest = (
        f" Most of a ratio's uncertainty ({100 * most[1]:.0f} %) comes from {WHAT_HELPS[most[0]]}." if most else ""
    )
    best = levels.cheapest_rounds
    cheapest = (
        f" A launch starts in {levels.start_seconds:.0f} s and measures one block of every configuration in "
        f"{levels.round_seconds:.1f} s: {count(best, 'block')} a launch would narrow ratios soonest (here "
        f"{levels.rounds_a_launch:.3g})."
    )
    return (
        f"Noise by level (one standard deviation, {levels.launches} interleaved launches): {each}. Another "
        f"±{two_figure_percentage(levels.together)} % befell all configurations at once, and cancels in "
        f"ratios.{largest}{cheapest * bool(best)}"
    )


def launch_drift_text(within: LaunchDrift | None, results: Results) -> str:
    """` From the first block of a launch to its last, throughput of resnet8, ... changed by +1.2 %, ...`"""
    if within is None:
        return ""
    names = "; ".join(findings.name_of(results.by_name[name]) for name in within.configurations)
    changes = ", ".join(f"{two_figure_percentage(math.expm1(by), '+')} %" for by in within.changes.values())
    noise = f" (noise ±{two_figure_percentage(within.noise)} %)" if within.freedom else ""
    changed = (
        f" In {', '.join(within.changed)} that is more than noise: the machine changed meanwhile, or what these "
        "processes had left behind slowed them."
    )
    return (
        f" From the first block of a launch to its last, throughput of {names} changed by {changes}{noise}."
        f"{changed * bool(within.changed)}"
    )


def drift_text(moved: Drift | None) -> str:
    """The trend in a sentence, or that none can be known."""
    if moved is None:
        few = f"fewer than {FEWEST_BLOCKS * BLOCK} runs, or {FEWEST_BLOCKS} launches that they shared"
        return f"Drift: not known, too few repeats ({few})."
    seen = "yes" if moved.found else "not significant"
    test = (
        f"p = {moved.p:.2g}, Kendall's test within {moved.configurations} configurations, {moved.blocks} blocks of time"
    )
    return f"Drift: {seen}, {two_figure_percentage(moved.total, '+')} % from the first run to the last ({test})."


SHORT = 2.0  # hours; below, the axis is in minutes
SENTINEL = "the drift check"


def draw_drift(results: Results) -> dict[str, Figure]:
    """`drift`, where enough configurations were repeated for a floor or a trend."""
    runs = table(results)
    least, moved = floor(runs), drift(runs)
    if least is None and moved is None:
        return {}
    blue, orange = style.style_colours(2)
    layout = style.Layout(
        panel_width=4.6,
        panel_height=2.0,
        left=style.left_of(["+10.0 %"]),
        above=0.16,
        gutters=(style.gutter([SENTINEL]) if runs.sentinel.any() else 0.2,),
    )
    lines = [f"Points: samples/s of one run, relative to the mean of all {results.repeats_word} of its configuration."]
    lines += [f"Shaded: {floor_text(least, results.repeats_word)}"] if least is not None else []
    line = "" if moved is None else "Dark line: " if moved.found else "Dotted line: "
    lines += [f"{line}{drift_text(moved)}", f"{notes.source(results)}."]
    sheet = style.sheet(1, 1, layout, f"The machine over the sweep: {results.study.name}", lines)
    axis, _ = sheet.at(0)
    scale, unit = (60.0, "minutes") if runs.hours.max() < SHORT else (1.0, "hours")
    at, relative = scale * runs.hours.to_numpy(float), runs.relative.to_numpy(float)
    if least is not None:
        axis.axhspan(-least.spread, least.spread, color=style.PALE, zorder=0)
    axis.axhline(0.0, color=style.GREY, linewidth=0.8, zorder=1)
    axis.plot(at, relative, linestyle="", marker="o", markersize=3, color=blue, alpha=0.6, markeredgewidth=0)
    labels = []
    if (ours := runs.sentinel.to_numpy(bool)).any():
        axis.plot(at[ours], relative[ours], marker="D", markersize=4, color=orange, linewidth=1.0, zorder=3)
        labels.append(EndLabel(float(at[ours][-1]), float(relative[ours][-1]), SENTINEL, orange))
    if moved is not None:
        trend = np.expm1(np.log1p(moved.total) * (runs.place - 0.5)).groupby(at).mean()  # a launch begins all its runs
        axis.plot(trend.index, trend, color=style.DARK, linestyle="-" if moved.found else ":", linewidth=1.2, zorder=4)
    style.name_y(axis, "relative to the mean", layout)
    axis.set_xlabel(f"{unit} since the first run began")
    axis.grid(False, axis="x")
    _relative_ticks(axis.yaxis, 6, "0")
    style.end_labels(axis, labels, layout.panel_height)
    return {"drift": sheet.figure}


VIEW = View(
    "How steady was the machine?",
    figures=(
        Drawing.of_models("distributions", draw_distributions),
        Drawing(
            "drift",
            draw_drift,
            section="trust",
            gap=Gap("No drift figure", "too few repeats, or none of a drift check (`drift_check:` of a study file)"),
        ),
    ),
)
DOUBTS = View("Was the machine quiet?", detectors=(noise_and_drift, disturbances, not_interleaved))
