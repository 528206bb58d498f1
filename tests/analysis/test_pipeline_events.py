"""Timelines as frames: whose event it is, what old records have, what is refused; and the bubble measured from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, changed_ranks, plant, record
from planted_pipelines import Pipeline, pipeline_record, plant_pipelines

from analysis.frames import details, results, trials
from analysis.frames.rows import typed
from analysis.statistics import bubble

RNG = np.random.default_rng(0)


def made(one: Pipeline) -> pd.DataFrame:
    return typed(details.event_rows(pipeline_record(one, 1, RNG)), details.EVENTS)


def test_ranks_count_along_one_replica_after_the_other() -> None:
    frame = made(Pipeline(p=2, m=3, replicas=2))
    assert list(frame) == list(details.EVENTS)
    places = frame.drop_duplicates("rank").set_index("rank")[["replica", "worker", "stage"]]
    assert places.to_numpy().tolist() == [[0, 0, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]]
    assert len(frame) == 4 * 3 * (3 + 3)


def test_of_a_worker_with_two_stages_both_are_its_own() -> None:
    frame = made(Pipeline("looped_bfs", p=2, m=2, v=2))
    assert frame.groupby("worker").stage.unique().map(sorted).to_dict() == {0: [0, 2], 1: [1, 3]}


def test_one_process_that_drives_all_devices_has_a_worker_for_each() -> None:
    frame = made(Pipeline(None, p=2, m=2, framework="fairscale_pipe"))
    assert set(frame["rank"]) == {0}
    assert frame.groupby("worker").stage.unique().map(list).to_dict() == {0: [0], 1: [1]}


def test_a_forward_and_its_loss_are_one_event() -> None:
    whole = pipeline_record(Pipeline(p=2, m=2, steps=1), 1, RNG)
    rank = whole.ranks[1]
    pieces = []
    for event in rank.timeline:
        *key, start, end = event
        middle = (start + end) / 2
        pieces += [[*key, start, middle], [*key, middle, end]] if key[1] == "forward" else [event]
    in_pieces = replace(whole, ranks=[whole.ranks[0], replace(rank, timeline=pieces)])
    assert len(pieces) == 6
    assert details.event_rows(in_pieces) == details.event_rows(whole)


def test_records_older_than_timelines_read_as_empty(tmp_path: Path) -> None:
    old = record(Planted(), Planted().trial(), 100.0, "s", RNG)
    assert details.event_rows(old) == details.stage_rows(old) == []
    assert list(details.gathered().events) == list(details.EVENTS)
    plant(tmp_path, [Planted(repeats=1)])
    changed_ranks(tmp_path, lambda rank: list(map(rank.pop, ("stages", "timeline", "epochs"))))
    done = results.read(tmp_path)
    assert len(done.trials) == 1 and done.details.events.empty and done.details.epochs.empty


@pytest.mark.parametrize("event", [[0, "sideways", 0, 0, 0.0, 1.0], [0, "forward", 0, 0, 2.0, 1.0], [0, "forward"]])
def test_an_event_that_is_none_is_refused_and_its_record_named(tmp_path: Path, event: list[object]) -> None:
    plant_pipelines(tmp_path, [Pipeline(repeats=2)])
    path = sorted(tmp_path.glob("trials/*/record.json"))[0]
    whole = json.loads(path.read_text())
    whole["ranks"][0]["timeline"][0] = event
    path.write_text(json.dumps(whole))
    with pytest.warns(trials.SkippedRecord, match=path.parent.name):
        assert len(trials.read(tmp_path)[0]) == 1


def test_the_bubble_of_each_step_is_the_one_that_was_planted() -> None:
    steps = bubble.of_steps(made(Pipeline("gpipe", p=4, m=8, replicas=2, steps=3)), 4)
    assert tuple(steps) == bubble.COLUMNS and len(steps) == 2 * 3
    assert steps.bubble.to_list() == pytest.approx([3 / 11] * 6)
    assert bubble.mean(steps).steps == 6
    assert bubble.bubble("gpipe", 4, 8).bubble == pytest.approx(3 / 11)


def test_mean_and_spread_are_over_steps() -> None:
    frame = made(Pipeline("gpipe", p=2, m=2, steps=2))
    late = (frame.step == 1) & (frame.worker == 1) & (frame.kind == "backward") & (frame.micro_batch == 1)
    frame.loc[late, "end_seconds"] += 0.09
    found = bubble.mean(bubble.of_steps(frame, 2))
    assert found.high == pytest.approx(1 / 3)
    assert found.low == pytest.approx(1 - (12 * 15 + 90) / (2 * (9 * 15 + 60))), (
        "15 ms a forward; 30 after it were free"
    )
    assert found.mean == pytest.approx((found.low + found.high) / 2)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=12))
def test_busy_seconds_are_those_that_any_event_covers(spans: list[tuple[int, int]]) -> None:
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert bubble.busy_seconds((start, start + length) for start, length in spans) == pytest.approx(len(covered))


def test_the_step_that_is_shown_is_the_median_one() -> None:
    frame = made(Pipeline("gpipe", p=2, m=2, steps=3, replicas=2))
    last = (frame.kind == "backward") & (frame.micro_batch == 1) & (frame.worker == 0)
    frame.loc[last & (frame.step == 0), "end_seconds"] += 0.03
    frame.loc[last & (frame.step == 1), "end_seconds"] += 0.02
    again = frame.assign(repeat=2, start_seconds=frame.start_seconds * 2, end_seconds=frame.end_seconds * 2)
    shown = bubble.median_step(pd.concat([again, frame]))
    assert set(shown.step) == {1} and set(shown["repeat"]) == {1} and set(shown.replica) == {0}
    assert len(shown) == 2 * 4
