"""Figures: no text on other text or off the sheet, labels with units, failures and doubts drawn, text in the SVG."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from drawings import STUDIES, Figures, dots_of, drawn, lost, rows_of, shown, untidy
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from planted import Planted, plant, plant_default

from analysis.frames import results
from analysis.show import dots, style
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
CHOICE = {"throughput", "allreduce-gain", "drift"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", CHOICE | STEPS | {"pareto"} | {f"{kind}-{m}" for kind in ("speedup", "waterfall") for m in BOTH}),
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
    speedups = rows_of(made["speedup-resnet50"].axes[0])
    assert speedups["2 workers, fp32, batch 512 per worker (1024 global)"] == "oom"
    assert speedups["2 workers, fp16, batch 1024 per worker (2048 global)"] == "timeout"
    assert "fp32: oom" in shown(made["allreduce-gain"])
    crosses = [line for axis in made["throughput"].axes for line in axis.lines if line.get_marker() == "x"]
    assert sorted(x for line in crosses for x in line.get_xdata()) == [9.0, 10.0, 10.0, 10.0]
    assert {text for axis in drawn("all failed")["throughput"].axes for text in rows_of(axis).values()} == {"failed"}


def test_points_and_bars_are_the_numbers(tmp_path: Path) -> None:
    planted = [Planted("single", batch_per_worker=batch, speed=100.0) for batch in (32, 64, 128)]
    done = results.read(plant(tmp_path, planted))
    axis = Figures(done)["throughput"].axes[0]
    points, (bars, _) = axis.lines[0], axis.collections
    assert list(points.get_ydata()) == pytest.approx(list(done.configurations.samples_per_second))
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    bounds = done.configurations[["interval_low", "interval_high"]].to_numpy().tolist()
    assert list(itertools.chain(*ends)) == pytest.approx(list(itertools.chain(*bounds)))


def test_two_batch_sizes_are_no_line_and_the_fastest_stands_on_top(tmp_path: Path) -> None:
    speeds = {("single", 32): 100.0, ("single", 64): 90.0, ("torch_ddp", 32): 150.0, ("torch_ddp", 64): 160.0}
    speeds[("horovod", 64)] = 120.0
    planted = [Planted(name, batch_per_worker=batch, speed=speed) for (name, batch), speed in speeds.items()]
    done = results.read(plant(tmp_path, planted))
    (axis,) = Figures(done)["throughput"].axes
    ordered = done.configurations.sort_values(["batch", "samples_per_second"], ascending=[True, False])
    assert dots_of(axis) == pytest.approx(list(ordered.samples_per_second))
    bars = [list(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) == 2]
    assert bars == [pytest.approx(ends) for ends in ordered[["interval_low", "interval_high"]].to_numpy().tolist()]
    assert list(rows_of(axis)) == [
        "torch_ddp, 1 worker, batch 32", "single, batch 32",
        "torch_ddp, 1 worker, batch 64", "horovod, 1 worker, batch 64", "single, batch 64",
    ]  # fmt: skip
    assert "frameworks" not in Figures(done), "it would show the same rows again"
    assert "Colour" not in shown(Figures(done)["throughput"]), "all have one worker"


def test_a_framework_of_which_nothing_was_measured_is_named_and_has_no_panel(tmp_path: Path) -> None:
    names = ("single", "torch_ddp", "torch_fsdp2")
    made = [
        Planted(name, "resnet8", batch, 2 if name != "single" else 1, wire, 100.0, keys=(("seed", seed),))
        for name, batch, seed in itertools.product(names, (8, 16, 32), range(3))
        for wire in (("fp32", "fp16") if name != "single" else ("none",))
    ]
    sharded = [one for one in made if one.framework == "torch_fsdp2"]
    planted = [*(one for one in made if one not in sharded), *lost(sharded, "failed")]
    figure = Figures(results.read(plant(tmp_path, planted)))["throughput"]
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["resnet8, torch_ddp"]
    assert "Nothing was measured of resnet8, torch_fsdp2" in shown(figure)


def test_one_number_of_workers_is_a_row_for_each_speed_up() -> None:
    figure = drawn("default")["speedup-resnet18"]
    (axis,) = figure.axes
    values = dots_of(axis)
    assert values == sorted(values, reverse=True) and len(values) == 6
    verticals = [line for line in axis.lines if len(line.get_xdata()) == 2 and len({*line.get_xdata()}) == 1]
    assert {line.get_xdata()[0]: line.get_linestyle() for line in verticals} == {1.0: "-", 2.0: "--"}
    assert all(re.search(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\], \d+ %", text) for text in rows_of(axis).values())


def test_an_interval_beyond_the_axis_ends_in_an_arrow() -> None:
    wide = dots.Dot("a", "1", 1.0, (-1.0, 9.0), "black")
    with style.applied():
        panel = dots.DotPanel("", "x", [wide, dots.Dot("b", "not measured", None, marker=dots.CROSS)], (0.0, 2.0))
        figure = dots.figure("title", [panel], ["Said."])
    markers = {line.get_marker(): line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 1}
    assert (markers["<"], markers[">"]) == (0.0, 2.0) and "x" in markers
    assert "Arrows: the interval is wider than the axis." in shown(figure) and not untidy(figure)


LONG = "torch_pipeline, interleaved_1f1b, 2 stages a worker, 10 micro-batches, cut time, a-word-that-has-no-space-in-it"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_titles_are_whole_and_no_place_of_a_sheet_stays_empty(count: int) -> None:
    def draw(axis: Axes, _: style.Layout) -> None:
        axis.plot([0, 1], [0, 1])

    with style.applied():
        panels = [style.Panel(LONG, draw, x="x", y="y", labels=["name"], height=1.0) for _ in range(count)]
        figure = style.figure_of(f"{LONG}: {LONG}", panels, [LONG], panel_width=1.2)
    assert not untidy(figure) and len(figure.axes) == count
    assert all("".join(axis.get_title(loc="left").split()) == "".join(LONG.split()) for axis in figure.axes)
    lefts = [round(axis.get_position().x0, 3) for axis in figure.axes]
    assert count > style.FEW or all(lefts.count(left) == lefts.count(lefts[0]) for left in lefts)


@given(st.text("ab _-", min_size=1, max_size=60), st.floats(0.3, 2.0))
def test_lines_are_as_narrow_as_asked_and_hold_every_letter(text: str, width: float) -> None:
    lines = style.wrapped(text, width)
    assert all(style.inches(line, style.SMALL) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_what_all_names_share_is_said_once() -> None:
    assert style.told_apart(["a, 2 workers, x", "b, 2 workers, x"]) == (["a", "b"], ["2 workers", "x"])
    assert style.told_apart(["a, x"]) == (["a, x"], [])
    assert style.told_apart(["a, x", "a"]) == (["a, x", "a"], [])


def test_what_is_not_resolved_is_drawn_open_with_its_interval() -> None:
    figure = drawn("wide")["allreduce-gain"]
    assert "Open grey: not resolved" in shown(figure) and re.search(
        r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]", shown(figure)
    )
    open_points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert open_points
    assert all(line.get_markerfacecolor() == "white" for line in open_points)
    assert "no interval" in shown(drawn("two repeats")["allreduce-gain"])


@pytest.mark.slow
def test_files_are_png_and_svg_with_text_in_it_and_repeat_exactly(
    tmp_path: Path, draw_only: Callable[..., None]
) -> None:
    draw_only("throughput", "allreduce-gain", "distributions")
    planted, about = STUDIES["one model"]
    done = results.read(plant(tmp_path, planted, **about))
    made = figures.paths(figures.write(done, tmp_path / "figures"))
    assert {path.suffix for path in made} == {".png", ".svg"}
    assert len(made) == 2 * len(figures.draw(done))
    svg = (tmp_path / "figures" / "throughput.svg").read_text()
    ElementTree.fromstring(svg)
    assert "horovod, 2 workers, fp16" in svg and done.study.machine_text in svg.replace("\n", " ")
    geometry = figures.GEOMETRY.findall(svg.encode())
    assert geometry and not any(map(figures.FURTHER.search, geometry)), "to a hundredth of a point"
    figures.write(done, tmp_path / "again")
    assert (tmp_path / "again" / "throughput.svg").read_text() == svg


@pytest.mark.slow
def test_a_poster_has_fewer_points_an_inch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw_only: Callable[..., None]
) -> None:
    draw_only("throughput")
    monkeypatch.setattr(figures, "MOST_PIXELS", 50_000)
    (one,) = figures.write(results.read(plant_default(tmp_path / "r")), tmp_path)
    width, height = Image.open(one.paths[0]).size
    assert width * height <= 50_000 * 1.02


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
    held = {name.split(",")[0] for name in rows_of(made["speedup-resnet18"].axes[0])}
    assert "torch_ddp" in held and not held & {"horovod", "fairscale_pipe"}
    assert "not comparable †" in shown(made["allreduce-gain"])


def looks_of(folder: Path, study: str) -> dict[str, style.SeriesLook]:
    planted, about = STUDIES[study]
    return style.series_looks(results.read(plant(folder, planted, **about)).configurations.assign(not_comparable=""))


def test_up_to_twelve_series_have_a_look_of_their_own_and_beyond_that_roles_have(tmp_path: Path) -> None:
    made = looks_of(tmp_path / "few", "twelve points").values()
    assert len(made) == len({(look.colour, look.dashes) for look in made}) == len({look.marker for look in made}) == 12
    many = looks_of(tmp_path / "many", "many frameworks")
    assert many["horovod, 4 workers, fp16"] == many["torch_ddp, 4 workers, fp16"]
    assert len(set(many.values())) == 6


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
