"""Figures: no text on other text or off the sheet, labels with units, failures and doubts drawn, text in the SVG."""

from __future__ import annotations

import functools
import itertools
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from planted import Planted, default_study, plant, published_study

from analysis import figures, outputs, results
from analysis.figures import marks, style

Study = tuple[list[Planted], Any]


def lost(planted: list[Planted], status: str) -> list[Planted]:
    return [replace(one, status=status, speed=None, repeats=1, reason="planted") for one in planted]


def many_workers() -> Study:
    made = []
    for batch, workers in itertools.product((32, 64, 128), (1, 2, 4, 8, 16, 32, 64)):
        for precision in ("none",) if workers == 1 else ("fp32", "fp16"):
            speed = 20_000.0 * workers**0.9
            made.append(Planted("horovod", "resnet8", batch, workers, precision, speed, keys=(("device", "cuda"),)))
    return made, {"baseline": {"workers": 1}}


def many_frameworks() -> Study:
    made = [Planted("single", batch_per_worker=batch, speed=102.0) for batch in (32, 64)]
    for framework, batch, workers in itertools.product(("horovod", "torch_ddp", "torch_fsdp2"), (32, 64), (1, 2, 4)):
        for precision in ("none",) if workers == 1 else ("fp32", "fp16"):
            made.append(Planted(framework, "resnet18", batch, workers, precision, 100.0 * workers**0.9))
    return made, {"baseline": {"framework": "single"}}


def many_seeds() -> Study:
    made = [
        Planted("horovod", "resnet8", batch, 2, precision, 100.0 + seed, keys=(("seed", seed),))
        for batch, precision, seed in itertools.product((32, 64), ("fp32", "fp16"), range(15))
    ]
    return [*made, *lost(made[:20], "oom")], {"baseline": {"workers": 2, "allreduce": "fp32"}}


def strong() -> Study:
    made = [
        Planted("horovod", "resnet18", batch // workers, workers, precision, 100.0 * workers**0.8)
        for batch, workers in itertools.product((64, 128), (1, 2, 4))
        for precision in (("none",) if workers == 1 else ("fp32", "fp16"))
    ]
    return made, {"baseline": {"workers": 1}, "scaling": "strong"}


def changed(change: Callable[[list[Planted]], list[Planted]], study: Study | None = None) -> Study:
    planted, about = study or default_study()
    return change(planted), about


STUDIES: dict[str, Study] = {
    "default": default_study(),
    "synthetic": default_study(synthetic=True),
    "published": published_study(),
    "empty": ([], {}),
    "one trial": ([Planted()], {"baseline": {"framework": "single"}}),
    "one batch": changed(lambda all: [one for one in all if one.batch_per_worker == 32]),
    "one model": changed(lambda all: [one for one in all if one.model == "resnet8"]),
    "one worker count": changed(lambda all: [one for one in all if one.workers == 2]),
    "one repeat": changed(lambda all: [replace(one, repeats=1) for one in all]),
    "two repeats": changed(lambda all: [replace(one, repeats=2) for one in all]),
    "wide": changed(lambda all: [replace(one, noise=0.25) for one in all]),
    "all failed": changed(lambda all: lost(all, "failed")),
    "unsupported": changed(lambda all: [*all[:2], *lost(all[2:], "unsupported")]),
    "baseline failed": changed(lambda all: [*lost(all[:1], "oom"), *all[1:]]),
    "published lost": changed(lambda all: lost(all, "timeout"), published_study()),
    "many workers": many_workers(),
    "many frameworks": many_frameworks(),
    "strong": strong(),
    "many seeds": many_seeds(),
    "long names": changed(
        lambda all: [replace(one, model=f"some-organisation/{one.model}-with-a-name") for one in all]
    ),
    "not powers of two": changed(lambda all: [replace(o, batch_per_worker=b) for o in all[:4] for b in (96, 100, 104)]),
}


@functools.cache
def drawn(name: str) -> dict[str, Figure]:
    """The figures of one of STUDIES, drawn once for all tests."""
    planted, about = STUDIES[name]
    with tempfile.TemporaryDirectory() as folder:
        return figures.draw(results.read(plant(Path(folder), planted, **about)))


def ticks_out_of_view(figure: Figure) -> set[Text]:
    """Tick labels that exist but are not drawn, because their tick lies beyond the axis."""
    unseen = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            unseen |= {t.label1 for t in ticks if not low - 1e-9 <= t.get_loc() <= high + 1e-9}
    return unseen


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """(text, box in pixels) of every text that is shown."""
    with style.applied():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        found = []
        unseen = ticks_out_of_view(figure)
        for artist in figure.findobj(Text):
            if artist.get_visible() and artist.get_text().strip() and artist not in unseen:
                box = Text.get_window_extent(artist, canvas.get_renderer())
                found.append((artist.get_text(), box))
    return found


def shown(figure: Figure) -> str:
    return "\n".join(text for text, _ in texts(figure))


SLOW = ("many workers", "many frameworks", "many seeds")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in STUDIES]
)
def test_no_text_covers_another_or_leaves_the_sheet(name: str) -> None:
    for title, figure in drawn(name).items():
        found = texts(figure)
        width, height = figure.bbox.width, figure.bbox.height
        for text, box in found:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, f"{title}: {text!r} is cut"
        for (one, a), (other, b) in itertools.combinations(found, 2):
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            along = min(a.y1, b.y1) - max(a.y0, b.y0)
            # Boxes hold room for descenders: half a pixel at 100 dpi is no contact of ink.
            assert across <= 0.5 or along <= 0.5, f"{title}: {one!r} touches {other!r}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", {"throughput", "speedup-resnet8", "speedup-resnet18", "allreduce-gain"}),
        ("empty", {"throughput"}),
        ("one trial", {"throughput"}),
        ("all failed", {"throughput"}),
        ("one worker count", {"throughput", "allreduce-gain"}),
    ],
)
def test_only_what_there_is_to_show_is_drawn(name: str, expected: set[str]) -> None:
    assert set(drawn(name)) == expected


