"""Tasks: configurations that are trained to one target in a way that lets them be held against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.configurations import own_algorithm, values_of
from analysis.frames.results import Results, once
from analysis.frames.results import words as words_of
from analysis.frames.rows import as_rows, by_configuration, grouped
from analysis.text import first_few
from analysis.views.target import BEST, NOT_COMPARED, SAME_TASK, TOO_FEW, task_of, times_of, trained_configurations
from scaling_study.stats.intervals import FEWEST_REPEATS

MOST_LOWER = 3  # names


@dataclass(frozen=True)
class Task:
    """Configurations that are trained to one target, of which each may be held against each: `rows`, in their order.
    `words` tell it from other tasks of its model and target; empty where there is none."""

    model: str
    target: str
    words: str
    rows: Sequence[Mapping[Any, Any]]  # of trained_configurations()
    lower: Sequence[str]  # configurations with too few seeds, and a lower mean than the best

    @property
    def whose(self) -> str:
        """`resnet8`, or `resnet8 (dali input)`."""
        return self.model + f" ({self.words})" * bool(self.words)

    @property
    def best(self) -> Mapping[Any, Any] | None:
        """That with the lowest mean of those that reached the target with every seed; None where none did."""
        return next((row for row in self.rows if row["soonest"] == BEST), None)

    def having(self, *verdicts: str) -> list[Mapping[Any, Any]]:
        """Rows with one of these verdicts on who is the soonest."""
        return [row for row in self.rows if row["soonest"] in verdicts]


@once
def tasks(results: Results) -> list[Task]:
    """Verdicts are within a task, and so is an answer. Without what is not compared; by model and target, in the order
    of the configurations."""
    trained = by_configuration(results.details.trained)
    aimed = [row for row in as_rows(trained_configurations(results)) if row["target"]]
    found = []
    for (model, target), ours in grouped(aimed, lambda row: (str(row["model"]), str(row["target"]))).items():
        alike = grouped(ours, lambda row: task_of(row, results))
        for rows, words in zip(alike.values(), _told_apart(list(alike.values()), results), strict=True):
            fit = [row for row in rows if row["soonest"] != NOT_COMPARED]
            found.append(Task(model, target, words, fit, _lower(fit, trained)))
    return found


def _told_apart(groups: Sequence[Sequence[Mapping[Any, Any]]], results: Results) -> list[str]:
    """`dali input`: of each of these tasks of one model and target what not all of them have."""
    firsts = [results.by_name[group[0]["configuration"]] for group in groups]
    keys = [key for key in SAME_TASK if len({values_of(row, (key,)) for row in firsts}) > 1]
    own = [[f"{how} updates"] if (how := own_algorithm(row)) else [] for row in firsts]
    said = [[*(text for key in keys for text in words_of(row, (key,)) or [f"no {key} given"])] for row in firsts]
    return [", ".join([*each, *more]) for each, more in zip(said, own, strict=True)] if len(groups) > 1 else [""]


def _lower(rows: Sequence[Mapping[Any, Any]], trained: Mapping[str, pd.DataFrame]) -> list[str]:
    """Those with too few seeds, all of which reached the target, on average sooner than the best."""
    times = {row["configuration"]: times_of(trained[row["configuration"]]) for row in rows}
    best = next((times[row["configuration"]].middle for row in rows if row["soonest"] == BEST), -math.inf)
    few = [row["configuration"] for row in rows if row["soonest"] == TOO_FEW]
    return [name for name in few if times[name].whole and times[name].middle < best]


def not_tested(few: int, lower: Sequence[str]) -> str:
    """`not tested (fewer than 3 seeds): 2, a lower mean: torch_ddp`; empty where there are no such rivals. `lower`:
    names."""
    more = f", a lower mean: {first_few(list(lower), MOST_LOWER)}" if lower else ""
    return f"not tested (fewer than {FEWEST_REPEATS} seeds): {few}{more}" if few else ""
