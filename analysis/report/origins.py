"""Where the numbers come from: what only the records hold, gathered in one pass over them, with every raw sample.

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
from typing import IO, Any

import numpy as np

from scaling_study.quoting import printable
from scaling_study.records import store
from scaling_study.records.reading import UnreadableRecord, contents
from scaling_study.records.store import RankReport, Record

SAMPLES = "samples.npz"
STUDY_FILE = "study.yaml"
PROFILES = "profiles"
MOST_STUDY_BYTES = 200_000
Table = dict[str, Counter[str]]  # what -> each of its values, and of how many trials it is


@dataclass
class Origins:
    """`commands`: configuration -> the line that reproduces a trial of it. `about`: what trials say of themselves."""

    commands: dict[str, str] = field(default_factory=dict)
    about: Table = field(default_factory=dict)
    versions: Table = field(default_factory=dict)
    environment: Table = field(default_factory=dict)
    study: str = ""  # the study file's text
    trials: int = 0
    samples: int = 0  # step times in samples.npz
    profiles: tuple[str, ...] = ()  # files of traces, relative to the folder

    def add(self, record: Record) -> None:
        self.trials += 1
        self.commands.setdefault(record.configuration, printable(record.command))
        said: list[tuple[str, Any]] = [
            ("program", record.commit),
            ("machine", _machine(record.machine)),
            ("hosts", ", ".join(record.hosts)),
            ("Slurm job", record.job.get("job", "")),
            ("machine file", record.machine_file.get("name", "")),
            ("window", ", ".join(f"{key} {value}" for key, value in record.window.items() if value is not None)),
        ]
        for name, value in said:
            _count(self.about, name, value)
        for name, value in record.environment.items():
            _count(self.environment, name, value)
        for name, value in (record.ranks[0].versions if record.ranks else {}).items():
            _count(self.versions, name, value)
        for rank in record.ranks:
            _count(self.about, "device", rank.device_name)


def gather(folder: Path, samples: IO[bytes] | None = None) -> Origins:
    """Of every record under `folder` that can be read; the others were named when the results were read.

    With `samples`, an open file, writes samples.npz to it on the way.
    """
    found = Origins(study=_study_file(folder), profiles=tuple(_profiles(folder)))
    archive = None if samples is None else zipfile.ZipFile(samples, "w")
    for record in _records(folder):
        found.add(record)
        if archive is not None and record.status == "ok" and record.ranks:
            found.samples += _write(archive, record.id, record.ranks)
    if archive is not None:
        archive.close()
    return found


def _records(folder: Path) -> Iterator[Record]:
    for place in sorted((folder / "trials").glob("*")):
        try:
            yield store.read_trial(place)
        except UnreadableRecord:
            continue


def _write(archive: zipfile.ZipFile, name: str, ranks: list[RankReport]) -> int:
    """One member; ranks of unequal length, which only a broken record has, are filled up with nan."""
    most = max(len(rank.step_seconds) for rank in ranks)
    filled = [[*rank.step_seconds, *[np.nan] * (most - len(rank.step_seconds))] for rank in ranks]
    array = np.array(filled, dtype=np.float64)
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)
    return int(np.isfinite(array).sum())


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
    said = {key: value for key, value in machine.items() if key not in ("libraries", "fingerprint")}
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in said.items() if value not in (None, [], ""))


def _count(table: Table, name: str, value: Any) -> None:
    if value:
        table.setdefault(printable(str(name)), Counter())[printable(str(value))] += 1
