"""A study as one file, X.study.zip: small enough for a mail, a web page or a repository, and analysed as it is.

    study.json, study.yaml        as in the results folder
    records.jsonl                 a line a trial, by id: its record.json without white space
    trials/<id>/parity.json       of a parity gate: every check with its figure
    trials/<id>/maps/             of `scaling-study maps`: maps.json, scores.csv, panels.npz

The same results are the same bytes: entries are in order and dated 1980. A record whose exact bytes do not follow from
its value (edited by hand, cut short) is a line {"folder": ..., "record.json": its text}. trial.json and command.txt,
which older programs left, follow from the record, and are carried only where they do not. Logs, checkpoints and what
the analysis makes stay behind. A file from elsewhere is not trusted: every entry is checked before anything is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from scaling_study.records import manifest, maps, store
from scaling_study.records.anonymous import CarriedNames
from scaling_study.records.store import ASKED, COMMAND, UnreadableRecord

SUFFIX = ".study.zip"
STUDY, TRIALS, RECORD, RECORDS = "study.yaml", "trials", "record.json", "records.jsonl"
PARITY = "parity.json"
OF_MAPS = tuple(f"{maps.FOLDER}/{name}" for name in (maps.ABOUT, maps.SCORES, maps.PANELS))
BESIDE = (PARITY, ASKED, COMMAND, *OF_MAPS)  # what may be carried of a trial besides its record
TEXTS = (".json", ".yaml", ".txt")  # suffixes of files in which names are looked for
MOST_BYTES = 2 << 30  # that a packed study takes once it is unpacked
BLOCK = 4096  # bytes that a file takes at least
DATE = (1980, 1, 1, 0, 0, 0)  # of every entry: the earliest that a zip file knows


class PackError(Exception):
    """A folder that cannot be packed, or a file that cannot be unpacked. The message names it and says why."""


@dataclass
class Packed:
    """The content of a packed study, and what was left out of it."""

    file: Path
    bytes: int = 0
    trials: int = 0
    names: CarriedNames = field(default_factory=CarriedNames)  # that it carries, or that were replaced
    left_out: Counter[str] = field(default_factory=Counter)  # kind of file, like trials/*/log.txt -> how many
    left_out_bytes: Counter[str] = field(default_factory=Counter)


def file_of(results: Path) -> Path:
    """The file that a results folder is packed to, unless another is named."""
    return Path(f"{os.path.abspath(results)}{SUFFIX}") if results.name in ("", "..") else Path(f"{results}{SUFFIX}")


def folder_of(file: Path) -> Path:
    """The folder that a packed study is unpacked to, and its tables are written to, unless another is named."""
    named = file.name.removesuffix(SUFFIX)
    return file.with_name(named if named not in ("", file.name) else f"{file.stem}.unpacked")


def pack(results: Path, file: Path | None = None, anonymous: bool = False) -> Packed:
    """Write a results folder as one file, replacing an earlier one. Raises PackError, OSError.

    `anonymous`: user names, host names and the values of environment variables are replaced, each by the same word
    everywhere. Packing is refused while a sweep holds the folder.
    """
    try:
        manifest.Manifest.read(results)
    except UnreadableRecord as error:
        raise PackError(f"{results} is not a results folder: {error}") from error
    packed, stream = Packed(file or file_of(results)), io.BytesIO()
    with _not_held(results):
        carried = _survey(results, packed)
    names = packed.names if anonymous else None
    lines = []
    for name in [name for name in carried if name.endswith(f"/{RECORD}")]:  # by id
        lines.append(_line(PurePosixPath(name).parent.name, carried.pop(name), names) + b"\n")
    if names:
        carried = {name: names.in_file(name, content) for name, content in carried.items()}
    study = {name: carried.pop(name) for name in (manifest.FILE, STUDY) if name in carried}
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in (*study.items(), (RECORDS, b"".join(lines)), *sorted(carried.items())):
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, content)
    store.write_bytes(packed.file, stream.getvalue())
    packed.bytes, packed.trials = len(stream.getvalue()), len(lines)
    return packed


def _survey(results: Path, packed: Packed) -> dict[str, bytes]:
    """The files to carry by their names, in order; fills in what `packed` says of names and of what is left out."""
    carried, size = dict[str, bytes](), 0
    for path in sorted({*results.rglob("*"), *(results / TRIALS).rglob("*")}):  # trials may lie on another disk
        if path.is_dir() and not path.is_symlink():
            continue
        inside = path.relative_to(results)
        content = _content(path) if _may_be_carried(inside) else None
        if content is None or _follows(results, inside, content):
            kind = _kind(results, inside)
            packed.left_out[kind] += 1
            packed.left_out_bytes[kind] += path.lstat().st_size
            continue
        if (size := size + max(BLOCK, len(content))) > MOST_BYTES:
            raise PackError(f"{results} has more records and maps than the {MOST_BYTES:,} bytes of a packed study")
        carried[inside.as_posix()] = content
        if path.suffix in TEXTS:
            packed.names.find(path.name, content)
    return carried


def _may_be_carried(inside: Path) -> bool:
    """True where a file of a results folder is of a kind that a packed study has."""
    if len(inside.parts) == 1:
        return inside.name in (manifest.FILE, STUDY)
    within = "/".join(inside.parts[2:])
    return inside.parts[0] == TRIALS and _is_name(inside.parts[1]) and within in (RECORD, *BESIDE)


def _follows(results: Path, inside: Path, content: bytes) -> bool:
    """True where a file can be left out: its trial's record says the same, or its trial is not finished."""
    if inside.parts[0] != TRIALS or inside.name == RECORD:
        return False
    if (raw := _content(results / TRIALS / inside.parts[1] / RECORD)) is None:
        return True
    if inside.name not in (ASKED, COMMAND):
        return False
    record = _value(raw)
    if not isinstance(record, dict) or not isinstance(record.get("trial"), dict):
        return False
    if inside.name == COMMAND:
        return content == f"{record.get('command', '')}\n".encode()
    return content == store.encoded({**record["trial"], "window": record.get("window")})


