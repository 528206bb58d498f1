"""Statistical efficiency and goodput: what a larger batch costs in samples, and up to how many workers it pays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from scipy import stats

from analysis import findings
from analysis.findings import DOUBT, Evidence, Finding
from analysis.frames import results as series
from analysis.frames.configurations import SPREADING_KEYS, known, same, values_of
from analysis.frames.results import Results, once, without_kind
from analysis.frames.rows import bounded
from analysis.frames.study import workers_text
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import estimates
from analysis.statistics.batch_size import (
    RECIPE_KEYS,
    SPEED_KEYS,
    BatchRecipe,
    Curve,
    Trained,
    predicted_efficiency,
    recipes,
)
from analysis.statistics.estimates import LogEstimate, columns_of
from analysis.text import bracketed, number, with_interval
from analysis.views.view import Drawing, StudyTable, View

# Statistical efficiency and goodput of each trained configuration, and what the noise scale predicts of them.
#
#     efficiency(B) = samples to the target at the smallest global batch / at B     goodput = samples/s x efficiency
#     by a noise scale Bnoise: (smallest + Bnoise) / (B + Bnoise)
#
# Predicted is samples(B) = Smin (B + Bnoise): Smin from the samples, and Bnoise from the gradients, of the two smallest
# global batches with a noise scale. Seconds are those samples over the configuration's own throughput.

ABOUT = ("configuration", "series", "model", "framework", "workers", "batch_per_worker", "global_batch")
WITH_BOUNDS = (
    "samples_per_second",
    "efficiency",
    "noise_efficiency",
    "goodput",
    "noise_scale",
    "critical_batch",
    "recipe_noise_scale",
    "critical_over_noise",
    "measured_steps",
    "predicted_steps",
    "error",
    "seconds",
    "predicted_seconds",
)
COLUMNS = (
    *ABOUT,
    "target",
    "recipe",
    "seeds",
    "reached",
    "smallest_batch",
    *(f"{name}{bound}" for name in WITH_BOUNDS for bound in ("", "_low", "_high")),
    "smallest_steps",
    "noise_rows",
    "noise_unknown",
    "predicted_from",
    "worker_hours",
)
PREDICTED_FROM = 2  # global batches


@once
def efficiency_table(results: Results) -> pd.DataFrame:
    """COLUMNS, a row for each configuration that was trained to a target; `recipe` counts recipes from 1. `error`:
    predicted / measured - 1."""
    rows = [
        _row(one, recipe, number) for number, recipe in enumerate(recipes(results), start=1) for one in recipe.trained
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(one: Trained, recipe: BatchRecipe, number: int) -> dict[str, Any]:
    made: dict[str, Any] = {name: one.row[name] for name in ABOUT}
    made |= {"target": recipe.target, "recipe": number, "seeds": one.seeds, "reached": one.reached}
    made |= {"noise_unknown": one.unknown, "noise_rows": one.noise.rows if one.noise else 0}
    made |= columns_of("samples_per_second", one.speed) | columns_of("critical_over_noise", recipe.critical_over_noise)
    made |= bounded("recipe_noise_scale", recipe.noise.scale, recipe.noise.low, recipe.noise.high)
    if isinstance(curve := recipe.curve, Curve):
        made |= bounded("critical_batch", curve.critical, curve.low, curve.high) | {"smallest_steps": curve.steps}
    if one.noise:
        made |= bounded("noise_scale", one.noise.scale, one.noise.low, one.noise.high)
    if (efficiency := recipe.efficiency(one.batch)) is None:
        return made
    samples = recipe.samples[one.batch]
    seconds = samples / one.speed
    made |= {"smallest_batch": recipe.smallest, "worker_hours": seconds.value * int(one.row["workers"]) / 3600}
    made |= columns_of("efficiency", efficiency) | columns_of("goodput", one.speed * efficiency)
    made |= columns_of("measured_steps", samples / estimates.exactly(one.batch)) | columns_of("seconds", seconds)
    if one.noise and one.noise.low is not None:  # an interval without an upper end leads to no loss at all
        high = math.inf if one.noise.high is None else one.noise.high
        by_scale = (
            None if scale is None else predicted_efficiency(scale, one.batch, recipe.smallest)
            for scale in (one.noise.scale, one.noise.low, high)
        )
        made |= bounded("noise_efficiency", *by_scale)
    sources = predicted_from(recipe)
    made["predicted_from"] = ";".join(map(str, sources))
    if (expected := predicted(recipe, sources, one.batch)) is not None and one.batch not in sources:
        made |= columns_of("predicted_steps", expected / estimates.exactly(one.batch))
        made |= columns_of("predicted_seconds", expected / one.speed)
        error = columns_of("error", expected / samples)
        made |= {name: None if value is None else value - 1 for name, value in error.items()}
    return made


def predicted_from(recipe: BatchRecipe) -> tuple[int, ...]:
    """The smallest global batches that reached the target and whose noise scale is known."""
    there = [batch for batch in sorted(recipe.samples) if recipe.noise_at(batch)]
    return tuple(there[:PREDICTED_FROM]) if len(there) >= PREDICTED_FROM else ()


def predicted(recipe: BatchRecipe, sources: Sequence[int], batch: int) -> LogEstimate | None:
    """Samples to the target at `batch`; None without sources."""
    if not sources:
        return None
    share, noise, smallest = 1 / len(sources), estimates.exactly(1.0), estimates.exactly(1.0)
    for source in sources:
        known = recipe.noise_at(source)
        assert known is not None and known.scale is not None
        noise *= estimates.between(known.scale, known.low, known.high, known.freedom) ** share
        smallest *= recipe.samples[source] ** share

    def growth(scale: float) -> float:
        """Logarithm of samples at `batch` over those at the sources."""
        if math.isinf(scale):
            return 0.0
        return math.log(batch + scale) - share * sum(math.log(source + scale) for source in sources)

    low, high = noise.bounds()
    at, ends = growth(noise.value), (growth(low or 0.0), growth(math.inf if high is None else high))
    quantile = float(stats.t.ppf(0.975, noise.freedom))
    below, above = at - min(at, *ends), max(at, *ends) - at
    return smallest * LogEstimate(at, below / quantile, above / quantile, noise.freedom)


# Up to how many workers it pays: the worker counts with the fewest seconds, and worker-hours, to the target.
#
# Seconds are samples to the target over samples a second, so the highest goodput is the fewest seconds. Only worker
# counts that were trained compete, each with its best global batch. Tied is what may be the best at 95 % for all at
# once (Bonferroni over the others); where two have the same global batch, only their throughputs tell them apart.

ALONE = "single"  # the one worker of a framework that has no run of its own with one
WAY_KEYS = tuple(key for key in SPREADING_KEYS if key not in ("workers", "hosts", "allreduce", "launcher"))
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class BestBatch:
    """`tied`: other worker counts that may be as good; `unsure`: those of which too few seeds tell."""

    of: Trained
    tied: tuple[int, ...]
    unsure: tuple[int, ...]


@dataclass(frozen=True)
class Paying:
    """The best worker counts of one framework: by seconds, by worker-hours, and by throughput alone."""

    framework: str
    seconds: BestBatch
    hours: BestBatch
    throughput: Trained


def paying(recipe: BatchRecipe) -> Iterator[Paying]:
    """For each way of sharing the work that was trained with, or beside, another number of workers."""
    there = [one for one in (*recipe.trained, *recipe.borrowed) if one.batch in recipe.samples]
    alone = [one for one in there if one.row["framework"] == ALONE]
    shared = [one for one in there if one.row["framework"] != ALONE]
    for ours in findings.grouped(shared, lambda one: values_of(one.row, (*WAY_KEYS, *SPEED_KEYS))).values():
        if all(int(one.row["workers"]) > 1 for one in ours):
            speed = values_of(ours[0].row, SPEED_KEYS)
            ours = [*(one for one in alone if values_of(one.row, SPEED_KEYS) == speed), *ours]
        if len({int(one.row["workers"]) for one in ours}) > 1:
            fastest = max(ours, key=lambda one: one.speed.log)
            by_seconds, by_hours = (_best(ours, recipe, priced) for priced in (False, True))
            yield Paying(str(ours[-1].row["framework"]), by_seconds, by_hours, fastest)


def _best(ours: Sequence[Trained], recipe: BatchRecipe, priced: bool) -> BestBatch:
    """`priced`: each second costs as much as there are workers."""
    best = min(ours, key=lambda one: _cost(one, recipe, priced).log)
    others = [one for one in ours if one.row["workers"] != best.row["workers"]]
    confidence = 1 - FALSE_ALARMS / max(1, len(others))
    bounds = [(int(one.row["workers"]), _ratio(one, best, recipe, priced).bounds(confidence)[0]) for one in others]
    tied = {count for count, low in bounds if low is not None and low <= 1}
    unsure = {count for count, low in bounds if low is None}
    return BestBatch(best, tuple(sorted(tied)), tuple(sorted(unsure - tied)))


def _cost(one: Trained, recipe: BatchRecipe, priced: bool) -> LogEstimate:
    return recipe.samples[one.batch] / one.speed * _price(one, priced)


def _ratio(one: Trained, other: Trained, recipe: BatchRecipe, priced: bool) -> LogEstimate:
    """The cost of `one` over that of `other`."""
    if one.batch == other.batch:
        return other.speed / one.speed * (_price(one, priced) / _price(other, priced))
    return _cost(one, recipe, priced) / _cost(other, recipe, priced)


def _price(one: Trained, priced: bool) -> LogEstimate:
    return estimates.exactly(float(one.row["workers"]) if priced else 1.0)


OPEN = ("0", "∞")  # ends of an interval that is not bounded there
SHOWN_COLUMNS = {
    "samples_per_second": "samples/s, whole trainings",
    "efficiency": "efficiency",
    "noise_efficiency": "by noise scale",
    "goodput": "goodput",
    "noise_scale": "noise scale",
    "measured_steps": "pooled steps",
    "predicted_steps": "predicted steps",
    "error": "error",
    "seconds": "seconds from pooled steps",
    "predicted_seconds": "predicted seconds",
}
METHOD = (
    "Efficiency: samples to the target at the smallest global batch over those at this one; by noise scale: as the "
    "configuration's own gradient noise scale has it, (smallest + scale) / (batch + scale). Goodput: samples/s x "
    "efficiency. Geometric means over the seeds [95 % interval]; frameworks and workers of one recipe and global batch "
    "are pooled for samples and steps, seed by seed: steps and seconds are not those of one configuration's own seeds.",
    "Noise scale, in samples: from squared norms of the gradients of two batch sizes, averaged over the training "
    "before they are divided (McCandlish et al., arXiv 1812.06162, A.1) [95 %, Fieller; between seeds from three on].",
)
PREDICTED = (
    "Predicted: steps(B) = Smin (1 + scale / B), with the samples and the noise scales of global batches {sources} "
    "alone. Error: predicted / measured - 1 [95 %]. Predicted seconds: with the configuration's own throughput, so of "
    "the same error."
)
BEYOND = (
    "Of worker counts and batch sizes that were not trained nothing is said here; with a network and timed runs of one "
    "worker in the study, `scaling-study predict` says what their throughput would be."
)


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained to a target; None where nothing can be said of batch sizes."""
    rows, found = efficiency_table(results), recipes(results)
    several = any(len(recipe.samples) > 1 for recipe in found)
    if rows.noise_scale_low.isna().all() and not several:
        return None
    made = rows.to_dict("records")
    cells = [
        {"configuration": name} | {header: _cell(row, column) for column, header in SHOWN_COLUMNS.items()}
        for row, name in zip(made, notes.named_with_batch(results, made), strict=True)
    ]
    title = f"Statistical efficiency and goodput ({results.heading})"
    shown = Listing.from_rows(title, cells, _lines(results, rows, found))
    return shown if several else replace(shown, nothing="each target was reached at one global batch alone")


