"""Trainings to a target, and pairs of them: planted truths, and by simulation how often they are called wrong."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawings import dots_of, drawn_by, rows_of, shown, untidy
from planted import Planted, changed, plant_gates
from planted_trainings import TrainedIn, plant_trained
from simulations import Seen, times

from analysis.frames import results
from analysis.report import answer, extent, headline
from analysis.show.layout import markdown
from analysis.statistics import batch_size
from analysis.statistics.estimates import censored_mean
from analysis.views import next_steps, same_training, target, tasks
from analysis.views.target import BEST, NOT_COMPARED, NOT_RESOLVED, SLOWER, TIED, TOO_FEW, Times

ONE = TrainedIn(Planted("single", "resnet8", 128), [1000, 1050, 950], step_seconds=0.10, price=0.5)
DDP = TrainedIn(Planted("torch_ddp", "resnet8", 64, 2, "fp32"), [1000, 1050, 950], step_seconds=0.06, price=0.5)
SLOW_DDP = replace(DDP, step_seconds=0.07)
MPI = TrainedIn(Planted("mpi_allreduce", "resnet8", 64, 2, "fp32"), [2000, None, None], step_seconds=0.07, price=0.5)


def judged(folder: Path, *trained: TrainedIn) -> pd.DataFrame:
    """Framework -> its row of the table of targets."""
    return target.trained_configurations(plant_trained(folder, trained)).set_index("framework")


def test_cost_is_in_worker_hours_and_in_money(tmp_path: Path) -> None:
    rows = judged(tmp_path, ONE, SLOW_DDP)
    mean = rows.seconds_to_target["single"]
    assert mean == pytest.approx(math.prod((97.5, 102.5, 92.5)) ** (1 / 3), rel=2e-3)  # between two evaluations
    assert rows.worker_hours_to_target["single"] == pytest.approx(mean / 3600)
    assert rows.worker_hours_to_target["torch_ddp"] == pytest.approx(2 * 0.7 * mean / 3600)
    assert rows.money_to_target["torch_ddp"] == pytest.approx(0.5 * 2 * 0.7 * mean / 3600)
    assert rows.money_to_target_high["single"] == pytest.approx(0.5 * rows.seconds_to_target_high["single"] / 3600)
    assert dict(rows.soonest) == {"single": SLOWER, "torch_ddp": BEST}
    assert dict(rows.cheapest) == {"single": BEST, "torch_ddp": SLOWER}


def test_a_dear_worker_makes_the_fewest_worker_hours_not_the_cheapest(tmp_path: Path) -> None:
    priced = judged(tmp_path / "a", replace(ONE, price=2.0), SLOW_DDP)
    assert dict(priced.cheapest) == {"single": SLOWER, "torch_ddp": BEST}
    unpriced = judged(tmp_path / "b", replace(ONE, price=None), SLOW_DDP)
    assert dict(unpriced.cheapest) == {"single": BEST, "torch_ddp": SLOWER}
    assert unpriced.money_to_target.isna()["single"]


@pytest.mark.parametrize(("stopped", "verdict"), [(500, NOT_RESOLVED), (3_000, SLOWER)])
def test_what_never_reached_the_target_is_slower_or_not_resolved_and_never_dropped(
    tmp_path: Path, stopped: int, verdict: str
) -> None:
    """What was stopped early might have been the soonest."""
    rows = judged(tmp_path, ONE, DDP, replace(MPI, stopped=stopped))
    assert rows.soonest["mpi_allreduce"] == verdict and rows.reached["mpi_allreduce"] == 1


def test_a_training_that_failed_is_no_seed_and_stays_listed_as_failed(tmp_path: Path) -> None:
    """Its ranks may have reported all the same: two that shared cores. One that diverged ended as it should."""
    away = replace(MPI, steps=[1000, 1050, None], says={"ended_by": "diverged"})
    plant_trained(tmp_path, [ONE, DDP, away])
    shared = {"status": "failed", "reason": "rank 0 and rank 1 of host share cores 0"}
    read = results.read(changed(tmp_path, lambda record: record.update(shared), DDP.configuration))
    rows = target.trained_configurations(read).set_index("framework")
    assert dict(rows.seeds) == {"single": 3, "mpi_allreduce": 3} and rows.soonest["single"] == BEST
    assert rows.diverged["mpi_allreduce"] == 3
    details, failed = read.details, read.by_name[DDP.configuration]
    assert not any((frame.configuration == DDP.configuration).any() for frame in (details.trained, details.evaluations))
    assert (failed["status"], failed["n"]) == ("failed", 0) and failed["reason"] == shared["reason"]
    assert [pair.reference for pair in same_training.table(read).itertuples()] == [ONE.configuration]
    (recipe,) = batch_size.recipes(read)
    assert {one.row["framework"] for one in recipe.trained} == {"single", "mpi_allreduce"}


def test_a_failed_seed_among_others_is_not_counted(tmp_path: Path) -> None:
    plant_trained(tmp_path, [ONE, DDP])
    last = replace(DDP.planted.trial(3), seed=3).id
    failed = changed(tmp_path, lambda record: record["id"] == last and record.update(status="failed", reason="shared"))
    rows = target.trained_configurations(results.read(failed)).set_index("framework")
    assert dict(rows.seeds) == {"single": 3, "torch_ddp": 2}
    assert dict(rows.soonest) == {"single": BEST, "torch_ddp": TOO_FEW}


def test_each_task_under_one_model_and_target_has_an_answer_of_its_own(tmp_path: Path) -> None:
    """Verdicts are within a task: another input augments in its own way."""
    dali = (("input", "dali"),)
    near = replace(DDP, of=replace(DDP.of, framework="horovod"), step_seconds=0.062)
    soon, slow = (replace(one, of=replace(one.of, keys=dali), step_seconds=one.step_seconds / 2) for one in (DDP, ONE))
    read = plant_trained(tmp_path, [DDP, near, soon, slow])
    first, second = tasks.tasks(read)
    assert {first.words, second.words} == {"no input given", "dali input"}
    assert {row["configuration"] for row in first.rows} in (
        {DDP.configuration, near.configuration},
        {soon.configuration, slow.configuration},
    )
    reached = {one.model: one for one in headline.facts(read).reached}
    assert set(reached) == {"resnet8 (no input given)", "resnet8 (dali input)"}
    assert reached["resnet8 (no input given)"].verdicts == {TIED: 1}
    assert not reached["resnet8 (no input given)"].slower
    assert reached["resnet8 (dali input)"].verdicts == {SLOWER: 1}
    assert reached["resnet8 (dali input)"].seconds.startswith("29.")
    cards = {card.label: card for card in answer.soonest(read, "resnet8")}
    assert set(cards) == {"soonest to accuracy=0.6 (no input given) (one of 2)", "soonest to accuracy=0.6 (dali input)"}
    assert extent.of_the_first_target(read)
    (suggested,) = next_steps.suggestions(read, [])
    assert "dali" not in suggested.sentence.replace("no input given", "")


@pytest.mark.parametrize("rival", [[500, 520], [500]])
def test_a_sooner_rival_with_too_few_seeds_is_named_and_nothing_is_called_the_soonest(
    tmp_path: Path, rival: list[int]
) -> None:
    few = replace(DDP, steps=rival)
    late = replace(DDP, of=replace(DDP.of, framework="horovod"), steps=[2000])
    read = plant_trained(tmp_path, [ONE, few, late])
    (one,) = headline.facts(read).reached
    assert one.name == "single" and one.verdicts == {TOO_FEW: 2} and one.lower == ["torch_ddp"]
    words = " ".join(headline.sentences(headline.facts(read)))
    assert "soonest" not in words and "not tested (fewer than 3 seeds): 2" in words
    (card,) = answer.soonest(read, "resnet8")
    assert "soonest" not in card.label and card.name.startswith("single")
    assert "not tested (fewer than 3 seeds): 2" in card.note and "torch_ddp" in card.note
    assert "horovod" not in card.note
    text = markdown(target.listing(read))
    assert "| lowest mean |" in text and "| fastest |" not in text


def test_rivals_with_too_few_seeds_are_said_beside_ties(tmp_path: Path) -> None:
    near = replace(DDP, of=replace(DDP.of, framework="horovod"), step_seconds=0.0603)
    few = replace(DDP, of=replace(DDP.of, framework="mpi_allreduce"), steps=[2000, 2000])
    words = " ".join(headline.sentences(headline.facts(plant_trained(tmp_path, [DDP, near, few]))))
    assert "with 2 of 3 configurations" in words and "not tested (fewer than 3 seeds): 1" in words


FAULT = "loss of every step: off by 0.3"


def test_what_failed_parity_is_marked_and_neither_the_soonest_nor_a_rival(tmp_path: Path) -> None:
    near = replace(DDP, of=replace(DDP.of, framework="horovod"), step_seconds=0.09)
    every = [ONE, DDP, near]
    plant_trained(tmp_path, every)
    plant_gates(tmp_path, [one.planted for one in every], {"torch_ddp": FAULT})
    read = results.read(tmp_path)
    rows = target.trained_configurations(read).set_index("framework")
    assert dict(rows.soonest) == {"single": TIED, "horovod": BEST, "torch_ddp": NOT_COMPARED}
    assert rows.cheapest["torch_ddp"] == NOT_COMPARED and rows.soonest_low.isna()["torch_ddp"]
    (marked,) = [row for row in target.listing(read).rows if row[0].startswith("torch_ddp")]
    assert marked[0].endswith("†") and marked.count(NOT_COMPARED) == 2
    (said,) = headline.facts(read).reached
    assert said.name.startswith("horovod") and said.verdicts == {TIED: 1}
    (card,) = answer.soonest(read, "resnet8")
    assert card.name.startswith("horovod") and "torch_ddp" not in str(card)
    assert not any("torch_ddp" in one.sentence for one in next_steps.suggestions(read, []))


def test_what_failed_parity_is_in_no_recipe_and_makes_no_step_faster(tmp_path: Path) -> None:
    free = [replace(one, of=replace(one.of, keys=(("train_target", None),)), says={"target": ""}) for one in (ONE, DDP)]
    for name, every in (("to a target", [ONE, DDP]), ("to the end", [free[0], replace(free[1], accuracy=0.9)])):
        plant_trained(tmp_path / name, every)
        sound = headline.facts(results.read(tmp_path / name))
        plant_gates(tmp_path / name, [one.planted for one in every], {"torch_ddp": FAULT})
        read = results.read(tmp_path / name)
        faulty = headline.facts(read)
        assert any("a second worker makes a step" in said for said in sound.batches) == (name == "to a target")
        assert not faulty.batches
        assert {one.row["framework"] for recipe in batch_size.recipes(read) for one in recipe.trained} <= {"single"}
    assert "torch_ddp" in sound.ended[0] and "torch_ddp" not in faulty.ended[0]
    pairs = same_training.listing(results.read(tmp_path / "to a target"))
    assert pairs is not None and pairs.rows[0][0].endswith("†")


def test_a_faulty_configuration_is_the_reference_of_no_pair(tmp_path: Path) -> None:
    others = [replace(DDP, of=replace(DDP.of, framework=name)) for name in ("horovod", "mpi_allreduce")]
    plant_trained(tmp_path, [ONE, *others])
    plant_gates(tmp_path, [one.planted for one in (ONE, *others)], {"single": FAULT})
    pairs = same_training.table(results.read(tmp_path))
    assert set(pairs.reference) == {others[0].configuration}


def test_more_workers_than_there_is_room_for_are_compared_with_nothing_and_local_sgd_is(tmp_path: Path) -> None:
    """An algorithm of its own shows what it brings in seconds to a target."""
    four = replace(DDP, of=replace(DDP.of, batch_per_worker=32, workers=4, keys=(("oversubscribe", True),)))
    outer = (("sync_every", 8), ("outer", "average"))
    local = replace(DDP, of=replace(DDP.of, framework="diloco", keys=outer), step_seconds=0.05)
    rows = judged(tmp_path, ONE, replace(four, step_seconds=0.01), local)
    assert dict(rows.soonest) == {"single": SLOWER, "torch_ddp": NOT_COMPARED, "diloco": BEST}


def test_inputs_are_judged_each_by_itself_and_the_table_says_so(tmp_path: Path) -> None:
    """Each augments in its own way."""
    dali, slower = (replace(one, of=replace(one.of, keys=(("input", "dali"),))) for one in (DDP, ONE))
    made = plant_trained(tmp_path, [ONE, dali, slower])
    rows = target.trained_configurations(made).set_index("configuration")
    assert dict(rows.soonest) == {ONE.configuration: BEST, dali.configuration: BEST, slower.configuration: SLOWER}
    assert "Inputs (dali, none given) augment" in markdown(target.listing(made))
    assert len(same_training.table(made)) == 1, "memory's has nobody to be paired with"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([1010] * 12, [1000] * 12, same_training.EQUAL),
        ([1500, 1450, 1550, 1480, 1530], [1000, 1050, 950, 1000, 1000], same_training.DIFFERS),
        ([1300, 900, 1000], [1000, 1100, 900], same_training.NOT_RESOLVED),
        ([1000, 1000], [1000, 1000], same_training.TOO_FEW),
        ([None] * 3, [1000] * 3, same_training.NOT_RESOLVED),
        ([400] * 3, [400] * 3, same_training.NOT_RESOLVED),  # three that are alike to the nearest 50 steps show little
        ([1600, 1700, 1650, 1620, None], [1000, 1000, 1050, 1000, 1000], same_training.DIFFERS),
    ],
)
def test_steps_are_equal_only_by_equivalence(tmp_path: Path, ours, theirs, verdict: str) -> None:
    made = plant_trained(tmp_path, [replace(ONE, steps=theirs), replace(DDP, steps=ours, stopped=1_800)])
    (row,) = same_training.table(made).to_dict("records")
    assert row["verdict"] == verdict
    assert (row["configuration"], row["reference"]) == (DDP.configuration, ONE.configuration)
    assert row["step_seconds_ratio"] == pytest.approx(0.6)
    assert row["both_reached"] + row["one_reached"] == len(ours)


@pytest.mark.parametrize(
    ("ours", "theirs", "needed"),
    [([400] * 3, [400] * 3, "limited by evaluate_every"), ([1300, 900, 1000], [1000, 1100, 900], r"\d\d+")],
)
def test_no_more_seeds_are_asked_for_where_evaluations_are_too_far_apart(
    tmp_path: Path, ours: list[int], theirs: list[int], needed: str
) -> None:
    listing = same_training.listing(plant_trained(tmp_path, [replace(ONE, steps=theirs), replace(DDP, steps=ours)]))
    assert listing is not None and re.fullmatch(needed, listing.rows[0][listing.header.index("seeds needed")])


def test_trainings_that_logged_the_same_to_the_last_digit_need_no_statistics(tmp_path: Path) -> None:
    one, other = replace(ONE, train_loss=1.5), replace(DDP, train_loss=1.5)
    (row,) = same_training.table(plant_trained(tmp_path / "same", [one, other])).to_dict("records")
    assert (row["verdict"], row["steps_ratio"], row["steps_ratio_low"]) == (same_training.IDENTICAL, 1.0, 1.0)
    assert row["seeds_needed"] is None and row["seconds_ratio"] == pytest.approx(0.6)
    for name, apart in (("a digit", {"train_loss": 1.5 + 1e-15}), ("a step", {"steps": [1000, 1050, 951]})):
        (verdict,) = same_training.table(plant_trained(tmp_path / name, [one, replace(other, **apart)])).verdict
        assert verdict == same_training.EQUAL


def test_pairs_are_of_one_recipe_and_global_batch(tmp_path: Path) -> None:
    other_batch = replace(DDP, of=replace(DDP.of, batch_per_worker=128))
    other_rate = replace(DDP, of=replace(DDP.of, keys=(("learning_rate", 0.1),)))
    other_precision = replace(DDP, of=replace(DDP.of, keys=(("precision", "bf16"),)))
    made = plant_trained(tmp_path, [ONE, DDP, other_batch, other_rate, other_precision])
    assert list(same_training.table(made).configuration) == [DDP.configuration]
    shown = markdown(same_training.listing(made))
    assert "3 of 3" in shown and "| 0.60 [0.60, 0.60] | 0.60 [" in shown


def test_a_ratio_known_only_to_be_smaller_is_the_inverse_of_one_known_only_to_be_larger() -> None:
    after, by = [1.0, 1.2, 0.9, 1.3, 1.1], [1.0, 1.2, 1.0, math.inf, math.inf]
    larger = censored_mean(after, by)
    smaller = censored_mean([1 / one for one in by], [1 / one for one in after])
    assert smaller.mean == pytest.approx(1 / larger.mean, rel=1e-4)
    assert smaller.low == pytest.approx(1 / larger.high, rel=1e-3)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("stopped", [0.0, 0.3])
@pytest.mark.parametrize("evaluations", [math.inf, 2, 6, 20])
def test_equal_configurations_are_called_slower_in_at_most_5_percent_of_studies(
    seeds: int, stopped: float, evaluations: float
) -> None:
    """8 configurations whose seeds spread by 20 %, each evaluated about so many times until the target; in half of them
    a share of the seeds is stopped early."""
    random, wrong, of = np.random.default_rng(seeds), 0, times(100, 4_000)
    limit = math.exp(0.2 * -0.5244) if stopped else math.inf  # what 30 % of values are below; 70 % are stopped
    for _ in range(of):
        values = np.exp(0.2 * random.standard_normal((8, seeds)))
        every = np.exp(random.uniform(-0.3, 0.3, (8, 1))) / evaluations
        after, by = (values, values) if math.isinf(evaluations) else grid(values, every)
        late = (values > limit) & (np.arange(8)[:, None] % 2 == 1)
        after, by = np.where(late, limit, after), np.where(late, math.inf, by)
        group = {str(index): Times(after[index].tolist(), by[index].tolist()) for index in range(8)}
        wrong += SLOWER in target.verdicts_of_times([group]).values()
    seen = Seen(wrong, of)
    print(f"{seeds} seeds, stopped {stopped}, {evaluations} evaluations: any called slower in {seen}")
    assert seen.keeps(most=0.05)


def grid(values: np.ndarray, every: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The evaluations before and after."""
    met = np.ceil(values / every)
    return (met - 1) * every, met * every


