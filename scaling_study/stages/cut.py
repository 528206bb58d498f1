"""Where a chain of layers is cut into stages. Pure.

layers   e  1  2  3  4  5  6  d           costs of each; the slowest stage decides how fast a pipeline can be:
even     e  1  2 | 3  4 ...               throughput <= 1 / max(stage's share of the work), whatever the schedule (F16)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, combinations, pairwise

from scaling_study.frameworks import SCHEDULES


def stages_of(worker: int, workers: int, virtual: int, schedule: str) -> tuple[int, ...]:
    """The stages of one worker, in order."""
    if SCHEDULES.get(schedule) == "two":
        return worker, 2 * workers - 1 - worker
    return tuple(worker + workers * index for index in range(virtual))


def even(layers: int, stages: int) -> list[int]:
    """Layers a stage, as even as can be; the first ones take what is left over. Raises ValueError."""
    _enough(layers, stages)
    return [layers // stages + (index < layers % stages) for index in range(stages)]


MANY = 100_000  # cuts to try one by one: a fraction of a second


def shared_out(costs: Sequence[float], workers: int, virtual: int) -> list[int]:
    """Layers a stage for workers with `virtual` stages each, such that a round costs as little. Raises ValueError.

    In a round every worker runs its k-th stage, and the slowest of them is waited for: the sum over k of the largest
    stage among stages k x workers ... (k + 1) x workers - 1. With one stage a worker that is `balanced`.
    """
    layers, stages = len(costs), workers * virtual
    if virtual == 1 or layers < stages or math.comb(layers - 1, stages - 1) > MANY:
        return balanced(costs, stages)
    before = [0.0, *accumulate(costs)]

    def rounds(edges: Iterable[int]) -> float:
        each = [before[end] - before[start] for start, end in pairwise(edges)]
        return sum(max(each[k : k + workers]) for k in range(0, stages, workers))

    cuts = ([0, *inner, layers] for inner in combinations(range(1, layers), stages - 1))
    return [end - start for start, end in pairwise(min(cuts, key=rounds))]


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