def name(recipe: BatchRecipe, results: Results) -> str:
    """`resnet8 to accuracy=0.6`, with what else tells this study's recipes apart."""
    row = recipe.trained[0].row
    others = [other.trained[0].row for other in recipes(results) if other.model == recipe.model]
    differing = (key for key in RECIPE_KEYS if any(not same(row[key], one[key]) for one in others))
    keys = [key for key in differing if key != "train_target"]
    wire = [f"gradients {series.carried(row['allreduce'])}"] if row["allreduce"] not in ("none", "fp32") else []
    return ", ".join([f"{recipe.model} to {recipe.target}", *series.words(row, keys), *wire])


def critical(curve: Curve) -> str:
    """`204 samples [198, 210]`, or on which side of what it lies."""
    if curve.critical is not None:
        return f"{number(curve.critical)} samples{bracketed(curve.low, curve.high, ends=OPEN)}"
    if curve.low is not None:
        return f"above {number(curve.low)} samples (95 %)"
    return f"below {number(curve.high)} samples (95 %)" if curve.high is not None else "unknown"


def _cell(row: Mapping[Any, Any], column: str) -> str:
    value, low, high = (row[f"{column}{bound}"] for bound in ("", "_low", "_high"))
    if column == "noise_scale" and not known(value):
        return f"above {number(low)}" if known(low) else "unknown"
    if not known(value):
        return "not reached" if column in ("efficiency", "measured_steps") else ""
    if column in ("efficiency", "noise_efficiency") and row["global_batch"] == row["smallest_batch"]:
        return "1"
    return with_interval(value, low, high, _signed if column == "error" else number, OPEN)


