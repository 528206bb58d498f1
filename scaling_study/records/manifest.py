"""study.json, which every results folder has: what an analysis and the next sweep must know that no record holds.

One model writes it, reads it and is compared with what a study has become (`changes`). Keys that an older version did
not write have defaults; keys of a newer one are ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from scaling_study.errors import printable
from scaling_study.records import store
from scaling_study.records.schema import SCHEMA
from scaling_study.records.store import UnreadableRecord
from scaling_study.trial import RENAMED, Window

FILE = "study.json"
TARGET_INTERVAL = 0.02


class Manifest(BaseModel):
    """The keys of study.json, in the order in which they are written."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")  # version of this format
    study: str  # name of the study
    scaling: Literal["weak", "strong"] = "weak"  # as in the study file
    baseline: dict[str, Any] | None = None  # keys of the configurations that speed-ups are over; None: none is claimed
    machine: dict[str, Any] = Field(default_factory=dict)  # cores, cpu, gpus, memory_bytes, fingerprint, libraries
    cores_per_worker: int | None = None  # share of the cores of every worker
    order_seed: int | None = None  # seed of the order in which trials run
    sentinel: str | None = None  # configuration of the drift check
    target_interval: float = TARGET_INTERVAL  # margin that is aimed at, over the mean
    measure: dict[str, list[Any]] | None = None  # each key with its values, several where sweeps have their own
    configurations: list[str] | None = None  # of the study as it was last run: tables and figures show these
    stopped: str = ""  # signal that ended its last run before its time, like SIGINT
    alone: list[str] = Field(default_factory=list)  # the same in separate launches, shown where interleaved ones failed

    @field_validator("baseline")
    @classmethod
    def _workers_are_counted(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if not isinstance((value or {}).get("workers", 1), int):
            raise ValueError("its workers are no number")
        return value

    @field_validator("machine", mode="before")
    @classmethod
    def _machine(cls, value: Any) -> Any:
        if isinstance(value, dict) and not isinstance(value.get("gpus") or [], list | tuple):
            raise ValueError("its gpus are no list")
        return {} if value is None else value

    @field_validator("target_interval", mode="before")
    @classmethod
    def _target(cls, value: Any) -> Any:
        return value or TARGET_INTERVAL

    def write(self, results: Path) -> None:
        """Into the folder `results`, atomically. Raises OSError."""
        store.write_json(results / FILE, self.model_dump(by_alias=True))

    @classmethod
    def read(cls, results: Path) -> Self:
        """The manifest of `results`, its text printable. Raises UnreadableRecord, naming the file and the fault."""
        return cls.parse(store.load(results / FILE), results / FILE)

    @classmethod
    def parse(cls, value: Any, path: Path) -> Self:
        """The JSON of `path`. Raises UnreadableRecord."""
        if not isinstance(value, dict) or value.get("schema") != SCHEMA or not isinstance(value.get("study"), str):
            raise UnreadableRecord(f"{path} is not a study.json of schema {SCHEMA}")
        try:
            return cls.model_validate(_printable(value))
        except ValidationError as error:
            raise store.not_whole(path, error) from error


def _printable(value: Any) -> Any:
    """A copy of a JSON value without escape sequences in its words: a results folder may come from anybody."""
    if isinstance(value, list):
        return list(map(_printable, value))
    if isinstance(value, dict):
        return {printable(key): _printable(inner) for key, inner in value.items()}
    return printable(value) if isinstance(value, str) else value


# Changes of a study since it was last run into the same folder. The window of `measure` is part of what a trial is:
# under another window it is another trial, measured anew. How often it is repeated, and how long it may take, is not:
# records are reused.

WINDOW = ("warm", *(f.name for f in fields(Window)))
STUDY_KEYS = ("scaling", "baseline", "order_seed")


def changes(before: Manifest, now: Manifest, measured: Collection[str]) -> list[str]:
    """Lines, from the manifest of the last run and that of this one; `measured`: configurations that have records.

    Keys that `before` lacks, because an older version did not write them, are not compared.
    """
    changed = [
        f"{key} {getattr(before, key)} -> {getattr(now, key)}"
        for key in STUDY_KEYS
        if key in before.model_fields_set and getattr(before, key) != getattr(now, key)
    ]
    old, new = before.measure or {}, now.measure or {}
    keys = [key for key in new if key in old and old[key] != new[key]]
    changed += [
        f"{RENAMED.get(key, key)} {' and '.join(map(str, old[key]))} -> {' and '.join(map(str, new[key]))}"
        for key in keys
    ]
    lines = [f"The study has changed since its last run here: {', '.join(changed)}."] if changed else []
    if window := [RENAMED.get(key, key) for key in keys if key in WINDOW]:
        lines.append(f"What was measured with other {', '.join(window)} is kept and measured again.")
    if "timeout_seconds" in keys:
        lines.append("Trials that timed out keep that status; --retry timeout runs them again.")
    if before.configurations is not None:
        known, wanted = set(before.configurations), set(now.configurations or ())
        added, gone = wanted - known, known - wanted
        if added:
            lines.append(f"{_count(added)} new since the last run.")
        if gone:
            kept = f": the records of {len(gone & set(measured))} of them are kept, but appear in no table"
            lines.append(f"{_count(gone)} no longer in the study{kept if gone & set(measured) else ''}.")
    return lines


def _count(configurations: Collection[str]) -> str:
    return "1 configuration is" if len(configurations) == 1 else f"{len(configurations)} configurations are"
