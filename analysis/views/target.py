"""Training to a target: who reached it, how soon, at what cost, and who is tied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from scipy import stats

from analysis.frames import configurations
from analysis.frames.configurations import known, own_algorithm, values_of
from analysis.frames.results import Results, once
from analysis.frames.rows import bounded
from analysis.frames.training import METRICS, SHOWN, brackets
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import estimates
from analysis.statistics.estimates import censored_mean, log_bounds
from analysis.text import file_name, megabytes, number, with_interval
from analysis.views import cost
from analysis.views.view import Drawing, StudyTable, View
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats
from scaling_study.stats.spread import Spread, believed
from scaling_study.targets import METRICS as DIRECTIONS
from scaling_study.targets import Target

UNITS = {"seconds": "train_seconds", "samples": "samples", "steps": "steps"}  # -> of a whole training
ABOUT = ("configuration", "series", "model", "framework", "workers", "global_batch", "learning_rate")
SAME_TASK = ("model", "train_target", "train_validation", "data", "input", "image_size", "image_width")


@once
def trained_configurations(results: Results) -> pd.DataFrame:
    """A row for each configuration that was trained. Seconds are of training alone. A mean to target is geometric, over
    all seeds: each is known to lie between two evaluations, and to be larger where it was stopped before
    (estimates.censored_mean). `met_steps`: at the first evaluation that met the target; `before_steps`: at the one
    before, 0 where there was none; geometric means of the seeds that reached it. Test metrics are arithmetic means of
    all seeds, seconds of whole trainings geometric ones.

    `soonest`, `cheapest`: the verdict among those of its model, input (each augments in its way) and target. The
    cheapest has the least money where every one of these has a price, else the fewest worker-hours.
    """
    trained, prices = results.details.trained, cost.prices(results)
    rows = []
    for name, ours in trained.groupby("configuration", sort=False):
        if row := results.by_name.get(str(name)):
            price, _ = prices.get(str(name), (None, ""))
            rows.append({key: row[key] for key in ABOUT} | _of(ours, row, price))
    _judge(rows, results)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*ABOUT, "target"])


def _judge(rows: list[dict[str, Any]], results: Results) -> None:
    """Enter who is the soonest and the cheapest, and what is tied with it."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["target"]:
            of = results.by_name[row["configuration"]]
            groups.setdefault((*map(str, values_of(of, SAME_TASK)), own_algorithm(of)), []).append(row)
    trained = {str(name): ours for name, ours in results.details.trained.groupby("configuration", sort=False)}
    for verdict in ("soonest", "cheapest"):
        times = [
            {
                row["configuration"]: _times(trained[row["configuration"]], row, verdict == "cheapest" and group)
                for row in group
            }
            for group in groups.values()
        ]
        verdicts = verdicts_of_times(times)
        for row in rows:
            row[verdict] = verdicts.get(row["configuration"], "")


def _times(ours: pd.DataFrame, row: dict[str, Any], priced_among: list[dict[str, Any]] | bool) -> Times:
    """Seconds; or worker-hours, times their price where all of `priced_among` have one."""
    factor = 1.0
    if isinstance(priced_among, list):
        prices = [other["price_per_worker_hour"] for other in priced_among]
        factor = row["workers"] / 3600 * (1.0 if None in prices else row["price_per_worker_hour"])
    after, by = (factor * bound for bound in brackets(ours, "seconds"))
    return Times(after.tolist(), by.tolist())