def text_of(value: float, low: float | None, high: float | None) -> str:
    """`412 [398, 427]`, with `0` or `∞` for an end that is open; the value alone where both are."""
    return with_interval(value, low, high, ends=OPEN)


def _signed(share: float) -> str:
    return f"{100 * share:+.0f} %"


def _lines(results: Results, rows: pd.DataFrame, found: list[BatchRecipe]) -> Iterator[str]:
    yield from METHOD
    yield from notes.how_it_differs(results.among(rows.configuration))
    for recipe in found:
        yield from _of_recipe(recipe, name(recipe, results))
    for unknown, ours in rows[rows.noise_unknown != ""].groupby("noise_unknown", sort=False):
        names = ", ".join(dict.fromkeys(map(without_kind, ours.series)))
        yield f"Noise scale unknown of {names}: {unknown}."
    sources = sorted({text.replace(";", " and ") for text in rows.predicted_from.dropna() if text})
    if rows.predicted_steps.notna().any():
        yield PREDICTED.format(sources="; ".join(sources))
    else:
        yield "No steps are predicted: that takes two global batches with a noise scale, and a third to compare."
    yield BEYOND
    yield notes.source(results)


def _of_recipe(recipe: BatchRecipe, title: str) -> Iterator[str]:
    curve = recipe.curve
    if isinstance(curve, str):
        yield f"{title}: no critical batch size, as {curve}."
    else:
        batches = ", ".join(map(str, curve.batches))
        least = "" if curve.steps is None else f", Smin {number(curve.steps)} steps"
        yield (
            f"{title}: critical batch size {critical(curve)}{least}; steps = Smin (1 + critical / batch), fitted to "
            f"{curve.seeds} seeds at global batches {batches} (Shallue et al., arXiv 1811.03600)."
        )
    yield from noise_sentences(recipe, title)
    if rates := throughputs(recipe):
        what = "samples a second at the largest global batch over those at the smallest, of whole trainings"
        yield f"{title}: {what}: {'; '.join(rates)}."
    for one in paying(recipe):
        best, fastest = one.seconds, one.throughput
        count = workers_text(int(fastest.row["workers"]))
        throughput = f"highest throughput with {count} (global batch {fastest.batch})"
        more = int(fastest.row["workers"]) > int(best.of.row["workers"])
        stops = ": beyond it more workers are faster, and no sooner at the target" if more else ""
        yield (
            f"{title}, {one.framework}: highest goodput, and so fewest seconds, with {_best_in_words(best)}{stops}; "
            f"{throughput}; fewest worker-hours with {_best_in_words(one.hours)}."
        )


