"""Frames taken apart and put together: what pandas' own ways give, types and unknowns included."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.frames.rows import as_rows, distinct, typed

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


KINDS = {
    "anything": object, "whole": "Int64", "yes": "boolean", "text": "string", "number": "float64", "place": "int64",
    "absent": "float64",
}  # fmt: skip


@pytest.mark.parametrize("frame", [MIXED, MIXED.iloc[:0], MIXED.iloc[[5, 1]]], ids=["all", "none", "some"])
def test_a_frame_is_that_of_pandas(frame: pd.DataFrame) -> None:
    rows = as_rows(frame)
    theirs = pd.DataFrame(rows, columns=list(KINDS), dtype=object).astype(KINDS)
    pd.testing.assert_frame_equal(typed(rows, KINDS), theirs, check_exact=True)
    known = dict(list(KINDS.items())[:-1])
    of_tuples = typed([tuple(row.values()) for row in rows], known)
    pd.testing.assert_frame_equal(of_tuples, theirs.drop(columns="absent"), check_exact=True)


@pytest.mark.parametrize("texts", [("a", "b"), ("a", None), ()])
def test_without_a_type_it_is_the_one_that_pandas_infers(texts: tuple[str | None, ...]) -> None:
    theirs = pd.DataFrame([(text, 1) for text in texts], columns=["name", "n"]).astype({"n": "int64"})
    pd.testing.assert_frame_equal(typed([(text, 1) for text in texts], {"name": None, "n": "int64"}), theirs)


@pytest.mark.parametrize(
    ("kind", "value"), [("int64", "x"), ("int64", None), ("Int64", 1.5), ("float64", "x"), ("boolean", 3)]
)
def test_what_is_not_of_its_type_is_refused(kind: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        typed([{"a": value}], {"a": kind})


def test_tuples_of_unlike_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        typed([(1, 2), (3,)], {"a": "int64", "b": "int64"})


def test_unknown_values_are_one() -> None:
    assert distinct(MIXED.number) == {0.1, None, 1e300, 0.0, np.inf, 2.0, 3.0}
    assert distinct(pd.Series([np.nan, np.nan])) == distinct(pd.Series([None, pd.NA], dtype="Int64")) == {None}
    assert distinct(MIXED.text) == {"a", None, "", "b", "<script>", "ü"}
