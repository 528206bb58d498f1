"""Bisection to the largest batch that fits, for every limit there could be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.launch import decisions


@given(limit=st.integers(0, 200_000), start=st.integers(1, 4096))
def test_it_finds_the_limit_to_its_resolution_and_asks_nothing_twice(limit: int, start: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    found = decisions.largest_batch(fits, start)
    assert len(asked) == len(set(asked)) and len(asked) < 40
    if limit == 0:
        assert found is None
    else:
        assert found is not None and found <= limit
        assert limit - found <= max(1, found // decisions.RESOLUTION)


@pytest.mark.parametrize(("limit", "found"), [(1, 1), (2, 2), (31, 31), (32, 32)])
def test_small_limits_are_found_exactly(limit: int, found: int) -> None:
    assert decisions.largest_batch(lambda size: size <= limit, 32) == found


def test_what_always_fits_ends_somewhere() -> None:
    assert decisions.largest_batch(lambda size: True, 32) == decisions.MOST