def noise_sentences(recipe: BatchRecipe, title: str) -> Iterator[str]:
    """The noise scale over all seeds and batch sizes, and whether the critical batch size contradicts it."""
    noise, ratio = recipe.noise, recipe.critical_over_noise
    if noise.scale is not None:
        scale = text_of(noise.scale, noise.low, noise.high)
        yield f"{title}: gradient noise scale {scale} samples over all seeds and batch sizes (between seeds)."
    if ratio is not None:
        verdict = "they disagree" if disagrees(ratio) else "they are not shown to disagree"
        yield f"{title}: critical batch size over noise scale {text_of(ratio.value, *ratio.bounds())}: {verdict}."


def disagrees(ratio: LogEstimate) -> bool:
    """True where 1 is outside of its 95 % interval."""
    low, high = ratio.bounds()
    return (low is not None and low > 1) or (high is not None and high < 1)


def throughputs(recipe: BatchRecipe) -> list[str]:
    """`torch_ddp, 2 workers: 0.95 times [0.83, 1.10] from 64 to 512, not resolved` of each way of sharing the work that
    was trained at several global batches."""
    ordered, keys = sorted(recipe.trained, key=lambda one: one.batch), ("workers", *WAY_KEYS, *SPEED_KEYS)
    ways = findings.grouped(ordered, lambda one: values_of(one.row, keys)).values()
    said = []
    for small, *_, large in (ours for ours in ways if len({one.batch for one in ours}) > 1):
        ratio = large.speed / small.speed
        verdict = ("faster" if ratio.log > 0 else "slower") if disagrees(ratio) else "not resolved"
        name = f"{small.row['framework']}, {workers_text(int(small.row['workers']))}"
        bounds = bracketed(*ratio.bounds(), ends=OPEN)
        said.append(f"{name}: {number(ratio.value)} times{bounds} from {small.batch} to {large.batch}, {verdict}")
    return said