def exact(*times: float) -> Times:
    return Times(times, times)


def test_what_is_slower_by_far_is_found() -> None:
    quick, slow = exact(10.0, 11.0, 9.5), exact(20.0, 21.0, 19.0)
    assert target.verdicts_of_times([{"a": quick, "b": slow}]) == {"a": BEST, "b": SLOWER}
    assert target.verdicts_of_times([{"a": quick, "b": exact(10.2, 10.8, 9.6)}]) == {"a": BEST, "b": TIED}
    assert target.verdicts_of_times([{"a": exact(10.0), "b": slow}]) == {"a": TOO_FEW, "b": BEST}


def test_what_may_have_been_as_soon_between_two_evaluations_is_not_slower() -> None:
    """Each seed of `b` was evaluated at 10 s, and next at 20 s."""
    quick, late = exact(10.0, 11.0, 9.5), Times([10.0, 10.1, 9.9], [20.0, 21.0, 19.0])
    assert target.verdicts_of_times([{"a": quick, "b": late}]) == {"a": BEST, "b": TIED}
    unknown = Times([0.0] * 3, [20.0, 21.0, 19.0])
    assert target.verdicts_of_times([{"a": quick, "b": unknown}])["b"] != SLOWER


def test_the_page_answers_who_is_soonest(tmp_path: Path) -> None:
    (card,) = answer.soonest(plant_trained(tmp_path, [ONE, DDP]), "resnet8")
    name = "torch_ddp, 2 workers, fp32, batch 64 per worker (128 global)"
    assert (card.label, card.name) == ("soonest to accuracy=0.6", name)
    assert card.value == "58.5 s of training" and not card.alike
    (none,) = answer.soonest(plant_trained(tmp_path / "stopped", [MPI]), "resnet8")
    assert not none.value and none.note == "no configuration reached it with three seeds or more"
    near = replace(DDP, of=replace(DDP.of, framework="horovod"), step_seconds=0.061)
    both = plant_trained(tmp_path / "both", [ONE, DDP, near])
    (card,) = answer.soonest(both, "resnet8")
    assert card.label == "soonest to accuracy=0.6 (one of 2)" and len(card.alike) == 1
    text = markdown(target.listing(both))
    assert "| lowest mean |" in text and "| fastest |" not in text and "tied" not in text


