"""Configurations that differ in nothing but their workers: what a scaling law is fitted to.

Under weak scaling the batch of a worker is the same, under strong scaling the global one. With one worker there is no
allreduce, so that run belongs to every precision on the wire; a framework without one of its own takes the study's
baseline. Pipelines are left out: there other workers are another cut of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.frames import series
from analysis.frames.baseline import BATCH_KEYS, known, value_of, values_of
from analysis.frames.configurations import KEYS, values
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from scaling_study.frameworks import FRAMEWORKS

SPREAD = ("workers", "hosts", "oversubscribe", "launcher", "controller")
Vector = NDArray[np.float64]
Row = ConfigurationRow


@dataclass(frozen=True)
class Family:
    """`rows`: one a worker count, ascending, all comparable. `left_out`: why others were not taken, in words."""

    label: str
    rows: tuple[Row, ...]
    strong: bool
    left_out: tuple[str, ...]

    @property
    def model(self) -> str:
        return str(self.rows[0]["model"])

    @property
    def about(self) -> Row:
        """The configuration of most workers, for what they have in common."""
        return self.rows[-1]

    @property
    def workers(self) -> Vector:
        return np.array([float(row["workers"]) for row in self.rows])

    @property
    def rates(self) -> Vector:
        """Samples a second, means over repeats."""
        return np.array([float(row["samples_per_second"]) for row in self.rows])

    @property
    def repeats(self) -> list[Vector]:
        """Samples a second of each repeat, count by count."""
        return [np.array(values(row)) for row in self.rows]


def families(results: Results) -> list[Family]:
    """Every family with more than one worker somewhere, in the order of the tables."""
    rows = sorted(results.rows, key=lambda row: (str(row["model"]), row["series_order"], row["batch"]))
    names = [name for name in results.series_keys if name not in series.MAIN_KEYS]
    held = results.study.batch_key
    alike = [key for key in KEYS if key not in (*SPREAD, *BATCH_KEYS)] + [held]
    lone = _Lone(rows, [key for key in alike if key != "allreduce"])
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if int(row["workers"]) > 1 and not _cuts(row):
            groups.setdefault(values_of(row, alike), []).append(row)
    families_of = []
    for group in groups.values():
        every = [*lone.of(group[0]), *group]
        left_out = [f"{int(row['workers'])} workers: {why}" for row in every if (why := _unfit(row))]
        counts: dict[int, Row] = {}
        for configuration in sorted(
            (configuration for configuration in every if not _unfit(configuration)), key=_hosts
        ):
            counts.setdefault(
                int(configuration["workers"]), configuration
            )  # on several placements: that on the fewest hosts
        if counts:
            kept = tuple(counts[count] for count in sorted(counts))
            families_of.append(
                Family(_label(group[0], names, held), kept, results.study.scaling == "strong", tuple(left_out))
            )
    return families_of


class _Lone:
    """The runs with one worker."""

    def __init__(self, rows: Sequence[Row], keys: Sequence[str]) -> None:
        self.keys = keys
        self.by_name = {str(row["configuration"]): row for row in rows if int(row["workers"]) == 1}
        self.alike: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.by_name.values():
            self.alike.setdefault(values_of(row, keys), []).append(row)

    def of(self, row: Row) -> list[Row]:
        """The framework's own, else the study's baseline of it."""
        own = self.alike.get(values_of(row, self.keys), [])
        if own and not all(_unfit(configuration) for configuration in own):
            return own
        base = self.by_name.get(str(row["baseline"])) if known(row["baseline"]) else None
        return own if base is None else [base]


def _unfit(row: Row) -> str:
    """Why a configuration says nothing of how the others scale; empty if it does."""
    if not row["n"]:
        return str(row["status"])
    return "oversubscribed" if row["oversubscribed"] else "not comparable" if row["not_comparable"] else ""


def _cuts(row: Row) -> bool:
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def _hosts(row: Row) -> str:
    return str(row["hosts"]).rjust(20) if known(row["hosts"]) else ""


def _label(row: Row, names: list[str], held: str) -> str:
    """`horovod, fp32, batch 64`, with what else tells this study's configurations apart."""
    wire = [str(row["allreduce"])] if row["allreduce"] != "none" else []
    batch = f"{'global ' * (held == 'global_batch')}batch {int(value_of(row, held))}"
    return ", ".join([str(row["framework"]), *wire, batch, *series.words(row, names)])