def noise_and_critical_batch(evidence: Evidence) -> Iterator[Finding]:
    """A noise scale that is not the critical batch size: what is predicted from it is off."""
    for recipe in recipes(evidence.results):
        ratio, curve = recipe.critical_over_noise, recipe.curve
        if ratio is not None and not isinstance(curve, str) and disagrees(ratio):
            times, noise = text_of(ratio.value, *ratio.bounds()), recipe.noise
            assert noise.scale is not None
            text = (
                f"{name(recipe, evidence.results)}: the critical batch size is {critical(curve)}, the gradient noise "
                f"scale {text_of(noise.scale, noise.low, noise.high)}, a ratio of {times}. Predictions from the noise "
                f"scale make a larger batch {'dearer' if ratio.log > 0 else 'cheaper'} than it was."
            )
            yield findings.about(
                "noise scale",
                "The noise scale is not the critical batch",
                text,
                DOUBT,
                (one.row for one in recipe.trained),
            )


def _best_in_words(best: BestBatch) -> str:
    """`2 workers (global batch 128; too close to call: 1 worker)`."""
    tied, unsure = (" and ".join(map(workers_text, counts)) for counts in (best.tied, best.unsure))
    parts = [f"global batch {best.of.batch}"]
    parts += [f"too close to call: {tied}"] if tied else []
    parts += [f"not told from {unsure}, for want of seeds"] if unsure else []
    return f"{workers_text(int(best.of.row['workers']))} ({'; '.join(parts)})"


