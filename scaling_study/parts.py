"""Parts of a model that may be frozen, or have learning rates of their own: `freeze`, `part_learning_rates`. Pure.

    freeze: backbone                                        its weights, and BatchNorm's statistics, stay as they are
    part_learning_rates: backbone=0.0001,instrument=0.01    the others take learning_rate
    part_learning_rates: heads=0.01                         all parts but the backbone

A part at rate 0 would be a network that only seems to be trained (F11): what does not train is frozen, and said to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

BACKBONE, HEADS = "backbone", "heads"
HEAD_PARTS = ("instrument", "verb", "target", "triplet")
PARTS = (*HEAD_PARTS, BACKBONE)  # in the order of an optimiser's groups: a record's learning rate is the first one's
NAMES = (BACKBONE, *HEAD_PARTS, HEADS)
NONE = "none"  # of `weights` and `freeze`: as if they were left out
IMAGENET = "imagenet"  # of `weights`: those of the backbone that were trained on ImageNet


def rates(text: str | None) -> dict[str, float]:
    """Part -> its learning rate, for each part that the text names, `heads` taken apart. Raises ValueError."""
    asked: dict[str, float] = {}
    for entry in (text or "").split(",") if text is not None else ():
        name, equals, number = (word.strip() for word in entry.partition("="))
        if name not in NAMES or not equals:
            raise ValueError(
                f"{entry.strip()!r} is no rate of a part: it is one of {', '.join(NAMES)}, and a rate, "
                "like backbone=0.0001,heads=0.001"
            )
        if name in asked:
            raise ValueError(f"part_learning_rates={text}: {name} is given twice")
        asked[name] = _rate(name, number)
    of_heads = dict.fromkeys(HEAD_PARTS, asked.pop(HEADS)) if HEADS in asked else {}
    return {**of_heads, **asked}


def _rate(name: str, number: str) -> float:
    try:
        rate = float(number)
    except ValueError:
        raise ValueError(f"{name}={number!r} is no number") from None
    if rate == 0:
        instead = f"freeze: {BACKBONE} says so" if name == BACKBONE else "give it a rate"
        raise ValueError(f"{name}={number}: a part at learning rate 0 does not train (F11); {instead}")
    if not 0 < rate < math.inf:
        raise ValueError(f"{name}={number}: a learning rate is above 0")
    return rate


def problems(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, message) of what is wrong about a trial's parts."""
    text = keys.get("part_learning_rates")
    try:
        if BACKBONE in rates(text) and keys.get("freeze") == BACKBONE:
            yield "part_learning_rates", f"part_learning_rates={text}: freeze={BACKBONE} trains no {BACKBONE}"
    except ValueError as error:
        yield "part_learning_rates", str(error)
    augmentation = keys.get("train_augmentation") or NONE
    if keys.get("freeze") == BACKBONE and augmentation != NONE:
        yield (
            "train_augmentation",
            (f"augmentation={augmentation} with freeze={BACKBONE}: its features are computed once, of plain frames"),
        )
