"""Training to a target: who reached it, how soon, at what cost, and who is tied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.frames import configurations
from analysis.frames.configurations import known, own_algorithm, values_of
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow
from analysis.frames.training import METRICS, SHOWN, evaluation_steps, rounding
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics.estimates import censored_mean
from analysis.text import file_name, megabytes, number
from analysis.views import cost
from analysis.views.view import Drawing, StudyTable, View
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats
from scaling_study.stats.spread import Spread, believed
from scaling_study.targets import METRICS as DIRECTIONS
from scaling_study.targets import Target

# One row a configuration that was trained to a result: means over its seeds, with those that never got there.

UNITS = {"seconds": "train_seconds", "samples": "samples", "steps": "steps"}  # -> of a training that was stopped
SAME_TASK = (  # inputs augment each its way
    "model",
    "train_target",
    "train_validation",
    "data",
    "input",
    "image_size",
    "image_width",
)
COLUMNS = (
    "configuration",
    "series",
    "model",
    "framework",
    "workers",
    "global_batch",
    "learning_rate",
    "target",
    "seeds",
    "reached",
    "diverged",
    *(f"{unit}_to_target{bound}" for unit in UNITS for bound in ("", "_low", "_high")),
    *(f"{what}_to_target{bound}" for what in ("worker_hours", "money") for bound in ("", "_low", "_high")),
    "price_per_worker_hour",
    "soonest",
    "cheapest",
    "samples_per_second",
    "evaluate_share",
    *(f"test_{name}{bound}" for name in METRICS for bound in ("", "_low", "_high")),
    "resumed",
    "lost_steps",
    "train_seconds",
    "train_seconds_low",
    "train_seconds_high",
    "steps",
    "best_step",
    "cores_busy",
    "gpu_utilization_percent",
    "peak_memory_bytes",
)


def trained_configurations(results: Results) -> pd.DataFrame:
    """COLUMNS. Seconds are of training alone. A mean to target is geometric, over all seeds: where some were stopped
    before, they count as larger (estimates.censored_mean). Test metrics are arithmetic means of all seeds,
    seconds of whole trainings geometric ones.

    `soonest`, `cheapest`: the verdict among those of its model and target. The cheapest has the least money where
    every one of these has a price, else the fewest worker-hours.
    """
    trained = results.details.trained
    shown = {row["configuration"]: row for row in results.rows}
    prices = cost.prices(results)
    rows: list[dict[str, Any]] = []
    every = evaluation_steps(results.details.evaluations)
    for name, ours in trained.groupby("configuration", sort=False):
        if row := shown.get(str(name)):
            price, _ = prices.get(str(name), (None, ""))
            known = {key: row.get(key) for key in COLUMNS if key in row}
            rows.append({**known, **_of(ours, row, price, rounding(ours, every))})
    _judge(rows, shown, trained)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _judge(rows: list[dict[str, Any]], shown: Mapping[str, ConfigurationRow], trained: pd.DataFrame) -> None:
    """Enter who is the soonest and the cheapest, and what is tied with it."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["target"]:
            of = shown[row["configuration"]]
            task = (*map(str, values_of(of, SAME_TASK)), own_algorithm(of))
            groups.setdefault(task, []).append(row)
    for verdict, priced in (("soonest", False), ("cheapest", True)):
        times = [
            {row["configuration"]: _times(trained, row, group if priced else []) for row in group}
            for group in groups.values()
        ]
        verdicts = verdicts_of_times(times)
        for row in rows:
            row[verdict] = verdicts.get(row["configuration"], "")


def _times(trained: pd.DataFrame, row: dict[str, Any], priced_among: list[dict[str, Any]]) -> Times:
    """Seconds; or worker-hours, times their price where all of `priced_among` have one."""
    ours = trained[trained.configuration == row["configuration"]]
    prices = [other["price_per_worker_hour"] for other in priced_among]
    price = 1.0 if any(one is None for one in prices) else row["price_per_worker_hour"] or 1.0
    factor = int(row["workers"]) / 3600 * price if priced_among else 1.0
    reached = ours.target_seconds.notna()
    return Times((factor * ours.target_seconds[reached]).tolist(), (factor * ours.train_seconds[~reached]).tolist())


