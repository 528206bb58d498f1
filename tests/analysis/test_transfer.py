"""Pre-trained against random weights, trained against frozen: each arm at its best rate, paired by seed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from planted_maps import Arm, plant_arms

from analysis.report import headline
from analysis.show.layout import markdown
from analysis.statistics import arms
from analysis.views import target, transfer

PRE = Arm("imagenet", rates={0.001: 0.5, 0.003: 0.6, 0.01: 0.4}, pointing=0.7)
RANDOM = Arm("none", rates={0.001: 0.2, 0.003: 0.3, 0.01: 0.4}, pointing=0.15)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory):
    one = {"freeze": "none", "pointing": None}
    trained = [replace(PRE, rates={0.003: 0.65}, **one), replace(RANDOM, rates={0.003: 0.64}, **one)]
    return plant_arms(tmp_path_factory.mktemp("study"), [PRE, RANDOM, *trained])


def test_each_arm_takes_its_best_rate_on_validation_data_and_not_on_the_test(tmp_path: Path) -> None:
    """The rate that is best on the test videos is another, and was tried with two seeds only."""
    misleading = replace(PRE, rates={0.03: 0.55}, test=-0.4, seeds=(1, 2))
    made = plant_arms(tmp_path, [replace(one, pointing=None) for one in (PRE, misleading, RANDOM)])
    ((pre, random),) = arms.of_weights(made)
    assert (pre.chosen["learning_rate"], random.chosen["learning_rate"]) == (0.003, 0.01)
    assert (len(pre.rows), pre.at_edge, random.at_edge) == (4, "", "highest")


def test_arms_that_differ_in_one_thing_alone_are_compared_seed_by_seed(study) -> None:
    """Seeds differ by 0.05, which all arms share; what is left of a difference is 0.01."""
    rows = arms.arm_pairs_table(study)
    names = ["varied", "weights", "freeze", "other_weights", "other_freeze"]
    compared = list(rows[names].drop_duplicates().itertuples(index=False, name=None))
    assert compared == [
        ("weights", "imagenet", "backbone", "random", "backbone"), ("weights", "imagenet", "none", "random", "none"),
        ("freeze", "imagenet", "none", "imagenet", "backbone"), ("freeze", "random", "none", "random", "backbone"),
    ]  # fmt: skip
    of = rows.set_index(["varied", "freeze", "weights", "figure"])
    frozen = of.loc[("weights", "backbone", "imagenet", "ap_v")]
    assert frozen.difference == pytest.approx(0.6 - 0.4, abs=0.02) and frozen.seeds == 5
    assert frozen.difference_high - frozen.difference_low < 0.06 < frozen.ours_high - frozen.ours_low
    assert (frozen.verdict, frozen.rate, frozen.other_rate, frozen.chosen_by) == (
        arms.HELPS,
        "0.003",
        "0.01",
        "ap_heads",
    )
    assert of.loc[("weights", "none", "imagenet", "ap_v")].verdict == arms.NOT_RESOLVED
    pointing = of.loc[("weights", "backbone", "imagenet", arms.POINTING)]
    assert pointing.difference == pytest.approx(0.7 - 0.15, abs=0.12) and pointing.verdict == arms.HELPS
    assert arms.POINTING not in set(rows[rows.varied == "freeze"].figure), "the trained arms have no maps"


def test_the_answer_says_what_each_brings_and_takes_the_best_result_of_three_seeds_or_more(
    study, tmp_path: Path
) -> None:
    weights, backbone = transfer.answers(study)
    one = r"[+-]0\.\d+ \[[+-]0\.\d+, [+-]0\.\d+\]"
    assert re.fullmatch(
        rf"Weights imagenet instead of random: mean AP of the four heads {one} \(backbone frozen: helps\); {one} "
        r"\(backbone trained: not resolved\)\.",
        weights,
    )
    assert backbone.startswith("Backbone trained instead of frozen: mean AP of the four heads ")
    assert headline.sentences(headline.facts(study))[:2] == [f"**{weights}**", backbone]
    lucky = replace(PRE, rates={0.03: 0.55}, test=-0.4, seeds=(1, 2))
    made = plant_arms(tmp_path / "a", [replace(one, pointing=None) for one in (PRE, lucky)])
    (ended,) = headline.facts(made).ended
    assert "learning rate 0.003," in ended and ", the highest mean of 3, after" in ended and "seeds)" not in ended
    (ended,) = headline.facts(plant_arms(tmp_path / "b", [replace(lucky, pointing=None)])).ended
    assert "(2 seeds)" in ended


def test_without_a_target_a_table_of_trainings_says_how_long_they_were(study) -> None:
    shown = target.listing(study)
    assert shown.header[:4] == ("configuration", "seeds", "steps", "seconds") and "test ap heads" in shown.header
    assert all(cell for row in shown.rows for cell in row[:4])
    assert not any(note.startswith(("Met at step", "Soonest")) for note in shown.notes)


def test_less_is_better_of_a_loss_and_too_few_seeds_claim_nothing(tmp_path: Path) -> None:
    interval = arms.between_repeats([0.1, 0.11, 0.12])
    assert arms.verdict(interval, "loss") == arms.HARMS and arms.verdict(interval, "ap_i") == arms.HELPS
    two = plant_arms(tmp_path, [replace(one, seeds=(1, 2), pointing=None) for one in (PRE, RANDOM)])
    assert set(arms.arm_pairs_table(two).verdict) == {arms.TOO_FEW}
    assert "too few seeds" in markdown(transfer.listing(two))


def test_seeds_that_agree_to_the_last_digit_are_no_proof() -> None:
    """One more of eight test videos in each of three seeds; by chance all go the same way in one of four."""
    one_video = arms.over_seeds([0.125, 0.25 - 0.125, 0.3 - 0.175])
    assert (one_video.mean, one_video.low, one_video.high) == (pytest.approx(0.125), None, None)
    assert arms.verdict(one_video, "ap_i") == arms.NOT_RESOLVED
    spread = arms.over_seeds([0.125, 0.126, 0.124])
    assert spread == arms.between_repeats([0.125, 0.126, 0.124]) and arms.verdict(spread, "ap_i") == arms.HELPS


def test_trainings_that_differ_in_more_than_their_weights_are_no_pair(tmp_path: Path) -> None:
    one = replace(PRE, pointing=None)
    made = plant_arms(tmp_path, [one, replace(RANDOM, pointing=None, keys=(("train_optimizer", "sgd"),))])
    assert arms.pairs(made) == [] and transfer.listing(made) is None
    assert transfer.listing(plant_arms(tmp_path / "one", [one])) is None