def test_the_bounds_that_decide_stand_beside_the_verdict(tmp_path: Path) -> None:
    quick, slow, near = exact(10.0, 11.0, 9.5), exact(20.0, 21.0, 19.0), exact(10.2, 10.8, 9.6)
    bounds = target.bounds_of_times([{"a": quick, "b": slow, "c": near}])
    assert 1 < bounds["b"][0] < 2 < bounds["b"][1] and bounds["c"][0] < 1 < bounds["c"][1]
    assert "d" not in target.bounds_of_times([{"a": quick, "d": exact(5.0)}])
    rows = judged(tmp_path, ONE, SLOW_DDP)
    low, high = rows.soonest_low["single"], rows.soonest_high["single"]
    assert 1 < low < 1 / 0.7 < high
    text = markdown(target.listing(plant_trained(tmp_path / "text", [ONE, SLOW_DDP])))
    assert f"slower [{low:.2f}, {high:.2f}]" in text and "| fastest |" in text


# --- figures ---


def test_seconds_to_the_target_are_dots_and_what_never_reached_it_a_cross(tmp_path: Path) -> None:
    made = plant_trained(tmp_path, [ONE, SLOW_DDP, replace(MPI, steps=[None, None, None])])
    rows = target.trained_configurations(made).sort_values("seconds_to_target")
    figure = drawn_by(target.draw, made, "resnet8")
    (axis,) = figure.axes
    assert dots_of(axis) == pytest.approx(list(rows.seconds_to_target.dropna())) and len(dots_of(axis)) == 2
    *_, (last, said) = rows_of(axis).items()
    assert last.startswith("mpi_allreduce") and said == "not reached" and "Crosses" in shown(figure)
    assert not untidy(figure)


