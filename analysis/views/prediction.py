"""Predictions for more workers: throughput, seconds to a target, their assumptions, as tables and figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.frames.configurations import same
from analysis.frames.results import Results
from analysis.prediction import predict
from analysis.prediction.network import Link, Network
from analysis.prediction.predict import Bounds, Checked, Forecast, Prediction
from analysis.prediction.simulate import BUCKETS, CYCLES, MIB, Fusion
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import batch_size
from analysis.statistics.batch_size import Curve, Recipe, recipes
from analysis.statistics.estimates import LogEstimate, between, exactly
from analysis.text import file_name, number
from analysis.views import batch_efficiency
from scaling_study.stats.intervals import FEWEST_REPEATS

# Seconds to a target with workers that were not trained with: samples at their global batch over their throughput.
#
# Throughput is predicted from timed runs of one worker (predict.py), samples are those of the curve that was fitted to
# the trainings of the same study (batch_size.Curve). Where that global batch was trained, the curve is
# fitted anew without it, so that no prediction uses what it is held against; where too little is left, it is held
# against nothing.

ALIKE = ("model", "precision", "data", "input", "image_size", "image_width", "freeze", "sequence_length", "padding")


@dataclass(frozen=True)
class Expected:
    """`seconds` to the target; `measured`: of the same framework, workers and batch, where it was trained. `inside`:
    whether the global batch lies within those that the curve was fitted to."""

    prediction: Prediction
    recipe: Recipe
    batch: int
    samples: LogEstimate
    seconds: LogEstimate
    inside: bool
    measured: LogEstimate | None

    @property
    def hours(self) -> float:
        """Worker-hours."""
        return self.seconds.value * self.prediction.workers / 3600

    @property
    def error(self) -> LogEstimate | None:
        """Predicted over measured."""
        return None if self.measured is None else self.seconds / self.measured


def expected(results: Results, predictions: Sequence[Prediction]) -> list[Expected]:
    """Seconds to the target for every prediction and recipe of the same model and precisions, where a curve could be
    fitted."""
    made = []
    for recipe in recipes(results):
        for prediction in predictions:
            if not _alike(recipe, prediction):
                continue
            batch = prediction.workers * prediction.target.alone.samples
            without = batch_size.fit([one for one in recipe.needed if one.batch != batch])
            curve = without if isinstance(without, Curve) else recipe.curve
            if isinstance(curve, Curve):
                samples, speed = curve.samples(batch), _speed(prediction)
                inside = curve.batches[0] <= batch <= curve.batches[-1]
                measured = _measured(recipe, prediction, batch) if curve is without else None
                made.append(Expected(prediction, recipe, batch, samples, samples / speed, inside, measured))
    return made


def _alike(recipe: Recipe, prediction: Prediction) -> bool:
    row, other = recipe.trained[0].row, prediction.target.row
    narrow = [str(one.row["allreduce"]) for one in recipe.trained if one.row["allreduce"] not in ("none", "fp32")]
    wire = narrow[0] if narrow else "fp32"
    return wire == prediction.allreduce and all(same(row[key], other[key]) for key in ALIKE)


def _speed(prediction: Prediction) -> LogEstimate:
    """Without an interval where one worker was run too few times."""
    speed = prediction.samples_per_second
    if speed.low is None or speed.high is None or prediction.target.alone.repeats < FEWEST_REPEATS:
        return LogEstimate(exactly(speed.mean).log, float("nan"), float("nan"))
    return between(speed.mean, speed.low, speed.high, prediction.target.alone.repeats - 1)


def _measured(recipe: Recipe, prediction: Prediction, batch: int) -> LogEstimate | None:
    if batch not in recipe.samples:
        return None
    for one in recipe.trained:
        same_way = one.row["framework"] == prediction.target.row["framework"]
        if same_way and one.row["workers"] == prediction.workers and one.batch == batch:
            return recipe.samples[batch] / one.speed
    return None


# The table of predictions, and under it their assumptions.

HEADER = (
    "configuration",
    "allreduce",
    "algorithm",
    "workers",
    "samples/s",
    "efficiency",
    "step ms",
    "exposed ms",
    "waiting ms",
    "on the wire ms",
)
BRACKETS = "Brackets: 95 %"  # where the table shows them; the terminal's does not (analysis/commands.py)
INTERVALS = (
    ", from the spread between the repeats of the one-worker run and the fit of the network. They do not include the "
    "error of the model."
)
MEASURED = ("measured samples/s", "error", "noise")


def listing(forecast: Forecast, results: Results) -> Listing:
    """A row each, in the order given; with columns of what was measured where anything was."""
    known = {id(check.prediction): check for check in forecast.checked if check.as_shown}
    models = {prediction.target.row["model"] for prediction in forecast.predictions}
    rows = []
    for prediction in forecast.predictions:
        name = (f"{prediction.target.row['model']}, " if len(models) > 1 else "") + prediction.target.label
        cells = [name, prediction.allreduce, prediction.algorithm.replace("_", " and "), f"{prediction.workers:,}"]
        cells += [
            bounded(prediction.samples_per_second),
            bounded(prediction.efficiency, 100, " %"),
            number(1000 * prediction.step_seconds),
        ]
        cells += [bounded(prediction.exposed_seconds, 1000), number(1000 * prediction.waiting_seconds)]
        cells += [
            number(1000 * prediction.communication_seconds),
            *(_measured_lines(known.get(id(prediction))) if known else ()),
        ]
        rows.append(tuple(cells))
    header = (*HEADER, *(MEASURED if known else ()))
    lines = (*sentences(forecast), f"{notes.source(results)}.")
    return Listing(f"Predicted throughput ({results.heading})", header, tuple(rows), lines)


def sentences(forecast: Forecast) -> list[str]:
    """The sentences under the table: the assumptions behind its numbers."""
    predictions = forecast.predictions
    targets = list({id(prediction.target): prediction.target for prediction in predictions}.values())
    lines = networks(predictions)
    lines += [f"{text}: {', '.join(sorted(names))}." for text, names in _fusions(predictions).items()]
    lines.append(
        "Weak scaling: the batch per worker is constant. Exposed: what communication adds to a step; waiting: for the "
        "slowest worker; on the wire: seconds of a step with a collective in flight."
    )
    if any(target.alone.repeats >= 3 for target in targets):
        lines.append(f"{BRACKETS}{INTERVALS}")
    if few := [target.label for target in targets if target.alone.repeats < 3]:
        lines.append(f"No interval with fewer than 3 repeats of one worker: {'; '.join(dict.fromkeys(few))}.")
    if guessed := [target.label for target in targets if not target.alone.noted]:
        lines.append(
            "**Gradient arrival times were not recorded** (older records): assumed evenly spread over backward. "
            f"{'; '.join(dict.fromkeys(guessed))}."
        )
    unsaid = [f"Not predicted: {sentence}." for sentence in forecast.wrong]
    return lines + _computing(forecast) + _checks(forecast.checked) + unsaid


def networks(predictions: Sequence[Prediction]) -> list[str]:
    """`Network: given. Between workers 5 us and 25 Gbit/s.`, with whose it is where there are several."""
    whose: dict[str, dict[str, None]] = {}
    for prediction in predictions:
        text = f"{prediction.network.source}. {network_text(prediction.network)}"
        whose.setdefault(text, {})[str(prediction.target.row["framework"])] = None
    several = len(whose) > 1
    return [
        f"Network of {', '.join(names)}: {text}." if several else f"Network: {text}." for text, names in whose.items()
    ]


def _computing(forecast: Forecast) -> list[str]:
    lines = [
        "Stragglers: steps of different workers vary independently, as one worker's did from step to step (normal)."
        if forecast.straggle
        else "Stragglers are left out: every worker takes the mean step."
    ]
    if forecast.crowding != 1.0:
        where = f", by {forecast.crowding_pairs} pair(s) of runs in this study" if forecast.crowding_pairs else ""
        lines.append(f"Workers that share a host compute {forecast.crowding:.2f} x as long as one alone{where}.")
    if any(
        prediction.target.row["device"] == "cpu" and not prediction.network.busy for prediction in forecast.predictions
    ):
        lines.append(
            "Communication is assumed to use no computing cores. On a CPU it does: a network probe in the study "
            "measures how much."
        )
    return lines


def _checks(checked: Sequence[Checked]) -> list[str]:
    if not checked:
        return []
    by_algorithm = {check.prediction.algorithm: 0 for check in checked}
    lines = [
        f"{name.replace('_', ' and ')}: {predict.summary([c for c in checked if c.prediction.algorithm == name])}"
        for name in by_algorithm
    ]
    return [
        f"Against measurements of this study: {'; '.join(lines)}. No prediction uses the run that it is compared with. "
        "Noise: half of the 95 % interval of the measured speed-up over one worker."
    ]


def _fusions(predictions: Sequence[Prediction]) -> dict[str, set[str]]:
    """How gradients are fused, in words -> of whom."""
    fusions: dict[str, set[str]] = {}
    for prediction in predictions:
        fusions.setdefault(fusion_text(prediction.target.fusion), set()).add(str(prediction.target.row["framework"]))
    return fusions


def fusion_text(fusion: Fusion) -> str:
    """`Fused in cycles of 1 ms, at most 128 MiB`."""
    most = f"{fusion.most_bytes / MIB:g} MiB"
    if fusion.kind == CYCLES:
        return f"Fused in cycles of {1000 * fusion.cycle_seconds:g} ms, at most {most} a call"
    if fusion.kind == BUCKETS:
        first = f", the first {fusion.first_bytes / MIB:g} MiB" if fusion.first_bytes else ""
        return f"Fused in buckets of {most}{first}"
    return f"Sent when backward is over, at most {most} a call"


def network_text(network: Network) -> str:
    """`Between hosts 5 us and 25 Gbit/s; within a host of 4 workers 3 us and 80 Gbit/s`."""
    if network.within is None:
        text = f"Between workers {link_text(network.between)}"
    else:
        within = f"within a host of {network.workers_per_host} workers {link_text(network.within)}"
        text = f"Between hosts {link_text(network.between)}; {within}"
    if network.busy:
        text += f" (while the cores compute: {link_text(network.busy.between)})"
    return text


def link_text(link: Link) -> str:
    rate = f"{8e-9 / link.seconds_per_byte:.3g} Gbit/s" if link.seconds_per_byte else "no limit of bandwidth"
    return f"{1e6 * link.latency_seconds:.3g} us and {rate}"


def bounded(bounds: Bounds, unit: float = 1.0, sign: str = "") -> str:
    """`4,657 [4,500, 4,800]`."""
    text = f"{number(unit * bounds.mean)}{sign}"
    if bounds.low is None or bounds.high is None:
        return text
    return f"{text} [{number(unit * bounds.low)}, {number(unit * bounds.high)}]"


def _measured_lines(checked: Checked | None) -> tuple[str, ...]:
    if checked is None:
        return ("", "", "")
    noise = "" if checked.noise is None else f"±{100 * checked.noise:.1f} %"
    return (number(checked.samples_per_second), f"{100 * checked.error:+.1f} %", noise)


# The table of predicted seconds to a target, and with how many workers they, or the worker-hours, are fewest.

TO_TARGET_HEADER = (
    "configuration",
    "target",
    "algorithm",
    "workers",
    "global batch",
    "samples",
    "seconds",
    "worker-hours",
    "measured seconds",
    "error",
)
COLUMNS = (
    "recipe",
    "framework",
    "allreduce",
    "algorithm",
    "workers",
    "global_batch",
    "inside",
    *(
        f"{name}{bound}"
        for name in ("samples", "seconds", "measured_seconds", "error")
        for bound in ("", "_low", "_high")
    ),
    "worker_hours",
)
METHOD = (
    "Seconds: samples to the target at the global batch, of the curve fitted to this study's trainings, over the "
    "predicted throughput [95 %, of both]. Weak scaling: the batch per worker is constant. What was trained with a "
    "global batch has no part in a prediction that is held against it. Error: predicted / measured - 1."
)
OUTSIDE = "*: beyond the global batches that were trained, where the curve is believed and was not seen."


def to_target_listing(expected: Sequence[Expected], results: Results) -> Listing:
    rows = tuple(_cells(one, results) for one in expected)
    outside = [OUTSIDE] if not all(one.inside for one in expected) else []
    lines = (METHOD, *outside, *_best(expected, results), f"{notes.source(results)}.")
    return Listing(f"Predicted seconds to the target ({results.heading})", TO_TARGET_HEADER, rows, lines)


def to_target_table(expected: Sequence[Expected], results: Results) -> pd.DataFrame:
    """COLUMNS."""
    rows = []
    for one in expected:
        made: dict[str, Any] = {
            "recipe": batch_efficiency.name(one.recipe, results),
            "framework": one.prediction.target.row["framework"],
            "allreduce": one.prediction.allreduce,
            "algorithm": one.prediction.algorithm,
            "workers": one.prediction.workers,
            "global_batch": one.batch,
            "inside": one.inside,
            "worker_hours": one.hours,
        }
        made |= _numbers("samples", one.samples) | _numbers("seconds", one.seconds)
        made |= _numbers("measured_seconds", one.measured) | _numbers("error", one.error, less=1.0)
        rows.append(made)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _numbers(name: str, estimate: LogEstimate | None, less: float = 0.0) -> dict[str, float | None]:
    values = (None, None, None) if estimate is None else (estimate.value, *estimate.bounds())
    found = (None if value is None else value - less for value in values)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


def _cells(one: Expected, results: Results) -> tuple[str, ...]:
    prediction = one.prediction
    return (
        prediction.target.label,
        batch_efficiency.name(one.recipe, results),
        prediction.algorithm.replace("_", " and "),
        f"{prediction.workers:,}",
        f"{one.batch:,}{'' if one.inside else ' *'}",
        _text(one.samples),
        _text(one.seconds),
        number(one.hours),
        "" if one.measured is None else _text(one.measured),
        "" if one.error is None else _error(one.error),
    )


def _text(estimate: LogEstimate) -> str:
    return f"{_number(estimate.value)}{_bounds(estimate)}"


def _bounds(estimate: LogEstimate) -> str:
    low, high = estimate.bounds()
    if low is None and high is None:
        return ""
    return f" [{'0' if low is None else _number(low)}, {'∞' if high is None else _number(high)}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(value)


def _error(error: LogEstimate) -> str:
    low, high = error.bounds()
    bounds = "" if low is None or high is None else f" [{100 * (low - 1):+.0f} %, {100 * (high - 1):+.0f} %]"
    return f"{100 * (error.value - 1):+.0f} %{bounds}"


def _best(expected: Sequence[Expected], results: Results) -> Iterator[str]:
    """A sentence for each configuration, recipe and algorithm: the best of the worker counts that were asked for."""
    groups: dict[tuple[str, str, str, str], list[Expected]] = {}
    for one in expected:
        way = one.prediction.target.label, one.prediction.allreduce, one.prediction.algorithm
        groups.setdefault((batch_efficiency.name(one.recipe, results), *way), []).append(one)
    for (recipe, label, allreduce, algorithm), ours in groups.items():
        if len(ours) > 1:
            soonest = min(ours, key=lambda one: one.seconds.value)
            cheapest = min(ours, key=lambda one: one.hours)
            seconds = f"{soonest.prediction.workers:,} ({_text(soonest.seconds)} s)"
            hours = f"{cheapest.prediction.workers:,} ({number(cheapest.hours)})"
            yield (
                f"{recipe}, {label}, {allreduce}, {algorithm.replace('_', ' and ')}: of the worker counts asked for, "
                f"the fewest seconds are predicted for {seconds}, the fewest worker-hours for {hours}."
            )


# Predicted efficiency against workers, and under it what of a step is exposed communication: a figure for each model,
# a column of panels for each way of sharing gradients, a line for each algorithm; what was measured as open diamonds.

ACROSS, MOST_COLUMNS = 3, 9  # panels of a row; of a model: tables/prediction.md has all
EFFICIENCY, EXPOSED = "efficiency", "exposed share of a step"


@dataclass(frozen=True)
class Column:
    """Two panels: everything that was predicted of one way of sharing gradients at one precision on the wire."""

    title: str
    predictions: tuple[Prediction, ...]


def draw(forecast: Forecast, results: Results) -> dict[str, Figure]:
    """prediction-<model> -> its figure."""
    with style.applied():
        return {
            f"prediction-{file_name(model)}": _figure(
                model, [p for p in forecast.predictions if p.target.row["model"] == model], forecast.checked, results
            )
            for model in dict.fromkeys(str(p.target.row["model"]) for p in forecast.predictions)
        }


def _figure(model: str, predictions: Sequence[Prediction], checked: Sequence[Checked], results: Results) -> Figure:
    every = _columns(predictions)
    columns = every[:MOST_COLUMNS]
    across = 2 if len(columns) == 4 else min(len(columns), ACROSS)
    deep = -(-len(columns) // across)
    names = [prediction.algorithm for prediction in predictions]
    algorithms = list(dict.fromkeys(names))
    colours = dict(zip(algorithms, style.style_colours(len(algorithms)), strict=True))
    words = [name.replace("_", " and ") for name in algorithms]
    layout = style.Layout(
        panel_width=2.3,
        panel_height=1.9,
        left=0.78,
        below=0.46,
        gutters=tuple(
            style.gutter(words, (column.title for column in columns[place::across]), 2.3) for place in range(across)
        ),
    )
    what = "Weak scaling. Exposed: what communication adds to a step."
    if any(prediction.efficiency.low is not None for prediction in predictions):
        what += " Bars: 95 %, from the repeats of one worker and the fit of the network; not the model's own error."
    if checked:
        what += " Diamonds: measured."
    if len(every) > len(columns):
        what += f" The first {len(columns)} of {len(every)} combinations; tables/ has all."
    foot = [what, *networks(predictions), f"{notes.source(results)}."]
    title = f"Predicted efficiency of {model}: {results.study.name}"
    sheet = style.sheet(2 * deep, across, layout, title, foot)
    for index, column in enumerate(columns):
        for part, name in enumerate((EFFICIENCY, EXPOSED)):
            axis, _ = sheet.at((2 * (index // across) + part) * across + index % across)
            axis.set_title(column.title, loc="left", weight="bold")
            style.name_y(axis, name, layout)
            _panel(axis, column, part == 0, colours, checked, layout)
    for index in range(len(columns), deep * across):
        for part in range(2):
            style.remove(sheet, (2 * (index // across) + part) * across + index % across)
    return sheet.figure


def _columns(predictions: Sequence[Prediction]) -> list[Column]:
    columns: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        columns.setdefault(f"{prediction.target.label}, {prediction.allreduce}", []).append(prediction)
    return [Column(title, tuple(ours)) for title, ours in columns.items()]


def _panel(
    axis: Axes,
    column: Column,
    efficiency: bool,
    colours: dict[str, str],
    checked: Sequence[Checked],
    layout: style.Layout,
) -> None:
    workers = sorted({prediction.workers for prediction in column.predictions})
    at = {count: float(np.log2(count)) for count in workers}
    span = max(at[workers[-1]] - at[workers[0]], 1.0)
    labels = []
    for index, (name, colour) in enumerate(colours.items()):
        ours = [prediction for prediction in column.predictions if prediction.algorithm == name]
        if not ours:
            continue
        values = [forecast.efficiency if efficiency else _share(forecast) for forecast in ours]
        shift = (index - (len(colours) - 1) / 2) * 0.015 * span
        x, mean = [at[forecast.workers] + shift for forecast in ours], np.array([value.mean for value in values])
        low, high = (
            np.array([v if v is not None else m for v, m in zip(side, mean, strict=True)])
            for side in ([v.low for v in values], [v.high for v in values])
        )
        axis.errorbar(
            x,
            mean,
            yerr=np.clip(np.vstack([mean - low, high - mean]), 0, None),
            color=colour,
            marker=style.MARKERS[index],
            capsize=2.5,
            elinewidth=1.0,
            capthick=1.0,
            markeredgecolor="white",
            markeredgewidth=0.5,
            zorder=3,
        )
        labels.append(EndLabel(x[-1], float(mean[-1]), name.replace("_", " and "), colour))
    if efficiency:
        _draw_measured(axis, column, at, checked)
    axis.set_xlim(at[workers[0]] - 0.12 * span, at[workers[-1]] + 0.12 * span)
    axis.set_ylim(0, 1.08 if efficiency else None)
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=None, symbol=" %"))
    axis.set_xlabel("workers")
    axis.grid(False, axis="x")
    style.ticks(axis, list(at.values()), [f"{count:,}" for count in workers], layout.panel_width)
    style.end_labels(axis, labels, layout.panel_height)


def _share(prediction: Prediction) -> Bounds:
    """Exposed seconds as a share of the step."""
    exposed, computed = prediction.exposed_seconds, prediction.step_seconds - prediction.exposed_seconds.mean
    low, high = (None if side is None else side / (computed + side) for side in (exposed.low, exposed.high))
    return Bounds(exposed.mean / prediction.step_seconds, low, high)


def _draw_measured(axis: Axes, column: Column, at: dict[int, float], checked: Sequence[Checked]) -> None:
    """Each measurement once, whatever algorithms were predicted for it."""
    ours = {id(prediction) for prediction in column.predictions}
    points = {
        c.prediction.workers: c.samples_per_second
        / (c.prediction.workers * c.prediction.target.alone.samples_per_second)
        for c in checked
        if id(c.prediction) in ours and c.as_shown
    }
    axis.plot(
        [at[count] for count in points],
        list(points.values()),
        linestyle="",
        marker="D",
        markerfacecolor="none",
        markeredgecolor=style.DARK,
        markeredgewidth=1.2,
        markersize=6.5,
        zorder=4,
    )
