"""A frame taken apart into rows, by columns: pandas' own way does it cell by cell where a column may hold unknowns."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np
import pandas as pd

Row = TypeVar("Row")


@overload
def as_rows(frame: pd.DataFrame) -> list[dict[Any, Any]]: ...
@overload
def as_rows(frame: pd.DataFrame, kind: type[Row]) -> list[Row]: ...
def as_rows(frame: pd.DataFrame, kind: Any = None) -> Any:
    """What `frame.to_dict("records")` gives: Python's own numbers, and None for pandas' NA.

    `kind`: the TypedDict of a row, whose columns the frame has.
    """
    columns = [_values(frame.iloc[:, place]) for place in range(frame.shape[1])]
    names = list(frame.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pd.Series[Any]) -> list[Any]:
    if pd.api.types.is_extension_array_dtype(column.dtype):
        return [None if cell is pd.NA else cell for cell in column.to_numpy(object).tolist()]
    values = column.tolist()
    if column.dtype == object:  # it keeps what it was given, which may be a number of numpy's
        return [
            None if value is pd.NA else value.item() if isinstance(value, np.generic) else value for value in values
        ]
    return values
