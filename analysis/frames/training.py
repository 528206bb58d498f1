"""What a run that was trained to a result says of that training, rank by rank: `training` of its report (record.md).

Nothing here is timed, and nothing of it is in results.csv. trained.py looks for what published ones did wrong in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scaling_study.quoting import printable

WORDS = ("selected_on", "layout", "resumed_layout", "one_order")


@dataclass(frozen=True)
class Training:
    """`training` of one rank. What is not known is empty."""

    groups: tuple[tuple[str, int, float], ...] = ()  # name, parameters, learning rate of each group of the optimiser
    asked: frozenset[str] = frozenset()  # names of groups that are frozen because the trial says so
    # Part of the model -> norm of its change over its own norm.
    moved: Mapping[str, float] = field(default_factory=dict)
    logged_loss: str = ""  # what a logged loss is the mean over: "epoch", "last batch"
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split -> set it was published in -> samples
    in_both: Mapping[str, int] = field(default_factory=dict)  # "validation/test" -> samples that are in both
    selected_on: str = ""  # the split that chose the model
    layout: str = ""  # a digest of the names and shapes of the weights
    resumed_layout: str = ""  # of the checkpoint that it went on from
    orders: tuple[str, ...] = ()  # a digest of the samples of each epoch, in the order in which this rank read them
    one_order: str = ""  # why every epoch is to have the same
    evaluated: Mapping[str, Any] = field(default_factory=dict)  # "split", "samples", and the figures that are claimed
    validated: Mapping[str, Any] = field(default_factory=dict)  # likewise, of the last evaluation of the training
    data_share: float | None = None  # of the seconds of training, until the host had its batches
    shown_maps: Mapping[str, str] = field(default_factory=dict)  # of class activation: whose "channels", which "class"

    @classmethod
    def of(cls, training: Mapping[str, Any]) -> Training:
        """From a record. Raises ValueError, TypeError, KeyError or AttributeError for what is of no right shape."""
        selected, layout, resumed, one_order = (printable(str(training.get(name, ""))) for name in WORDS)
        groups = ((g["name"], g["parameters"], g["learning_rate"]) for g in _list(training, "groups"))
        asked = frozenset(printable(g["name"]) for g in _list(training, "groups") if g.get("asked"))
        return cls(
            tuple((printable(name), int(count), float(rate)) for name, count, rate in groups),
            asked,
            {printable(name): float(value) for name, value in _map(training, "moved")},
            printable(str(training.get("logged_loss", ""))),
            {printable(name): {printable(k): int(n) for k, n in of.items()} for name, of in _map(training, "splits")},
            {printable(name): int(n) for name, n in _map(training, "in_both")},
            *(selected, layout, resumed),
            tuple(printable(str(order)) for order in _list(training, "orders")),
            one_order,
            {printable(name): value for name, value in _map(training, "evaluated")},
            {printable(name): value for name, value in _map(training, "validated")},
            _data_share(training),
            {printable(name): printable(str(value)) for name, value in _map(training, "shown_maps")},
        )


def _data_share(training: Mapping[str, Any]) -> float | None:
    seconds = float(dict(_map(training, "seconds")).get("train", 0.0))
    return float(training["data_seconds"]) / seconds if "data_seconds" in training and seconds > 0 else None


def _list(training: Mapping[str, Any], key: str) -> list[Any]:
    value = training.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"training.{key} is no list")
    return value


def _map(training: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    value = training.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"training.{key} is no mapping")
    return list(value.items())