def _of(ours: pd.DataFrame, row: Any, price: float | None, least_spread: float) -> dict[str, Any]:
    reached = ours.target_steps.notna()
    result: dict[str, Any] = {
        "learning_rate": row["learning_rate"],
        "target": str(ours.target.iloc[0]),
        "seeds": len(ours),
        "reached": int(reached.sum()),
        "diverged": int((ours.ended_by == "diverged").sum()),
        "evaluate_share": float((ours.evaluate_seconds / (ours.train_seconds + ours.evaluate_seconds)).mean()),
        "samples_per_second": float(ours.samples.sum() / ours.train_seconds.sum()),
        "resumed": int(ours.resumed.sum()),
        "lost_steps": int(ours.lost_steps.sum()),
        "price_per_worker_hour": price,
    }
    for unit, stopped in UNITS.items():
        took, bounds = ours.loc[reached, f"target_{unit}"].to_list(), ours.loc[~reached, stopped].to_list()
        mean = censored_mean(took, bounds, least_spread=least_spread)
        result |= {f"{unit}_to_target": mean.mean, f"{unit}_to_target_low": mean.low}
        result[f"{unit}_to_target_high"] = mean.high
    for bound in ("", "_low", "_high"):
        seconds = result[f"seconds_to_target{bound}"]
        hours = None if seconds is None else seconds * int(row["workers"]) / 3600
        result[f"worker_hours_to_target{bound}"] = hours
        result[f"money_to_target{bound}"] = None if hours is None or price is None else hours * price
    for name in (f"test_{metric}" for metric in METRICS):
        values = ours[name].dropna().to_numpy(float)
        if len(values) and np.isfinite(values).all():
            interval = between_repeats(values.tolist())
            result |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    whole = censored_mean(ours.train_seconds.to_list(), ())
    result |= {"train_seconds": whole.mean, "train_seconds_low": whole.low, "train_seconds_high": whole.high}
    for name in ("steps", "best_step", "cores_busy", "gpu_utilization_percent", "peak_memory_bytes"):
        result[name] = float(ours[name].mean()) if ours[name].notna().any() else None
    return result


# The configuration that reaches the target soonest, or at least cost, and those tied with it (95 %).
#
# As of throughput (statistics/ranking.py) the lowest mean of many is partly luck, so the best is a set: what is not
# shown to be slower than another. Compared are logarithms of geometric means over the seeds, all pairs of a study at
# once (Bonferroni), with the spread of seeds as spread.py believes it.
#
# A training that was stopped before the target counts as one that reached it at that moment. That flatters it, so
# whoever is called slower all the same is; but such a configuration is never the best, and nothing is called slower
# than it.

FALSE_ALARMS = 0.05  # of studies of equal configurations, in which any is called slower than another
BEST, TIED, SLOWER, NOT_RESOLVED, TOO_FEW = "best", "tied", "slower", "not resolved", "too few seeds"


@dataclass(frozen=True)
class Times:
    """Times of one configuration's seeds to the target, or until they were stopped before it; above 0."""

    reached: Sequence[float]
    stopped: Sequence[float] = ()

    @property
    def logs(self) -> np.ndarray:
        return np.log([*self.reached, *self.stopped])


def verdicts_of_times(groups: Sequence[Mapping[str, Times]]) -> dict[str, str]:
    """Configuration -> BEST, TIED, SLOWER, or NOT_RESOLVED where some were stopped and it is not shown to be slower;
    TOO_FEW with fewer than 3 seeds. `groups`: of configurations with one model and target, by their names.

    What is cheapest is asked likewise, with worker-hours or money in place of seconds.
    """
    sure = {name: of for group in groups for name, of in group.items() if len(of.logs) >= FEWEST_REPEATS}
    whole = {name: of for name, of in sure.items() if not of.stopped}
    pairs = sum(math.comb(sum(name in sure for name in group), 2) for group in groups)
    result = {name: TOO_FEW for group in groups for name in group}
    if not whole:
        return result | dict.fromkeys(sure, NOT_RESOLVED)
    spread, place = _spread(sure, whole)
    for group in groups:
        rivals = sorted((name for name in group if name in whole), key=lambda name: whole[name].logs.mean())
        for name in (name for name in group if name in sure):
            slower = any(_slower(sure, name, rival, spread, place, pairs) for rival in rivals if rival != name)
            best = name in rivals[:1]
            result[name] = BEST if best else SLOWER if slower else TIED if name in whole else NOT_RESOLVED
    return result