def test_axes_have_names_with_units() -> None:
    made = drawn("default")
    assert "throughput (samples/s)" in shown(made["throughput"])
    assert "batch per worker (samples)" in shown(made["throughput"])
    assert "speed-up over single" in shown(made["speedup-resnet18"])
    assert "ideal" in shown(made["speedup-resnet18"])
    assert "100 %" in shown(made["speedup-resnet18"])
    assert "throughput with fp16 / with fp32" in shown(made["allreduce-gain"])


def test_every_figure_names_study_machine_date_and_data() -> None:
    for name, data in (("default", "cifar10 data"), ("synthetic", "SYNTHETIC DATA")):
        for figure in drawn(name).values():
            text = shown(figure).replace("\n", " ")
            for words in ("cifar10-scaling", "2 cores of Intel Xeon CPU", "2026-01-31", data):
                assert words in text


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
    axis = figures.draw(done)["throughput"].axes[0]
    (container,) = axis.containers
    points, _, (bars,) = container.lines
    assert list(points.get_ydata()) == pytest.approx(list(done.configurations.samples_per_second))
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    bounds = done.configurations[["interval_low", "interval_high"]].to_numpy().tolist()
    assert list(itertools.chain(*ends)) == pytest.approx(list(itertools.chain(*bounds)))


def test_no_difference_is_drawn_as_such() -> None:
    figure = drawn("wide")["allreduce-gain"]
    assert "no difference" in shown(figure)
    open_points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert open_points
    assert all(line.get_markerfacecolor() == "white" for line in open_points)
    assert "no interval" in shown(drawn("two repeats")["allreduce-gain"])


def test_oversubscribed_points_are_named_not_drawn_as_speedup(tmp_path: Path) -> None:
    four = Planted("horovod", workers=4, allreduce="fp32", keys=(("oversubscribe", True),))
    two = Planted("horovod", workers=2, allreduce="fp32")
    figure = figures.draw(
        results.read(plant(tmp_path, [Planted(), two, four], baseline={"framework": "single"}))
    )["speedup-resnet18"]  # fmt: skip
    assert "batch 32: oversubscribed at 4" in shown(figure)


def test_files_are_png_and_svg_with_text_in_it_and_repeat_exactly(tmp_path: Path) -> None:
    planted, about = STUDIES["one model"]
    done = results.read(plant(tmp_path, planted, **about))
    made = outputs.write_figures(done, tmp_path / "figures")
    assert {path.suffix for path in made} == {".png", ".svg"}
    assert len(made) == 6
    svg = (tmp_path / "figures" / "throughput.svg").read_text()
    ElementTree.fromstring(svg)
    assert "horovod, 2 workers, fp16" in svg
    outputs.write_figures(done, tmp_path / "again")
    assert (tmp_path / "again" / "throughput.svg").read_text() == svg


def test_drawing_leaves_no_style_behind() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    drawn("one trial")
    assert dict(mpl.rcParams) == before


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(2.0, 4.0))
def test_end_labels_keep_their_distance_and_order(heights: list[float], panel: float) -> None:
    with style.applied():
        axis = Figure(figsize=(4, panel)).add_axes((0, 0, 0.5, 1.0))
        axis.set_ylim(0, 100)
        labels = [marks.EndLabel(1.0, height, f"{index}", "black") for index, height in enumerate(heights)]
        marks.end_labels(axis, labels, panel)
    places = {int(text.get_text()): text.xyann[1] for text in axis.texts}
    ordered = sorted(range(len(heights)), key=lambda index: heights[index])
    for below, above in itertools.pairwise(ordered):
        assert places[above] - places[below] >= marks.GAP / panel - 1e-9
    assert min(places.values()) >= -1e-9


def test_too_many_failures_become_one_row() -> None:
    rows = [marks.Failure((float(i),), f"{i}: oom", "black") for i in range(9)]
    (row,) = marks.merged(rows)
    assert row.text == "9 not measured (tables)"
    assert row.xs == tuple(float(i) for i in range(9))