def _of(ours: pd.DataFrame, row: Any, price: float | None) -> dict[str, Any]:
    reached = ours.target_steps.notna()
    columns: dict[str, Any] = {
        "target": str(ours.target.iloc[0]),
        "seeds": len(ours),
        "reached": int(reached.sum()),
        "diverged": int((ours.ended_by == "diverged").sum()),
    }
    after, by = brackets(ours, "steps")
    steps = estimates.of_censored(censored_mean(after.to_list(), by.to_list()))
    for unit, total in UNITS.items():  # seeds share the steps of their evaluations, and not their seconds
        found = steps and steps * estimates.of_values((ours[total] / ours.steps).to_list())
        columns |= bounded(f"{unit}_to_target", *((found.value, *found.bounds()) if found else (None,) * 3))
    for name, bound in (("met", by), ("before", after)):
        columns[f"{name}_steps"] = float(stats.gmean(bound[reached])) if reached.any() else None
    seconds = (columns[f"seconds_to_target{end}"] for end in ("", "_low", "_high"))
    hours = [None if value is None else value * row["workers"] / 3600 for value in seconds]
    columns |= bounded("worker_hours_to_target", *hours)
    columns |= bounded("money_to_target", *(None if h is None or price is None else h * price for h in hours))
    columns |= {
        "price_per_worker_hour": price,
        "soonest": "",
        "cheapest": "",
        "samples_per_second": float(ours.samples.sum() / ours.train_seconds.sum()),
        "evaluate_share": float((ours.evaluate_seconds / (ours.train_seconds + ours.evaluate_seconds)).mean()),
    }
    for name in (f"test_{metric}" for metric in METRICS):
        values = ours[name].dropna().to_numpy(float)
        columns |= bounded(name, None, None, None)
        if len(values) and np.isfinite(values).all():
            interval = between_repeats(values.tolist())
            columns |= bounded(name, interval.mean, interval.low, interval.high)
    whole = censored_mean(ours.train_seconds.to_list(), ours.train_seconds.to_list())
    columns |= {"resumed": int(ours.resumed.sum()), "lost_steps": int(ours.lost_steps.sum())}
    columns |= bounded("train_seconds", whole.mean, whole.low, whole.high)
    for name in ("steps", "best_step", "cores_busy", "gpu_utilization_percent", "peak_memory_bytes"):
        columns[name] = float(ours[name].mean()) if ours[name].notna().any() else None
    return columns


# The configuration that reaches the target soonest, or at least cost, and those tied with it (95 %).
#
# As of throughput (statistics/ranking.py) the lowest mean of many is partly luck, so the best is a set: what is not
# shown to be slower than another. Compared are logarithms of geometric means over the seeds, all pairs of a study at
# once (Bonferroni), with the spread of seeds as spread.py believes it.
#
# A target is met at an evaluation: it was reached at some time since the one before. Who is called slower is so even if
# it reached the target right after its evaluations before, and the other only at those that met it.
#
# A training that was stopped before the target counts as one that reached it at that moment. That flatters it, so
# whoever is called slower all the same is; but such a configuration is never the best, and nothing is called slower
# than it.

FALSE_ALARMS = 0.05  # of studies of equal configurations, in which any is called slower than another
BEST, TIED, SLOWER, NOT_RESOLVED, TOO_FEW = "best", "tied", "slower", "not resolved", "too few seeds"


@dataclass(frozen=True)
class Times:
    """Times to the target of one configuration's seeds: more than `after`, at most `by`, which is infinite where a seed
    was stopped before the target. `after` is 0 where it is not known."""

    after: Sequence[float]
    by: Sequence[float]

    @property
    def whole(self) -> bool:
        """True where every seed reached the target."""
        return bool(np.isfinite(self.by).all())

    @property
    def logs(self) -> np.ndarray:
        """At the first evaluations that met the target, or when it was stopped before."""
        return np.log(np.where(np.isfinite(self.by), self.by, self.after))

    @property
    def variance(self) -> float:
        """Of the logarithms: between seeds, and of a time that is as likely anywhere between two evaluations."""
        after, by = np.array(self.after)[np.isfinite(self.by)], np.array(self.by)[np.isfinite(self.by)]
        between = float((((by - after) / (by + after)) ** 2).mean()) / 3 if len(by) else 0.0
        return float(np.var(self.logs, ddof=1)) + between

    @property
    def middle(self) -> float:
        """The mean logarithm halfway between two evaluations."""
        return float(np.log((np.array(self.after) + self.by) / 2).mean())

    @property
    def earliest(self) -> float:
        """The mean logarithm if each seed reached the target right after the evaluation before."""
        return float(log_bounds(self.after, self.by)[0].mean())


def verdicts_of_times(groups: Sequence[Mapping[str, Times]]) -> dict[str, str]:
    """Configuration -> BEST, TIED, SLOWER, or NOT_RESOLVED where some were stopped and it is not shown to be slower;
    TOO_FEW with fewer than 3 seeds. `groups`: of configurations with one model and target, by their names.

    What is cheapest is asked likewise, with worker-hours or money in place of seconds.
    """
    sure = {name: of for group in groups for name, of in group.items() if len(of.logs) >= FEWEST_REPEATS}
    whole = {name: of for name, of in sure.items() if of.whole}
    pairs = sum(math.comb(sum(name in sure for name in group), 2) for group in groups)
    result = {name: TOO_FEW for group in groups for name in group}
    if not whole:
        return result | dict.fromkeys(sure, NOT_RESOLVED)
    spread, place = _spread(sure, whole)
    for group in groups:
        rivals = sorted((name for name in group if name in whole), key=lambda name: whole[name].middle)
        for name in (name for name in group if name in sure):
            slower = any(_slower(sure, name, rival, spread, place, pairs) for rival in rivals if rival != name)
            best = name in rivals[:1]
            result[name] = BEST if best else SLOWER if slower else TIED if name in whole else NOT_RESOLVED
    return result


