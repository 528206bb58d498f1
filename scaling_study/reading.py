"""Reading JSON that may be broken: half-written, changed by hand, or another file's.

What comes back is a value of the right shape, or UnreadableRecord with the file's name; never a traceback, never a
NaN, never a number that no column could hold.
"""

from __future__ import annotations

import functools
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

MOST_BYTES = 1 << 30  # of one file: a hundred ranks of 100,000 steps are a fifth of it
MOST = 2**63  # whole numbers beyond fit no column of a table
PLAIN: Mapping[Any, set[type]] = {bool: {bool}, int: {int}, float: {int, float}, str: {str}}  # True is not 1


class UnreadableRecord(Exception):
    """A file that is not whole, or not ours. The message names it."""


class MissingRecord(UnreadableRecord):
    """A file that is not there."""


def load(path: Path) -> Any:
    """A JSON file. Raises UnreadableRecord, naming it. A link is not followed: it may lead to another trial."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
                raise ValueError("it is no file" if about.st_size <= MOST_BYTES else f"{about.st_size:,} bytes")
            text = stream.read(MOST_BYTES).decode("utf-8")
        return json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except FileNotFoundError as error:
        raise MissingRecord(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        why = "it is a link" if path.is_symlink() else str(error)
        raise UnreadableRecord(f"{path} cannot be read: {why}") from error


def misfit(made: Any) -> str:
    """The first field of a dataclass whose value is not of its declared type, in words; empty if all are."""
    for name, kind in _kinds(type(made)).items():  # type: ignore[arg-type]
        if not _fits(getattr(made, name), kind):
            return f"{name} is no {kind.__name__ if isinstance(kind, type) else kind}"
    return ""


@functools.cache
def _kinds(cls: type) -> dict[str, Any]:
    """Field -> type of a dataclass."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON is of this type. Of dataclasses it is taken that they were checked when made."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return type(value) in PLAIN[kind]
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin in (list, dict):
        if not isinstance(value, origin):
            return False
        items, of = (value, inner[0]) if origin is list else (value.values(), inner[1])
        if of in PLAIN:  # a hundred thousand step times are looked at in a millisecond
            return set(map(type, items)) <= PLAIN[of]
        return all(_fits(item, of) for item in items)
    return kind is Any or isinstance(value, kind)


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