# The cost of a larger batch: throughput beside goodput, and samples to the target with the critical batch size.
#
# The first panel has both in one colour each way of sharing the work; where they part, more speed is lost to more
# samples.

DODGE = 1.05
CURVE_POINTS = 60
HEIGHT = 2.5
REACH = 4  # times the largest batch, up to which the second panel goes
MOST_ENTRIES = 12  # of the key beside it; beyond, only recipes are named


def draw(results: Results, model: str) -> Figure | None:
    """The figure of one model; None where it reached its target at no more than one global batch."""
    numbered = dict(enumerate(recipes(results), start=1))
    ours = {place: recipe for place, recipe in numbered.items() if recipe.model == model and len(recipe.samples) > 1}
    if not ours:
        return None
    rows, found = efficiency_table(results), list(ours.values())
    rows = rows[rows.recipe.isin(list(ours)) & rows.goodput.notna()]
    series = list(dict.fromkeys(rows.series))
    names, shared = style.told_apart(list(map(without_kind, series)))
    labels = [_short_name(recipe, results, found) for recipe in found] if len(found) > 1 else [""]
    key = [text for recipe, label in zip(found, labels, strict=True) for text in (label, *_verticals(recipe))]
    dashes = {dashes for recipe in found for _, dashes in _verticals(recipe).values()}
    curves = any(isinstance(recipe.curve, Curve) for recipe in found)
    footnote = [
        "Squares: samples/s. Circles: goodput = samples/s x samples to the target at the smallest global batch / at "
        f"this one. Bars: 95 % interval over the seeds.{style.all_of(shared)}",
        *notes.under_figure(
            results,
            "Samples to the target: geometric means over the seeds; frameworks and workers of one recipe are pooled; "
            "bars: 95 %.",
            (curves, "Curve: samples = Smin (batch + critical), with its 95 % band."),
            ("--" in dashes, "Dashed: the critical batch size [95 %]."),
            (":" in dashes, "Dotted: the gradient noise scale over all seeds and batch sizes [95 %]."),
        ),
    ]
    targets = ", ".join(dict.fromkeys(recipe.target for recipe in found))
    return style.figure_of(
        f"{model} to {targets}: what a larger batch costs: {results.study.name}",
        [
            style.Panel(
                "throughput (squares) and goodput (circles)",
                partial(_speeds, rows=rows, names=dict(zip(series, names, strict=True))),
                x="global batch",
                y="samples/s",
                labels=names,
            ),
            style.Panel(
                "samples to the target",
                partial(_samples, found=found, labels=labels, named=len(key) <= MOST_ENTRIES),
                x="global batch",
                y="samples to the target",
                labels=[f"{text}-----" for text in key],
            ),
        ],
        footnote,
        panel_width=2.9,
        panel_height=HEIGHT,
        left=style.left_of(["1,000 k"]),
    )


def _verticals(recipe: BatchRecipe) -> dict[str, tuple[float, str]]:
    """Text -> place and dashes of the lines at the critical batch size and the gradient noise scale."""
    curve, noise, lines = recipe.curve, recipe.noise, dict[str, tuple[float, str]]()
    if isinstance(curve, Curve) and curve.critical is not None:
        lines[f"critical batch: {critical(curve).replace(' samples', '')}"] = curve.critical, "--"
    if noise.scale is not None:
        lines[f"noise scale: {text_of(noise.scale, noise.low, noise.high)}"] = noise.scale, ":"
    return lines


def _speeds(axis: Axes, layout: style.Layout, rows: pd.DataFrame, names: Mapping[str, str]) -> None:
    """Against the global batch, a colour each series. `names`: series -> its label."""
    labels = []
    for place, (name, colour) in enumerate(zip(names, style.style_colours(len(names)), strict=True)):
        ours = rows[rows.series == name].sort_values("global_batch")
        at = ours.global_batch * DODGE ** (place - (len(names) - 1) / 2)
        for column, dashes, marker in (("samples_per_second", "--", "s"), ("goodput", "-", "o")):
            axis.plot(at, ours[column], color=colour, linestyle=dashes, marker=marker, markersize=3.5, linewidth=1.2)
            _bars(axis, at, ours, column, colour)
        labels.append(EndLabel(float(at.iloc[-1]), float(ours.goodput.iloc[-1]), names[name], colour))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    _batch_axis(axis, sorted(set(rows.global_batch)))
    style.end_labels(axis, labels, layout.panel_height)


