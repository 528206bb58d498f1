"""Outcomes of published trainings beside the same trainings here, and the flaws of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.frames.study import workers_text
from analysis.published import ratios
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import with_interval
from analysis.views.view import StudyTable, View
from scaling_study.stats.intervals import Interval, between_repeats

# The trainings of three published studies: which configuration here each would be, what came of it, and its flaws.
#
#     trainings.csv        training -> its rows of outcomes.csv, its machine, the trial keys of its configuration here
#     training_flaws.csv   training -> flaws that it earned (F18 to F28), each with the reason
#
# The mapping is data, not guessed: a key that is empty was not published, or is the model's own. A training without a
# model is of one that this project does not have.

NUMBERS = {
    "workers": int,
    "hosts": int,
    "global_batch": int,
    "image_size": int,
    "learning_rate": float,
    "train_epochs": int,
    "train_patience": int,
}
NAMING = ("study", "training", "rows", "machine")
ACCURACY, TOP5, LOSS, SECONDS, EPOCH_SECONDS, EPOCHS = (
    "accuracy",
    "accuracy_top5",
    "loss",
    "seconds",
    "epoch_seconds",
    "epochs",
)
PERCENT = 0.01
METRICS = {  # of outcomes.csv -> (the figure, by what it is multiplied)
    "test_accuracy": (ACCURACY, PERCENT),
    "acc1": (ACCURACY, PERCENT),
    "acc5": (TOP5, PERCENT),
    "test_loss": (LOSS, 1.0),
    "training_time": (SECONDS, 60.0),
    "total_time": (SECONDS, 60.0),
    "wall_time": (SECONDS, 1.0),
    "epoch_time": (EPOCH_SECONDS, 1.0),
    "epochs_to_stop": (EPOCHS, 1.0),
}


@dataclass(frozen=True)
class PublishedTraining:
    """One published training. `keys`: trial keys and values of the same configuration here."""

    study: str
    name: str
    machine: str
    keys: Mapping[str, Any]
    figures: Mapping[str, float]  # accuracies as shares, of the test set
    flaws: Mapping[str, str]  # "F18" -> why


@cache
def published() -> tuple[PublishedTraining, ...]:
    """All of them, study by study."""
    reasons: dict[tuple[str, str], dict[str, str]] = {}
    for row in ratios.read_file("training_flaws.csv", text=True).to_dict("records"):
        reasons.setdefault((row["study"], row["training"]), {})[row["flaw"]] = row["reason"]
    table = ratios.read_file("trainings.csv", text=True)
    names = [str(name) for name in table.columns]
    return tuple(
        PublishedTraining(
            row["study"],
            row["training"],
            row["machine"],
            {key: NUMBERS.get(key, str)(row[key]) for key in names if key not in NAMING and row[key]},
            _figures(row["study"], row["rows"].split("; ")),
            reasons.get((row["study"], row["training"]), {}),
        )
        for row in table.to_dict("records")
    )


def of_study(name: str) -> tuple[PublishedTraining, ...]:
    """The trainings of the published study of this name (hyphens for underscores); none for another name."""
    same = re.sub(r"[^a-z0-9]+", "_", name.lower())
    return tuple(training for training in published() if training.study == same)


def _figures(study: str, configurations: list[str]) -> dict[str, float]:
    rows = ratios.outcomes()
    ours = rows[(rows.study == study) & rows.configuration.isin(configurations)]
    said = zip(ours.metric.astype(str), ours.value.astype(str), strict=True)
    found = {METRICS[metric]: float(value) for metric, value in said if metric in METRICS}
    return {figure: round(value * factor, 12) for (figure, factor), value in found.items()}


# Published outcomes of trainings beside those of a study of the same name, with its intervals over seeds.
#
#     published training --keys--> the trained configuration here that differs from it in the fewest of these keys
#     no key differs that decides what is learned    ->  the difference of accuracies and losses
#     one does (a smaller model, fewer epochs)       ->  no difference, and which key
#
# Never a ratio of seconds: the machines differ.

SEPARATOR = "; "
LEARNED = (ACCURACY, TOP5, LOSS)  # figures that can be compared between machines
DECIDES = ("model", "weights", "data", "image_size", "global_batch", "learning_rate", "train_epochs", "train_patience")
ANOTHER_TEST = "their test set is one of their own, split anew (F22)"
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
LEFT_OUT = {
    "image_size": "the model's own image size",
    "learning_rate": "the model's own learning rate",
    "train_epochs": "another end",
    "train_patience": "another end",
    "weights": "random",
}


def published_outcomes_table(results: Results) -> pd.DataFrame:
    """A row for each published figure, and for each configuration that is set beside it; none for a study of another
    name. `differs`: what it does otherwise; `decides`: those of them that decide what is learned, or why nothing was
    measured."""
    rows: list[dict[str, Any]] = []
    for training in of_study(results.study.name):
        nearest = _nearest(training, results)
        for row, found in nearest:
            rows += _beside(training, row, found, measured(results, str(row["configuration"])))
        if not nearest:
            why = "no model of this project" if "model" not in training.keys else f"no {training.keys['framework']}"
            rows += _beside(training, None, {}, {}, why=f"{why}: nothing was trained here that it would be")
    return pd.DataFrame(rows, dtype=object)


def measured(results: Results, configuration: str) -> dict[str, Interval]:
    """Figure -> its mean over the seeds of a configuration; those that are known and finite. Seconds are of training
    alone, those of an epoch over the epochs that were trained."""
    trained, evaluations = results.details.trained, results.details.evaluations
    ours = trained[trained.configuration == configuration].set_index("repeat")
    epochs = evaluations[evaluations.configuration == configuration].groupby("repeat").epoch.max().reindex(ours.index)
    columns = {
        ACCURACY: ours.test_accuracy,
        TOP5: ours.get("test_accuracy_top5"),
        LOSS: ours.test_loss,
        SECONDS: ours.train_seconds,
        EPOCH_SECONDS: ours.train_seconds / epochs,
        EPOCHS: epochs,
    }
    values = {figure: column.to_numpy(float) for figure, column in columns.items() if column is not None}
    return {
        figure: between_repeats(value.tolist())
        for figure, value in values.items()
        if len(value) and np.isfinite(value).all()
    }


def _nearest(training: PublishedTraining, results: Results) -> list[tuple[ConfigurationRow, Mapping[str, str]]]:
    """The trained configurations of its framework that differ from it in the fewest keys, and in which."""
    if "model" not in training.keys:
        return []
    trained = set(results.details.trained.configuration)
    alike = [
        (row, differences(training, row))
        for row in results.rows
        if row["configuration"] in trained and row["framework"] == training.keys["framework"]
    ]
    fewest = min((len(found) for _, found in alike), default=0)
    return [(row, found) for row, found in alike if len(found) == fewest]


def differences(training: PublishedTraining, row: Mapping[str, Any]) -> dict[str, str]:
    """Key -> `2 workers instead of 3 workers`, for each key that was published and is otherwise here."""
    found = {}
    for key, theirs in training.keys.items():
        ours = _value(key, row)
        if ours != theirs and not (isinstance(theirs, float) and ours == np.float64(theirs)):
            say = WORDS.get(key, str)
            found[key] = f"{LEFT_OUT.get(key, 'none') if ours is None else say(ours)} instead of {say(theirs)}"
    return found


def _value(key: str, row: Mapping[str, Any]) -> Any:
    """The value of a trial key of a configuration; None where unknown. Patience in epochs, data as found."""
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
    training: PublishedTraining,
    row: ConfigurationRow | None,
    found: Mapping[str, str],
    ours: Mapping[str, Interval],
    why: str = "",
) -> Iterator[dict[str, Any]]:
    mixed = [ANOTHER_TEST] if row and "F22" in training.flaws else []
    decides = SEPARATOR.join([*mixed, *(text for key, text in found.items() if key in DECIDES)]) or why
    for figure in NAMES:
        published, mean = training.figures.get(figure), ours.get(figure)
        if published is None and (mean is None or figure != SECONDS):
            continue
        difference = None
        if figure in LEARNED and mean is not None and published is not None and not decides:
            difference = mean.mean - published
        yield {
            "study": training.study,
            "training": training.name,
            "figure": figure,
            "published": published,
            "measured": mean and mean.mean,
            "measured_low": mean and mean.low,
            "measured_high": mean and mean.high,
            "seeds": mean.n if mean else 0,
            "difference": difference,
            "configuration": row and str(row["configuration"]),
            "series": row and str(row["series"]),
            "differs": SEPARATOR.join(found.values()),
            "decides": decides,
        }


NAMES = {
    ACCURACY: "test accuracy, %",
    TOP5: "test accuracy, top 5, %",
    LOSS: "test loss",
    SECONDS: "seconds of training",
    EPOCH_SECONDS: "seconds an epoch",
    EPOCHS: "epochs",
}
AS_TEXT: Mapping[str, Callable[[float], str]] = {
    ACCURACY: lambda share: f"{100 * share:.2f}",
    TOP5: lambda share: f"{100 * share:.2f}",
    LOSS: "{:.4f}".format,
    SECONDS: "{:,.0f}".format,
    EPOCH_SECONDS: "{:.2f}".format,
    EPOCHS: "{:.4g}".format,
}


def listing(results: Results) -> Listing | None:
    """A row for each published figure and configuration; None where no published study of trainings has this name."""
    trainings = of_study(results.study.name)
    if not trainings:
        return None
    rows = as_rows(published_outcomes_table(results))
    cells, before = [], None
    for row in rows:
        name = row["training"], row["configuration"]
        cells.append(_cells(row, first=name != before))
        before = name
    title = f"Published trainings beside measured ones ({results.heading})"
    return Listing.from_rows(title, cells, _lines(results, trainings, rows))


def _cells(row: Mapping[Any, Any], first: bool) -> dict[str, str]:
    show = AS_TEXT[row["figure"]]
    gain = row["difference"]
    scale, places = (100, 2) if row["figure"] in (ACCURACY, TOP5) else (1, 4)
    why = row["differs"] or row["decides"] or "nothing that was published"
    return {
        "published training": str(row["training"]),
        "figure": NAMES[row["figure"]],
        "published": show(row["published"]) if known(row["published"]) else "",
        "measured here [95 %]": with_interval(row["measured"], row["measured_low"], row["measured_high"], show),
        "difference": f"{scale * gain:+.{places}f}" if known(gain) else "",
        "trained by": str(row["series"] or ""),
        "differs here": why if first else "",
    }


def _lines(results: Results, trainings: tuple[PublishedTraining, ...], rows: list[dict[Any, Any]]) -> Iterator[str]:
    machines = ", ".join(dict.fromkeys(training.machine for training in trainings))
    yield (
        f"Seconds are never compared: theirs are of {machines}, of whole runs; ours of "
        f"{results.study.machine_text}, of training alone. Measured: means over the seeds; published: single runs."
    )
    here = [row["decides"] for row in rows if row["configuration"] and row["decides"]]
    deciding = dict.fromkeys(text for texts in here for text in texts.split(SEPARATOR))
    if deciding:
        yield (
            "No difference is taken where what decides accuracy is another than published: "
            f"{'; '.join(deciding)}. Such rows show that it runs, not what it would reach."
        )
    yield from _selection(results, trainings)
    yield from notes.how_it_differs(results.among(row["configuration"] for row in rows))
    for training in trainings:
        if training.flaws:
            reasons = "; ".join(f"{flaw}: {why}" for flaw, why in training.flaws.items())
            yield f"Flaws of the published {training.name}: {reasons}."
    yield notes.source(results)


def _selection(results: Results, trainings: tuple[PublishedTraining, ...]) -> Iterator[str]:
    """A sentence on what a validation split changes that selects the model (F18)."""
    if not any("F18" in training.flaws for training in trainings):
        return
    said = {
        (each.selected_on, sum(each.splits.get("validation", {}).values()), sum(each.splits["train"].values()))
        for fact in as_rows(results.details.facts)
        for each in fact["training"][:1]
        if each.splits.get("train")
    }
    ours = "; ".join(
        f"{100 * held / (held + left):.0f} % of the training images ({held:,}) were held out"
        + (f", {split} data selected" if split else ", and nothing was selected")
        for split, held, left in sorted(said)
    )
    yield (
        "The test set selected the published model (F18): its accuracy is the best of many looks at that set, and so "
        f"biased upwards. Here {ours or 'a part of the training images is held out'}, the test set is read once, after "
        "that, and fewer images are trained on: expect less than published."
    )


VIEW = View(
    "What did published trainings come to?",
    (StudyTable("published-outcomes", listing, published_outcomes_table, section="published"),),
)