def test_without_a_target_it_is_the_whole_training_and_its_result(tmp_path: Path) -> None:
    free = [replace(one, of=replace(one.of, keys=(("train_target", None),)), says={"target": ""}) for one in (ONE, DDP)]
    figure = drawn_by(target.draw, plant_trained(tmp_path, free), "resnet8")
    assert [axis.get_xlabel() for axis in figure.axes] == ["seconds of the whole training", "test accuracy"]
    assert "trained to a result" in shown(figure) and not untidy(figure)


def test_each_configuration_has_a_panel_of_its_seeds_on_the_same_axes(tmp_path: Path) -> None:
    made = plant_trained(tmp_path, [ONE, DDP, MPI])
    figure = drawn_by(target.draw_curves, made, "resnet8")
    assert len(figure.axes) == 3 and not untidy(figure)
    assert len({(axis.get_xlim(), axis.get_ylim()) for axis in figure.axes}) == 1
    for axis in figure.axes:
        seeds = [line for line in axis.lines if line.get_marker() == "."]
        (others,) = axis.collections
        assert len(seeds) == 3 and len(others.get_segments()) == 6
    ours = made.details.evaluations[made.details.evaluations.configuration == ONE.configuration]
    seconds = [
        sorted(x for line in axis.lines if line.get_marker() == "." for x in line.get_xdata()) for axis in figure.axes
    ]
    assert sorted(ours.seconds) in seconds