def _bars(axis: Axes, at: pd.Series, rows: pd.DataFrame, column: str, colour: str) -> None:
    for x, low, high in zip(at, rows[f"{column}_low"], rows[f"{column}_high"], strict=True):
        if known(low) and known(high):
            axis.plot([x, x], [low, high], color=colour, linewidth=1.0)


def _samples(axis: Axes, _: style.Layout, found: Sequence[BatchRecipe], labels: Sequence[str], named: bool) -> None:
    """Points, fitted curves, and vertical lines, which a key beside the panel names where they are `named`."""
    for recipe, label, colour in zip(found, labels, style.style_colours(len(found)), strict=True):
        _points(axis, recipe, label, colour)
        for text, (at, dashes) in _verticals(recipe).items():
            axis.axvline(at, color=colour, linestyle=dashes, linewidth=1.1, zorder=1, label=text if named else "")
    batches = sorted({batch for recipe in found for batch in recipe.samples})
    _batch_axis(axis, batches)
    axis.set_yscale("log")
    style.ticked(axis.yaxis, LogLocator(subs=(1.0, 2.0, 5.0)), _in_thousands)
    least, most = axis.get_xlim()  # a critical batch far from what was trained does not squeeze it
    axis.set_xlim(max(least, batches[0] / REACH), min(most, batches[-1] * REACH))
    if axis.get_legend_handles_labels()[1]:
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, frameon=False, fontsize=style.SMALL)


def _in_thousands(value: float) -> str:
    """`20 k`, `500`."""
    return f"{value / 1000:,g} k" if value >= 1000 else number(value)


def _points(axis: Axes, recipe: BatchRecipe, label: str, colour: str) -> None:
    batches = sorted(recipe.samples)
    for batch in batches:
        least, most = recipe.samples[batch].bounds()
        if least is not None and most is not None:
            axis.plot([batch, batch], [least, most], color=colour, linewidth=1.2, zorder=3)
    values = [recipe.samples[batch].value for batch in batches]
    axis.plot(batches, values, color=colour, linestyle="", marker="o", markersize=4.5, zorder=4, label=label)
    if isinstance(recipe.curve, Curve):
        at = np.geomspace(batches[0], batches[-1], CURVE_POINTS)
        line = [recipe.curve.samples(batch) for batch in at]
        bounds = [one.bounds() for one in line]
        low, high = np.array(bounds, dtype=float).T  # None as nan
        axis.plot(at, [one.value for one in line], color=colour, linewidth=1.3, zorder=2)
        axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _batch_axis(axis: Axes, batches: Sequence[int]) -> None:
    """Global batches on a logarithmic x axis, with a tick at each."""
    axis.set_xscale("log")
    axis.set_xticks(list(batches), [str(batch) for batch in batches])
    axis.xaxis.set_minor_locator(NullLocator())


def _short_name(recipe: BatchRecipe, results: Results, found: Sequence[BatchRecipe]) -> str:
    """The words that tell it apart from the other recipes of its model."""
    start = f"{recipe.model} to {recipe.target}"
    others = name(recipe, results).removeprefix(start).removeprefix(", ")
    same_target = len({one.target for one in found}) == 1
    return others if others and same_target else ", ".join(filter(None, (recipe.target, others)))


VIEW = View(
    "What does a larger batch cost in samples?",
    (StudyTable("efficiency", listing, efficiency_table),),
    (Drawing.of_models("efficiency", draw, rank=1),),
    (noise_and_critical_batch,),
)