def _spread(sure: Mapping[str, Times], whole: Mapping[str, Times]) -> tuple[Spread, dict[str, int]]:
    """The spread of each in `sure`. Stopped values hide theirs: such a configuration gets the widest of the others."""
    own = np.array([of.variance for of in whole.values()])
    trusted = believed(own, [len(of.logs) - 1 for of in whole.values()])
    variance, freedom = np.maximum(trusted.variance, own), trusted.freedom
    place = {name: index for index, name in enumerate(whole)}
    for name, of in sure.items():
        if name not in place:
            place[name] = len(variance)
            variance = np.append(variance, max(variance[: len(whole)].max(), of.variance))
            freedom = np.append(freedom, freedom[: len(whole)].min())
    return Spread(variance, freedom, wary=0.5), place


def _slower(
    sure: Mapping[str, Times], name: str, rival: str, spread: Spread, place: Mapping[str, int], pairs: int
) -> bool:
    terms = [(np.array([place[who]]), 1 / len(sure[who].logs)) for who in (name, rival)]
    apart = sure[name].earliest - float(sure[rival].logs.mean())
    return bool(apart > spread.half_widths(1 - FALSE_ALARMS / pairs, *terms)[0])


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = trained_configurations(results)
    if rows.empty:
        return None
    made = rows.to_dict("records")
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    priced = bool(rows.money_to_target.notna().any())
    cells = [
        {
            "configuration": name,
            "target": row["target"] or "none",
            "reached": f"{row['reached']} of {row['seeds']}",
            "met at step": _met(row),
            **{unit: _to_target(row, unit) for unit in UNITS},
            "soonest": row["soonest"],
            "worker-hours": interval(row, "worker_hours_to_target"),
            **({"money": interval(row, "money_to_target")} if priced else {}),
            "cheapest": row["cheapest"],
            **_tested(row, metrics),
        }
        for row, name in zip(made, notes.signed_names(results, made), strict=True)
    ]
    return Listing.from_rows(f"Training to a result ({results.heading})", cells, _lines(results, rows))


def _tested(row: Mapping[Any, Any], metrics: Sequence[str]) -> dict[str, str]:
    return {f"test {metric}": interval(row, f"test_{metric}", 3) for metric in metrics}


def _met(row: Mapping[Any, Any]) -> str:
    """`199 (after 131)`: at the first evaluation that met the target, and at the one before."""
    if not row["target"] or not row["reached"]:
        return ""
    return f"{number(row['met_steps'])} (after {number(row['before_steps'])})"


def _to_target(row: Mapping[Any, Any], unit: str) -> str:
    if not row["target"]:
        return ""
    if known(row[f"{unit}_to_target"]):
        return interval(row, f"{unit}_to_target")
    if not row["reached"]:
        return "not reached"
    return "at the first evaluation" if row["reached"] == row["seeds"] and not row["before_steps"] else "too few"


def interval(row: Mapping[Any, Any], key: str, places: int | None = None) -> str:
    """`412 [398, 427]`; empty where it is not known."""
    form: Callable[[Any], str] = number if places is None else f"{{:.{places}f}}".format
    return with_interval(row[key], row[f"{key}_low"], row[f"{key}_high"], form)


