"""The table of statistical efficiency and goodput: what a larger batch costs in samples, and how many workers pay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.frames import series
from analysis.frames.baseline import known, same, value_of
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import number
from analysis.to_target import efficiency
from analysis.to_target.critical_batch import Curve
from analysis.to_target.paying import Best, paying
from analysis.to_target.recipes import RECIPE_KEYS, Recipe, recipes

table = efficiency.table
HEADER = (
    *("configuration", "samples/s", "efficiency", "by noise scale", "goodput", "noise scale"),
    *("steps", "predicted steps", "error", "seconds", "predicted seconds"),
)
COLUMNS = (
    *("samples_per_second", "efficiency", "noise_efficiency", "goodput", "noise_scale"),
    *("measured_steps", "predicted_steps", "error", "seconds", "predicted_seconds"),
)
METHOD = (
    "Efficiency: samples to the target at the smallest global batch over those at this one; by noise scale: as the "
    "configuration's own gradient noise scale has it, (smallest + scale) / (batch + scale). Goodput: samples/s x "
    "efficiency. Geometric means over the seeds [95 % interval]; frameworks and workers of one recipe and global batch "
    "are pooled for samples, seed by seed.",
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
    "worker in the study, `python -m analysis predict` says what their throughput would be."
)


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained to a target; None where nothing can be said of batch sizes."""
    rows, found = table(results), recipes(results)
    if rows.noise_scale_low.isna().all() and not any(len(recipe.samples) > 1 for recipe in found):
        return None
    several = rows.model.nunique() > 1
    return Listing(
        f"Statistical efficiency and goodput ({results.heading})", HEADER,
        tuple(_cells(row, several) for row in rows.to_dict("records")), tuple(_lines(results, rows, found)),
    )  # fmt: skip


def name(recipe: Recipe, results: Results) -> str:
    """`resnet8 to accuracy=0.6`, with what else tells this study's recipes apart."""
    row = recipe.trained[0].row
    others = [other.trained[0].row for other in recipes(results) if other.model == recipe.model]
    differing = (key for key in RECIPE_KEYS if any(not same(value_of(row, key), value_of(one, key)) for one in others))
    keys = [key for key in differing if key != "train_target"]
    wire = [f"gradients in {row['allreduce']}"] if row["allreduce"] not in ("none", "fp32") else []
    return ", ".join([f"{recipe.model} to {recipe.target}", *series.words(row, keys), *wire])


def critical(curve: Curve) -> str:
    """`204 samples [198, 210]`, or on which side of what it lies."""
    if curve.critical is not None:
        return f"{number(curve.critical)} samples{_bounds(curve.low, curve.high, _text)}"
    if curve.low is not None:
        return f"above {number(curve.low)} samples (95 %)"
    return f"below {number(curve.high)} samples (95 %)" if curve.high is not None else "unknown"


def _cells(row: Mapping[Any, Any], several: bool) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    return (f"{model}{row['series']}, batch {row['global_batch']}", *(_cell(row, column) for column in COLUMNS))


def _cell(row: Mapping[Any, Any], column: str) -> str:
    value, low, high = (row[f"{column}{bound}"] for bound in ("", "_low", "_high"))
    if column == "noise_scale" and not known(value):
        return f"above {number(low)}" if known(low) else "unknown"
    if not known(value):
        return "not reached" if column in ("efficiency", "measured_steps") else ""
    if column in ("efficiency", "noise_efficiency") and row["global_batch"] == row["smallest_batch"]:
        return "1"
    text = _signed if column == "error" else _text
    return text(value) + _bounds(low, high, text)


def _bounds(low: Any, high: Any, text: Callable[[float], str]) -> str:
    """` [low, high]`, `∞` for one that is open; "" of none."""
    if not known(low) and not known(high):
        return ""
    return f" [{text(low) if known(low) else '0'}, {text(high) if known(high) else '∞'}]"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(value)


def _signed(share: float) -> str:
    return f"{100 * share:+.0f} %"


def _lines(results: Results, rows: pd.DataFrame, found: list[Recipe]) -> Iterator[str]:
    yield from METHOD
    yield from notes.how_it_differs(
        results.configurations[results.configurations.configuration.isin(rows.configuration)]
    )
    for recipe in found:
        yield from _of_recipe(recipe, name(recipe, results))
    for unknown, ours in rows[rows.noise_unknown != ""].groupby("noise_unknown", sort=False):
        names = ", ".join(dict.fromkeys(ours.series))
        yield f"Noise scale unknown of {names}: {unknown}."
    sources = sorted({text.replace(";", " and ") for text in rows.predicted_from.dropna() if text})
    if rows.predicted_steps.notna().any():
        yield PREDICTED.format(sources="; ".join(sources))
    else:
        yield "No steps are predicted: that takes two global batches with a noise scale, and a third to compare."
    yield BEYOND
    yield notes.source(results)


def _of_recipe(recipe: Recipe, title: str) -> Iterator[str]:
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
    for one in paying(recipe):
        best, fastest = one.seconds, one.throughput
        throughput = f"highest throughput with {_workers(int(fastest.row['workers']))} (batch {fastest.batch})"
        more = int(fastest.row["workers"]) > int(best.of.row["workers"])
        stops = ": beyond it more workers are faster, and no sooner at the target" if more else ""
        yield (
            f"{title}, {one.framework}: highest goodput, and so fewest seconds, with {_best(best)}{stops}; "
            f"{throughput}; fewest worker-hours with {_best(one.hours)}."
        )


def _best(best: Best) -> str:
    """`2 workers (batch 128; tied: 1 worker)`."""
    parts = [f"batch {best.of.batch}"]
    parts += [f"tied: {_counts(best.tied)}"] if best.tied else []
    parts += [f"not told from {_counts(best.unsure)}, for want of seeds"] if best.unsure else []
    return f"{_workers(int(best.of.row['workers']))} ({'; '.join(parts)})"


def _counts(workers: tuple[int, ...]) -> str:
    return " and ".join(map(_workers, workers))


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"
