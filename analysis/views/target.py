"""Training to a target: what reached it, how soon, at what cost, and what is too close to call."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy import stats

from analysis.findings import grouped
from analysis.frames import configurations
from analysis.frames.configurations import known, own_algorithm, values_of
from analysis.frames.results import Results, once
from analysis.frames.rows import bounded, by_configuration
from analysis.frames.training import METRICS, SHOWN, brackets
from analysis.show import dots, notes, style
from analysis.show.layout import Listing
from analysis.statistics import estimates
from analysis.statistics.estimates import censored_mean, log_bounds
from analysis.text import bracketed, estimate_of, megabytes, number
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

    `soonest`, `cheapest`: the verdict among those of its model, input (each augments in its way) and target, with the
    bounds that decide it (bounds_of_times). The cheapest has the least money where every one of these has a price, else
    the fewest worker-hours.
    """
    prices, rows = cost.prices(results), list[dict[str, Any]]()
    for name, ours in by_configuration(results.details.trained).items():
        if row := results.by_name.get(name):
            price, _ = prices.get(name, (None, ""))
            rows.append({key: row[key] for key in ABOUT} | _of(ours, row, price))
    _judge(rows, results)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*ABOUT, "target"])


def _judge(rows: list[dict[str, Any]], results: Results) -> None:
    """Enter what is the soonest and the cheapest, and the corrected bounds by which the others are judged. What may not
    be compared (configurations.trains_alike) is neither the best nor a rival of one: NOT_COMPARED."""
    aimed = [row for row in rows if row["target"]]
    apart = {
        row["configuration"] for row in aimed if not configurations.trains_alike(results.by_name[row["configuration"]])
    }
    fit = [row for row in aimed if row["configuration"] not in apart]
    groups = grouped(fit, lambda row: task_of(row, results)).values()
    trained = by_configuration(results.details.trained)
    for verdict in SAID:
        times = [
            {
                row["configuration"]: times_of(
                    trained[row["configuration"]], _cost_of_second(row, group) if verdict == "cheapest" else 1.0
                )
                for row in group
            }
            for group in groups
        ]
        verdicts, ends = verdicts_of_times(times), bounds_of_times(times)
        for row in rows:
            low, high = ends.get(row["configuration"], (None, None))
            told = NOT_COMPARED if row["configuration"] in apart else verdicts.get(row["configuration"], "")
            row |= {verdict: told, f"{verdict}_low": low, f"{verdict}_high": high}


def task_of(row: Mapping[Any, Any], results: Results) -> tuple[str, ...]:
    """Equal for two that may be held against each other."""
    of = results.by_name[row["configuration"]]
    return (*map(str, values_of(of, SAME_TASK)), own_algorithm(of))


def _cost_of_second(row: dict[str, Any], group: list[dict[str, Any]]) -> float:
    """In worker-hours, times their price where all of the group have one."""
    priced = all(other["price_per_worker_hour"] is not None for other in group)
    return float(row["workers"] / 3600 * (row["price_per_worker_hour"] if priced else 1.0))