def _kind(results: Path, inside: Path) -> str:
    """`trials/*/log.txt`, `trials/*/checkpoints/`, `tables/`, `results.csv`: how a file that stays behind is listed."""
    parts = inside.parts
    if parts[0] == TRIALS and len(parts) > 2:
        if _content(results / TRIALS / parts[1] / RECORD) is None:
            return f"{TRIALS} that are not finished"
        return "/".join([TRIALS, "*", parts[2]]) + "/" * (len(parts) > 3)
    return parts[0] + "/" * (len(parts) > 1)


def _content(path: Path) -> bytes | None:
    """None where there is no such file, or a link or another thing. Raises PackError for one that cannot be read."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return store.contents(path)
    except UnreadableRecord as error:
        raise PackError(str(error)) from error


def _value(raw: bytes) -> Any:
    """The value of a JSON file whose exact bytes follow from it; None for any other."""
    try:
        value = json.loads(raw)
        return value if store.encoded(value) == raw else None
    except (ValueError, RecursionError):
        return None


def _line(trial: str, raw: bytes, names: CarriedNames | None) -> bytes:
    value = _value(raw)
    if not isinstance(value, dict) or value.get("id") != trial or RECORD in value:
        raw = names.in_file(RECORD, raw) if names else raw
        value = {"folder": trial, RECORD: raw.decode("utf-8", "surrogateescape")}
    elif names:
        value = names.replaced(value)
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@contextlib.contextmanager
def _not_held(results: Path) -> Iterator[None]:
    """While a folder is read no sweep can begin to write there. Raises PackError, naming the holder, if one does."""
    try:
        driver = (results / ".driver").open(encoding="utf-8")
    except FileNotFoundError:
        yield
        return
    with driver:
        try:
            fcntl.flock(driver, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackError(f"{results} is in use by a sweep ({driver.read().strip()}): pack it afterwards") from error
        yield


def unpack(file: Path, folder: Path | None = None) -> Path:
    """Make a results folder of a packed study; returns it. Raises PackError, OSError; then nothing is left there.

    Other files may be in the folder (a report), but none that would be replaced. What is refused: entries that are
    absolute, contain `..`, are links, are none of a packed study's, or expand beyond MOST_BYTES.
    """
    folder = folder or folder_of(file)
    for name in (manifest.FILE, STUDY, TRIALS):
        if os.path.lexists(folder / name):
            raise PackError(f"{folder / name} exists: unpack {file.name} into another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        _extract(file, Path(beside), exact=True)
        folder.mkdir(exist_ok=True)
        for path in sorted(Path(beside).iterdir(), reverse=True):  # study.json, which makes it a results folder, last
            path.rename(folder / path.name)
    return folder


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """A temporary folder with the results of a packed study, to be read only. Raises PackError, OSError."""
    with tempfile.TemporaryDirectory(prefix="scaling-study-") as beside:
        folder = Path(beside) / folder_of(file).name
        folder.mkdir()
        _extract(file, folder, exact=False)
        yield folder


def _extract(file: Path, folder: Path, exact: bool) -> None:
    """`exact`: records as the bytes that they were, not only with the same values."""
    left = MOST_BYTES
    (folder / TRIALS).mkdir()
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _checked(archive)
            for name, entry in entries.items():
                if name == RECORDS:
                    continue
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(archive.read(entry))  # never more than the size that was checked
                left -= max(BLOCK, entry.file_size)
            with archive.open(entries[RECORDS]) as lines:
                for line in lines:
                    trial, content = _record(line, exact, left)
                    if (left := left - max(BLOCK, len(content))) < 0:
                        raise ValueError(f"it expands to more than {MOST_BYTES:,} bytes")
                    (folder / TRIALS / trial).mkdir(exist_ok=True)
                    with (folder / TRIALS / trial / RECORD).open("xb") as record:
                        record.write(content)
    except FileExistsError as error:
        raise PackError(f"{file} cannot be unpacked: it has two records of one trial") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError) as error:
        raise PackError(f"{file} cannot be unpacked: {error}") from error


def _checked(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The entries by name. Raises ValueError, naming the first that must not be unpacked."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        path, name = PurePosixPath(entry.filename), repr(entry.filename[:200])
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if path.is_absolute():
            raise ValueError(f"entry {name} is absolute")
        if ".." in path.parts:
            raise ValueError(f"entry {name} contains '..'")
        if kind not in (0, stat.S_IFREG):
            raise ValueError(f"entry {name} is no file, but a link or another thing")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"entry {name} is encrypted, or compressed by other means than deflate")
        if entry.filename != RECORDS and (path.name == RECORD or not _may_be_carried(Path(entry.filename))):
            raise ValueError(f"entry {name} is none of a packed study")
        if entry.filename in entries or path.as_posix() != entry.filename:
            raise ValueError(f"entry {name} is there twice, or under another name")
        entries[entry.filename] = entry
    if missing := [name for name in (manifest.FILE, RECORDS) if name not in entries]:
        raise ValueError(f"it is no packed study: it has no {missing[0]}")
    if sum(max(BLOCK, entry.file_size) for entry in entries.values()) > MOST_BYTES:
        raise ValueError(f"it expands to more than {MOST_BYTES:,} bytes")
    return entries


def _record(line: bytes, exact: bool, most: int) -> tuple[str, bytes]:
    """(folder of a trial, its record.json) from a line of records.jsonl. Raises ValueError."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"{RECORDS} has a line that is no record")
    raw = value.get(RECORD)
    trial = value.get("id" if raw is None else "folder")
    if not _is_name(trial) or not isinstance(raw, str | None):
        raise ValueError(f"{RECORDS} has a line of no trial")
    if raw is not None:
        return trial, raw.encode("utf-8", "surrogateescape")
    if not exact:
        return trial, line
    parts, size = list[str](), 0  # indentation can make much of little
    for part in json.JSONEncoder(indent=1, allow_nan=False).iterencode(value):
        parts.append(part)
        if (size := size + len(part)) > most:
            raise ValueError(f"it expands to more than {MOST_BYTES:,} bytes")
    return trial, "".join(parts).encode()


def _is_name(trial: Any) -> TypeGuard[str]:
    """True where a text can be the name of a trial's folder, and of nothing else."""
    if not isinstance(trial, str) or trial in ("", ".", "..") or len(trial.encode("utf-8", "replace")) > 250:
        return False
    return trial.isprintable() and not {"/", "\\"} & set(trial)
