"""Where the numbers come from: what only the records hold, collected while they are read, with every raw sample.

samples.npz holds an array for each trial that is ok, named by its id: seconds of every timed step, (ranks, steps), as
they were measured. `numpy.load("samples.npz")["ID OF A TRIAL"]` reads one without the others.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_study.errors import printable
from scaling_study.records.schema import RankReport, Record
from scaling_study.records.store import UnreadableRecord, contents

SAMPLES = "samples.npz"
STUDY_FILE = "study.yaml"
PROFILES = "profiles"
MOST_STUDY_BYTES = 200_000
Vector = NDArray[np.float64]
Counts = dict[str, Counter[str]]  # what -> each of its values, and of how many trials it is


@dataclass
class Origins:
    """`commands`: configuration -> the line that reproduces a trial of it. `about`: what trials say of themselves."""

    commands: dict[str, str] = field(default_factory=dict)
    about: Counts = field(default_factory=dict)
    versions: Counts = field(default_factory=dict)
    environment: Counts = field(default_factory=dict)
    study: str = ""  # the study file's text
    trials: int = 0
    step_seconds: dict[str, Vector] = field(default_factory=dict)  # trial that is ok -> the array in samples.npz
    profiles: tuple[str, ...] = ()  # files of traces, relative to the folder

    @classmethod
    def of(cls, folder: Path) -> Origins:
        """The origins of a results folder, before any record is added."""
        return cls(study=_study_file(folder), profiles=tuple(_profiles(folder)))

    def add(self, record: Record) -> None:
        self.trials += 1
        self.commands.setdefault(record.configuration, printable(record.command))
        window = vars(record.trial.window)
        origins: list[tuple[str, Any]] = [
            ("program", record.commit),
            ("machine", _machine(record.machine)),
            ("hosts", ", ".join(record.hosts)),
            ("Slurm job", record.job.get("job", "")),
            ("machine file", record.machine_file.get("name", "")),
            ("window", ", ".join(f"{key} {value}" for key, value in window.items() if value is not None)),
        ]
        for name, value in origins:
            _count(self.about, name, value)
        for name, value in record.environment.items():
            _count(self.environment, name, value)
        for name, value in (record.ranks[0].versions if record.ranks else {}).items():
            _count(self.versions, name, value)
        for rank in record.ranks:
            _count(self.about, "device", rank.device_name)
        if record.status == "ok" and record.ranks:
            self.step_seconds[record.id] = _array(record.ranks)

    @property
    def samples(self) -> int:
        """Step times in samples.npz, without those that fill up."""
        return sum(int(np.isfinite(array).sum()) for array in self.step_seconds.values())

    def write_samples(self, path: Path) -> None:
        """As samples.npz, whatever `path` is called."""
        with zipfile.ZipFile(path, "w") as archive:
            for trial, array in self.step_seconds.items():
                with archive.open(zipfile.ZipInfo(f"{trial}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _array(ranks: list[RankReport]) -> Vector:
    """(ranks, steps); ranks of unequal length, which only a broken record has, are filled up with nan."""
    most = max(len(rank.step_seconds) for rank in ranks)
    filled = [[*rank.step_seconds, *[np.nan] * (most - len(rank.step_seconds))] for rank in ranks]
    return np.array(filled, dtype=np.float64)


def _study_file(folder: Path) -> str:
    try:
        text = contents(folder / STUDY_FILE)[:MOST_STUDY_BYTES].decode("utf-8", "replace")
    except UnreadableRecord:
        return ""
    return printable(text, but="\n\t")


def _profiles(folder: Path) -> Iterator[str]:
    """Files that `run_sweep.py --profile` left."""
    for path in sorted((folder / PROFILES).glob("*/*.json*")):
        ours = path.name.startswith(("torch-rank-", "horovod-")) and path.name.endswith((".json", ".json.gz"))
        if ours and path.is_file() and not path.is_symlink() and not path.parent.is_symlink():
            yield path.relative_to(folder).as_posix()


def _machine(machine: dict[str, Any]) -> str:
    facts = {key: value for key, value in machine.items() if key not in ("libraries", "fingerprint")}
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in facts.items() if value not in (None, [], ""))


def _count(table: Counts, name: str, value: Any) -> None:
    if value:
        table.setdefault(printable(str(name)), Counter())[printable(str(value))] += 1
