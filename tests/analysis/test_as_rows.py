"""Frames taken apart: what pandas' own way gives, types and unknowns included."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.frames.rows import as_rows

MIXED = pd.DataFrame(
    {
        "anything": pd.Series([1, None, np.float64(2.5), pd.NA, np.int64(3), "x", (1, 2)], dtype=object),
        "whole": pd.Series([1, None, 3, 2**62, -1, 0, pd.NA], dtype="Int64"),
        "yes": pd.Series([True, None, False, True, None, False, True], dtype="boolean"),
        "text": pd.Series(["a", None, "", "b", pd.NA, "<script>", "ü"], dtype="string"),
        "number": [0.1, np.nan, 1e300, -0.0, np.inf, 2.0, 3.0],
        "place": range(7),
    }
)


@pytest.mark.parametrize("frame", [MIXED, MIXED.iloc[:0], MIXED.iloc[[5, 1]]], ids=["all", "none", "some"])
def test_rows_are_those_of_pandas(frame: pd.DataFrame) -> None:
    ours, theirs = as_rows(frame), frame.to_dict("records")
    assert repr(ours) == repr(theirs)  # NaN is not itself
    for mine, its in zip(ours, theirs, strict=True):
        assert {name: type(value) for name, value in mine.items()} == {n: type(v) for n, v in its.items()}
