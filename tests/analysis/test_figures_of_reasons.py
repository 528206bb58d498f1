"""The pictures of why and of what next: they show the planted numbers, legibly, on axes that mislead nobody."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from drawings import Figures, drawn_by, shown, untidy
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from planted import Planted, plant
from planted_reasons import PEAKS, STUDIES, plant_reasons

from analysis.frames import results
from analysis.frames.measured import samples_of_step
from analysis.frames.results import Results
from analysis.statistics.scaling_laws import LawComparison, comparisons
from analysis.views import attribution, cost
from analysis.views.attribution import attributions
from analysis.views.bottleneck import bottlenecks
from analysis.views.roofline import utilisations
from analysis.views.scaling import knees


@functools.cache
def planted(name: str) -> tuple[Results, Figures]:
    """One of STUDIES and its figures, drawn once for all tests."""
    with tempfile.TemporaryDirectory() as folder:
        read = results.read(plant_reasons(Path(folder), name))
    return read, Figures(read, "waterfall", "steps", "scaling-law", "roofline", "frontier", "pareto")


def bars(axis: Axes) -> list[Rectangle]:
    return [patch for container in axis.containers for patch in container.patches]


@pytest.mark.long
@pytest.mark.parametrize("name", STUDIES)
def test_every_figure_is_tidy(name: str) -> None:
    made = planted(name)[1]
    assert made
    for title, figure in made.items():
        assert not untidy(figure), title


# --- waterfall ---


def test_the_parts_lead_from_the_ideal_to_the_efficiency() -> None:
    read, made = planted("data parallel")
    every = {str(one.row["series"]): one for one in attributions(read) if one.row["batch"] == 64}
    panels = [axis for axis in made["waterfall-resnet18"].axes if axis.get_title(loc="left")]
    assert len(panels) == min(len(every), attribution.MOST_PANELS)
    for axis in panels:
        one = every[axis.get_title(loc="left").replace("\n", " ")]
        ends = 100.0
        for bar in bars(axis):
            assert bar.get_x() == pytest.approx(ends)
            ends += bar.get_width()
        assert ends == pytest.approx(100 * one.efficiency)
        low, high = axis.get_xlim()
        assert low <= min(100.0, ends) and max(100.0, ends) <= high
    table, words = attribution.listing(read), shown(made["waterfall-resnet18"])
    assert table
    drawn = {axis.get_title(loc="left").replace("\n", " ") for axis in panels}
    cells = [cell for row in table.rows if row[0] in drawn and row[1] == "64" for cell in row[4:] if cell]
    assert len(cells) > len(panels) and all(cell in words for cell in cells), "a loss has the table's sign"


@pytest.mark.parametrize("name", ["data parallel", "superlinear"])
def test_the_axis_has_a_tick_at_linear_speed_up_and_every_interval_whole(name: str) -> None:
    for axis in planted(name)[1]["waterfall-resnet18"].axes:
        low, high = axis.get_xlim()
        assert 100.0 in [pytest.approx(tick) for tick in axis.get_xticks()] and low < 100 < high
        assert all(low <= x <= high for line in axis.lines for x in line.get_xdata())
        assert axis.get_xlabel() == "% of linear speed-up"


# --- parts of a step ---


def test_the_parts_of_a_row_are_its_step_in_milliseconds() -> None:
    read, made = planted("data parallel")
    (axis,) = made["steps-resnet18"].axes
    ends: dict[float, float] = {}
    for bar in bars(axis):
        at = bar.get_y() + bar.get_height() / 2
        assert bar.get_x() == pytest.approx(ends.get(at, 0.0))
        ends[at] = bar.get_x() + bar.get_width()
    shown_rows = [one.row for one in bottlenecks(read) if one.shares and one.row["batch"] == 64]
    shown_rows.sort(key=lambda row: row["series_order"])
    expected = [1000 * samples_of_step(row) / row["samples_per_second"] for row in shown_rows]
    assert [ends[at] for at in sorted(ends)] == pytest.approx(expected)
    assert axis.get_xlim() == (0, pytest.approx(max(expected)))
    legend = axis.get_legend()
    assert legend is not None
    colours = {patch.get_facecolor() for patch in legend.get_patches()}
    assert colours == {bar.get_facecolor() for bar in bars(axis)}, "all that occurs, and nothing else"


# --- roofline ---


def test_points_stand_under_the_measured_roof() -> None:
    read, made = planted("data parallel")
    (axis,) = made["roofline"].axes
    (roof,) = [line for line in axis.lines if len(line.get_xdata()) > 1]
    x, y = (np.asarray(data, dtype=float) for data in roof.get_data())
    expected = np.minimum(PEAKS["peak_flops_per_second"], x * PEAKS["peak_bytes_per_second"])
    assert y == pytest.approx(expected)
    points = sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axis.lines
                    if len(line.get_xdata()) == 1)  # fmt: skip
    known = [(one.intensity, one.flops_per_second) for one in utilisations(read) if one.intensity]
    assert np.array(points) == pytest.approx(np.array(sorted(known)))


# --- cost against time ---


def test_where_a_second_costs_the_same_everywhere_the_cheapest_is_the_fastest(tmp_path: Path) -> None:
    pair = [Planted("single", speed=100.0), Planted("torch_ddp", speed=90.0)]
    assert drawn_by(cost.draw, results.read(plant(tmp_path / "one", pair))) is None
    two = [*pair, Planted("torch_ddp", workers=2, allreduce="fp32", speed=170.0)]
    assert drawn_by(cost.draw, results.read(plant(tmp_path / "two", two))) is not None


def test_the_front_is_the_line() -> None:
    read, made = planted("data parallel")
    (axis,) = made["pareto"].axes
    (line,) = [one for one in axis.lines if one.get_linestyle() != "None"]
    front = [one for one in cost.points(read, "resnet18") if one.place == cost.ON]
    x, y = line.get_data()
    assert list(x) == pytest.approx([one.of.seconds / 60 for one in front])
    assert list(y) == pytest.approx([one.cost for one in front])
    assert "money" in shown(made["pareto"]), "all have a price"
    assert "minutes for a million samples" in shown(made["pareto"])
    assert "worker-hours" in shown(planted("once each")[1]["pareto"]), "none has one"


# --- laws ---


def test_law_ideal_points_and_knee_are_those_of_the_tables() -> None:
    read, made = planted("data parallel")
    families = [one for one in comparisons(read) if isinstance(one, LawComparison)]
    turns = {beyond.compared.family.label: found for beyond, found in knees(read)}
    panels = {axis.get_title(loc="left"): axis for axis in made["scaling-law-resnet18"].axes}
    assert set(panels) <= {one.family.label for one in families} and len(panels) > 1
    for one in families:
        axis = panels.get(one.family.label)
        if axis is None:
            continue
        ideal, law, points = axis.lines[:3]
        assert list(points.get_ydata()) == pytest.approx(list(one.family.rates))
        x = np.asarray(law.get_xdata(), dtype=float)
        assert np.asarray(law.get_ydata()) == pytest.approx(x / one.best.curve(x)[0])
        assert ideal.get_linestyle() == "--" and float(ideal.get_ydata()[-1]) > float(law.get_ydata()[-1])
        at = [float(line.get_xdata()[0]) for line in axis.lines if line.get_linestyle() == ":"]
        turn = turns[one.family.label].workers
        assert at == ([turn] if turn <= x[-1] else [])
