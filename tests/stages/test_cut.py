"""Where a chain is cut: every layer once, in order, and no better cut exists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.stages.stage import balanced, even, shared_out, stages_of

COSTS = st.lists(st.floats(0.01, 10), min_size=1, max_size=8)


def worst(costs, sizes):
    edges = [0, *itertools.accumulate(sizes)]
    return max(sum(costs[a:b]) for a, b in itertools.pairwise(edges))


@given(COSTS, st.integers(1, 8))
def test_a_balanced_cut_is_as_good_as_any(costs, stages):
    if stages > len(costs):
        with pytest.raises(ValueError, match="cannot be cut into"):
            balanced(costs, stages)
        return
    sizes = balanced(costs, stages)
    assert len(sizes) == stages and sum(sizes) == len(costs) and min(sizes) > 0
    every = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(worst(costs, [b - a for a, b in itertools.pairwise((0, *inner, len(costs)))]) for inner in every)
    assert worst(costs, sizes) == pytest.approx(best)


@given(st.integers(1, 40), st.integers(1, 40))
def test_an_even_cut_differs_by_one_layer_at_most(layers, stages):
    if stages > layers:
        with pytest.raises(ValueError, match=f"{layers} layers cannot be cut into {stages} stages"):
            even(layers, stages)
        return
    sizes = even(layers, stages)
    assert sum(sizes) == layers and len(sizes) == stages and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(COSTS)
def test_stages_that_run_in_the_same_round_are_alike(costs):
    if len(costs) < 4:
        with pytest.raises(ValueError, match="cannot be cut into"):
            shared_out(costs, 2, 2)
        return
    sizes = shared_out(costs, 2, 2)
    assert len(sizes) == 4 and sum(sizes) == len(costs) and min(sizes) > 0
    assert rounds(costs, sizes) <= rounds(costs, balanced(costs, 4)) + 1e-9


def rounds(costs, sizes):
    edges = [0, *itertools.accumulate(sizes)]
    a, b, c, d = (sum(costs[start:end]) for start, end in itertools.pairwise(edges))
    return max(a, b) + max(c, d)


def test_who_holds_which_stages():
    assert [stages_of(worker, 2, 1, "1f1b") for worker in range(2)] == [(0,), (1,)]
    assert [stages_of(worker, 2, 2, "interleaved_1f1b") for worker in range(2)] == [(0, 2), (1, 3)]
    assert [stages_of(worker, 4, 2, "zbv_zero_bubble") for worker in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
