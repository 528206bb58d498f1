"""A study's results in memory: what the folder says, as frames. The one way in for tables, figures and reports."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.execution import garbage_collection
from analysis.frames import configurations, details, maps, series, study, trials
from analysis.frames import gates as parity
from analysis.frames.details import Details
from analysis.frames.maps import Maps
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from analysis.frames.study import StudyInfo
from scaling_study.datasets import SCENES
from scaling_study.models import MODELS, NO_MODEL, TEXT_KEYS


@dataclass(frozen=True)
class Results:
    """One study. `trials` has trials.COLUMNS; `configurations` has configurations.COLUMNS and series.add's.

    Parity gates and network probes are among the trials and have no configuration.
    """

    study: StudyInfo
    trials: pd.DataFrame
    configurations: pd.DataFrame
    older: int = 0  # configurations with records that are not in the study as it is now
    details: Details = field(default_factory=details.none)  # what the records hold beside the trials' columns
    skipped: tuple[str, ...] = ()  # a line for each record that could not be read
    maps: Maps = field(default_factory=maps.none)  # that lie beside the records

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """The configurations that the study plans, and of which no record was read."""
        read = set(self.trials.configuration)
        return tuple(name for name in self.study.configurations or () if name not in read)

    @cached_property
    def rows(self) -> list[ConfigurationRow]:
        """`configurations`, a mapping each: made once, as taking a frame apart costs more than most of what is asked of
        it. Not to be written to."""
        return as_rows(self.configurations, ConfigurationRow)

    @cached_property
    def series_keys(self) -> list[str]:
        """The trial keys that tell series apart."""
        return series.keys(self.configurations)

    @cached_property
    def _by_model(self) -> dict[str, list[ConfigurationRow]]:
        by_model: dict[str, list[ConfigurationRow]] = {}
        for row in self.rows:
            by_model.setdefault(row["model"], []).append(row)
        return by_model

    def rows_of(self, model: str) -> list[ConfigurationRow]:
        """Those of one model."""
        return self._by_model.get(model, [])

    @cached_property
    def _frames(self) -> dict[str, pd.DataFrame]:
        return {str(model): ours for model, ours in self.configurations.groupby("model", sort=False)}

    def frame_of(self, model: str) -> pd.DataFrame:
        """`configurations` of one model. Not to be written to."""
        return self._frames.get(model, self.configurations.iloc[:0])

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The trials that are neither gates nor probes: those that trained in order to be measured."""
        return self.trials[~gates_of(self.trials) & ~probes_of(self.trials)]

    @cached_property
    def probes(self) -> pd.DataFrame:
        """The trials that measured the network, of the study as it is now."""
        known, ours = self.study.configurations, self.trials[probes_of(self.trials)]
        return ours if known is None else ours[ours.configuration.isin(known)]

    @cached_property
    def gates(self) -> pd.DataFrame:
        """The trials that are parity gates."""
        return self.trials[gates_of(self.trials)]

    @property
    def nothing_yet(self) -> str:
        """What to say where there is nothing to draw: empty if there is something."""
        if len(self.configurations):
            return ""
        done = f": {len(self.gates)} parity gates, nothing to draw yet" if len(self.gates) else ""
        if self.skipped and self.trials.empty:
            return f"none could be read of {len(self.skipped)} record{'s' * (len(self.skipped) != 1)}"
        return f"no finished trial yet{done}" if self.probes.empty else ""

    @cached_property
    def models(self) -> list[str]:
        """In the order of their names, numbers as numbers: resnet8 before resnet18."""
        return sorted(
            (str(model) for model in self.configurations.model.dropna().unique()),
            key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)],
        )

    @cached_property
    def synthetic(self) -> bool:
        """Whether any configuration trained on generated data: then every title and footnote says so."""
        c = self.configurations
        source = c.data_source.fillna("").str.contains("synthetic") | c.data.isin(("synthetic", SCENES))
        return bool(source.any())

    @property
    def marks(self) -> list[str]:
        """What every table, figure and page says of these results in capitals."""
        by = {"": "", "SIGINT": "BY HAND"}.get(self.study.stopped, f"BY {self.study.stopped}")
        return ["SYNTHETIC DATA"] * self.synthetic + [f"STOPPED {by}"] * bool(by)

    @property
    def heading(self) -> str:
        """The study's name, as a table's title ends with it."""
        return ", ".join([self.study.name, *self.marks])

    @cached_property
    def dates(self) -> str:
        """`2026-01-31`, or the first and last day of the study's trials (UTC); empty if none was started."""
        days = sorted({str(started)[:10] for started in self.trials.started_at.dropna() if started})
        return "" if not days else days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"

    @property
    def repeats(self) -> str:
        """`1 repeat`, `3 repeats`, `2 to 3 repeats`: how many the measured configurations have."""
        counts = sorted(set(self.configurations.n[self.configurations.n > 0])) or [0]
        number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{number} repeat" if number == "1" else f"{number} repeats"


def probes_of(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of trials trained nothing, but measured the network."""
    return (rows.model == NO_MODEL).fillna(False).astype(bool)


def gates_of(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of trials are parity gates."""
    return (rows["find"] == parity.GATE).fillna(False).astype(bool)


def read(folder: Path, processes: int = 1, collector: trials.Collector | None = None) -> Results:
    """Raises study.NotResults for a folder that is none; warns trials.SkippedRecord of unreadable records.

    `processes`: how many may read at once, where there are many records (process_pool.available_processes()).
    `collector`: takes what else is needed of the records, which are read once for both.
    """
    with garbage_collection.ignored():
        return _read(folder, processes, collector)


def _read(folder: Path, processes: int, collector: trials.Collector | None) -> Results:
    about = study.read(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", trials.SkippedRecord)
        rows, beside = trials.read_whole(folder, processes, collector)
        shown_maps = maps.read(folder, rows)
    for warning in caught:
        warnings.warn(warning.message, stacklevel=4)
    skipped = dict.fromkeys(
        str(warning.message) for warning in caught if issubclass(warning.category, trials.SkippedRecord)
    )
    runs = rows["find"].isna() & ~probes_of(rows)  # the others looked for something else: they are in results.csv
    known = None if about.configurations is None else [*about.configurations, *about.alone]
    current = runs if known is None else runs & rows.configuration.isin(known)
    older = rows.configuration[runs].nunique() - rows.configuration[current].nunique()
    shown = series.add(configurations.summarise(rows[current], about), about)
    return Results(about, rows, shown, older, beside, tuple(skipped), shown_maps)


def unit(rows: pd.DataFrame) -> str:
    """What a sample of these rows is: where tokens were counted in it a sentence, or a piece of running text."""
    if rows.tokens_per_second.isna().all():
        return "samples"
    running = (name in MODELS and not set(TEXT_KEYS) <= set(MODELS[name].keys) for name in rows.model)
    return "sequences" if any(running) else "sentences"