def _spread(sure: Mapping[str, Times], whole: Mapping[str, Times]) -> tuple[Spread, dict[str, int]]:
    """The spread of each in `sure`. Stopped values hide theirs: such a configuration gets the widest of the others."""
    own = np.array([float(np.var(of.logs, ddof=1)) for of in whole.values()])
    trusted = believed(own, [len(of.logs) - 1 for of in whole.values()])
    variance, freedom = np.maximum(trusted.variance, own), trusted.freedom
    place = {name: index for index, name in enumerate(whole)}
    for name, of in sure.items():
        if name not in place:
            place[name] = len(variance)
            variance = np.append(variance, max(variance[: len(whole)].max(), float(np.var(of.logs, ddof=1))))
            freedom = np.append(freedom, freedom[: len(whole)].min())
    return Spread(variance, freedom, wary=True), place


def _slower(
    sure: Mapping[str, Times], name: str, rival: str, spread: Spread, place: Mapping[str, int], pairs: int
) -> bool:
    own, other = sure[name].logs, sure[rival].logs
    terms = [(np.array([place[who]]), 1 / len(logs)) for who, logs in ((name, own), (rival, other))]
    return bool(own.mean() - other.mean() > spread.half_widths(1 - FALSE_ALARMS / pairs, *terms)[0])


# The table of trainings to a result: who reached the target, how soon, and what the test set says.

HEADER = ("configuration", "target", "reached", "seconds", "samples", "steps", "soonest", "worker-hours")


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = trained_configurations(results)
    if rows.empty:
        return None
    priced = bool(rows.money_to_target.notna().any())
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    several = rows.model.nunique() > 1
    signs = {row["configuration"]: configurations.sign(row) for row in results.rows}
    cells = [_cells(row, metrics, several, priced, signs[row["configuration"]]) for row in rows.to_dict("records")]
    costs = ("money", "cheapest") if priced else ("cheapest",)
    return Listing(
        f"Training to a result ({results.heading})",
        (*HEADER, *costs, *(f"test {name}" for name in metrics)),
        tuple(cells),
        tuple(_lines(results, rows)),
    )


def _cells(row: Mapping[Any, Any], metrics: list[str], several: bool, priced: bool, sign: str) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    name = f"{model}{row['series']}, batch {row['global_batch']} {sign}".rstrip()
    money = (interval(row, "money_to_target"),) if priced else ()
    return (
        name,
        row["target"] or "none",
        f"{row['reached']} of {row['seeds']}",
        *(_to_target(row, unit) for unit in UNITS),
        row["soonest"],
        interval(row, "worker_hours_to_target"),
        *money,
        row["cheapest"],
        *(interval(row, f"test_{metric}", 3) for metric in metrics),
    )


def _to_target(row: Mapping[Any, Any], unit: str) -> str:
    if not row["target"]:
        return ""
    if not known(row[f"{unit}_to_target"]):
        return "not reached" if not row["reached"] else "too few"
    return interval(row, f"{unit}_to_target")


def interval(row: Mapping[Any, Any], key: str, places: int | None = None) -> str:
    """`412 [398, 427]`; empty where it is not known."""

    def text(value: Any) -> str:
        if not known(value):
            return "?"
        return f"{value:.{places}f}" if places is not None else f"{value:,.0f}" if value >= 100 else number(value)

    if not known(row[key]):
        return ""
    bounds = row[f"{key}_low"], row[f"{key}_high"]
    return text(row[key]) + (f" [{text(bounds[0])}, {text(bounds[1])}]" if any(map(known, bounds)) else "")