def times_of(ours: pd.DataFrame, factor: float = 1.0) -> Times:
    """Seconds to the target of one configuration's trainings, times `factor`."""
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
        columns |= estimates.columns_of(f"{unit}_to_target", found)
    for name, bound in (("met", by), ("before", after)):
        columns[f"{name}_steps"] = float(stats.gmean(bound[reached])) if reached.any() else None
    seconds = (columns[f"seconds_to_target{end}"] for end in ("", "_low", "_high"))
    hours = [None if value is None else value * row["workers"] / 3600 for value in seconds]
    columns |= bounded("worker_hours_to_target", *hours)
    columns |= bounded("money_to_target", *(None if h is None or price is None else h * price for h in hours))
    columns |= {
        "price_per_worker_hour": price,
        **{f"{verdict}{end}": value for verdict in SAID for end, value in (("", ""), ("_low", None), ("_high", None))},
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


# The configuration that reaches the target soonest, or at least cost, and those too close to it to call (95 %).
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
NOT_COMPARED = "not compared"
OTHERS_MAY_BE = (TIED, NOT_RESOLVED, TOO_FEW)  # the best as well
SAID = {  # verdict -> how it is called in a table; the best LOWEST where others may be it
    "soonest": {BEST: "fastest", SLOWER: "slower"},
    "cheapest": {BEST: "cheapest", SLOWER: "dearer"},
}
LOWEST = "lowest mean"
OF_METRIC = "{:.3f}".format


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
    bounds, result = bounds_of_times(groups), dict[str, str]()
    for group in groups:
        whole = [name for name in group if group[name].whole and len(group[name].logs) >= FEWEST_REPEATS]
        best = min(whole, key=lambda name: group[name].middle, default=None)
        for name, times in group.items():
            slower = name in bounds and bounds[name][0] > 1
            told = SLOWER if slower else TIED if name in whole else NOT_RESOLVED
            result[name] = BEST if name == best else told if len(times.logs) >= FEWEST_REPEATS else TOO_FEW
    return result


def bounds_of_times(groups: Sequence[Mapping[str, Times]]) -> dict[str, tuple[float, float]]:
    """Configuration -> bounds of the ratio of its time to that of another of its group that reached the target with
    every seed, corrected for all pairs of all groups: the other with the highest lower bound, which says slower above
    1. None of one without such others, or with fewer than 3 seeds."""
    sure = {name: of for group in groups for name, of in group.items() if len(of.logs) >= FEWEST_REPEATS}
    whole = {name: of for name, of in sure.items() if of.whole}
    pairs = sum(math.comb(sum(name in sure for name in group), 2) for group in groups)
    if not whole:
        return {}
    (spread, place), found = _spread(sure, whole), dict[str, tuple[float, float]]()
    for group in groups:
        for name in (name for name in group if name in sure):
            ends = []
            for rival in (rival for rival in group if rival in whole and rival != name):
                terms = [(np.array([place[who]]), 1 / len(sure[who].logs)) for who in (name, rival)]
                half = float(spread.half_widths(1 - FALSE_ALARMS / pairs, *terms)[0])
                late = float(sure[name].logs.mean()) - sure[rival].earliest if name in whole else math.inf
                ends.append((sure[name].earliest - float(sure[rival].logs.mean()) - half, late + half))
            if ends:
                low, high = max(ends)
                found[name] = (math.exp(low), math.exp(high))
    return found


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


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = trained_configurations(results)
    if rows.empty:
        return None
    made = rows.to_dict("records")
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    priced, targeted = bool(rows.money_to_target.notna().any()), bool((rows.target != "").any())
    tied = {
        verdict: {task_of(row, results) for row in made if row["target"] and row[verdict] in OTHERS_MAY_BE}
        for verdict in SAID
    }
    cells = [
        {
            "configuration": name,
            **(
                _reached(row, priced, {v for v in SAID if task_of(row, results) in tied[v]})
                if targeted
                else _whole(row)
            ),
            **_tested(row, metrics),
        }
        for row, name in zip(made, notes.signed_names(results, made), strict=True)
    ]
    return Listing.from_rows(f"Training to a result ({results.heading})", cells, _lines(results, rows, targeted))


def _reached(row: Mapping[Any, Any], priced: bool, tied: Collection[str]) -> dict[str, str]:
    """The columns of a target: when it was reached, the cost, and the verdicts on both. `tied`: verdicts in which
    others may be the best too."""
    return {
        "target": row["target"] or "none",
        "reached": f"{row['reached']} of {row['seeds']}" if row["target"] else "",
        "met at step": _met(row),
        **{unit: _to_target(row, unit) for unit in UNITS},
        **_verdict(row, "soonest", "soonest" in tied),
        "worker-hours": estimate_of(row, "worker_hours_to_target"),
        **({"money": estimate_of(row, "money_to_target")} if priced else {}),
        **_verdict(row, "cheapest", "cheapest" in tied),
    }


def _whole(row: Mapping[Any, Any]) -> dict[str, str]:
    """The columns of a training without a target."""
    steps = _whole_number(row["steps"])
    return {"seeds": str(row["seeds"]), "steps": steps, "seconds": estimate_of(row, "train_seconds")}


def _whole_number(value: float) -> str:
    return f"{value:,.0f}" if known(value) else ""


def _verdict(row: Mapping[Any, Any], verdict: str, tied: bool) -> dict[str, str]:
    """`too close to call [0.71, 1.32]`: with the corrected bounds that decide. `tied`: others may be the best too."""
    text, low, high = str(row[verdict]), row[f"{verdict}_low"], row[f"{verdict}_high"]
    said = SAID[verdict].get(text, "too close to call" if text == TIED else text)
    if text == BEST:
        return {verdict: LOWEST if tied else said}
    return {verdict: said + bracketed(low, high, "{:.2f}".format)}


def _tested(row: Mapping[Any, Any], metrics: Sequence[str]) -> dict[str, str]:
    return {f"test {metric.replace('_', ' ')}": estimate_of(row, f"test_{metric}", OF_METRIC) for metric in metrics}


def _met(row: Mapping[Any, Any]) -> str:
    """`199 (after 131)`: at the first evaluation that met the target, and at the one before."""
    if not row["target"] or not row["reached"]:
        return ""
    return f"{number(row['met_steps'])} (after {number(row['before_steps'])})"


def _to_target(row: Mapping[Any, Any], unit: str) -> str:
    if not row["target"]:
        return ""
    if known(row[f"{unit}_to_target"]):
        return estimate_of(row, f"{unit}_to_target")
    if not row["reached"]:
        return "not reached"
    return "at the first evaluation" if row["reached"] == row["seeds"] and not row["before_steps"] else "too few"


def _lines(results: Results, rows: pd.DataFrame, targeted: bool) -> list[str]:
    to_target = [
        "Met at step: the first evaluation on validation data that met the target, and the evaluation before it "
        "(after); geometric means over the seeds that reached the target. Seconds, samples and steps to the target: "
        "geometric means over all seeds [95 % interval, log-normal]. Each seed reached the target between its two "
        "evaluations; a training that was stopped before counts as one that takes longer. Seconds are of training "
        "steps, without evaluation and checkpoints.",
        "Soonest and cheapest [ratio to the configuration that decides, 95 %, corrected for all pairs of the study]. "
        "Lowest mean: others are too close to call, as none is shown to be slower, or dearer, wherever between two "
        "evaluations each reached the target. A configuration with a training that was stopped before is never the "
        f"best; it is slower, or not resolved. {_cost(rows)}",
    ]
    whole = ["Seconds: of training steps, without evaluation and checkpoints; geometric mean over the seeds [95 %]."]
    lines = [
        *(to_target if targeted else whole),
        "Test: the model at the end of each training, on the published test set, once; mean over the seeds [95 %].",
        f"Learning rates: {_rates(results)}.",
    ]
    inputs, diverged, resumed = _unlike_inputs(results), rows.diverged.sum(), rows.resumed.sum()
    of_some = notes.holding(
        (
            inputs,
            f"Inputs ({', '.join(inputs)}) augment images each in its own way: losses, metrics and steps are not "
            "compared from one input to another, and who is soonest and cheapest is asked for each by itself.",
        ),
        (
            (rows.soonest == TOO_FEW).any(),
            f"Too few seeds: fewer than {FEWEST_REPEATS}, so not tested; the lowest mean is one of the others.",
        ),
        (
            (rows.soonest == NOT_COMPARED).any(),
            "Not compared: what failed parity, is held back by this machine, or has more workers than it has room for.",
        ),
        (diverged, f"{diverged:,} training(s) diverged: their loss became no number."),
        (
            resumed,
            f"{resumed:,} resumption(s) from a checkpoint; {rows.lost_steps.sum():,} steps were made twice.",
        ),
    )
    return [*_compared(results, rows), *lines, *of_some, notes.source(results)]


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
        return "Cheapest: the fewest worker-hours."
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
    cells = [
        {
            "configuration": name,
            "seeds": str(row["seeds"]),
            "seconds": estimate_of(row, "train_seconds"),
            "samples/s": f"{row['samples_per_second']:,.0f}",
            "cores busy": f"{row['cores_busy']:.2f}" if known(row["cores_busy"]) else "",
            **({"GPUs busy (%)": _whole_number(row["gpu_utilization_percent"])} if on_gpus else {}),
            "memory (MB a worker)": megabytes(row["peak_memory_bytes"]),
            "best step": f"{row['best_step']:,.0f} of {row['steps']:,.0f}" if known(row["best_step"]) else "",
            **_tested(row, metrics),
        }
        for row, name in zip(made, notes.signed_names(results, made), strict=True)
    ]
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


# Training to a result, as rows: seconds to the target of each configuration; without a target the seconds of the whole
# training, and the result on the test set.


def _trained(results: Results, model: str) -> pd.DataFrame:
    """trained_configurations() of one model."""
    rows = trained_configurations(results)
    ours: pd.DataFrame = rows[rows.model == model]
    return ours


def draw(results: Results, model: str) -> Figure | None:
    """The figure of one model; None of one that was not trained to a result."""
    rows = _trained(results, model)
    if rows.empty:
        return None
    aimed, free = rows[rows.target != ""], rows[rows.target == ""]
    targets = list(dict.fromkeys(aimed.target))
    tested = [name for name in SHOWN if free[f"test_{name}"].notna().any()][:1]
    panels = [
        _panel(results, aimed[aimed.target == target], "seconds_to_target", f"seconds of training to {target}")
        for target in targets
    ]
    if len(free):
        panels.append(_panel(results, free, "train_seconds", "seconds of the whole training"))
        panels += [_panel(results, free, f"test_{name}", f"test {name.replace('_', ' ')}") for name in tested]
    what, source = notes.under_figure(
        results,
        "Seconds of training steps alone: geometric mean over the seeds; bars: 95 % interval (log-normal).",
        (targets, "A seed reached the target at some time between two evaluations; the interval covers both."),
        (aimed.seconds_to_target.isna().any(), "Crosses: no mean, for the reason at the right."),
        (tested, "Test: the model at the end of each training, on the test set, once; mean over the seeds."),
    )
    title = f"{model}: seconds to {', '.join(targets)}" if targets else f"{model}, trained to a result"
    return dots.figure(f"{title}: {results.study.name}", panels, [what, *_compared(results, rows), source])


def _panel(results: Results, rows: pd.DataFrame, key: str, x: str) -> dots.DotPanel:
    """The fastest on top."""
    order = "seconds_to_target" if key == "seconds_to_target" else "train_seconds"
    made = rows.sort_values(order, na_position="last", kind="stable").to_dict("records")[: dots.MOST_ROWS]
    names, shared = style.told_apart(notes.named_with_batch(results, made))
    every = [_dot(results, row, key, name) for row, name in zip(made, names, strict=True)]
    limits = dots.around(every) if key.startswith("test_") else dots.from_zero(every)
    return dots.DotPanel(", ".join(shared), x, every, limits)


def _dot(results: Results, row: Mapping[Any, Any], key: str, name: str) -> dots.Dot:
    named = f"{name} {configurations.sign(results.by_name[row['configuration']])}".rstrip()
    if not known(row[key]):
        return dots.Dot(named, _to_target(row, "seconds") or "not known", None, marker=dots.CROSS)
    text = estimate_of(row, key, OF_METRIC if key.startswith("test_") else number)
    if key == "seconds_to_target" and row["reached"] < row["seeds"]:
        text += f", {row['reached']} of {row['seeds']} reached it"
    colour = style.style_colours(1)[0]
    return dots.Dot(named, text, float(row[key]), dots.interval(row[f"{key}_low"], row[f"{key}_high"]), colour)


# The metric against seconds of training: a panel for each configuration, on the same axes, with all others in grey.
#
# Every seed is a line of its own: where trainings stop at the target, a mean over those that still run would be
# biased.

MOST_PANELS = 12
LOGARITHMIC_FROM = 5  # last evaluations, the latest over the earliest; losses, the largest over the smallest
OTHERS = "#dcdcdc"


def draw_curves(results: Results, model: str) -> Figure | None:
    """The figure of one model; None of one without evaluations."""
    rows, evaluations = _trained(results, model), results.details.evaluations
    evaluations = evaluations[evaluations.configuration.isin(rows.configuration) & (evaluations.seconds > 0)]
    texts = sorted(set(rows.target[rows.target != ""]))
    targets = [Target.parse(text) for text in texts if text.partition("=")[0] in DIRECTIONS]
    there = [name for name in (*METRICS, "train_loss") if evaluations[name].notna().any()]
    if not there:
        return None
    metric = targets[0].metric if targets else there[0]
    lines = {
        name: [seed[["seconds", metric]].to_numpy(float) for _, seed in ours.groupby("repeat")]
        for name, ours in by_configuration(evaluations).items()
    }
    ended = rows[rows.configuration.isin(list(lines))].sort_values("train_seconds", kind="stable").to_dict("records")
    names, shared = style.told_apart(notes.named_with_batch(results, ended))
    count, axes = min(len(ended), MOST_PANELS), _axes(lines, metric, targets)
    columns = 2 if count == 4 else min(count, 3)
    word, on = metric.replace("_", " "), "the samples trained on" if metric == "train_loss" else "validation data"
    footnote = notes.under_figure(
        results,
        f"A panel for each configuration, a line for each seed: {word} on {on}.{style.all_of(shared)}",
        (len(lines) > 1, "Grey: all others."),
        (targets, f"Dashed: the target, {', '.join(texts)}."),
        (len(ended) > count, f"The first {count} of {len(ended)} configurations to end."),
    )
    return style.figure_of(
        f"{model}: {word} against seconds of training: {results.study.name}",
        [
            style.Panel(
                names[place],
                partial(_curve, lines=lines, own=str(ended[place]["configuration"]), targets=targets, axes=axes),
                x="seconds of training" if place + columns >= count else "",
            )
            for place in range(count)
        ],
        footnote,
        columns,
        panel_width=1.45,
        panel_height=1.1,
        left=0.55,
        above=0.22,
        below=0.28,
        last_below=0.2,
    )


Scale = tuple[bool, tuple[float, float]]  # whether it is logarithmic, and its limits


def _axes(lines: Mapping[str, Sequence[np.ndarray]], metric: str, targets: Sequence[Target]) -> tuple[Scale, Scale]:
    """Scales of the seconds and of the metric, for all panels. `lines`: (evaluations, 2) of each seed."""
    seeds = [seed for ours in lines.values() for seed in ours]
    seconds, values = (np.concatenate([seed[:, at] for seed in seeds]) for at in (0, 1))
    ends = [seed[-1, 0] for seed in seeds]
    values = np.array([*values[np.isfinite(values)], *(target.value for target in targets)])
    logarithmic = max(ends) > LOGARITHMIC_FROM * min(ends)
    x = (0.8 * seconds.min(), 1.25 * seconds.max()) if logarithmic else (0.0, 1.05 * seconds.max())
    low, high = float(values.min()), float(values.max())
    if metric.endswith("loss") and low > 0 and high > LOGARITHMIC_FROM * low:
        return (logarithmic, x), (True, (0.8 * low, 1.25 * high))
    room = 0.05 * max(high - low, 1e-9)
    return (logarithmic, x), (False, (low - room, high + room))


def _curve(
    axis: Axes,
    _: style.Layout,
    lines: Mapping[str, Sequence[np.ndarray]],
    own: str,
    targets: Sequence[Target],
    axes: tuple[Scale, Scale],
) -> None:
    others = [seed for name, ours in lines.items() if name != own for seed in ours]
    axis.add_collection(LineCollection(others, colors=OTHERS, linewidths=0.7, zorder=1), autolim=False)
    for seed in lines[own]:
        axis.plot(*seed.T, color=style.style_colours(1)[0], linewidth=1.1, marker=".", markersize=3.5, zorder=3)
    for target in targets:
        axis.axhline(target.value, color=style.DARK, linestyle="--", linewidth=0.8, zorder=2)
    style.value_axis(axis, "x", *axes[0], 4)
    style.value_axis(axis, "y", *axes[1], 4)


VIEW = View(
    "How soon does a training reach its target?",
    (
        StudyTable("target", listing, trained_configurations),
        StudyTable("training", resources_listing, resources_table),
    ),
    (Drawing.of_models("target", draw, rank=1), Drawing.of_models("curves", draw_curves, rank=1)),
)
