"""A result to train to: a metric of held-out data, and the value that is to be reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRAIN = (  # a study's `train:`, and the trial keys train_*
    *("epochs", "steps", "max_seconds", "target", "evaluate_every", "validation", "patience"),
    *("optimizer", "momentum", "weight_decay", "clip_norm", "label_smoothing"),
    *("schedule", "warmup_steps", "scale_learning_rate", "reference_batch", "augmentation"),
    *("loop", "log", "start_learning_rate", "cycle_steps", "keep"),
)
LOGS = ("tensorboard", "wandb")  # that a training can write beside training.csv; each is a library of that name
LOOPS = ("ours", "native")
KEPT = ("best",)  # whose weights stay when a training is over
ENDS = ("train_epochs", "train_steps", "train_max_seconds")  # of which a training has one
# Of surgical triplets (i: instrument, v: verb, t: target), per video and then over videos: average precision of the
# heads and of pairs of them, likewise of what the triplet head's scores say of them, and how many triplets are among a
# frame's five likeliest (workloads/metrics.py). First the mean of the four heads', which chooses the best model.
CHOSEN_BY = "ap_heads"
HEADS = ("ap_i", "ap_v", "ap_t", "ap_ivt")
OF_TRIPLETS = tuple(f"ap_{parts}_of_triplets" for parts in ("i", "v", "t", "iv", "it"))
TRIPLETS = (CHOSEN_BY, *HEADS, "ap_iv", "ap_it", *OF_TRIPLETS, "top5_ivt")
# Metric -> (whether more is better, least value, largest value).
METRICS: Mapping[str, tuple[bool, float, float]] = {
    "accuracy": (True, 0.0, 1.0),
    "accuracy_top5": (True, 0.0, 1.0),  # the right class is among the five likeliest
    "loss": (False, 0.0, math.inf),
    "perplexity": (False, 1.0, math.inf),
    "matthews": (True, -1.0, 1.0),
    **dict.fromkeys(TRIPLETS, (True, 0.0, 1.0)),
}


@dataclass(frozen=True)
class Target:
    """A metric and its value: accuracies and matthews are reached from below, loss and perplexity from above."""

    metric: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """From `accuracy=0.6`. Raises ValueError with what would be right."""
        metric, equals, number = text.partition("=")
        if metric not in METRICS or not equals:
            raise ValueError(
                f"{text!r} is no target: it is one of {', '.join(METRICS)}, and a value, like accuracy=0.6"
            )
        try:
            value = float(number)
        except ValueError:
            raise ValueError(f"{text!r}: {number!r} is no number") from None
        _, least, largest = METRICS[metric]
        if not least < value < largest:
            limit = f"between {least:g} and {largest:g}" if largest < math.inf else f"above {least:g}"
            raise ValueError(f"{text!r}: a target of {metric} is {limit}")
        return cls(metric, value)

    def __str__(self) -> str:
        return f"{self.metric}={self.value:g}"

    def reached(self, value: float) -> bool:
        """True where a measured value is the target, or better. False for NaN."""
        return value >= self.value if METRICS[self.metric][0] else value <= self.value


def better(metric: str, value: float, than: float | None) -> bool:
    """True where a value of a metric is better than another, or than none. False for NaN."""
    if than is None:
        return not math.isnan(value)
    return value > than if METRICS[metric][0] else value < than


QUIET_WANDB: Mapping[str, Any] = {  # keywords of wandb.Settings: it prints nothing, and asks nothing of the machine
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_disable_meta": True,
}


def logs(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """The logs that `train_log` names, as `tensorboard,wandb`. Raises ValueError with what would be right."""
    names = tuple(name.strip() for name in str(keys.get("train_log") or "").split(",") if name.strip())
    if wrong := [name for name in names if name not in LOGS]:
        raise ValueError(f"{wrong[0]!r} is no log: it is one of {', '.join(LOGS)}, or both with a comma between them")
    return names


def trains(keys: Mapping[str, Any]) -> bool:
    """True where a trial with these keys is trained to a result."""
    return any(keys.get(name) is not None for name in ENDS)


def repeat_name(keys: Mapping[str, Any]) -> str:
    """The name of a trial's repeat, from its trial keys: `r2`, or `s43.r2` where it is trained."""
    return f"s{keys['seed']}.r{keys['repeat']}" if trains(keys) else f"r{keys.get('repeat')}"
