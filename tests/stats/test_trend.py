"""The trend of steps within a run: literal cases."""

from __future__ import annotations

import pytest

from scaling_study.stats.intervals import step_trend


@pytest.mark.parametrize(
    ("step_seconds", "trend"),
    [
        ([1.0] * 6, 0.0),
        ([2.0, 2.0, 1.5, 1.5, 1.0, 1.0], -0.5),
        ([1.0, 1.0, 1.0, 9.0, 9.0, 1.1, 1.1, 1.1], 0.1),  # eight: two and two, the middle is passed over
        ([9.0, 1.0, 1.0, *[1.0] * 5, 1.0], 0.0),  # one slow step is no trend
        ([3.0, 2.0, 1.0, 1.0, 1.0], None),
        ([], None),
        ([0.0] * 6, None),
    ],
)
def test_step_trend(step_seconds: list[float], trend: float | None) -> None:
    assert step_trend(step_seconds) == (None if trend is None else pytest.approx(trend))
