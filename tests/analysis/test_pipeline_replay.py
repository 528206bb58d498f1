"""Replays against pipelines worked out by hand, and against a simulation that shares no code with them."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_pipelines import B, F, I, Order, W, events, gpipe, looped, one_f_one_b, simulated, split

from analysis.statistics import bubble


def times(order: Order) -> dict[tuple[int, str, int], tuple[float, float]]:
    return {
        (r.worker, r.event.kind, r.event.micro_batch): (r.start, r.end) for r in bubble.run(events(order), bubble.equal)
    }


def test_gpipe_of_two_stages_and_two_micro_batches_by_hand() -> None:
    #  worker 0   F0 F1 .  .  .  B0 B0 B1 B1      0 1 2 3 4 5 6 7 8 9
    #  worker 1   .  F0 F1 B0 B0 B1 B1 .  .
    ran = times(gpipe(2, 2))
    assert ran[0, F, 0] == (0, 1) and ran[0, F, 1] == (1, 2)
    assert ran[1, F, 0] == (1, 2) and ran[1, F, 1] == (2, 3)
    assert ran[1, B, 0] == (3, 5) and ran[1, B, 1] == (5, 7)
    assert ran[0, B, 0] == (5, 7) and ran[0, B, 1] == (7, 9)
    assert bubble.replay_bubble(events(gpipe(2, 2)), bubble.equal) == pytest.approx(1 - 12 / 18)


def test_1f1b_of_two_stages_and_three_micro_batches_by_hand() -> None:
    #  worker 0   F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2     12 units, of which 9 busy
    #  worker 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
    ran = times(one_f_one_b(2, 3))
    assert ran[0, F, 1] == (1, 2) and ran[0, B, 0] == (4, 6) and ran[0, F, 2] == (6, 7)
    assert ran[1, B, 0] == (2, 4) and ran[1, F, 1] == (4, 5) and ran[1, B, 2] == (8, 10)
    assert ran[0, B, 2] == (10, 12)
    assert bubble.replay_bubble(events(one_f_one_b(2, 3)), bubble.equal) == pytest.approx(1 / 4)


def test_halves_of_a_backward_by_hand() -> None:
    #  worker 0   F0 .  .  I0 W0      worker 1   .  F0 I0 W0 .
    ran = times(split(gpipe(2, 1)))
    assert ran[1, I, 0] == (2, 3) and ran[0, I, 0] == (3, 4), "the weights' half is not waited for"
    assert ran[1, W, 0] == (3, 4) and ran[0, W, 0] == (4, 5)


@given(st.sampled_from([gpipe, one_f_one_b, looped]), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.data())
def test_it_is_what_a_simulation_says(rule: object, p: int, m: int, halves: bool, data: st.DataObject) -> None:
    order = rule(p, m)  # type: ignore[operator]
    order = split(order) if halves else order
    seconds = {
        key: data.draw(st.floats(0.1, 3.0)) for key in sorted({(k, s) for ours in order.values() for k, s, _ in ours})
    }
    ours = bubble.run(events(order), lambda kind, stage: seconds[kind, stage])
    theirs = simulated(order, lambda kind, stage: seconds[kind, stage])
    for ran in ours:
        assert (ran.start, ran.end) == pytest.approx(theirs[ran.worker, tuple(ran.event)])


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({0: [(B, 0, 0), (F, 0, 0)]}, "backward 0 0: it stands before what it needs"),
        ({0: [(F, 0, 0), (B, 0, 0)], 1: [(F, 1, 0)]}, "backward 0 0: gradient 1 0 was never run"),
        ({0: [(F, 0, 0), (W, 0, 0)]}, "backward_weight 0 0: gradient 0 0 was never run"),
    ],
)
def test_an_order_that_waits_for_ever_is_said(order: Order, why: str) -> None:
    with pytest.raises(ValueError, match=f"worker 0 waits for ever with {why}"):
        bubble.run(events(order), bubble.equal)


def test_order_and_durations_come_from_what_was_measured() -> None:
    rows = [
        (0, 0, F, 0, 0, 0.0, 0.1), (0, 0, F, 0, 1, 0.1, 0.4), (0, 1, F, 1, 1, 0.6, 0.8), (0, 1, F, 1, 0, 0.3, 0.5),
    ]  # fmt: skip
    names = ["step", "worker", "kind", "stage", "micro_batch", "start_seconds", "end_seconds"]
    step = pd.DataFrame(rows, columns=names)
    assert bubble.order_of(step) == {0: [(F, 0, 0), (F, 0, 1)], 1: [(F, 1, 0), (F, 1, 1)]}
    seconds = bubble.measured(step)
    assert (seconds(F, 0), seconds(F, 1)) == pytest.approx((0.2, 0.2))
