"""Files of records: written so that nothing half-written is ever believed, and read with all that may be wrong named.

    results/<study>/study.json                   the study's name, the machine it is for, the seed of the order
    results/<study>/trials/<trial id>/
        begun.json      until it is finished: what was asked, as a `Record` without an outcome
        log.txt         output of the processes   ranks/rank-<n>.json  each rank's own report (`RankReport`)
        record.json     takes the place of begun.json: what was asked and what came of it (`Record`), renamed into
                        place last, after an fsync. Its presence is the one sign that a trial is finished.

Ranks write JSON (docs/reference/record.md), the driver joins it; no log and no folder name is parsed. A file that is
half-written, changed by hand or another program's becomes an UnreadableRecord that names it; never a traceback, never a
NaN, never a number that no column could hold.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from scaling_study.errors import printable, shortened
from scaling_study.records import schema
from scaling_study.records.schema import SCHEMA, RankReport, Record
from scaling_study.trial import Trial

BEGUN = "begun.json"  # of a trial that is not finished
ASKED, COMMAND = "trial.json", "command.txt"  # what older programs left of every trial: its keys, and its command
PROGRESS = "progress.json"  # of a training: how far it is, replaced every few seconds
BEST = "best.pt"  # of a training that keeps its best model: the weights
OF_A_TRAINING = ("checkpoints", PROGRESS, BEST, "training.csv", "tensorboard", "wandb")  # that it goes on from
INACCESSIBLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN)
MOST_BYTES = 1 << 30  # of one file: a hundred ranks of 100,000 steps are a fifth of it
MOST = 2**63  # whole numbers beyond fit no column of a table
# In each JSON with a number that no column could hold, and in few others.
SUSPECT = re.compile(rb"(?<![\d.])\d{19}|\d[eE]\+?\d{3,}(?:[\s,\]}]|$)|NaN|Infinity")
LONGEST = 200  # characters of what is wrong
LAST_KEY = re.compile(rb'"schema":\s*%d\s*\}\s*\Z' % SCHEMA)  # of records, as we write them
SURROGATE = re.compile("[\ud800-\udfff]")
Made = TypeVar("Made")


def __getattr__(name: str) -> Any:
    """Names of the schema, which users imported from here."""
    return getattr(schema, name)


class UnreadableRecord(Exception):
    """A file that is not whole, or not ours. The message names it."""


class MissingRecord(UnreadableRecord):
    """A file that is not there."""


class InaccessibleRecord(UnreadableRecord):
    """A file that may be whole, and that the system does not let this process read."""


def load(path: Path) -> Any:
    """A JSON file. Raises UnreadableRecord, naming it."""
    return _value(contents(path), path)


def contents(path: Path) -> bytes:
    """The bytes of a file. Raises UnreadableRecord, naming it. A link is not followed: it may lead to another trial."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as stream:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise ValueError("it is no file")
            if about.st_size > MOST_BYTES:
                raise ValueError(f"{about.st_size:,} bytes")
            return stream.read()
    except FileNotFoundError as error:
        raise MissingRecord(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in INACCESSIBLE:
            raise InaccessibleRecord(f"{path} cannot be read: {error.strerror}") from error
        why = "it is a link" if path.is_symlink() else str(error)
        raise UnreadableRecord(f"{path} cannot be read: {why}") from error


def parsed(text: bytes, kind: type[Made], path: Path) -> Made:
    """The JSON of `path` as a dataclass, each field of its type. Raises UnreadableRecord, naming file and field."""
    from pydantic import ValidationError

    hashable: Any = kind
    try:
        made: Made = _adapter(hashable).validate_json(text)
    except ValidationError as error:
        _value(text, path)  # which raises what is wrong with the JSON itself
        raise not_whole(path, error) from error
    if SUSPECT.search(text):
        _value(text, path)
    return made


def not_whole(path: Path, error: Any) -> UnreadableRecord:
    """The error of a file of which pydantic turns down a field: the first one, in words."""
    first = error.errors(include_url=False, include_input=False)[0]
    what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return UnreadableRecord(f"{path} is not whole: {shortened(printable(what), LONGEST)}")


@functools.cache
def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter  # here: scripts write records and read none

    return TypeAdapter(cls)


def _value(text: bytes, path: Path) -> Any:
    """JSON -> its value. Raises UnreadableRecord.

    Python's own parser turns down numbers that no column could hold, and says what is wrong with all that the fast one
    does not take, or accepts it.
    """
    from pydantic_core import from_json

    if not SUSPECT.search(text):
        with contextlib.suppress(ValueError):
            return from_json(text, allow_inf_nan=False)
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number that we write")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is too large for a number")
    return number