def _lines(results: Results, rows: pd.DataFrame) -> list[str]:
    lines = [
        "To the first evaluation on validation data at which the target was reached: geometric means over the seeds "
        "[95 % interval, log-normal]. A training that was stopped before counts as one that takes longer. Seconds are "
        "of training steps alone; evaluation and checkpoints are apart. Nothing is known between two evaluations.",
        "Soonest and cheapest: tied is what is not shown to be slower, or dearer, than another (95 %, corrected for "
        "all pairs of the study). One with a training that was stopped before is never the best, and not resolved "
        f"unless it is slower all the same. {_cost(rows)}",
        "Test: the model at the end of each training, on the published test set, once; mean over the seeds [95 %].",
        f"Learning rates: {_rates(results)}.",
    ]
    if inputs := _unlike_inputs(results):
        lines.append(
            f"Inputs ({', '.join(inputs)}) augment images each in its own way: losses, metrics and steps are not "
            "compared from one input to another, and who is soonest and cheapest is asked for each by itself."
        )
    if rows.diverged.any():
        lines.append(f"{rows.diverged.sum():,} training(s) diverged: their loss became no number.")
    if rows.resumed.any():
        lines.append(
            f"{rows.resumed.sum():,} resumption(s) from a checkpoint; {rows.lost_steps.sum():,} steps were made twice."
        )
    ours = results.configurations[results.configurations.configuration.isin(rows.configuration)]
    return [*configurations.sentences(ours), *notes.how_it_differs(ours), *lines, notes.source(results)]


def _unlike_inputs(results: Results) -> list[str]:
    """The inputs that made the batches of trainings, where a model has several."""
    trained = results.configurations[results.configurations.configuration.isin(results.details.trained.configuration)]
    kinds = {model: set(rows.input.fillna("none given")) for model, rows in trained.groupby("model")}
    return sorted(set().union(*(names for names in kinds.values() if len(names) > 1)))


def _cost(rows: pd.DataFrame) -> str:
    prices = rows.price_per_worker_hour
    if prices.isna().all():
        return "No price is set (price_per_worker_hour in a machine file): the fewest worker-hours are the cheapest."
    some = "" if prices.notna().all() else ", but not of all: the fewest worker-hours are the cheapest"
    return f"Money: worker-hours x the price of a machine file{some}."


def _rates(results: Results) -> str:
    trained = results.configurations[results.configurations.configuration.isin(results.details.trained.configuration)]
    rules = {
        f"{row.learning_rate:g} x {rule} of (global batch / {row.train_reference_batch})"
        if known(rule := row.train_scale_learning_rate) and rule != "none"
        else f"{row.learning_rate:g}"
        if known(row.learning_rate)
        else "the workload's own"
        for row in trained.itertuples()
    }
    return "; ".join(sorted(rules)) + " (never multiplied by workers)"


# The table of what trainings to a result took of their machine, beside what they came to.

RESOURCE_HEADER = ("configuration", "seeds", "seconds", "samples/s", "cores busy")
RESOURCE_COLUMNS = (
    "configuration",
    "series",
    "model",
    "global_batch",
    "seeds",
    "train_seconds",
    "train_seconds_low",
    "train_seconds_high",
    "evaluate_share",
    "samples_per_second",
    "cores_busy",
    "gpu_utilization_percent",
    "peak_memory_bytes",
    "steps",
    "best_step",
    *(f"test_{name}{bound}" for name in METRICS for bound in ("", "_low", "_high")),
)


def resources_table(results: Results) -> pd.DataFrame:
    """RESOURCE_COLUMNS of trained_configurations()."""
    return trained_configurations(results)[list(RESOURCE_COLUMNS)]


