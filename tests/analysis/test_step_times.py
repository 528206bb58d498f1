"""Order statistics of timed steps, and the figure of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawings import Figures, drawn_by, shown, untidy
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, plant, rank_report, record

from analysis.frames import details, results
from analysis.views import noise
from scaling_study.records.schema import Record


def a_record(*steps: list[float]) -> Record:
    one = Planted("horovod", workers=2, allreduce="fp32")
    made = record(one, one.trial(), 100.0, "s", np.random.default_rng(0))
    return replace(made, ranks=[rank_report(one.trial(), rank, mine) for rank, mine in enumerate(steps)])


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300))
def test_each_is_a_step_that_there_was_in_order(steps: list[float]) -> None:
    (row,) = details.step_rows(a_record(steps, [1e-9]))
    quantiles = list(row[3:])
    assert quantiles == sorted(quantiles) and set(quantiles) <= set(steps) and row[2] == len(steps)
    assert (quantiles[0], quantiles[-1]) == (min(steps), max(steps))


def test_the_slowest_rank_counts_and_none_without_steps() -> None:
    (row,) = details.step_rows(a_record([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]))
    assert set(row[3:]) == {2.0}
    assert details.step_rows(a_record()) == []
    assert list(details.gathered().steps) == list(details.STEPS)


def test_the_figure_is_against_the_median_and_steps_beyond_its_axis_are_marks_at_the_edge(tmp_path: Path) -> None:
    steady = Planted("single", speed=100.0, noise=0.0, steps=100)
    read = results.read(plant(tmp_path, [steady, replace(steady, framework="horovod", speed=50.0)]))
    one = noise.spread(read, next(row for row in read.rows if row["framework"] == "single"))
    assert one is not None and one.median_seconds == pytest.approx(0.32, rel=0.02)
    assert 0.02 < one.slow < 0.12 and len(one.repeats) == 3
    made = Figures(read)["distributions-resnet18"]
    assert not untidy(made) and "1 in 100" in shown(made)
    wild = read.details.steps.assign(most_seconds=1e3, p99_seconds=1e2)
    far = replace(read, details=replace(read.details, steps=wild))
    made = drawn_by(noise.draw_distributions, far, "resnet18")
    (axis,) = made.axes
    assert axis.get_xlim()[1] <= 1.0
    assert any(line.get_marker() == ">" and len(line.get_xdata()) for line in axis.lines)
    assert not untidy(made)
