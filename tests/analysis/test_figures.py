"""Figures: no text on other text or off the sheet, labels with units, failures and doubts drawn, text in the SVG."""

from __future__ import annotations

import itertools
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from drawings import STUDIES, Figures, drawn, shown, untidy
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from planted import Planted, plant

from analysis.frames import results
from analysis.show import style
from analysis.views import figures

QUICK = ("default", "baseline failed", "two repeats", "one network")  # the others take minutes together


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in STUDIES]
)
def test_no_text_covers_another_or_leaves_the_sheet(name: str) -> None:
    for title, figure in drawn(name).items():
        assert not untidy(figure), title


BOTH = ("resnet8", "resnet18")  # of the default study
STEPS = {f"{kind}-{model}" for kind in ("steps", "distributions") for model in BOTH}
CHOICE = {"throughput", "allreduce-gain", "drift", "frontier", "pareto"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", CHOICE | STEPS | {f"{kind}-{model}" for kind in ("speedup", "waterfall") for model in BOTH}),
        ("empty", {"throughput"}),
        ("one trial", {"throughput", "steps-resnet18", "distributions-resnet18"}),
        ("all failed", {"throughput"}),
        ("one worker count", CHOICE | STEPS),
    ],
)
def test_only_what_there_is_to_show_is_drawn(name: str, expected: set[str]) -> None:
    assert set(drawn(name)) == expected


@pytest.mark.slow
def test_failures_are_drawn_where_they_happened() -> None:
    made = drawn("published")
    assert "2 workers, fp32: oom at 512; timeout at 1024" in shown(made["throughput"])
    assert "batch 1024: oom at 1; timeout at 2" in shown(made["speedup-resnet50"])
    assert "fp32: oom" in shown(made["allreduce-gain"])
    crosses = [line for axis in made["throughput"].axes for line in axis.lines if line.get_marker() == "x"]
    assert sorted(x for line in crosses for x in line.get_xdata()) == [9.0, 10.0, 10.0, 10.0]
    assert "nothing measured" in shown(drawn("all failed")["throughput"])


def test_points_and_bars_are_the_numbers(tmp_path: Path) -> None:
    planted = [Planted("single", batch_per_worker=batch, speed=100.0) for batch in (32, 64)]
    done = results.read(plant(tmp_path, planted))
    axis = Figures(done)["throughput"].axes[0]
    points, (bars, _) = axis.lines[0], axis.collections
    assert list(points.get_ydata()) == pytest.approx(list(done.configurations.samples_per_second))
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    bounds = done.configurations[["interval_low", "interval_high"]].to_numpy().tolist()
    assert list(itertools.chain(*ends)) == pytest.approx(list(itertools.chain(*bounds)))


def test_what_is_not_resolved_is_drawn_open_with_its_interval() -> None:
    figure = drawn("wide")["allreduce-gain"]
    assert "Open grey: not resolved" in shown(figure) and re.search(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", shown(figure))
    open_points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert open_points
    assert all(line.get_markerfacecolor() == "white" for line in open_points)
    assert "no interval" in shown(drawn("two repeats")["allreduce-gain"])


@pytest.mark.slow
def test_files_are_png_and_svg_with_text_in_it_and_repeat_exactly(
    tmp_path: Path, draw_only: Callable[..., None]
) -> None:  # fmt: skip
    draw_only("throughput", "allreduce-gain", "distributions")
    planted, about = STUDIES["one model"]
    done = results.read(plant(tmp_path, planted, **about))
    made = figures.paths(figures.write(done, tmp_path / "figures"))
    assert {path.suffix for path in made} == {".png", ".svg"}
    assert len(made) == 2 * len(figures.draw(done))
    svg = (tmp_path / "figures" / "throughput.svg").read_text()
    ElementTree.fromstring(svg)
    assert "horovod, 2 workers, fp16" in svg
    figures.write(done, tmp_path / "again")
    assert (tmp_path / "again" / "throughput.svg").read_text() == svg


def test_drawing_leaves_no_style_behind() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    drawn("one trial")
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(2.0, 4.0))
def test_end_labels_keep_their_distance_and_order(heights: list[float], panel: float) -> None:
    with style.applied():
        axis = Figure(figsize=(4, panel)).add_axes((0, 0, 0.5, 1.0))
        axis.set_ylim(0, 100)
        labels = [style.EndLabel(1.0, height, f"{index}", "black") for index, height in enumerate(heights)]
        style.end_labels(axis, labels, panel)
    places = {int(text.get_text()): text.get_position()[1] for text in axis.texts}
    ordered = sorted(range(len(heights)), key=lambda index: heights[index])
    for below, above in itertools.pairwise(ordered):
        assert places[above] - places[below] >= style.GAP / panel - 1e-9
    assert min(places.values()) >= -1e-9


