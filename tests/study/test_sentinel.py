"""The sentinel of a sweep: where it stands, how often, and that nothing else of the study is changed by it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import planted_sweeps
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.records import results, store
from scaling_study.study import plan, study
from scaling_study.study.plan import Plan

HOROVOD = "study: a\nsweeps:\n  - framework: horovod\n    matrix: {model: [resnet8], "
MANY = f"{HOROVOD}batch_per_worker: [1, 2, 3, 4, 5, 6, 7, 8], workers: [1, 2]}}\n"
WATCHED = f"sentinel: {{workers: 1, batch_per_worker: 4}}\n{MANY}"


def order(made: Plan) -> list[tuple[int, int, int]]:
    trials = [planned.trial for planned in made.trials()]
    return [(t.batch_per_worker, t.workers, t.repeat) for t in trials if t.find is None]


def places(made: Plan) -> list[int]:
    return [index for index, (batch, workers, _) in enumerate(order(made)) if (batch, workers) == (4, 1)]


@given(st.integers(0, 400), st.integers(0, 30))
def test_it_stands_at_equal_distances_first_and_last(others, runs):
    spread = list(plan.spread([("other", i) for i in range(others)], [("S", i) for i in range(runs)]))
    assert [one for one in spread if one[0] == "S"] == [("S", i) for i in range(runs)]
    assert [one for one in spread if one[0] == "other"] == [("other", i) for i in range(others)]
    if runs > 1:
        assert spread[0][0] == spread[-1][0] == "S"
        at = [i for i, one in enumerate(spread) if one[0] == "S"]
        gaps = [b - a for a, b in itertools.pairwise(at)]
        assert max(gaps) - min(gaps) <= 1


@given(st.integers(1, 1000), st.integers(0, 200_000))
def test_it_costs_at_most_a_tenth(planned, others):
    total = plan.repeats(planned, others)
    assert planned <= total <= max(planned, plan.MOST) and total - planned <= others / 10


def test_it_is_repeated_through_the_whole_sweep(plan_of):
    made = plan_of(WATCHED)
    assert made.sentinel.startswith("horovod-resnet8-b4-none-w1-")
    assert len(places(made)) == 3 + 45 // 10 and len(order(made)) == 45 + 7
    assert places(made)[0] == 0 and places(made)[-1] == len(order(made)) - 1
    repeats = [repeat for batch, workers, repeat in order(made) if (batch, workers) == (4, 1)]
    assert repeats == list(range(1, 8)), "its repeats are ordinary ones, in the order in which they run"
    assert any("has 7 launches, at equal distances" in note for note in made.notes)


def test_nothing_else_is_changed_by_it(plan_of):
    plain, watched = plan_of(MANY), plan_of(WATCHED)
    assert {p.trial.id for p in plain.trials()} < {p.trial.id for p in watched.trials()}
    others = [one for one in order(watched) if one[:2] != (4, 1)]
    assert others == [one for one in order(plain) if one[:2] != (4, 1)], "the same order, too"
    assert plain.sentinel == "" and results.manifest_of(plain).sentinel is None
    assert results.manifest_of(watched).sentinel == watched.sentinel
    assert results.manifest_of(watched).measure == results.manifest_of(plain).measure


def test_in_shared_launches_it_has_no_more_repeats_as_it_is_first_and_last_in_each(plan_of):
    plain, watched = (plan_of(f"measure: {{warm: true}}\n{text}") for text in (MANY, WATCHED))
    assert all(planned.trial.warm for planned in watched.configurations)
    assert {p.trial.id for p in plain.trials()} == {p.trial.id for p in watched.trials()}
    assert watched.sentinel.startswith("horovod-resnet8-b4-none-w1-")
    assert f"drift check: {watched.sentinel} is first and last in each launch" in watched.notes


def test_one_that_matches_nothing_is_refused_with_its_line(plan_of):
    with pytest.raises(StudyError, match=r"study.yaml:1: sentinel workers=3 matches no trial of this study"):
        plan_of(f"sentinel: {{workers: 3}}\n{MANY}")


@pytest.mark.parametrize(
    ("given", "said"), [("{}", "it is empty"), ("~", "it is empty"), ("{worker: 1}", "did you mean 'workers'?")]
)
def test_one_that_says_nothing_is_refused(given, said, study_file):
    with pytest.raises(StudyError) as refused:
        study.load(study_file(f"{MANY}sentinel: {given}\n"))
    assert "study.yaml:5: " in str(refused.value) and said in str(refused.value)


@pytest.mark.slow
def test_the_driver_runs_it_as_planned_and_records_how_often_it_was_meant_to(plan_for, tmp_path):
    plain = plan_for("take_a_second", batches=tuple(range(1, 22)))
    made = plan._with_sentinel(replace(plain, study=replace(plain.study, sentinel={"batch_per_worker": 4})))
    seen, _ = planted_sweeps.run(made, tmp_path)
    ran = [id for id in seen.started if id.startswith(made.sentinel)]
    assert ran == [f"{made.sentinel}.r{repeat}" for repeat in (1, 2, 3)] and len(seen.started) == 20 + 3
    assert seen.started[0] == ran[0] and seen.started[-1] == ran[-1]
    assert {store.read_trial(tmp_path / "trials" / id).planned_repeats for id in ran} == {3}
    assert store.load(tmp_path / "study.json")["sentinel"] == made.sentinel
