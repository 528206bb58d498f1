"""A frame put together from rows, and taken apart into rows, by columns.

pandas' own ways cost more than most of what is asked of a study: `astype` makes a frame of each column, `to_dict` goes
cell by cell where a column may hold unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np
import pandas as pd

# A row of configurations.csv, results.csv or a table made of them, by the columns that columns.py declares. What is
# unknown is None in a row of as_rows, but NaN in a column of floats.
ConfigurationRow = dict[str, Any]
T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def as_rows(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of `frame`, as `frame.to_dict("records")`, with Python's own numbers and None for pandas' NA."""
    columns = [_values(column) for _, column in frame.items()]
    names = list(frame.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def grouped(rows: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Rows by what `key` makes of them, in their order."""
    groups: dict[Key, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def typed(rows: Iterable[Any], kinds: Mapping[str, Any]) -> pd.DataFrame:
    """Rows as a frame of the columns of `kinds`, of which each says its type; None: the one that pandas infers.

    `rows`: mappings, where what is missing is unknown, or tuples in the columns' order. Raises ValueError or TypeError
    for a value that is none of its column's type.
    """
    every = list(rows)
    if every and not isinstance(every[0], Mapping):
        columns: Iterable[Iterable[Any]] = zip(*every, strict=True)
    else:
        columns = ([row.get(name) for row in every] for name in kinds)
    made = {name: _column(values, kinds[name]) for name, values in zip(kinds, columns, strict=True)}
    return pd.DataFrame(made, index=range(len(every)), copy=False)


WHO: dict[str, Any] = {"configuration": None, "repeat": "int64"}  # how frames of details begin


def numbers(*names: str) -> dict[str, str]:
    """Columns of fp64; NaN: unknown."""
    return dict.fromkeys(names, "float64")


def whole(*names: str) -> dict[str, str]:
    """Columns of integers, all known."""
    return dict.fromkeys(names, "int64")


def _column(values: Iterable[Any], kind: Any) -> Any:  # an array, or a series
    cells, dtype = np.fromiter(values, dtype=object), _dtype(kind or object)
    if not isinstance(dtype, np.dtype):
        return pd.array(cells, dtype=dtype)
    if dtype.kind != "O":
        return cells.astype(dtype)
    # Of an array of objects a frame would infer the type.
    return pd.Series(cells.tolist(), dtype=None if kind is None and len(cells) else object)


@cache
def _dtype(kind: Any) -> Any:
    return pd.api.types.pandas_dtype(kind)


def bounded(name: str, value: Any, low: Any, high: Any) -> dict[str, Any]:
    """The columns of a value and its interval: `name`, `name_low` and `name_high`."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def by_configuration(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Configuration -> its rows, in the order in which they come."""
    return {str(name): rows for name, rows in frame.groupby("configuration", sort=False)}


def distinct(column: pd.Series[Any]) -> set[Any]:
    """The values of a column, all unknown ones as None."""
    return {None if value != value else value for value in _values(column)}


def _values(column: pd.Series[Any]) -> list[Any]:
    if pd.api.types.is_extension_array_dtype(column.dtype):
        return [None if cell is pd.NA else cell for cell in column.to_numpy(object).tolist()]
    values = column.tolist()
    if column.dtype == object:  # it keeps what it was given, which may be a number of numpy's
        return [
            None if value is pd.NA else value.item() if isinstance(value, np.generic) else value for value in values
        ]
    return values