@pytest.mark.slow
def test_what_may_not_be_compared_is_hollow_marked_and_said() -> None:
    made = drawn("ten frameworks")
    for name in ("throughput", "frameworks"):
        text = shown(made[name]).replace("\n", " ")
        for said in ("† NOT COMPARABLE: parity failed", "‡ speed not comparable", "Hollow and grey"):
            assert said in text
    names = [label.get_text() for label in made["frameworks"].axes[0].get_yticklabels()]
    assert {name for name in names if name.startswith("horovod")} == {name for name in names if name.endswith("†")}
    assert names.index("horovod, 2 workers, fp32 †") > names.index("single"), "after what may be compared"
    hollow = [line for axis in made["throughput"].axes for line in axis.lines if line.get_markerfacecolor() == "white"]
    assert hollow and {line.get_color() for line in hollow} == {style.GREY}
    titles = {axis.get_title(loc="left").split(",")[0] for axis in made["speedup-resnet18"].axes}
    assert not titles & {"horovod", "fairscale_pipe"} and "not comparable †" in shown(made["allreduce-gain"])


def test_up_to_twelve_series_have_a_look_of_their_own() -> None:
    planted, about = STUDIES["twelve points"]
    with tempfile.TemporaryDirectory() as folder:
        done = results.read(plant(Path(folder), planted, **about))
    free = done.configurations.assign(not_comparable="")
    made = style.series_looks(free)
    assert len(made) == 12
    assert len({(look.colour, look.dashes) for look in made.values()}) == 12
    assert len({look.marker for look in made.values()}) == 12


def test_beyond_that_the_same_role_looks_the_same_in_every_framework() -> None:
    planted, about = STUDIES["many frameworks"]
    with tempfile.TemporaryDirectory() as folder:
        made = style.series_looks(results.read(plant(Path(folder), planted, **about)).configurations)
    assert made["horovod, 4 workers, fp16"] == made["torch_ddp, 4 workers, fp16"]
    assert len(set(made.values())) == 6


@pytest.mark.slow
def test_what_was_only_implied_is_a_hollow_cross_beside_the_solid_ones_of_what_was_measured() -> None:
    made = drawn("implied")
    assert all("Hollow crosses" in shown(made[name]) for name in ("throughput", "speedup-resnet50", "allreduce-gain"))
    assert "2 workers, fp32: oom at 128; oom (implied) at 256, 512, 1024" in shown(made["throughput"])
    lines = [line for axis in made["throughput"].axes for line in axis.lines]
    solid = sorted(line.get_xdata()[0] for line in lines if line.get_marker() == "x")
    hollow = [line for line in lines if line.get_marker() == "X" and line.get_markerfacecolor() == "white"]
    assert solid == [7.0, 8.0, 9.0, 10.0]
    assert sorted(line.get_xdata()[0] for line in hollow) == [8.0, 9.0, 9.0, 10.0, 10.0, 10.0]
    assert "Hollow crosses" not in shown(drawn("published")["throughput"])
