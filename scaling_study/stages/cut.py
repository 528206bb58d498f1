"""Where a chain of layers is cut into stages. Pure.

layers   e  1  2  3  4  5  6  d           costs of each; the slowest stage decides how fast a pipeline can be:
even     e  1  2 | 3  4 ...               throughput <= 1 / max(stage's share of the work), whatever the schedule (F16)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def even(layers: int, stages: int) -> list[int]:
    """Layers a stage, as even as can be; the first ones take what is left over. Raises ValueError."""
    _enough(layers, stages)
    return [layers // stages + (index < layers % stages) for index in range(stages)]


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """Layers a stage, in order, such that the costliest stage costs as little as it can. Raises ValueError.

    Dynamic programming over (stages left, first layer): O(stages x layers^2), and layers are few. Of equally good cuts
    it takes the one whose early stages are longer: what they hold waits the longest for its backward anyway.
    """
    layers = len(costs)
    _enough(layers, stages)
    before = [0.0, *accumulate(costs)]
    worst = [before[layers] - before[first] for first in range(layers + 1)]  # of one stage from `first` on
    choice: list[list[int]] = []
    for left in range(2, stages + 1):
        new, chosen = [float("inf")] * (layers + 1), [layers] * (layers + 1)
        for first in range(layers - left + 1):
            for end in range(first + 1, layers - left + 2):
                cost = max(before[end] - before[first], worst[end])
                if cost <= new[first]:
                    new[first], chosen[first] = cost, end
        worst = new
        choice.append(chosen)
    sizes, first = [], 0
    for chosen in reversed(choice):
        sizes.append(chosen[first] - first)
        first = chosen[first]
    return [*sizes, layers - first]


def _enough(layers: int, stages: int) -> None:
    if layers < stages:
        raise ValueError(f"{layers} layers cannot be cut into {stages} stages")
