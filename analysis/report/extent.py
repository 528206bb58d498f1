"""The reach of an answer: how well its number is known, what workers and batches bring on the way to a target, and the
size of the models that it is of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from analysis.frames.configurations import known, trains_alike
from analysis.frames.measured import of_peers
from analysis.frames.results import Results, unit
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.frames.study import workers_text
from analysis.statistics.batch_size import Curve, recipes
from analysis.text import bracketed, number, span, two_figure_percentage
from analysis.views import batch_efficiency, same_training
from analysis.views.tasks import tasks

SMALL = 1_000_000  # parameters: what fewer spend their time on says nothing of large models
MOST_MODELS = 3
FACTOR = 1.25  # from which on a bound is that many times the value, not so many percent from it


def known_to(what: str, value: float, low: float | None, high: float | None, of: str) -> str:
    """`The lowest mean is known to a factor of 1.9 (3 seeds). `, or to ±12 %: the farther bound. `what`: as it begins;
    `of`: so many values."""
    if not (known(low) and known(high) and low > 0 and math.isfinite(high)):
        return f"{what} has no interval ({of}). "
    times = max(high / value, value / low)
    how = f"a factor of {times:.1f}" if times > FACTOR else f"±{two_figure_percentage(times - 1)} %"
    return f"{what} is known to {how} ({of}). "


def of_the_first_target(results: Results) -> str:
    """known_to() of the seconds to the first target; empty where no configuration is the soonest there."""
    first = next(iter(tasks(results)), None)
    if first is None or (best := first.best) is None:
        return ""
    value, low, high = (best[f"seconds_to_target{end}"] for end in ("", "_low", "_high"))
    return known_to("The lowest mean", value, low, high, f"{best['reached']} seeds")


def to_targets(results: Results) -> Iterator[str]:
    """A sentence for each model on steps of more workers at one global batch, and for each recipe on its critical batch
    size."""
    yield from _steps_of_workers(results)
    curves = [(recipe, recipe.curve) for recipe in recipes(results) if isinstance(recipe.curve, Curve)]
    told = [(recipe, curve) for recipe, curve in curves if {curve.critical, curve.low, curve.high} != {None}]
    for recipe, curve in told:
        whose = f" ({batch_efficiency.name(recipe, results)})" if len(told) > 1 else ""
        size = batch_efficiency.critical(curve)
        yield f"Critical batch size, beyond which a larger global batch saves few steps: {size}{whose}."


def _steps_of_workers(results: Results) -> Iterator[str]:
    """Seconds a step against fewer workers that train the same, as a speed-up of the step; not of peers, whose step is
    a round, nor of what may not be compared (configurations.trains_alike), on either side."""
    pairs = same_training.table(results)
    more: dict[tuple[str, int, int], list[ConfigurationRow]] = {}
    for pair in as_rows(pairs) if len(pairs) else []:
        row, other = (results.by_name[str(pair[end])] for end in ("configuration", "reference"))
        fit = trains_alike(row) and trains_alike(other) and not of_peers(str(row["framework"]))
        if row["workers"] > other["workers"] and fit and known(pair["step_seconds_ratio"]):
            more.setdefault((str(row["model"]), int(row["workers"]), int(other["workers"])), []).append(pair)
    for (model, workers, base), ours in more.items():
        batches = sorted({int(pair["global_batch"]) for pair in ours})
        who = "a second worker makes" if (workers, base) == (2, 1) else f"{workers} workers make"
        than = "" if base == 1 else f" as with {workers_text(base)}"
        whose = f"{model}: at" if len(results.models) > 1 else "At"
        gains = _gains([[pair[f"step_seconds_ratio{end}"] for end in ("", "_high", "_low")] for pair in ours])
        among = span(str(batches[0]), str(batches[-1]))
        yield f"{whose} the same global batch ({among}) {who} a step {gains}{than}."


def _gains(ratios: Sequence[Sequence[float | None]]) -> str:
    """`1.67x [1.54, 1.79] as fast`, or `1.67 to 1.82x as fast (95 % intervals within 1.49 to 2.08)`. `ratios`: of
    seconds, each with its upper and its lower bound."""
    inverse = [[1 / value if known(value) and value > 0 else math.nan for value in each] for each in ratios]
    values, lows, highs = zip(*inverse, strict=True)
    if len(ratios) == 1:
        return f"{values[0]:.2f}x{bracketed(lows[0], highs[0], '{:.2f}'.format)} as fast"
    whole = not any(map(math.isnan, (*lows, *highs)))
    bounds = f" (95 % intervals within {min(lows):.2f} to {max(highs):.2f})" if whole else ""
    return f"{min(values):.2f} to {max(values):.2f}x as fast{bounds}"


def of_size(results: Results) -> str:
    """The parameters of each model where all are SMALL; else, or where some are not known, empty."""
    sizes = {}
    for model in results.models:
        counts = [int(row["parameters"]) for row in results.rows_of(model) if known(row["parameters"])]
        sizes[model] = max(counts, default=SMALL)
    if not sizes or max(sizes.values()) >= SMALL:
        return ""
    each = [f"{model} {number(size / 1e6)} M parameters{_tokens(model, results)}" for model, size in sizes.items()]
    more = [f"{len(each) - MOST_MODELS} more"] if len(each) > MOST_MODELS else []
    return f"Small models only ({'; '.join([*each[:MOST_MODELS], *more])}): large ones may answer otherwise."


def _tokens(model: str, results: Results) -> str:
    """`, 64 tokens a sequence`; empty of images, and of sentences, whose lengths differ."""
    rows = [row for row in results.rows_of(model) if known(row["tokens_per_second"])]
    if not rows or unit(results.frame_of(model)) != "sequences":
        return ""
    return f", {rows[0]['tokens_per_second'] / rows[0]['samples_per_second']:.0f} tokens a sequence"
