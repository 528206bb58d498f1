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
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

MOST_BYTES = 1 << 30  # of one file: a hundred ranks of 100,000 steps are a fifth of it
MOST = 2**63  # whole numbers beyond fit no column of a table
NO_NUMBERS = (str, bool, type(None))
BOUNDED = (*NO_NUMBERS, float, float | None, list[str], dict[str, str], list[float], list[list[float]])
Check = Callable[[Any], bool]
Made = TypeVar("Made")
PLAIN: Mapping[Any, set[type]] = {bool: {bool}, int: {int}, float: {int, float}, str: {str}}  # True is not 1


class UnreadableRecord(Exception):
    """A file that is not whole, or not ours. The message names it."""


class MissingRecord(UnreadableRecord):
    """A file that is not there."""


def load(path: Path) -> Any:
    """A JSON file. Raises UnreadableRecord, naming it."""
    text = contents(path)
    try:
        return _value(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error


def contents(path: Path) -> bytes:
    """Of a file. Raises UnreadableRecord, naming it. A link is not followed: it may lead to another trial."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise ValueError("it is no file")
            if about.st_size > MOST_BYTES:
                raise ValueError(f"{about.st_size:,} bytes")
            parts = [os.read(handle, about.st_size + 1)]
            while len(parts[-1]) > about.st_size:  # it grows meanwhile; less than was asked for is the end of a file
                parts.append(os.read(handle, about.st_size + 1))
            return b"".join(parts)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise MissingRecord(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        why = "it is a link" if path.is_symlink() else str(error)
        raise UnreadableRecord(f"{path} cannot be read: {why}") from error


def plainly(text: bytes, cls: type[Made]) -> Made | None:
    """`text` as a dataclass whose every field is of its type, checked by pydantic as it parses: a tenth of a second
    for a thousand records. None where anything is doubtful: what is then wrong, load() and misfit() say."""
    hashable: Any = cls
    try:
        value: Made = _adapter(hashable).validate_json(text)
    except ValueError:
        return None
    return value if _plain_numbers([value]) else None


@functools.cache
def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter  # here: scripts write records and read none

    return TypeAdapter(cls)


def _value(text: bytes) -> Any:
    """JSON -> its value. Numbers that no column could hold are for Python's own parser to turn down, and so is all
    that the fast one does not take: it knows what is wrong, or accepts it."""
    from pydantic_core import from_json

    try:
        value = from_json(text, allow_inf_nan=False)
        if _plain_numbers([value]):
            return value
    except ValueError:
        pass
    return json.loads(text.decode("utf-8"), parse_constant=_no_number, parse_float=_finite, parse_int=_whole)


def _plain_numbers(values: list[Any]) -> bool:
    """Whether every number in them is surely within bounds, as an infinite one is not."""
    left: list[Any] = [values]
    while left:
        many = left.pop()
        if type(many) is list:
            try:  # a thousand step times at once
                if max(many) < MOST and min(many) > -MOST:
                    continue
                return False
            except TypeError:  # they are not all numbers
                pass
        for value in many.values() if type(many) is dict else many:
            kind: Any = type(value)
            if kind is int or kind is float:
                if not -MOST < value < MOST:
                    return False
            elif kind is list or kind is dict:
                if value:
                    left.append(value)
            elif kind not in NO_NUMBERS:
                held = vars(value)
                left.append([held[name] for name in _unbounded(kind)])
    return True


@functools.cache
def _unbounded(cls: type) -> list[str]:
    """The fields of a dataclass whose type does not say that their numbers are finite floats."""
    hints = get_type_hints(cls)
    return [field.name for field in fields(cls) if hints[field.name] not in BOUNDED]


def misfit(value: Any) -> str:
    """The first field of a dataclass whose value is not of its declared type, in words; empty if all are."""
    values = vars(value)
    for name, kind, fits in _checks(type(value)):  # type: ignore[arg-type]
        if not fits(values[name]):
            return f"{name} is no {kind.__name__ if isinstance(kind, type) else kind}"
    return ""


@functools.cache
def _checks(cls: type) -> list[tuple[str, Any, Check]]:
    """Of each field of a dataclass: its name, its type, and whether a value from JSON is of that type."""
    hints = get_type_hints(cls)
    return [(field.name, hints[field.name], _check(hints[field.name])) for field in fields(cls)]


def _check(kind: Any) -> Check:
    """Of dataclasses it is taken that they were checked when made."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if types := _plain(kind):
        return lambda value: type(value) in types
    if origin in (Union, UnionType):
        parts = list(map(_check, inner))
        return lambda value: any(fits(value) for fits in parts)
    if origin is list:
        if types := _plain(inner[0]):  # a hundred thousand step times are looked at in a millisecond
            return lambda value: type(value) is list and types.issuperset(map(type, value))
        fits_item = _check(inner[0])
        return lambda value: type(value) is list and all(map(fits_item, value))
    if origin is dict:
        fits_item = _check(inner[1])
        return lambda value: type(value) is dict and (inner[1] is Any or all(map(fits_item, value.values())))
    return lambda value: isinstance(value, kind)


def _plain(kind: Any) -> set[type]:
    """The types of JSON that are `kind`; none where a look at the value is needed."""
    if get_origin(kind) in (Union, UnionType):
        parts = list(map(_plain, get_args(kind)))
        return set().union(*parts) if all(parts) else set()
    return {kind} if kind is type(None) else PLAIN.get(kind, set()) if isinstance(kind, type) else set()


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
