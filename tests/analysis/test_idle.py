"""A pipeline's waiting is its bubble wherever a rank stood meanwhile, and as long as its timeline says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted
from planted_pipelines import Pipeline, plant_pipelines

from analysis.frames import results
from analysis.frames.results import Results
from analysis.statistics import bubble
from analysis.views import attribution, bottleneck, pipelines
from analysis.views.attribution import Attribution, attributions
from analysis.views.bottleneck import MIXED, Bottleneck, bottlenecks, remedies
from analysis.views.pipelines import events_of
from analysis.views.steps import apart, beyond_shortest

UNBALANCED = (0.3, 0.7)
UPDATE = 0.004  # seconds, of a rank
PIPELINES = [
    Pipeline(None, p=2, m=1, framework="naive_model_parallel", update=UPDATE),
    Pipeline("1f1b", p=2, m=4, shares=UNBALANCED, update=UPDATE),
    Pipeline("gpipe", p=4, m=4, shares=(0.4, 0.3, 0.2, 0.1), transfer=0.0005, update=UPDATE),
    Pipeline("interleaved_zero_bubble", p=2, m=4, update=UPDATE, waits_in=None),
    Pipeline("1f1b", p=2, m=4, shares=UNBALANCED, update=UPDATE, waits_in="communication"),
    Pipeline("1f1b", p=2, m=4, shares=UNBALANCED, replicas=2, batch=8, update=UPDATE),
]
ONE_PROCESS = Pipeline(None, p=2, m=4, framework="fairscale_pipe", update=UPDATE)


def read(folder: Path, one: Pipeline) -> Results:
    """This pipeline, beside one process."""
    single = Planted("single", one.model, 16, speed=80.0)
    return results.read(plant_pipelines(folder, [one], [single], baseline={"framework": "single"}))


def said(done: Results) -> tuple[Attribution, Bottleneck]:
    """Of the pipeline."""
    return next(one for one in attributions(done) if pipelines.is_cut(one.row)), spent_of(done)


def spent_of(done: Results) -> Bottleneck:
    """Of the pipeline."""
    return next(one for one in bottlenecks(done) if pipelines.is_cut(one.row))


def idle_of_the_step(done: Results) -> float:
    """By the timeline, as the table of pipelines counts it."""
    row = next(row for row in done.rows if pipelines.is_cut(row))
    steps = bubble.of_steps(events_of(row, done), pipelines.shape_of(row).stages)
    return float((steps.bubble * steps.makespan_seconds / (steps.makespan_seconds + UPDATE)).mean())


@pytest.mark.parametrize("one", PIPELINES, ids=lambda one: f"{one.framework}-{one.schedule}-{one.waits_in}-{one.p}")
def test_the_bubble_is_the_timelines_idle_share_and_in_no_other_phase(tmp_path: Path, one: Pipeline) -> None:
    done = read(tmp_path, one)
    lost, spent = said(done)
    truth = idle_of_the_step(done)
    assert truth > 0.05
    assert spent.shares["pipeline bubble"] == pytest.approx(truth) == lost.part("bubble")
    assert sum(spent.shares.values()) == pytest.approx(1.0)
    assert sum(part.lost for part in lost.parts) == pytest.approx(lost.lost)
    cure = next(each for each in remedies(done)[str(spent.row["configuration"])] if "bubble" in each.name)
    assert cure.gain == pytest.approx(1 / (1 - truth) - 1)
    assert spent.shares.get("communication", 0.0) == pytest.approx(0.0, abs=1e-9) and lost.part("within") == 0.0
    row = next(row for row in done.rows if pipelines.is_cut(row))
    makespan = bubble.of_steps(events_of(row, done), pipelines.shape_of(row).stages).makespan_seconds.mean()
    assert spent.shares["memory"] == pytest.approx(UPDATE / (makespan + UPDATE)), "each rank's own update is left"
    computed = sum(spent.shares.get(kind, 0.0) for kind in ("compute", "launch"))
    assert computed == pytest.approx(1 - truth - UPDATE / (makespan + UPDATE))


def test_without_a_timeline_it_is_what_updates_took_longer_than_the_shortest_and_that_is_said(tmp_path: Path) -> None:
    one = PIPELINES[1]
    truth = idle_of_the_step(read(tmp_path / "timed", one))
    done = read(tmp_path / "untimed", replace(one, timed=False))
    lost, spent = said(done)
    assert spent.shares["pipeline bubble"] == pytest.approx(truth) == lost.part("bubble")
    assert "communication" not in spent.shares
    for table in (attribution.listing(done), bottleneck.listing(done)):
        assert table and any("Without a timeline: 1 pipeline." in note for note in table.notes)
    timed = bottleneck.listing(read(tmp_path / "timed", one))
    assert timed and not any("timeline" in note for note in timed.notes)


def test_one_process_waits_inside_forward_and_backward_and_only_its_timeline_says_so(tmp_path: Path) -> None:
    done = read(tmp_path / "timed", ONE_PROCESS)
    spent, truth = spent_of(done), idle_of_the_step(done)
    assert spent.shares["pipeline bubble"] == pytest.approx(truth) and truth > 0.05
    assert sum(spent.shares.values()) == pytest.approx(1.0)
    untimed = spent_of(read(tmp_path / "untimed", replace(ONE_PROCESS, timed=False)))
    assert "pipeline bubble" not in untimed.shares
    assert untimed.shares[MIXED] == pytest.approx(spent.shares[MIXED] + truth)


SECONDS = st.floats(0.0, 2.0)


@given(st.lists(st.tuples(st.lists(SECONDS, min_size=6, max_size=6), SECONDS), min_size=1, max_size=5))
def test_what_is_taken_apart_adds_up(ranks: list[tuple[list[float], float]]) -> None:
    phases, waited = np.array([each for each, _ in ranks]), np.array([seconds for _, seconds in ranks])
    kept, idle = apart(phases, waited, [(5,), (4,), (1, 2)])
    assert kept.sum(axis=1) + idle == pytest.approx(phases.sum(axis=1))
    assert (kept >= -1e-12).all() and (kept[:, [0, 3]] == phases[:, [0, 3]]).all()
    assert idle == pytest.approx(np.minimum(waited, phases[:, [1, 2, 4, 5]].sum(axis=1)))
    only_first = waited <= phases[:, 5]
    assert (kept[only_first][:, :5] == phases[only_first][:, :5]).all(), "in their order"


def test_the_shortest_is_that_of_the_same_pipeline() -> None:
    update = np.array([1.0, 3.0, 2.0, 2.5, 7.0, 4.0])
    longer = beyond_shortest(update, np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0, 0]))
    assert longer.tolist() == [0.0, 2.0, 0.0, 0.5, 3.0, 0.0]
