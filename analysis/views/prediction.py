"""Predictions for more workers: throughput, seconds to a target, their assumptions, as tables and figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.findings import grouped
from analysis.frames.configurations import same
from analysis.frames.results import Results
from analysis.frames.study import workers_text
from analysis.prediction import predict
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.predict import Checked, Forecast, Prediction
from analysis.prediction.simulate import BUCKETS, CYCLES, MESH, MIB, Fusion
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel, SeriesLook
from analysis.statistics import batch_size
from analysis.statistics.batch_size import BatchRecipe, Curve, recipes
from analysis.statistics.estimates import LogEstimate, between, columns_of, exactly
from analysis.text import bracketed, file_name, number
from analysis.views import batch_efficiency
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval

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
    recipe: BatchRecipe
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
            batch = prediction.target.samples(prediction.workers)
            without = batch_size.fit([one for one in recipe.needed if one.batch != batch])
            curve = without if isinstance(without, Curve) else recipe.curve
            if isinstance(curve, Curve):
                samples, speed = curve.samples(batch), _speed(prediction)
                inside = curve.batches[0] <= batch <= curve.batches[-1]
                measured = _measured(recipe, prediction, batch) if curve is without else None
                made.append(Expected(prediction, recipe, batch, samples, samples / speed, inside, measured))
    return made


def _alike(recipe: BatchRecipe, prediction: Prediction) -> bool:
    row, other = recipe.trained[0].row, prediction.target.row
    narrow = [str(one.row["allreduce"]) for one in recipe.trained if one.row["allreduce"] not in ("none", "fp32")]
    wire = narrow[0] if narrow else "fp32"
    return wire == prediction.allreduce and all(same(row[key], other[key]) for key in ALIKE)


def _speed(prediction: Prediction) -> LogEstimate:
    """Without an interval where one worker was run too few times."""
    speed = prediction.samples_per_second
    if speed.low is None or speed.high is None:
        return LogEstimate(exactly(speed.mean).log, float("nan"), float("nan"))
    return between(speed.mean, speed.low, speed.high, prediction.target.alone.repeats - 1)


def _measured(recipe: BatchRecipe, prediction: Prediction, batch: int) -> LogEstimate | None:
    way = prediction.target.row["framework"], prediction.workers, batch
    alike = (one for one in recipe.trained if (one.row["framework"], one.row["workers"], one.batch) == way)
    trained = next(alike, None)
    return recipe.samples[batch] / trained.speed if trained and batch in recipe.samples else None


BRACKETS = "Brackets: 95 %"  # where the table shows them; the terminal's does not (analysis/terminal.py)
INTERVALS = (
    ", from the spread between the repeats of the one-worker run and the fit of the network. They do not include the "
    "error of the model."
)


def forecast_listing(forecast: Forecast, results: Results) -> Listing:
    """A row each, in the order given; with columns of what was measured where anything was."""
    several = len({prediction.target.row["model"] for prediction in forecast.predictions}) > 1
    measured = forecast.measured
    cells = []
    for prediction in forecast.predictions:
        target = prediction.target
        row = {
            "configuration": f"{target.row['model']}, {target.label}" if several else target.label,
            "allreduce": prediction.allreduce,
            "algorithm": prediction.algorithm.replace("_", " and "),
            "workers": f"{prediction.workers:,}",
            "samples/s": bounded(prediction.samples_per_second),
            "efficiency": bounded(prediction.efficiency, 100, " %"),
            "step ms": number(1000 * prediction.step_seconds),
            "exposed ms": bounded(prediction.exposed_seconds, 1000),
            "waiting ms": number(1000 * prediction.waiting_seconds),
            "on the wire ms": number(1000 * prediction.communication_seconds),
        }
        if measured:
            check = measured.get(id(prediction))
            row["measured samples/s"] = number(check.samples_per_second) if check else ""
            row["error"] = f"{100 * check.error:+.1f} %" if check else ""
            row["noise"] = f"±{100 * check.noise:.1f} %" if check and check.noise is not None else ""
        cells.append(row)
    lines = (*sentences(forecast), f"{notes.source(results)}.")
    return Listing.from_rows(f"Predicted throughput ({results.heading})", cells, lines)


def sentences(forecast: Forecast) -> Iterator[str]:
    """The sentences under the table: the assumptions behind its numbers."""
    predictions = forecast.predictions
    targets = list({id(prediction.target): prediction.target for prediction in predictions}.values())
    yield from networks(predictions)
    for text, ours in grouped(targets, lambda target: fusion_text(target.fusion)).items():
        yield f"{text}: {', '.join(sorted({str(target.row['framework']) for target in ours}))}."
    split = [target for target in targets if target.fusion.kind == MESH]
    few = dict.fromkeys(target.label for target in targets if target.alone.repeats < FEWEST_REPEATS)
    guessed = dict.fromkeys(each.label for each in targets if not each.alone.noted and each not in split)
    pairs = f", by {forecast.crowding_pairs} pair(s) of runs in this study" if forecast.crowding_pairs else ""
    taken = max((one.network.gpu_share for one in predictions), default=0.0)
    yield from notes.holding(
        (
            split,
            "Split over workers (tensor, context, stages): more workers are more of these groups, of the same size.",
        ),
        (
            True,
            "Weak scaling: the batch per worker is constant. Exposed: what communication adds to a step; waiting: for "
            "the slowest worker; on the wire: seconds of a step with a collective in flight.",
        ),
        (any(target.alone.repeats >= FEWEST_REPEATS for target in targets), f"{BRACKETS}{INTERVALS}"),
        (few, f"No interval with fewer than {FEWEST_REPEATS} repeats of one worker: {'; '.join(few)}."),
        (
            guessed,
            "**Gradient arrival times were not recorded** (older records): assumed evenly spread over backward. "
            f"{'; '.join(guessed)}.",
        ),
        (not forecast.asked.straggle, "Stragglers are left out: every worker takes the mean step."),
        (
            forecast.asked.straggle,
            "Stragglers: steps of different workers vary independently, as one worker's did from step to step "
            "(normal).",
        ),
        (forecast.asked.straggle, hosts_text(forecast)),
        (
            forecast.crowding != 1.0,
            f"Workers that share a host compute {forecast.crowding:.2f} x as long as one alone{pairs}.",
        ),
        (
            any(one.target.row["device"] == "cpu" and not one.network.busy for one in predictions),
            "Communication is assumed to use no computing cores. On a CPU it does: a network probe in the study "
            "measures how much.",
        ),
        (
            taken,
            f"While a collective runs it takes {100 * taken:.0f} % of each GPU's computing (--gpu-share; default: 20 "
            "of an H800's 132 multiprocessors that DeepSeek-V3 keeps for it, arXiv 2412.19437).",
        ),
    )
    if by_algorithm := grouped(forecast.checked, lambda check: check.prediction.algorithm):
        lines = [f"{name.replace('_', ' and ')}: {predict.summary(ours)}" for name, ours in by_algorithm.items()]
        yield (
            f"Against measurements of this study: {'; '.join(lines)}. No prediction uses the run that it is compared "
            "with. Noise: half of the 95 % interval of the measured speed-up over one worker."
        )
    yield from (f"Not predicted: {sentence}." for sentence in forecast.wrong)


def hosts_text(forecast: Forecast) -> str:
    """How much hosts differ for good, and how that is known."""
    if forecast.host_spread is None:
        return "Hosts are taken to be equally fast for good: no run over several hosts says otherwise (--host-spread)."
    how = "given" if forecast.asked.host_spread is not None else "by forward on the hosts of this study's runs"
    return f"Hosts differ for good by {100 * forecast.host_spread:.1f} % (standard deviation, {how})."


def networks(predictions: Sequence[Prediction]) -> list[str]:
    """`Network: given. Between workers 5 us and 25 Gbit/s.`, with whose it is where there are several."""
    by_text = grouped(predictions, lambda one: f"{one.network.source}. {network_text(one.network)}")
    several = len(by_text) > 1
    whose = {
        text: ", ".join(dict.fromkeys(str(one.target.row["framework"]) for one in ours))
        for text, ours in by_text.items()
    }
    return [f"Network of {names}: {text}." if several else f"Network: {text}." for text, names in whose.items()]


def fusion_text(fusion: Fusion) -> str:
    """`Fused in cycles of 1 ms, at most 128 MiB`."""
    most = f"{fusion.most_bytes / MIB:g} MiB"
    if fusion.kind == CYCLES:
        return f"Fused in cycles of {1000 * fusion.cycle_seconds:g} ms, at most {most} a call"
    if fusion.kind == MESH:
        return "Collectives of each layer by closed forms: those of matrices and sequences are waited for"
    if fusion.kind == BUCKETS:
        first = f", the first {fusion.first_bytes / MIB:g} MiB" if fusion.first_bytes else ""
        return f"Fused in buckets of {most}{first}"
    return f"Sent when backward is over, at most {most} a call"


def network_text(network: ModelledNetwork) -> str:
    """`Between hosts 5 us and 25 Gbit/s a host; within a host of 4 workers 3 us and 80 Gbit/s`."""
    cards, between = network.cards_per_host, link_text(network.between)
    whose = f"{between} a card, {cards} cards a host" if cards > 1 else f"{between} a host"
    inside = f"within a host of {workers_text(network.workers_per_host)} {link_text(network.inside)}"
    if network.one_host:
        text = f"{inside[0].upper()}{inside[1:]}, nothing known of several hosts"
    elif network.within is None:
        text = f"Between workers, each alone on its host, {whose}"
    else:
        text = f"Between hosts {whose}; {inside}"
    if network.busy:
        text += f" (while the cores compute: {link_text(network.busy.between)})"
    return text


def link_text(link: Link) -> str:
    rate = f"{8e-9 / link.seconds_per_byte:.3g} Gbit/s" if link.seconds_per_byte else "no limit of bandwidth"
    return f"{1e6 * link.latency_seconds:.3g} us and {rate}"


def bounded(value: Interval, unit: float = 1.0, sign: str = "") -> str:
    """`4,657 [4,500, 4,800]`."""
    interval = bracketed(value.low, value.high, lambda end: number(unit * end))
    return f"{number(unit * value.mean)}{sign}{interval}"


METHOD = (
    "Seconds: samples to the target at the global batch, of the curve fitted to this study's trainings, over the "
    "predicted throughput [95 %, of both]. Weak scaling: the batch per worker is constant. What was trained with a "
    "global batch has no part in a prediction that is held against it. Error: predicted / measured - 1."
)
OUTSIDE = "*: beyond the global batches that were trained, where the curve is believed and was not seen."


def to_target_listing(expected: Sequence[Expected], results: Results) -> Listing:
    """A row for each prediction and recipe, in the order given."""
    cells = [
        {
            "configuration": one.prediction.target.label,
            "target": batch_efficiency.name(one.recipe, results),
            "algorithm": one.prediction.algorithm.replace("_", " and "),
            "workers": f"{one.prediction.workers:,}",
            "global batch": f"{one.batch:,}{'' if one.inside else ' *'}",
            "samples": _text(one.samples),
            "seconds": _text(one.seconds),
            "worker-hours": number(one.hours),
            "measured seconds": "" if one.measured is None else _text(one.measured),
            "error": "" if one.error is None else _error(one.error),
        }
        for one in expected
    ]
    outside = [OUTSIDE] if not all(one.inside for one in expected) else []
    lines = (METHOD, *outside, *_best(expected, results), f"{notes.source(results)}.")
    return Listing.from_rows(f"Predicted seconds to the target ({results.heading})", cells, lines)


def to_target_table(expected: Sequence[Expected], results: Results) -> pd.DataFrame:
    """A row for each prediction and recipe; `error`: predicted / measured - 1."""
    return pd.DataFrame(
        [
            {
                "recipe": batch_efficiency.name(one.recipe, results),
                "framework": one.prediction.target.row["framework"],
                "allreduce": one.prediction.allreduce,
                "algorithm": one.prediction.algorithm,
                "workers": one.prediction.workers,
                "global_batch": one.batch,
                "inside": one.inside,
                **columns_of("samples", one.samples),
                **columns_of("seconds", one.seconds),
                **columns_of("measured_seconds", one.measured),
                **{name: value and value - 1 for name, value in columns_of("error", one.error).items()},
                "worker_hours": one.hours,
            }
            for one in expected
        ]
    )


def _text(estimate: LogEstimate) -> str:
    return batch_efficiency.text_of(estimate.value, *estimate.bounds())


def _error(error: LogEstimate) -> str:
    low, high = error.bounds()
    bounds = "" if low is None or high is None else f" [{100 * (low - 1):+.0f} %, {100 * (high - 1):+.0f} %]"
    return f"{100 * (error.value - 1):+.0f} %{bounds}"


def _best(expected: Sequence[Expected], results: Results) -> Iterator[str]:
    """A sentence for each configuration, recipe and algorithm: the best of the worker counts that were asked for."""

    def way(one: Expected) -> tuple[str, str, str, str]:
        made = one.prediction
        return batch_efficiency.name(one.recipe, results), made.target.label, made.allreduce, made.algorithm

    for (recipe, label, allreduce, algorithm), ours in grouped(expected, way).items():
        if len(ours) > 1:
            soonest = min(ours, key=lambda one: one.seconds.value)
            cheapest = min(ours, key=lambda one: one.hours)
            seconds = f"{soonest.prediction.workers:,} ({_text(soonest.seconds)} s)"
            hours = f"{cheapest.prediction.workers:,} ({number(cheapest.hours)})"
            yield (
                f"{recipe}, {label}, {allreduce}, {algorithm.replace('_', ' and ')}: of the worker counts asked for, "
                f"the fewest seconds are predicted for {seconds}, the fewest worker-hours for {hours}."
            )


# Predicted efficiency against workers, and beside it the share of a step that is exposed communication: a figure for
# each model, two panels for each way of sharing gradients, a line for each algorithm; measurements as open diamonds.

MOST_COLUMNS = 9  # pairs of panels of a model: tables/prediction.md has all
EFFICIENCY, EXPOSED = "efficiency", "exposed share of a step"


def forecast_figures(forecast: Forecast, results: Results) -> dict[str, Figure]:
    """prediction-<model> -> its figure."""
    with style.applied():
        return {
            f"prediction-{file_name(model)}": _figure(
                model, [p for p in forecast.predictions if p.target.row["model"] == model], forecast.checked, results
            )
            for model in dict.fromkeys(str(p.target.row["model"]) for p in forecast.predictions)
        }


def _figure(model: str, predictions: Sequence[Prediction], checked: Sequence[Checked], results: Results) -> Figure:
    every = grouped(predictions, lambda one: f"{one.target.label}, {one.allreduce}")
    shown = list(every.items())[:MOST_COLUMNS]
    algorithms = list(dict.fromkeys(prediction.algorithm for prediction in predictions))
    colours = dict(zip(algorithms, style.style_colours(len(algorithms)), strict=True))
    words = [name.replace("_", " and ") for name in algorithms]
    measured = {id(one.prediction) for one in checked if one.as_shown}
    what, source = notes.under_figure(
        results,
        "Weak scaling. Exposed: the time that communication adds to a step.",
        (
            any(prediction.efficiency.low is not None for prediction in predictions),
            "Bars: 95 %, from the repeats of one worker and the fit of the network; not the model's own error.",
        ),
        (any(id(prediction) in measured for _, column in shown for prediction in column), "Diamonds: measured."),
        (len(every) > len(shown), f"The first {len(shown)} of {len(every)} combinations; tables/ has all."),
    )
    return style.figure_of(
        f"Predicted efficiency of {model}: {results.study.name}",
        [
            style.Panel(
                title if name == EFFICIENCY else "",
                partial(_panel, column=column, efficiency=name == EFFICIENCY, colours=colours, checked=checked),
                x="workers",
                y=name,
                labels=words,
            )
            for title, column in shown
            for name in (EFFICIENCY, EXPOSED)
        ],
        [what, *networks(predictions), source],
        2,
        panel_width=2.1,
        panel_height=1.9,
        left=0.78,
        below=0.46,
    )


def _panel(
    axis: Axes,
    layout: style.Layout,
    column: Sequence[Prediction],
    efficiency: bool,
    colours: dict[str, str],
    checked: Sequence[Checked],
) -> None:
    workers = sorted({prediction.workers for prediction in column})
    at = {count: float(np.log2(count)) for count in workers}
    span = max(at[workers[-1]] - at[workers[0]], 1.0)
    labels = []
    for index, (name, colour) in enumerate(colours.items()):
        ours = [prediction for prediction in column if prediction.algorithm == name]
        if not ours:
            continue
        values = [forecast.efficiency if efficiency else _share(forecast) for forecast in ours]
        shift = (index - (len(colours) - 1) / 2) * 0.015 * span
        x, rows = np.array([at[forecast.workers] + shift for forecast in ours]), pd.DataFrame(map(vars, values))
        style.interval_line(axis, x, rows, ("mean", "low", "high"), SeriesLook(colour, style.MARKERS[index]))
        labels.append(EndLabel(float(x[-1]), values[-1].mean, name.replace("_", " and "), colour))
    if efficiency:
        _draw_measured(axis, column, at, checked)
    axis.set_xlim(at[workers[0]] - 0.12 * span, at[workers[-1]] + 0.12 * span)
    axis.set_ylim(0, 1.08 if efficiency else None)
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=None, symbol=" %"))
    axis.grid(False, axis="x")
    style.ticks(axis, list(at.values()), [f"{count:,}" for count in workers], layout.panel_width)
    style.end_labels(axis, labels, layout.panel_height)


def _share(prediction: Prediction) -> Interval:
    """Exposed seconds as a share of the step."""
    exposed, computed = prediction.exposed_seconds, prediction.step_seconds - prediction.exposed_seconds.mean
    low, high = (None if side is None else side / (computed + side) for side in (exposed.low, exposed.high))
    return Interval(exposed.mean / prediction.step_seconds, low, high, exposed.n)


def _draw_measured(axis: Axes, column: Sequence[Prediction], at: dict[int, float], checked: Sequence[Checked]) -> None:
    """Each measurement once, whatever algorithms were predicted for it."""
    ours = {id(prediction) for prediction in column}
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
