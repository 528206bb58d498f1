"""Configurations that train the same in unlike ways, by seed: equal steps, and what each step costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.findings import grouped
from analysis.frames import configurations
from analysis.frames.configurations import KEYS, failed, known, own_algorithm, same, values_of
from analysis.frames.results import Results, once, without_kind
from analysis.frames.rows import ConfigurationRow, as_rows, by_configuration
from analysis.frames.training import METRICS, brackets
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.statistics.estimates import CensoredMean, censored_mean, columns_of, exactly, of_censored, of_values
from analysis.text import estimate_of
from analysis.views.view import StudyTable, View
from scaling_study.stats.intervals import FEWEST_REPEATS, repeats_needed

# Same model, global batch, precision and recipe; framework, workers, wire or loop differ. One seed is one initial model
# and one order of the data, so ratios are taken within a seed. Training in fp32 is chaotic: one rounding more, and a
# seed reaches the target some evaluations earlier or later. So equal steps take an equivalence test (two one-sided
# tests), unless every logged loss and metric is the same to the last digit.

MARGIN = 1.10  # within which a ratio of steps, up or down, is of no account: docs/internals/how-sure.md says why
FALSE_ALARMS = 0.05  # of studies in which nothing differs
EQUAL, DIFFERS, NOT_RESOLVED, TOO_FEW = "equal", "differs", "not resolved", "too few seeds"
IDENTICAL = "identical"
WAYS = ("train_loop", "train_log", "train_keep")  # of training keys, those that are no part of the recipe
RECIPE = (
    "model",
    "global_batch",
    "precision",
    "data",
    "input",
    "image_size",
    "image_width",
    "learning_rate",
    "dropout",
    "weights",
    "freeze",
    "part_learning_rates",
    *(key for key in KEYS if key.startswith("train_") and key not in WAYS),
)
OTHER = "_of_reference"
OF_RATIO = "{:.2f}".format


@once
def table(results: Results) -> pd.DataFrame:
    """Each configuration with a target against the reference of its recipe, the baseline where it is one.

    Ratios are geometric means over the seeds that both have, with 95 % intervals. Each target was reached between two
    evaluations, so of a ratio the least and the greatest are known. Where one of a pair was stopped
    before the target, its ratio is known only to be larger or smaller, and counts so; where both were, it says nothing.
    `verdict` is of the steps: IDENTICAL, EQUAL, DIFFERS (corrected for the number of pairs), NOT_RESOLVED, or TOO_FEW
    (fewer than 3 seeds say anything). `seeds_needed`: by the spread of those that both reached, for an interval of the
    margin; none of what is identical.
    """
    seeds = {name: rows.set_index("seed") for name, rows in by_configuration(results.details.trained).items()}
    pairs = [pair for group in _groups(results, set(seeds)) for pair in _against(group, results)]
    curves = _curves(results)
    rows = []
    for pair in pairs:
        ours, theirs = (str(row["configuration"]) for row in pair)
        identical = _identical(curves.get(ours, {}), curves.get(theirs, {}))
        rows.append(_pair(*pair, seeds[ours], seeds[theirs], len(pairs), identical))
    return pd.DataFrame(rows)


def _curves(results: Results) -> dict[str, dict[int, Any]]:
    """Configuration -> seed -> what each evaluation logged, but for times."""
    trained = results.details.trained
    seeds = dict(zip(zip(trained.configuration, trained.repeat, strict=True), trained.seed, strict=True))
    curves: dict[str, dict[int, Any]] = {}
    for (name, repeat), rows in results.details.evaluations.groupby(["configuration", "repeat"], sort=False):
        logged = rows[["steps", "train_loss", *METRICS]].to_numpy(float)
        curves.setdefault(str(name), {})[int(seeds[name, repeat])] = logged
    return curves


def _identical(ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> bool:
    """True where the trainings of all common seeds logged the same values, to the last digit."""
    both = ours.keys() & theirs.keys()
    return bool(both) and all(np.array_equal(ours[seed], theirs[seed], equal_nan=True) for seed in both)


def _groups(results: Results, trained: set[str]) -> Iterable[list[ConfigurationRow]]:
    rows = sorted(results.rows, key=lambda row: row["series_order"])
    asked = [row for row in rows if row["configuration"] in trained and row["train_target"]]
    return grouped(asked, lambda row: (*values_of(row, RECIPE), own_algorithm(row))).values()


def _against(group: list[ConfigurationRow], results: Results) -> list[tuple[ConfigurationRow, ConfigurationRow]]:
    """Each against the reference, which failed no parity check if any did not."""
    said = {key: value for key, value in (results.study.baseline or {}).items() if key in group[0]}
    sound = [row for row in group if not failed(row)] or group
    base = next((row for row in sound if said and all(same(dict(row)[k], v) for k, v in said.items())), sound[0])
    return [(row, base) for row in group if row is not base]


def _pair(
    row: ConfigurationRow,
    reference: ConfigurationRow,
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    pairs: int,
    identical: bool,
) -> dict[str, Any]:
    both = ours.join(theirs.add_suffix(OTHER), how="inner")
    reached = both.target_steps.notna().astype(int) + both[f"target_steps{OTHER}"].notna()
    steps = _ratios(both[reached > 0])
    mean, wide = censored_mean(*steps), censored_mean(*steps, 1 - FALSE_ALARMS / pairs)
    known = (both.target_steps / both[f"target_steps{OTHER}"])[reached == 2].to_list()
    each = of_values(
        ((both.train_seconds / both.steps) / (both[f"train_seconds{OTHER}"] / both[f"steps{OTHER}"])).to_list()
    )
    ratio = exactly(1.0) if identical else of_censored(mean)
    return {
        "model": row["model"],
        "global_batch": row["global_batch"],
        "target": row["train_target"],
        "configuration": row["configuration"],
        "series": row["series"],
        "reference": reference["configuration"],
        "reference_series": reference["series"],
        "seeds": len(both),
        "both_reached": len(known),
        "one_reached": int((reached == 1).sum()),
        **columns_of("steps_ratio", ratio),
        **columns_of("seconds_ratio", None if ratio is None else ratio * each),
        **columns_of("step_seconds_ratio", each),
        "verdict": IDENTICAL if identical else verdict(mean, wide),
        "seeds_needed": repeats_needed(known, MARGIN - 1) if len(known) > 1 and not identical else None,
    }


def _ratios(both: pd.DataFrame) -> tuple[list[float], list[float]]:
    """(after, by): what each ratio of steps is larger than, and at most."""
    theirs = both.filter(like=OTHER).rename(columns=lambda name: name.removesuffix(OTHER))
    (after, by), (other_after, other_by) = brackets(both, "steps"), brackets(theirs, "steps")
    return (after / other_by).to_list(), (by / other_after).to_list()


def verdict(mean: CensoredMean, wide: CensoredMean) -> str:
    """The verdict on a ratio, from its 95 % interval and the `wide` one, corrected for the number of pairs."""
    if mean.low is None or mean.high is None or mean.known + mean.censored < FEWEST_REPEATS:
        return TOO_FEW if mean.known + mean.censored < FEWEST_REPEATS else NOT_RESOLVED
    if mean.low >= 1 / MARGIN and mean.high <= MARGIN:
        return EQUAL
    return DIFFERS if (wide.low or 0.0) > 1 or (wide.high or math.inf) < 1 else NOT_RESOLVED


def listing(results: Results) -> Listing | None:
    """A row for each pair; None where no two configurations have one recipe."""
    pairs = table(results)
    if pairs.empty:
        return None
    of_pairs = as_rows(pairs)
    rows = [
        {
            "configuration": name,
            "against": without_kind(str(row["reference_series"])),
            "seeds": f"{row['both_reached']}{f' + {one}' if (one := row['one_reached']) else ''} of {row['seeds']}",
            "steps": estimate_of(row, "steps_ratio", OF_RATIO),
            "steps are": _verdict_text(row, len(of_pairs)),
            "seconds a step": estimate_of(row, "step_seconds_ratio", OF_RATIO),
            "seconds": estimate_of(row, "seconds_ratio", OF_RATIO),
            "seeds needed": _needed(row),
        }
        for row, name in zip(of_pairs, notes.signed_names(results, of_pairs), strict=True)
    ]
    shown = results.among({*pairs.configuration, *pairs.reference})
    title = f"The same training by other means, seed by seed ({results.heading})"
    return Listing.from_rows(
        title, rows, [*configurations.sentences(shown), *notes.how_it_differs(shown), *LEGEND, notes.source(results)]
    )


def _verdict_text(row: Mapping[Any, Any], pairs: int) -> str:
    """`not resolved among 4 pairs`, where the interval that is printed, of this pair by itself, leaves out 1."""
    low, high = row["steps_ratio_low"], row["steps_ratio_high"]
    apart = known(low) and known(high) and not low <= 1 <= high
    return f"{row['verdict']} among {pairs} pairs" if apart and row["verdict"] == NOT_RESOLVED else str(row["verdict"])


def _needed(row: Mapping[Any, Any]) -> str:
    """`26`; where the steps of these seeds spread little enough and the interval is still too wide, the evaluations are
    too far apart."""
    needed, low, high = row["seeds_needed"], row["steps_ratio_low"], row["steps_ratio_high"]
    if not known(needed):
        return ""
    wide = not (known(low) and known(high)) or high / low > MARGIN**2
    return "limited by evaluate_every" if wide and needed <= row["both_reached"] else f"{needed:.0f}"


LEGEND = (
    "Ratios to the configuration they are against, which has the same model, global batch, precision and recipe: "
    "geometric means over the seeds of both, taken seed by seed [95 % interval, log-normal]. Steps and seconds are "
    "those to the target, each known to lie between two evaluations; seconds a step are of the whole trainings.",
    "Seeds: those with which both reached the target, + those with which one did, whose ratio is a bound and counts "
    "as one. A seed with which neither did tells nothing.",
    "Steps are identical where every evaluation of every seed logged the same loss and metric, to the last digit. "
    f"They are equal where the whole interval lies within {100 * (MARGIN - 1):.0f} % of 1, up or down (equivalence), "
    "and differ where it leaves out 1, corrected for the number of pairs; else it is not resolved. Where they are "
    "equal, the seconds differ by the framework's time. Seeds needed: for an interval as narrow as that margin, by "
    "their spread; limited by evaluate_every: that spread is small enough, and the evaluations are too far apart.",
)


VIEW = View(
    "Is the same training the same in every framework?",
    (StudyTable("target-pairs", listing, table),),
)
