"""The rule that ends the timed window: literal cases, and properties over any steps a machine could take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.measure.clock import next_block
from scaling_study.trial import Trial, Window

WINDOW = Window(min_steps=10, min_seconds=2.0, max_seconds=30.0)
IN_ROUNDS = Window(min_steps=1, min_seconds=0.0, rounds=8, block_seconds=0.5)


@pytest.mark.parametrize(
    ("steps", "seconds", "window", "block"),
    [
        (0, 0.0, WINDOW, 10),  # the first block is min_steps
        (0, 0.0, replace(WINDOW, max_steps=4), 4),  # but never past max_steps
        (10, 2.5, WINDOW, 0),  # both minima reached
        (10, 1.6, WINDOW, 3),  # 0.4 s missing at 0.16 s a step, rounded up
        (10, 0.01, WINDOW, 10),  # far off: the total at most doubles
        (10, 1.6, replace(WINDOW, max_steps=11), 1),
        (10, 1.6, replace(WINDOW, max_steps=10), 0),
        (4, 2.5, WINDOW, 4),  # below min_steps although min_seconds is reached
        (3, 29.0, WINDOW, 1),  # 1 s left, a step takes 9.7 s: one step's estimate past the end, no more
        (3, 31.0, WINDOW, 0),  # max_seconds ends it even below min_steps
        (10, 0.0, WINDOW, 10),  # a clock that saw nothing
        (20, 5.0, Window(min_steps=20, max_steps=20, min_seconds=0, max_seconds=math.inf), 0),  # --steps 20
        (10, 5.0, replace(WINDOW, min_seconds=math.inf), 10),
    ],
)
def test_literal_cases(steps: int, seconds: float, window: Window, block: int) -> None:
    assert next_block(steps, seconds, window) == block


def test_the_warm_up_holds_the_first_block_to_max_seconds() -> None:
    assert next_block(0, 0.0, WINDOW, expected_step_seconds=12.0) == 3
    assert next_block(0, 0.0, WINDOW, expected_step_seconds=0.1) == 10
    assert next_block(0, 0.0, WINDOW, expected_step_seconds=500.0) == 1


@pytest.mark.parametrize(
    ("asked", "fastest", "steps"),
    [
        (1, 0.1, 4),  # the first, and three
        (3, 2.0, 4),
        (1, 2.1, 2),  # long steps: one after the first
        (3, 60.0, 3),  # asked for
        (9, 0.1, 9),
        (0, 0.1, 0),  # none, and the report says so
    ],
)
def test_steps_of_warm_up(asked: int, fastest: float, steps: int) -> None:
    assert Window(warmup_steps=asked).warmup(fastest) == steps


@pytest.mark.parametrize(("block_seconds", "longest"), [(None, 2.0), (0.5, 0.5), (2.0, 2.0), (30.0, 2.0)])
def test_a_long_step_is_longer_than_a_block_or_two_seconds(block_seconds: float | None, longest: float) -> None:
    window = Window(block_seconds=block_seconds)
    assert [window.is_long(seconds) for seconds in (longest, longest * 1.01, math.inf)] == [False, True, False]


@pytest.mark.parametrize(("step_seconds", "steps"), [(math.inf, 1), (0.5, 1), (0.3, 2), (4.0, 1), (1e-4, 5000)])
def test_steps_in_a_block(step_seconds: float, steps: int) -> None:
    assert IN_ROUNDS.steps_in_block(step_seconds) == steps


@pytest.mark.parametrize(
    ("changes", "step_seconds", "steps"),
    [({"min_steps": 20}, 1.0, 3), ({"min_seconds": 16.0}, 0.1, 20), ({"min_seconds": 4.0}, 0.35, 2)],
)
def test_all_rounds_together_reach_the_minima(changes: dict[str, float], step_seconds: float, steps: int) -> None:
    assert replace(IN_ROUNDS, **changes).steps_in_block(step_seconds) == steps


windows = st.builds(
    Window,
    min_steps=st.integers(1, 300),
    min_seconds=st.floats(0, 100),
    max_seconds=st.floats(0.01, 200),
    max_steps=st.none() | st.integers(1, 500),
)


@given(windows, st.floats(1e-4, 50.0), st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40))
def test_every_run_ends_where_the_window_says(window: Window, base: float, wobble: list[float]) -> None:
    steps, seconds, asked = 0, 0.0, 0
    while block := next_block(steps, seconds, window):
        asked += 1
        if steps == 0:
            assert block == min(window.min_steps, window.max_steps or math.inf)
        else:
            assert block <= steps, "the total at most doubles"
            step_seconds = seconds / steps
            assert (block - 1) * step_seconds <= (window.max_seconds - seconds) * (1 + 1e-9)
        seconds += sum(base * wobble[(steps + i) % len(wobble)] for i in range(block))
        steps += block
        assert window.max_steps is None or steps <= window.max_steps
        assert asked < 1000, "it must end"
    reached_minima = steps >= window.min_steps and seconds >= window.min_seconds
    assert reached_minima or steps == window.max_steps or seconds >= window.max_seconds


@pytest.mark.parametrize(
    ("every", "step_seconds", "steps"), [(8, 0.5, 8), (8, 0.05, 16), (64, 0.01, 64), (1, 0.05, 10)]
)
def test_a_block_has_whole_periods_of_what_happens_every_so_many_steps(
    every: int, step_seconds: float, steps: int
) -> None:
    assert Trial(framework="diloco", sync_every=every, window=IN_ROUNDS).steps_in_block(step_seconds) == steps
