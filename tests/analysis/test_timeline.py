"""The picture of a step: its boxes are the events, its rows the stages, its grey what nobody used."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drawings import Figures, shown
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from planted import Planted
from planted_pipelines import Pipeline, plant_pipelines

from analysis.frames import results
from analysis.frames.results import Results
from analysis.views import figures
from analysis.views import pipelines as timeline

GPIPE = Pipeline("gpipe", p=2, m=4)


def read(*pipelines: Pipeline, others: tuple[Planted, ...] = ()) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        return results.read(plant_pipelines(Path(folder), pipelines, others))


def boxes(axis: Axes, colour: str) -> list[Rectangle]:
    return [p for p in axis.patches if isinstance(p, Rectangle) and to_hex(p.get_facecolor()) == colour]


def rows(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_a_box_for_each_event_at_its_time_in_its_row() -> None:
    (figure,) = timeline.draw(read(GPIPE)).values()
    (axis,) = figure.axes
    assert rows(axis) == ["stage 0", "stage 1"]
    forward = boxes(axis, timeline.COLOURS["forward"])
    assert len(forward) == len(boxes(axis, timeline.COLOURS["backward"])) == 2 * 4
    # 60 ms of work a stage-pair: a forward of one micro-batch on half of the model is 7.5 ms, a backward 15.
    assert sorted(box.get_x() for box in forward) == pytest.approx([0, 7.5, 7.5, 15, 15, 22.5, 22.5, 30])
    assert {round(box.get_width(), 6) for box in forward} == {7.5}
    assert {round(box.get_width(), 6) for box in boxes(axis, timeline.COLOURS["backward"])} == {15}
    tops = {round(box.get_y()) for box in forward}
    assert len(tops) == 2, "a row a stage"
    assert [t.get_text() for t in axis.texts if t.get_text().isdigit()].count("3") == 2 * 2


def test_grey_is_the_bubble() -> None:
    (figure,) = timeline.draw(read(GPIPE)).values()
    (axis,) = figure.axes
    idle, busy = boxes(axis, timeline.IDLE), boxes(axis, "#ffffff")
    whole = sum(box.get_width() for box in idle)
    assert 1 - sum(box.get_width() for box in busy) / whole == pytest.approx(1 / 5)


def test_the_title_has_schedule_micro_batches_and_both_bubbles() -> None:
    made = timeline.draw(read(GPIPE, Pipeline("zbv_zero_bubble", p=2, m=2, v=1, steps=1)))
    assert "transformer_lm, gpipe, m = 4, 2 stages: bubble 20 % (theory 20 %)" in shown(
        made["timeline-transformer_lm-gpipe-p2-m4"]
    )
    assert "(no theory)" in shown(made["timeline-transformer_lm-zbv_zero_bubble-p2-m2"])


def test_stages_of_one_worker_stand_together_and_share_its_idle_time() -> None:
    (figure,) = timeline.draw(read(Pipeline("looped_bfs", p=2, m=4, v=2))).values()
    (axis,) = figure.axes
    assert rows(axis) == ["worker 0: stage 0", "worker 0: stage 2", "worker 1: stage 1", "worker 1: stage 3"]
    assert len(boxes(axis, timeline.IDLE)) == 2


@pytest.mark.slow
def test_schedules_of_a_model_stand_below_each_other_on_one_scale() -> None:
    made = timeline.draw(read(GPIPE, Pipeline("1f1b", p=2, m=8), Pipeline("gpipe", p=4, m=8)))
    assert set(made) == {
        "timeline-transformer_lm-gpipe-p2-m4", "timeline-transformer_lm-1f1b-p2-m8",
        "timeline-transformer_lm-gpipe-p4-m8", "timelines-transformer_lm",
    }  # fmt: skip
    axes = made["timelines-transformer_lm"].axes
    assert len(axes) == 3
    assert len({axis.get_xlim() for axis in axes}) == 1
    assert sorted(len(rows(axis)) for axis in axes) == [2, 2, 4]
    heights = [axis.get_position().height / len(rows(axis)) for axis in axes]
    assert heights == pytest.approx([heights[0]] * 3, rel=0.1), "rows are equally high"
    assert "All on one scale of time" in shown(made["timelines-transformer_lm"])


@pytest.mark.slow
def test_without_a_timeline_there_is_no_figure(tmp_path: Path, draw_only: Callable[..., None]) -> None:
    plain = read(replace(GPIPE, steps=0), others=(Planted(),))
    assert timeline.draw(plain) == {} and "timeline" not in Figures(plain)
    draw_only("timeline")
    made = figures.paths(figures.write(read(replace(GPIPE, steps=1, repeats=1)), tmp_path))
    assert {path.name for path in made if "timeline" in path.name} == {
        "timeline-transformer_lm-gpipe-p2-m4.png", "timeline-transformer_lm-gpipe-p2-m4.svg",
    }  # fmt: skip