def resources_listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = resources_table(results)
    if rows.empty:
        return None
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    on_gpus = bool(rows.gpu_utilization_percent.notna().any())
    several = rows.model.nunique() > 1
    signs = {row["configuration"]: configurations.sign(row) for row in results.rows}
    cells = [
        _training_cells(row, metrics, several, on_gpus, signs[row["configuration"]]) for row in rows.to_dict("records")
    ]
    ours = results.configurations[results.configurations.configuration.isin(rows.configuration)]
    lines = (
        *configurations.sentences(ours),
        *notes.how_it_differs(ours),
        "Means over the seeds [95 %], of seconds geometric. Seconds: of training steps alone; samples a second: all "
        "samples over them.",
        "Cores busy: CPU time of all workers over the seconds of training, evaluation, checkpoints and logs"
        + (", as is the use of GPUs, in per cent." if on_gpus else "."),
        "Memory: of the worker that has most; on a GPU the allocator's peak, on a CPU the sum of tensors of all kinds.",
        "Best step: of the evaluation with the best figures on validation data. Test: of that model with patience, "
        "else of the last one.",
        notes.source(results),
    )
    gpus = ("GPUs busy (%)",) if on_gpus else ()
    header = (*RESOURCE_HEADER, *gpus, "memory (MB a worker)", "best step", *(f"test {name}" for name in metrics))
    return Listing(f"What a training took ({results.heading})", header, tuple(cells), lines)


def _training_cells(
    row: Mapping[Any, Any], metrics: list[str], several: bool, on_gpus: bool, sign: str
) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    gpus = (_number(row["gpu_utilization_percent"]),) if on_gpus else ()
    best = f"{row['best_step']:,.0f} of {row['steps']:,.0f}" if known(row["best_step"]) else ""
    return (
        f"{model}{row['series']}, batch {row['global_batch']} {sign}".rstrip(),
        str(row["seeds"]),
        interval(row, "train_seconds"),
        f"{row['samples_per_second']:,.0f}",
        f"{row['cores_busy']:.2f}" if known(row["cores_busy"]) else "",
        *gpus,
        megabytes(row["peak_memory_bytes"]),
        best,
        *(interval(row, f"test_{metric}", 3) for metric in metrics),
    )


def _number(value: Any) -> str:
    return f"{value:.0f}" if known(value) else ""


# Training to a result: the metric against seconds, samples and steps, and what a target costs at each batch size.
#
# Every seed is a line of its own: where trainings stop at the target, a mean over those that still run would be
# biased.

DODGE = 1.04
AXES = (("seconds", "seconds of training"), ("samples", "samples"), ("steps", "steps"))


def draw(results: Results) -> dict[str, Figure]:
    """`target-<model>` of what was trained; `target-batch-<model>` where more than one batch size reached a target."""
    rows = trained_configurations(results)
    figures: dict[str, Figure] = {}
    for model, ours in rows.groupby("model", sort=False):
        figures[f"target-{file_name(str(model))}"] = _curves(results, str(model), ours)
        reached = ours[ours.samples_to_target.notna()]
        if reached.global_batch.nunique() > 1:
            figures[f"target-batch-{file_name(str(model))}"] = _batches(results, str(model), reached)
    return figures


def _curves(results: Results, model: str, rows: pd.DataFrame) -> Figure:
    evaluations = results.details.evaluations
    evaluations = evaluations[evaluations.configuration.isin(rows.configuration)]
    metric = _metric(rows, evaluations)
    names = {row["configuration"]: f"{row['series']}, batch {row['global_batch']}" for row in rows.to_dict("records")}
    colours = dict(zip(names, style.style_colours(len(names)), strict=True))
    ticks = [number(value) for value in evaluations[metric].dropna()]
    layout = style.Layout(
        left=style.left_of(ticks or ["0.00"]), gutters=(0.15, 0.15, style.gutter(names.values())), above=0.12
    )
    footnote = [
        f"Each line: one seed, {metric} on {'validation data' if metric != 'train_loss' else 'the samples trained on'} "
        "at its evaluations. Seconds are of training steps alone.",
        *([f"Dashed: the target, {', '.join(sorted(set(rows.target[rows.target != ''])))}."] if _targets(rows) else []),
        f"{notes.source(results)}.",
    ]
    sheet = style.sheet(1, 3, layout, f"{model}, trained to a result: {results.study.name}", footnote)
    for index, (key, title) in enumerate(AXES):
        axis, _ = sheet.at(index)
        labels: list[EndLabel] = []
        for name, ours in evaluations.groupby("configuration", sort=False):
            for _, seed in ours.groupby("repeat"):
                axis.plot(seed[key], seed[metric], color=colours[name], linewidth=1.0, alpha=0.7, marker=".", ms=3)
            last = ours.sort_values(key).iloc[-1]
            labels.append(EndLabel(float(last[key]), float(last[metric]), names[str(name)], colours[name]))
        for target in _targets(rows):
            axis.axhline(target.value, color=style.DARK, linestyle="--", linewidth=0.9)
        axis.set_xlabel(title)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        if index == len(AXES) - 1:
            style.end_labels(axis, labels, layout.panel_height)
    style.name_y(sheet.at(0)[0], metric.replace("_", " "), layout)
    return sheet.figure


