"""Class-activation maps of trials, as `scaling-study maps` leaves them beside their records (records/maps.py)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.frames.rows import as_rows
from analysis.frames.trials import SkippedRecord
from scaling_study.quoting import printable
from scaling_study.records import maps
from scaling_study.records.maps import COLUMNS, METHODS, SCORED
from scaling_study.records.reading import UnreadableRecord

OF_VIDEOS = ("trial", "configuration", "repeat", "seed", "video", "method", "maps", *SCORED)
TEXTS = ("trial", "configuration", "method")


@dataclass(frozen=True)
class About:
    """What a trial's maps are of, for who reads its figures."""

    configuration: str
    seed: int
    step: int
    metric: str  # by which that step was the best, and its value on validation data
    value: float
    source: str
    frames: int
    threshold: float  # of a probability, from which on an instrument counts as recognised
    instruments: tuple[str, ...]
    shown: Mapping[str, str]  # whose "channels", which "class"


@dataclass(frozen=True)
class Maps:
    """Of all trials that have some. `videos`: OF_VIDEOS, means over the maps of a video. `rows`: trial -> its whole
    scores, (rows, records.maps.COLUMNS)."""

    videos: pd.DataFrame
    about: Mapping[str, About] = field(default_factory=dict)  # by trial
    rows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)

    def pictures(self, trial: str) -> dict[str, NDArray[Any]]:
        """Arrays of records.maps.ARRAYS, and the frames. Raises UnreadableRecord."""
        return _pictures(self.folders[trial])


def none() -> Maps:
    return Maps(pd.DataFrame(columns=list(OF_VIDEOS)))


def read(results: Path, runs: pd.DataFrame) -> Maps:
    """Of the trials in `runs` (trials.COLUMNS). Warns SkippedRecord of what cannot be read."""
    frames, about, rows, folders = [], dict[str, About](), dict[str, NDArray[np.float64]](), dict[str, Path]()
    having = {path.parent.parent.name for path in (results / "trials").glob(f"*/{maps.FOLDER}/{maps.ABOUT}")}
    for row in as_rows(runs[["trial", "configuration", "repeat", "seed"]][runs.trial.isin(having)]):
        trial, folder = str(row["trial"]), results / "trials" / str(row["trial"])
        try:
            described = _about(folder, str(row["configuration"]), int(row["seed"]))
            scores = maps.read_scores(folder)
        except UnreadableRecord as error:
            warnings.warn(f"skipped: {error}", SkippedRecord, stacklevel=2)
            continue
        about[trial], rows[trial], folders[trial] = described, scores, folder
        frames.append(_of_videos(scores).assign(**row))
    if not frames:
        return none()
    return Maps(pd.concat(frames, ignore_index=True)[list(OF_VIDEOS)], about, rows, folders)


def _of_videos(scores: NDArray[np.float64]) -> pd.DataFrame:
    """A row for each video and method."""
    whole = pd.DataFrame(scores, columns=list(COLUMNS))
    means_of = []
    for video in sorted(set(whole.video.astype(int))):
        ours = whole[whole.video == video]
        for method in METHODS:
            means = {score: float(ours[f"{method}_{score}"].mean()) for score in SCORED}
            means_of.append({"video": video, "method": method, "maps": len(ours), **means})
    return pd.DataFrame(means_of, columns=["video", "method", "maps", *SCORED])


def _about(folder: Path, configuration: str, seed: int) -> About:
    described = maps.read_about(folder) or {}
    try:
        return About(
            configuration, seed, int(described["step"]), printable(described["metric"]), float(described["value"]),
            printable(described["source"]), int(described["frames"]), float(described["threshold"]),
            tuple(printable(name) for name in described["instruments"]),
            {printable(key): printable(value) for key, value in described["shown"].items()},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{folder / maps.FOLDER / maps.ABOUT} is not whole: {error}") from error


@lru_cache(maxsize=8)
def _pictures(folder: Path) -> dict[str, NDArray[Any]]:
    return maps.read_panels(folder)
