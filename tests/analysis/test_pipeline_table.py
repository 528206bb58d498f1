"""Pipelines: what was planted comes back in the table, beside theory and replay, a bad cut is said loudly, and the
picture of a step has a box for each event, a row for each stage, and grey for what nobody used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from drawings import Figures, shown
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from planted import Planted
from planted_pipelines import Pipeline, plant_pipelines

from analysis.frames import results
from analysis.frames.results import Results
from analysis.show import layout
from analysis.views import figures, pipelines, steps

SINGLE = Planted("single", "transformer_lm", 16, speed=80.0, tokens=35)
GPIPE = Pipeline("gpipe", p=2, m=4)
PUBLISHED = Pipeline("gpipe", p=4, m=7, batch=21, shares=(0.2412, 0.2111, 0.4824, 0.0653))


def read(folder: Path, *planted: Pipeline, others: tuple[Planted, ...] = (SINGLE,), **about: Any) -> Results:
    return results.read(plant_pipelines(folder, planted, others, **({"baseline": {"framework": "single"}} | about)))


def only(made: Results) -> pd.Series:
    (row,) = [row for _, row in pipelines.pipelines_table(made).iterrows()]
    return row


def said(made: Results) -> str:
    found = pipelines.listing(made)
    assert found
    return layout.markdown(found)


def test_an_even_pipeline_without_transfers_is_its_theory(tmp_path: Path) -> None:
    row = only(read(tmp_path, replace(GPIPE, p=4, m=8)))
    assert (row.bubble, row.theory, row.replay_equal, row.replay_measured) == pytest.approx((3 / 11,) * 4)
    assert (row.added_by_cut, row.added_by_transfers) == pytest.approx((0, 0), abs=1e-9)
    assert row.bubble_steps == 3 * 3, "steps x repeats"
    assert [float(part) for part in row.time_shares.split(";")] == pytest.approx([1 / 4] * 4)
    assert row.parameter_shares == "0.1;0.2;0.3;0.4"
    assert row.activations_bytes == "1000000;2000000;3000000;4000000"
    assert row.layers == "layers.0;layers.1;layers.2;layers.3"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "looped_bfs", "interleaved_zero_bubble"])
def test_the_bubble_falls_into_its_parts(tmp_path: Path, schedule: str) -> None:
    v = 2 if schedule == "looped_bfs" else 1
    one = Pipeline(schedule, p=2, m=4, v=v, shares=(0.7, 0.3) if v == 1 else (0.4, 0.2, 0.1, 0.3), transfer=0.002)
    row = only(read(tmp_path, one))
    assert row.bubble == pytest.approx(row.replay_equal + row.added_by_cut + row.added_by_transfers)
    assert row.added_by_cut > 0.02
    assert row.added_by_transfers > 0.01
    even = only(read(tmp_path / "even", replace(one, shares=())))
    assert even.added_by_cut == pytest.approx(0, abs=1e-9)
    assert even.replay_equal == pytest.approx(row.replay_equal)
    near = only(read(tmp_path / "near", replace(one, transfer=0.0)))
    assert near.added_by_transfers == pytest.approx(0, abs=1e-9)
    assert near.replay_measured == pytest.approx(row.replay_measured)


def test_a_cut_that_caps_every_schedule_is_said_loudly(tmp_path: Path) -> None:
    made = read(tmp_path, PUBLISHED, replace(PUBLISHED, schedule="1f1b"))
    rows = pipelines.pipelines_table(made).set_index("schedule")
    assert rows.most_speedup["gpipe"] == pytest.approx(2.07, abs=0.01)
    assert rows.cap["gpipe"] == pytest.approx(1.8, abs=0.01)
    text = said(made)
    assert text.count("**stage 2 (of 0 to 3) does 48 % of the work") == 1, "once for all schedules of this cut"
    assert "24 / 21 / 48 / 6.5 %" in text


def test_of_virtual_stages_the_worker_counts(tmp_path: Path) -> None:
    uneven = Pipeline("looped_bfs", p=2, m=4, v=2, shares=(0.1, 0.4, 0.1, 0.4))
    text = said(read(tmp_path, uneven))
    assert "**worker 1 (of 0 to 1, 2 stages each) does 80 % of the work: the speed-up" in text
    fair = said(read(tmp_path / "fair", replace(uneven, shares=(0.1, 0.4, 0.4, 0.1))))
    assert "of the work" not in fair, "uneven stages, even workers"


def test_frameworks_with_one_order_have_it_filled_in(tmp_path: Path) -> None:
    naive = Pipeline(None, p=4, m=1, framework="naive_model_parallel")
    pipe = Pipeline(None, p=2, m=4, framework="fairscale_pipe")
    made = pipelines.pipelines_table(read(tmp_path, naive, pipe)).set_index("framework")
    assert list(made.loc["naive_model_parallel"][["schedule", "stages", "virtual_stages", "micro_batches"]]) == [
        "naive", 4, 1, 1,
    ]  # fmt: skip
    assert made.bubble["naive_model_parallel"] == pytest.approx(3 / 4) == made.theory["naive_model_parallel"]
    assert list(made.loc["fairscale_pipe"][["schedule", "micro_batches"]]) == ["gpipe", 4]
    assert made.activations_bytes["fairscale_pipe"] == "1000000", "one process, one number"


def test_what_was_not_measured_keeps_its_row(tmp_path: Path) -> None:
    made = read(tmp_path, GPIPE, replace(GPIPE, m=8, status="oom", speed=None))
    found = pipelines.listing(made)
    assert found and len(found.rows) == 2
    lost = dict(zip(found.header, next(row for row in found.rows if "oom" in row), strict=True))
    assert lost["theory"] == "11.1 %", "it would have been"
    assert {lost[name] for name in ("bubble measured", "cap of the cut", "share of time by stage")} == {""}


def test_an_order_that_cannot_be_replayed_is_said_and_the_bubble_stays(tmp_path: Path) -> None:
    made = read(tmp_path, GPIPE)
    events = made.details.events
    lost = events[~((events.kind == "forward") & (events.stage == 0) & (events.micro_batch == 1))]
    object.__setattr__(made.details, "events", lost)
    row = only(made)
    assert row.bubble > 0 and pd.isna(row.replay_equal)
    assert "Not replayed: worker 1 waits for ever with forward 1 1: forward 0 1 was never run" in said(made)


def test_pipelines_are_compared_at_the_same_global_batch(tmp_path: Path) -> None:
    two = replace(GPIPE, replicas=2, batch=16)
    small, large = SINGLE, replace(SINGLE, batch_per_worker=32, speed=50.0)
    made = read(tmp_path, two, others=(small, large))
    row = made.configurations[made.configurations.framework == "torch_pipeline"].iloc[0]
    assert (row.batch_per_worker, row.global_batch, row.workers) == (16, 32, 4)
    assert row.baseline == large.trial().configuration
    assert row.speedup == pytest.approx(2, rel=0.05)


def test_computing_is_of_one_process_for_the_same_samples(tmp_path: Path) -> None:
    made = read(tmp_path, GPIPE)
    row, events = only(made), made.details.events
    seconds = (events.end_seconds - events.start_seconds).sum() / events.groupby(["repeat", "step"]).ngroups
    one = made.configurations.set_index("framework").samples_per_second["single"]
    assert row.computing == pytest.approx(seconds / row.batch_per_worker * one)
    alone = read(tmp_path / "alone", GPIPE, others=(), baseline=None)
    assert only(alone).computing is None and "Computing:" not in said(alone)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"workers": 4, "replicas": 1, "tensor_parallel": 2}, "1f1b, m = 4, 2 stages, matrices over 2"),
        ({"workers": 4, "replicas": 2, "shard_group": 2}, "1f1b, m = 4, 2 stages, 2 replicas, shards over 2"),
        ({"workers": 4, "replicas": None}, "1f1b, m = 4, 2 stages, 2 replicas"),
    ],
)
def test_parts_of_matrices_are_no_replicas(keys: dict[str, Any], words: str) -> None:
    known = {"framework": "torch_pipeline", "schedule": "1f1b", "stages": 2, "virtual_stages": 1, "micro_batches": 4}
    row: Any = {**known, "shard_group": None, "stage_cut": "even", **keys}
    assert pipelines.shape_words(row) == words
    assert pipelines.shape_of(row).replicas == (keys["replicas"] or 2)


@pytest.mark.parametrize("key", ["tensor_parallel", "shard_group"])
def test_stages_that_several_workers_hold_together_communicate_while_they_compute(key: str) -> None:
    none = {"tensor_parallel": None, "shard_group": None, "zero_stage": None, "buffers": None, "buffers_bytes": 0}
    row: Any = {"framework": "torch_pipeline", "workers": 4, **none}
    assert steps.communicates_in(row) == set()
    assert steps.communicates_in({**row, key: 2}) == {steps.FORWARD, steps.BACKWARD}


# --- the picture of a step ---


def drawn(folder: Path, *planted: Pipeline) -> dict[str, Any]:
    return pipelines.draw(read(folder, *planted, others=()))


def boxes(axis: Axes, colour: str) -> list[Rectangle]:
    return [p for p in axis.patches if isinstance(p, Rectangle) and to_hex(p.get_facecolor()) == colour]


def rows(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_a_box_for_each_event_at_its_time_in_its_row_and_grey_is_the_bubble(tmp_path: Path) -> None:
    (figure,) = drawn(tmp_path, GPIPE).values()
    (axis,) = figure.axes
    assert rows(axis) == ["stage 0", "stage 1"]
    forward, backward = (boxes(axis, pipelines.COLOURS[kind]) for kind in ("forward", "backward"))
    assert len(forward) == len(backward) == 2 * 4
    # 60 ms of work a stage-pair: a forward of one micro-batch on half of the model is 7.5 ms, a backward 15.
    assert sorted(box.get_x() for box in forward) == pytest.approx([0, 7.5, 7.5, 15, 15, 22.5, 22.5, 30])
    assert {round(box.get_width(), 6) for box in forward} == {7.5}
    assert {round(box.get_width(), 6) for box in backward} == {15}
    assert len({round(box.get_y()) for box in forward}) == 2, "a row a stage"
    assert [t.get_text() for t in axis.texts if t.get_text().isdigit()].count("3") == 2 * 2
    idle, busy = (sum(box.get_width() for box in boxes(axis, colour)) for colour in (pipelines.IDLE, "#ffffff"))
    assert 1 - busy / idle == pytest.approx(1 / 5)


def test_the_title_has_schedule_micro_batches_and_both_bubbles(tmp_path: Path) -> None:
    made = drawn(tmp_path, GPIPE, Pipeline("zbv_zero_bubble", p=2, m=2, v=1, steps=1))
    whole = shown(made["timeline-transformer_lm-gpipe-p2-m4"])
    assert "transformer_lm, gpipe, m = 4, 2 stages: bubble 20 % (theory 20 %)" in whole
    assert "(no theory)" in shown(made["timeline-transformer_lm-zbv_zero_bubble-p2-m2"])


def test_stages_of_one_worker_stand_together_and_share_its_idle_time(tmp_path: Path) -> None:
    (figure,) = drawn(tmp_path, Pipeline("looped_bfs", p=2, m=4, v=2)).values()
    (axis,) = figure.axes
    assert rows(axis) == ["worker 0: stage 0", "worker 0: stage 2", "worker 1: stage 1", "worker 1: stage 3"]
    assert len(boxes(axis, pipelines.IDLE)) == 2


@pytest.mark.slow
def test_schedules_of_a_model_stand_below_each_other_on_one_scale(tmp_path: Path) -> None:
    made = drawn(tmp_path, GPIPE, Pipeline("1f1b", p=2, m=8), Pipeline("gpipe", p=4, m=8))
    each = {f"timeline-transformer_lm-{shape}" for shape in ("gpipe-p2-m4", "1f1b-p2-m8", "gpipe-p4-m8")}
    assert set(made) == each | {"timelines-transformer_lm"}
    axes = made["timelines-transformer_lm"].axes
    assert len({axis.get_xlim() for axis in axes}) == 1
    assert sorted(len(rows(axis)) for axis in axes) == [2, 2, 4]
    heights = [axis.get_position().height / len(rows(axis)) for axis in axes]
    assert heights == pytest.approx([heights[0]] * 3, rel=0.1), "rows are equally high"
    assert "All on one scale of time" in shown(made["timelines-transformer_lm"])


@pytest.mark.slow
def test_without_a_timeline_there_is_no_figure(tmp_path: Path, draw_only: Callable[..., None]) -> None:
    plain = read(tmp_path / "plain", replace(GPIPE, steps=0))
    assert pipelines.draw(plain) == {} and "timeline" not in Figures(plain)
    draw_only("timeline")
    one = read(tmp_path / "one", replace(GPIPE, steps=1, repeats=1), others=())
    made = figures.paths(figures.write(one, tmp_path / "figures"))
    named = {f"timeline-transformer_lm-gpipe-p2-m4.{ending}" for ending in ("png", "svg")}
    assert {path.name for path in made if "timeline" in path.name} == named