def _batches(results: Results, model: str, rows: pd.DataFrame) -> Figure:
    """Samples and steps to the target against the global batch, both logarithmic (Shallue et al., arXiv 1811.03600)."""
    names = list(dict.fromkeys(rows.series))
    colours = dict(zip(names, style.style_colours(len(names)), strict=True))
    layout = style.Layout(left=style.left_of(["100 k"]), gutters=(0.3, style.gutter(names)))
    footnote = [
        "Geometric means over the seeds; bars: 95 % interval (log-normal; who never reached it counts as larger).",
        "Dotted: as many samples, or as many steps fewer, as perfect scaling from the smallest batch would need.",
        f"{notes.source(results)}.",
    ]
    targets = ", ".join(sorted(set(rows.target)))
    sheet = style.sheet(1, 2, layout, f"{model} to {targets}, by global batch: {results.study.name}", footnote)
    for index, unit in enumerate(("samples", "steps")):
        axis, _ = sheet.at(index)
        labels = [
            _line(axis, rows[rows.series == name], unit, name, colours[name], DODGE ** (place - (len(names) - 1) / 2))
            for place, name in enumerate(names)
        ]
        first = rows.sort_values("global_batch").iloc[0]
        ends = [float(rows.global_batch.min()), float(rows.global_batch.max())]
        start = float(first[f"{unit}_to_target"])
        perfect = [start, start if unit == "samples" else start * ends[0] / ends[1]]
        axis.plot(ends, perfect, color=style.GREY, linestyle=":", linewidth=1.0, zorder=1)
        _logarithmic(axis, sorted(set(rows.global_batch)))
        axis.set_xlabel("global batch")
        axis.set_title(f"{unit} to {targets}", loc="left")
        if index == 1:
            style.end_labels(axis, labels, layout.panel_height)
    style.name_y(sheet.at(0)[0], "to the target", layout)
    return sheet.figure


def _line(axis: Axes, rows: pd.DataFrame, unit: str, name: str, colour: str, aside: float) -> EndLabel:
    """`aside`: what the batch is multiplied by where it is drawn, so that no interval hides another."""
    ours = rows.sort_values("global_batch")
    at = ours.global_batch * aside
    y = ours[f"{unit}_to_target"].to_numpy(float)
    for x, mean, low, high in zip(at, y, ours[f"{unit}_to_target_low"], ours[f"{unit}_to_target_high"], strict=True):
        axis.plot([x, x], [low if known(low) else mean, high if known(high) else mean], color=colour, linewidth=1.2)
    axis.plot(at, y, color=colour, marker="o", markersize=4, linewidth=1.2)
    return EndLabel(float(at.iloc[-1]), float(y[-1]), name, colour)


def _logarithmic(axis: Axes, batches: Sequence[int]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(batches), [str(batch) for batch in batches])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _metric(rows: pd.DataFrame, evaluations: pd.DataFrame) -> str:
    """The metric of the target, or the first that was evaluated."""
    targets = _targets(rows)
    there = [name for name in (*METRICS, "train_loss") if evaluations[name].notna().any()]
    return targets[0].metric if targets else there[0]


def _targets(rows: pd.DataFrame) -> list[Target]:
    return [Target.parse(text) for text in sorted(set(rows.target)) if text and text.partition("=")[0] in DIRECTIONS]


def _short(value: Any) -> str:
    """`1.5 k` for 1500."""
    return f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"


VIEW = View(
    "How soon does a training reach its target?",
    (
        StudyTable("target", listing, trained_configurations),
        StudyTable("training", resources_listing, resources_table),
    ),
    (Drawing("target", draw, several=True, rank=1),),
)
