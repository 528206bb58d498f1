"""A study's results in memory: what the folder says, as frames. The one way in for tables, figures and reports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import configurations, series, study, trials
from analysis.study import StudyInfo


@dataclass(frozen=True)
class Results:
    """One study. `trials` has trials.COLUMNS; `configurations` has configurations.COLUMNS and series.add's."""

    study: StudyInfo
    trials: pd.DataFrame
    configurations: pd.DataFrame
    older: int = 0  # configurations with records that are not in the study as it is now

    @property
    def models(self) -> list[str]:
        """In the order of their names, numbers as numbers: resnet8 before resnet18."""
        return sorted(
            (str(model) for model in self.configurations.model.dropna().unique()),
            key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)],
        )

    @property
    def synthetic(self) -> bool:
        """Whether any configuration trained on generated data: then every title and footnote says so."""
        c = self.configurations
        source = c.data_source.fillna("").str.contains("synthetic") | (c.data == "synthetic").fillna(False)
        return bool(source.any())

    @property
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


def read(folder: Path) -> Results:
    """Raises study.NotResults for a folder that is none; warns trials.SkippedRecord of unreadable records."""
    about = study.read(folder)
    rows = trials.read(folder)
    current = rows if about.configurations is None else rows[rows.configuration.isin(about.configurations)]
    older = rows.configuration.nunique() - current.configuration.nunique()
    return Results(about, rows, series.add(configurations.summarise(current, about), about), older)
