"""The knee, the cost, the front and the next measurement: each against a truth that is worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, changed, plant, planted_row
from planted_laws import ROOM, WEAK, family, study
from planted_phases import STEP, Phased, plant_phased
from planted_trainings import TrainedIn, plant_trained

from analysis.frames import results
from analysis.statistics import knee
from analysis.statistics.knee import Extrapolation, Knee, returns
from analysis.statistics.scaling_laws import LawComparison, compare, comparisons
from analysis.views import cost, next_steps
from analysis.views.cost import FREE, NO_PRICE, SEVERAL_PRICES, Cost, cheapest, costs
from analysis.views.next_steps import repeats_apart, suggestions

COUNTS = (1, 2, 4, 8, 16, 32)


def of(name: str, counts: tuple[int, ...] = COUNTS, share: float = 0.5, **more: Any) -> Knee:
    made = compare(family(WEAK[name], counts, **more))
    assert isinstance(made, LawComparison)
    return knee.knee(Extrapolation(made), share)


def truth(name: str, share: float) -> int:
    law = WEAK[name]
    return next(n for n in range(1, 10_001) if n == 10_000 or (law(n + 1) - law(n)) / law(1) < share)


# --- the knee ---


@pytest.mark.parametrize("name", ["Amdahl", "USL", "tree"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_planted_knee_is_found(name: str, share: float) -> None:
    made = of(name, share=share, noise=0.0)
    assert made.workers == pytest.approx(min(truth(name, share), made.looked), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Amdahl", "USL", "root"])
def test_its_interval_holds_it(name: str) -> None:
    inside = 0
    for seed in range(20):
        made = of(name, seed=seed)
        assert made.low is not None and made.high is not None and made.low <= made.workers <= made.high
        inside += made.low <= truth(name, 0.5) <= made.high
    assert inside >= 18


def test_what_lies_beyond_is_only_said_to() -> None:
    made = of("linear", noise=0.0)
    assert made.workers == made.looked == 16 * 32
    assert made.text == "more than 512 workers [beyond 512, beyond 512]"
    assert of("linear", noise=0.0, repeats=1).text == "more than 512 workers"


def test_returns_are_what_was_measured() -> None:
    made = returns(family(lambda n: {1: 100.0, 2: 180.0, 4: 300.0}[int(n)], (1, 2, 4), noise=0.0))
    assert [(one.before, one.after, one.share) for one in made] == [
        (1, 2, pytest.approx(0.8)),
        (2, 4, pytest.approx(0.6)),
    ]
    assert returns(family(WEAK["ring"], (2, 4))) == []


def test_intervals_of_returns_hold_the_truth() -> None:
    hits, count = np.zeros(2), 400
    for seed in range(count):
        made = returns(family(lambda n: {1: 100.0, 2: 180.0, 4: 300.0}[int(n)], (1, 2, 4), repeats=5, seed=seed))
        for at, (one, true) in enumerate(zip(made, (0.8, 0.6), strict=True)):
            assert one.low is not None and one.high is not None
            hits[at] += one.low <= true <= one.high
    assert (hits / count >= 0.92).all() and (hits / count <= 0.99).all()


# --- cost ---

ONE, TWO = Planted("single", speed=100.0), Planted("horovod", workers=2, allreduce="fp32", speed=160.0)


def test_cost_is_workers_times_time_times_price(tmp_path: Path) -> None:
    made = costs(results.read(plant_phased(tmp_path, [Phased(ONE, STEP, price=3.0)])))[0]
    assert made.seconds == pytest.approx(1e6 / 320)
    assert made.worker_hours == pytest.approx(1e6 / 320 / 3600)
    assert made.price == 3.0 and made.money == pytest.approx(3 * 1e6 / 320 / 3600)


def test_without_a_price_there_is_no_money(tmp_path: Path) -> None:
    made = costs(results.read(plant(tmp_path, [ONE, TWO])))
    assert all(one.money is None and one.why == NO_PRICE for one in made)
    least = cheapest(made)
    assert least is not None and least.row["framework"] == "single"


@pytest.mark.parametrize(
    ("price", "why"), [(0.0, FREE), (-1.0, NO_PRICE), ("3", NO_PRICE), (True, NO_PRICE), (None, NO_PRICE)]
)
def test_a_price_that_is_none_makes_no_money(tmp_path: Path, price: object, why: str) -> None:
    read = results.read(plant_phased(tmp_path, [Phased(ONE, STEP, price=price)]))
    assert [(one.money, one.why) for one in costs(read)] == [(None, why)]
    assert [one.cost for one in cost.points(read, ONE.model)] and cost.listing(read)


def test_repeats_at_two_prices_have_none(tmp_path: Path) -> None:
    folder = plant_phased(tmp_path, [Phased(ONE, STEP, price=3.0)])
    changed(folder, lambda record: record["machine_file"].update(price_per_worker_hour=record["trial"]["repeat"]))
    assert costs(results.read(folder))[0].why == SEVERAL_PRICES


# --- the front ---


def a_cost(index: int, workers: int, speed: float, spread: float = 0.0) -> Cost:
    speeds = speed * (1 - spread), speed, speed * (1 + spread)
    row = planted_row(speeds, configuration=str(index), series=f"s{index}", workers=workers, samples_per_second=speed)
    return Cost(row, 1e6 / speed, workers * 1e6 / speed / 3600, None, None, None)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(found: list[tuple[int, int]]) -> None:
    every = [a_cost(index, workers, 10.0 * speed) for index, (workers, speed) in enumerate(found)]
    made = cost.placed(every)
    front = [one for one in made if one.place == cost.ON]
    assert front and len(made) == len(every)
    at = [(one.of.seconds, one.cost) for one in made]
    for one, place in zip(made, at, strict=True):
        beaten = any(other != place and other[0] <= place[0] and other[1] <= place[1] for other in at)
        assert beaten == (one.place != cost.ON) or at.count(place) > 1


def test_who_is_beaten_only_perhaps_may_be_on_it() -> None:
    planted = ((1, 100.0), (1, 97.0), (1, 50.0), (2, 150.0))
    every = [a_cost(index, workers, speed, 0.05) for index, (workers, speed) in enumerate(planted)]
    made = {one.row["series"]: one for one in cost.placed(every)}
    assert {name: one.place for name, one in made.items()} == {
        "s0": cost.ON, "s1": cost.PERHAPS, "s2": cost.BEATEN, "s3": cost.ON,
    }  # fmt: skip
    assert made["s2"].by == "s3, batch 32", "of all that beat it, the fastest"


# --- what next ---


@pytest.mark.parametrize(("speed", "close"), [(101.0, True), (150.0, False)])
def test_a_close_race_is_decided_first_and_a_clear_one_left_alone(tmp_path: Path, speed: float, close: bool) -> None:
    rivals = [replace(ONE, noise=0.01), replace(ONE, batch_per_worker=64, speed=speed, noise=0.01)]
    read = results.read(plant(tmp_path, rivals, seed=1))
    made = suggestions(read, comparisons(read))
    assert [one.rule for one in made] == [next_steps.WINNER] * close
    assert not close or 3 < int(made[0].sentence.partition("max_launches: ")[2].partition("`")[0]) <= 30


def test_repeats_that_tell_two_apart_do() -> None:
    rng = np.random.default_rng(3)
    a, b = (planted_row(mean * (1 + 0.01 * rng.standard_normal(200))) for mean in (100.0, 101.0))
    assert repeats_apart(a, b) == pytest.approx(9, abs=4)  # 2.1 x 0.01 x sqrt(2 / n) < 0.01
    assert repeats_apart(a, a) is None


@pytest.mark.parametrize(
    ("cores", "counts", "following"), [(64, (1, 2, 8), [4]), (4, (1, 2, 4), [3]), (2, (1, 2), []), (3, (1, 2, 3), [])]
)
def test_without_four_counts_the_missing_one_is_next_if_the_machine_has_room_for_four(
    tmp_path: Path, cores: int, counts: tuple[int, ...], following: list[int]
) -> None:
    read = results.read(plant(tmp_path, study(WEAK["ring"], counts), machine={**ROOM, "cores": cores}))
    made = suggestions(read, comparisons(read))
    assert {one.rule for one in made} <= {next_steps.FIRST_LAW}
    assert [int(re.search(r": (\d+) workers?\. ", one.sentence)[1]) for one in made] == following


def test_speed_ups_wider_than_asked_take_launches_whose_key_and_minutes_are_said(tmp_path: Path) -> None:
    two = replace(ONE, framework="horovod", workers=2, allreduce="fp32", speed=180.0, noise=0.04)
    read = results.read(plant(tmp_path, [replace(ONE, noise=0.04), two], seed=1, baseline={"framework": "single"}))
    (made,) = suggestions(read, comparisons(read))
    launches, minutes = map(int, re.search(r"\(`max_launches: (\d+)`, about (\d+) min more\)", made.sentence).groups())
    assert made.rule == next_steps.MARGIN and 0 < minutes <= 97
    assert launches == minutes + 3, "of a minute each, as planted, which both share"
    enough = plant(tmp_path / "enough", [ONE, two], seed=1, baseline={"framework": "single"}, target_interval=0.5)
    assert not suggestions(results.read(enough), comparisons(results.read(enough)))


@pytest.mark.parametrize(
    ("steps", "second", "said"),
    [
        ((1000, 1150, 900), 0.08, "seeds` of `train:`"),
        ((1000, 1000, 1000), 0.0999, "the time between two evaluations leaves more open"),
        ((1000, 1150, 900), 0.0999, ""),  # more than 30 seeds
    ],
)
def test_the_way_to_a_target_is_decided_by_seeds_or_by_closer_evaluations(
    tmp_path: Path, steps: tuple[int, ...], second: float, said: str
) -> None:
    single = TrainedIn(Planted("single", "resnet8", 128), steps, step_seconds=0.1)
    ddp = TrainedIn(Planted("torch_ddp", "resnet8", 64, 2, "fp32"), steps, step_seconds=second)
    read = plant_trained(tmp_path, [single, ddp])
    made = suggestions(read, comparisons(read))
    assert [one.rule for one in made] == [next_steps.TARGET] * bool(said), "and no race for throughput beside it"
    assert all(said in one.sentence and "resnet8 to accuracy=0.6: torch_ddp" in one.sentence for one in made)


def test_the_count_that_takes_most_doubt_off_is_the_farthest_where_laws_part(tmp_path: Path) -> None:
    read = results.read(plant(tmp_path, study(WEAK["Amdahl"], (1, 2, 4, 8), noise=0.01), machine=ROOM))
    made = [one for one in suggestions(read, comparisons(read)) if one.rule == next_steps.LAW]
    assert made and "16 workers. Of all counts not run it would narrow the margin at 32 " in made[0].sentence
