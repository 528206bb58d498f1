"""The trainings of three published studies: which configuration here each would be, what came of it, and its flaws.

    trainings.csv        training -> its rows of outcomes.csv, its machine, the trial keys of its configuration here
    training_flaws.csv   training -> flaws that it earned (F18 to F28), each with the reason

The mapping is data, not guessed: a key that is empty was not published, or is the model's own. A training without a
model is of one that this project does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from analysis.published import reference

NUMBERS = {"workers": int, "hosts": int, "global_batch": int, "image_size": int, "learning_rate": float,
           "train_epochs": int, "train_patience": int}  # fmt: skip
NAMING = ("study", "training", "rows", "machine")
ACCURACY, TOP5, LOSS, SECONDS, EPOCH_SECONDS, EPOCHS = FIGURES = (
    "accuracy", "accuracy_top5", "loss", "seconds", "epoch_seconds", "epochs",
)  # fmt: skip
PERCENT = 0.01
METRICS = {  # of outcomes.csv -> (the figure, by what it is multiplied)
    "test_accuracy": (ACCURACY, PERCENT), "acc1": (ACCURACY, PERCENT), "acc5": (TOP5, PERCENT),
    "test_loss": (LOSS, 1.0), "training_time": (SECONDS, 60.0), "total_time": (SECONDS, 60.0),
    "wall_time": (SECONDS, 1.0), "epoch_time": (EPOCH_SECONDS, 1.0), "epochs_to_stop": (EPOCHS, 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """One published training. `keys`: trial keys and values of the same configuration here."""

    study: str
    name: str
    machine: str
    keys: Mapping[str, Any]
    figures: Mapping[str, float]  # accuracies as shares, of the test set
    flaws: Mapping[str, str]  # "F18" -> why


@cache
def published() -> tuple[Training, ...]:
    """All of them, study by study."""
    reasons: dict[tuple[str, str], dict[str, str]] = {}
    for row in reference.table("training_flaws.csv", text=True).to_dict("records"):
        reasons.setdefault((row["study"], row["training"]), {})[row["flaw"]] = row["reason"]
    table = reference.table("trainings.csv", text=True)
    names = [str(name) for name in table.columns]
    return tuple(
        Training(
            row["study"], row["training"], row["machine"],
            {key: NUMBERS.get(key, str)(row[key]) for key in names if key not in NAMING and row[key]},
            _figures(row["study"], row["rows"].split("; ")), reasons.get((row["study"], row["training"]), {}),
        )
        for row in table.to_dict("records")
    )  # fmt: skip


def of_study(name: str) -> tuple[Training, ...]:
    """Those of the published study whose name a study has, hyphens for underscores; none of any other."""
    same = re.sub(r"[^a-z0-9]+", "_", name.lower())
    return tuple(training for training in published() if training.study == same)


def _figures(study: str, configurations: list[str]) -> dict[str, float]:
    rows = reference.outcomes()
    ours = rows[(rows.study == study) & rows.configuration.isin(configurations)]
    said = zip(ours.metric.astype(str), ours.value.astype(str), strict=True)
    found = {METRICS[metric]: float(value) for metric, value in said if metric in METRICS}
    return {figure: round(value * factor, 12) for (figure, factor), value in found.items()}