def _lines(results: Results, rows: pd.DataFrame) -> list[str]:
    lines = [
        "Met at step: the first evaluation on validation data at which the target was reached, and the one before it "
        "(after); geometric means over the seeds that reached it. Seconds, samples and steps to the target: geometric "
        "means over all seeds [95 % interval, log-normal], of which each reached it between those two. A training that "
        "was stopped before counts as one that takes longer. Seconds are of training steps alone; evaluation and "
        "checkpoints are apart.",
        "Soonest and cheapest: tied is what is not shown to be slower, or dearer, than another (95 %, corrected for "
        "all pairs of the study), wherever between two evaluations each reached the target. One with a training that "
        "was stopped before is never the best, and not resolved unless it is slower all the same. "
        f"{_cost(rows)}",
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
    return [*_compared(results, rows), *lines, notes.source(results)]


def _compared(results: Results, rows: pd.DataFrame) -> list[str]:
    """Sentences on what may not be compared, and on what steps by rounds."""
    ours = results.among(rows.configuration)
    return [*configurations.sentences(ours), *notes.how_it_differs(ours)]


def _unlike_inputs(results: Results) -> list[str]:
    """The inputs that made the batches of trainings, where a model has several."""
    trained = results.among(results.details.trained.configuration)
    kinds = [set(rows.input.fillna("none given")) for _, rows in trained.groupby("model")]
    return sorted(set().union(*(names for names in kinds if len(names) > 1)))


def _cost(rows: pd.DataFrame) -> str:
    prices = rows.price_per_worker_hour
    if prices.isna().all():
        return "No price is set (price_per_worker_hour in a machine file): the fewest worker-hours are the cheapest."
    some = "" if prices.notna().all() else ", but not of all: the fewest worker-hours are the cheapest"
    return f"Money: worker-hours x the price of a machine file{some}."


def _rates(results: Results) -> str:
    rules = set()
    for row in results.among(results.details.trained.configuration).itertuples():
        rule = f"{row.learning_rate:g}" if known(row.learning_rate) else "the workload's own"
        if known(scaled := row.train_scale_learning_rate) and scaled != "none":
            rule += f" x {scaled} of (global batch / {row.train_reference_batch})"
        rules.add(rule)
    return "; ".join(sorted(rules)) + " (never multiplied by workers)"


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
    return trained_configurations(results).reindex(columns=list(RESOURCE_COLUMNS))


def resources_listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = resources_table(results)
    if rows.empty:
        return None
    made = rows.to_dict("records")
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    on_gpus = bool(rows.gpu_utilization_percent.notna().any())
    cells = []
    for row, name in zip(made, notes.signed_names(results, made), strict=True):
        gpus = f"{row['gpu_utilization_percent']:.0f}" if known(row["gpu_utilization_percent"]) else ""
        cells.append(
            {
                "configuration": name,
                "seeds": str(row["seeds"]),
                "seconds": interval(row, "train_seconds"),
                "samples/s": f"{row['samples_per_second']:,.0f}",
                "cores busy": f"{row['cores_busy']:.2f}" if known(row["cores_busy"]) else "",
                **({"GPUs busy (%)": gpus} if on_gpus else {}),
                "memory (MB a worker)": megabytes(row["peak_memory_bytes"]),
                "best step": f"{row['best_step']:,.0f} of {row['steps']:,.0f}" if known(row["best_step"]) else "",
                **_tested(row, metrics),
            }
        )
    lines = (
        *_compared(results, rows),
        "Means over the seeds [95 %], of seconds geometric. Seconds: of training steps alone; samples a second: all "
        "samples over them.",
        "Cores busy: CPU time of all workers over the seconds of training, evaluation, checkpoints and logs"
        + (", as is the use of GPUs, in per cent." if on_gpus else "."),
        "Memory: of the worker that has most; on a GPU the allocator's peak, on a CPU the sum of tensors of all kinds.",
        "Best step: of the evaluation with the best figures on validation data. Test: of that model with patience, "
        "else of the last one.",
        notes.source(results),
    )
    return Listing.from_rows(f"What a training took ({results.heading})", cells, lines)


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
    texts = sorted(set(rows.target[rows.target != ""]))
    targets = [Target.parse(text) for text in texts if text.partition("=")[0] in DIRECTIONS]
    there = [name for name in (*METRICS, "train_loss") if evaluations[name].notna().any()]
    metric = targets[0].metric if targets else there[0]
    names = dict(zip(rows.configuration, notes.named_with_batch(rows.to_dict("records")), strict=True))
    colours = dict(zip(names, style.style_colours(len(names)), strict=True))
    ticks = [number(value) for value in evaluations[metric].dropna()]
    layout = style.Layout(
        left=style.left_of(ticks or ["0.00"]), gutters=(0.15, 0.15, style.gutter(names.values())), above=0.12
    )
    footnote = [
        f"Each line: one seed, {metric} on {'validation data' if metric != 'train_loss' else 'the samples trained on'} "
        "at its evaluations. Seconds are of training steps alone.",
        *([f"Dashed: the target, {', '.join(texts)}."] if targets else []),
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
        for target in targets:
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
        "Geometric means over the seeds; bars: 95 % interval (log-normal; each seed lies between two "
        "evaluations, one that never reached it counts as larger).",
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
        batch_axis(axis, sorted(set(rows.global_batch)))
        logarithmic_values(axis, _short)
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


def batch_axis(axis: Axes, batches: Sequence[int]) -> None:
    """Global batches on a logarithmic x axis, with a tick at each."""
    axis.set_xscale("log")
    axis.set_xticks(list(batches), [str(batch) for batch in batches])
    axis.xaxis.set_minor_locator(NullLocator())


def logarithmic_values(axis: Axes, text: Callable[[float], str]) -> None:
    """A logarithmic y axis, with ticks at 1, 2 and 5 times the powers of ten."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _short(value: float) -> str:
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