def _whole(word: str) -> int:
    number = int(word)
    if abs(number) >= MOST:
        raise ValueError(f"{word[:20]}... is too large for a number")
    return number


def write_json(path: Path, value: Any) -> None:
    """Write atomically and durably."""
    write_bytes(path, encoded(value))


def write_bytes(path: Path, content: bytes) -> None:
    """Write atomically and durably."""
    replaced(path, lambda beside: beside.write_bytes(content))


def replaced(path: Path, write_to: Callable[[Path], object], durable: bool = True) -> Path:
    """Have a file written beside `path` and rename it: a reader meets it whole or not at all.

    `durable`: it is on the disk, under its name, when this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(handle, 0o644)  # mkstemp's own mode would hide results from everybody else
        write_to(Path(name))
        if durable:
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path


def encoded(value: Any) -> bytes:
    """JSON as we write it. Raises ValueError for what is no number.

    A byte that is no UTF-8, of an environment variable or a path, is written out as `\\udce9`: no reader of JSON would
    take half a surrogate pair.
    """
    text = json.dumps(value, indent=1, allow_nan=False)
    if "\\ud" in text:
        text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
        text = SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)
    return text.encode()


def write_rank(folder: Path, report: RankReport) -> None:
    """Leave one rank's report in `folder`/ranks/."""
    write_json(folder / "ranks" / f"rank-{report.rank}.json", asdict(report))


def read_ranks(folder: Path, world_size: int) -> list[RankReport]:
    """The reports of all ranks, by rank. Raises UnreadableRecord if one is missing or not whole."""
    paths = [folder / "ranks" / f"rank-{rank}.json" for rank in range(world_size)]
    return [parsed(contents(path), RankReport, path) for path in paths]


def write_record(folder: Path, record: Record) -> None:
    """Finish a trial: from here on it will not be run again."""
    write_json(folder / "record.json", record.to_dict())
    (folder / BEGUN).unlink(missing_ok=True)


def write_begun(folder: Path, record: Record) -> None:
    """Leave what is asked of a trial, as its record without an outcome."""
    write_json(folder / BEGUN, record.to_dict())


def asked_of(folder: Path) -> Trial:
    """The trial that is under way in a folder, of this program or an older one. Raises UnreadableRecord."""
    if (folder / BEGUN).exists():
        return read_record(folder / BEGUN).trial
    return parsed(contents(folder / ASKED), Trial, folder / ASKED)


def read_record(path: Path) -> Record:
    """Raises UnreadableRecord, naming the file, if it is not a whole record of this schema."""
    text = contents(path)
    if not LAST_KEY.search(text[-40:]):
        value = _value(text, path)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise UnreadableRecord(f"{path} is not a record of schema {SCHEMA}")
    return parsed(text, Record, path)


def read_trial(folder: Path) -> Record:
    """The record in the folder of a trial, which is named by its id. Raises UnreadableRecord also for another's."""
    record = read_record(folder / "record.json")
    if folder.is_symlink() or record.id != folder.name:
        raise UnreadableRecord(f"{folder / 'record.json'} is that of trial {record.id[:200]}")
    return record


def read_study(results: Path) -> Iterator[Record]:
    """The records of finished trials under results/<study>, by id."""
    for path in sorted((results / "trials").glob("*/record.json")):
        yield read_trial(path.parent)
