"""Published outcomes of trainings beside those of a study of the same name, with its intervals over seeds.

    published training --keys--> the trained configuration here that differs from it in the fewest of these keys
    no key differs that decides what is learned    ->  the difference of accuracies and losses
    one does (a smaller model, fewer epochs)       ->  no difference, and which key

Never a ratio of seconds: the machines differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.study import workers_text
from analysis.published.trainings import (
    ACCURACY,
    EPOCH_SECONDS,
    EPOCHS,
    FIGURES,
    LOSS,
    SECONDS,
    TOP5,
    Training,
    of_study,
)
from scaling_study.stats.intervals import Interval, between_repeats

COLUMNS = (
    *("study", "training", "figure", "published", "measured", "measured_low", "measured_high", "seeds"),
    *("difference", "configuration", "series", "differs", "decides"),
)
SEPARATOR = "; "
LEARNED = (ACCURACY, TOP5, LOSS)  # figures that can be compared between machines
DECIDES = (
    *("model", "weights", "data", "image_size", "global_batch", "learning_rate", "train_epochs", "train_patience"),
)
ANOTHER_TEST = "F22", "their test set is one of their own, split anew (F22)"
WORDS = {
    "workers": lambda count: workers_text(int(count)),
    "hosts": lambda count: f"{count:g} host{'s' * (count != 1)}",
    "global_batch": lambda samples: f"{samples:,.0f} samples a step",
    "image_size": lambda side: f"{side:g} px",
    "learning_rate": lambda rate: f"learning rate {rate:g}",
    "train_epochs": lambda epochs: f"{epochs:g} epochs",
    "train_patience": lambda epochs: f"patience of {epochs:g} epochs",
    "weights": lambda kind: f"{kind} weights",
    "train_loop": lambda whose: "the library's own loop" if whose == "native" else "our loop",
}
LEFT_OUT = {"image_size": "the model's own image size", "learning_rate": "the model's own learning rate",
            "train_epochs": "another end", "train_patience": "another end", "weights": "random"}  # fmt: skip


def table(results: Results) -> pd.DataFrame:
    """A row of COLUMNS for each published figure, and for each configuration that is set beside it; none for a study of
    another name. `differs`: what it does otherwise; `decides`: those of them that decide what is learned, or why
    nothing was measured."""
    rows: list[dict[str, Any]] = []
    for training in of_study(results.study.name):
        nearest = list(_nearest(training, results))
        for row, differences in nearest:
            rows += _beside(training, row, differences, measured(results, str(row["configuration"])))
        if not nearest:
            why = "no model of this project" if "model" not in training.keys else f"no {training.keys['framework']}"
            rows += _beside(training, None, {}, {}, why=f"{why}: nothing was trained here that it would be")
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def measured(results: Results, configuration: str) -> dict[str, Interval]:
    """Figure -> its mean over the seeds of a configuration; those that are known and finite. Seconds are of training
    alone, those of an epoch over the epochs that were trained."""
    trained, evaluations = results.details.trained, results.details.evaluations
    ours = trained[trained.configuration == configuration].set_index("repeat")
    epochs = evaluations[evaluations.configuration == configuration].groupby("repeat").epoch.max().reindex(ours.index)
    columns = {
        ACCURACY: ours.test_accuracy, TOP5: ours.get("test_accuracy_top5"), LOSS: ours.test_loss,
        SECONDS: ours.train_seconds, EPOCH_SECONDS: ours.train_seconds / epochs, EPOCHS: epochs,
    }  # fmt: skip
    values = {figure: column.to_numpy(float) for figure, column in columns.items() if column is not None}
    return {
        figure: between_repeats(value.tolist())
        for figure, value in values.items()
        if len(value) and np.isfinite(value).all()
    }


def _nearest(training: Training, results: Results) -> Iterator[tuple[ConfigurationRow, Mapping[str, str]]]:
    """The trained configurations of its framework that differ from it in the fewest keys, and in which."""
    if "model" not in training.keys:
        return
    trained = set(results.details.trained.configuration)
    rows = [row for row in results.rows if row["configuration"] in trained]
    alike = [(row, differences(training, row)) for row in rows if row["framework"] == training.keys["framework"]]
    fewest = min((len(found) for _, found in alike), default=0)
    yield from ((row, found) for row, found in alike if len(found) == fewest)


def differences(training: Training, row: Mapping[str, Any]) -> dict[str, str]:
    """Key -> `2 workers instead of 3 workers`, for each key that was published and is otherwise here."""
    found = {}
    for key, theirs in training.keys.items():
        ours = _value(key, row)
        if ours != theirs and not (isinstance(theirs, float) and ours == np.float64(theirs)):
            say = WORDS.get(key, str)
            found[key] = f"{LEFT_OUT.get(key, 'none') if ours is None else say(ours)} instead of {say(theirs)}"
    return found


def _value(key: str, row: Mapping[str, Any]) -> Any:
    """Of a configuration; None where it has none. Patience in epochs, data as they were found."""
    value = row.get(key)
    if key == "train_loop":
        return value if known(value) else "ours"
    if key == "hosts":
        return int(value) if known(value) else 1
    if key == "data" and value == "auto":
        return str(row["data_source"]).split(" ")[0]
    if not known(value):
        return None
    if key == "weights":
        return "pretrained"  # whatever file it is
    if key == "train_patience":
        every = row.get("train_evaluate_every")
        return value * (every if known(every) else 1.0)
    return value


def _beside(
    training: Training, row: ConfigurationRow | None, found: Mapping[str, str], ours: Mapping[str, Interval],
    why: str = "",
) -> Iterator[dict[str, Any]]:  # fmt: skip
    own, text = ANOTHER_TEST
    reasons = [*([text] if row and own in training.flaws else ()), *(found[key] for key in found if key in DECIDES)]
    decides = SEPARATOR.join(reasons) or why
    for figure in FIGURES:
        if figure not in training.figures and figure != SECONDS:
            continue
        published, mean = training.figures.get(figure), ours.get(figure)
        if published is None and mean is None:
            continue
        comparable = figure in LEARNED and mean is not None and published is not None and not decides
        yield {
            "study": training.study, "training": training.name, "figure": figure, "published": published,
            "measured": mean and mean.mean, "measured_low": mean and mean.low, "measured_high": mean and mean.high,
            "seeds": mean.n if mean else 0,
            "difference": mean.mean - published if comparable and mean and published is not None else None,
            "configuration": row and str(row["configuration"]), "series": row and str(row["series"]),
            "differs": SEPARATOR.join(found.values()), "decides": decides,
        }  # fmt: skip
