"""Statistical efficiency, goodput and what is predicted of them, on trainings whose truth is planted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawings import untidy
from planted_trainings import CRITICAL, SMALLEST_STEPS, Trained, plant_trainings
from simulations import Seen, times

from analysis.frames import results
from analysis.statistics import batch_size
from analysis.statistics.batch_size import Curve, Needed, recipes
from analysis.statistics.estimates import between, censored_mean, of_censored, of_values
from analysis.views import batch_efficiency, figures
from analysis.views.batch_efficiency import paying

SIMULATIONS = times(quick=400, long=4000)
CENSORED_SIMULATIONS = times(quick=40, long=1000)
ALONE = [Trained(batch, speed=1000.0) for batch in (64, 128, 256, 512)]
PAIRS = [Trained(batch, workers=2, speed=1900.0) for batch in (32, 64, 128, 256)]
WEAK = {1: 1000.0, 2: 1900.0, 4: 2600.0, 8: 3600.0, 16: 5000.0}  # samples a second of workers with 64 each


def of(folder: Path, *trained: Trained, **truth: Any) -> results.Results:
    return results.read(plant_trainings(folder, trained, baseline={"framework": "single"}, **truth))


# --- products and ratios of what is known only so well ---


def test_a_ratio_of_log_means_is_welchs() -> None:
    from scipy.stats import ttest_ind

    a, b = [98.0, 100.0, 103.0, 99.0], [55.0, 40.0, 61.0]
    found = of_values(a) / of_values(b)
    welch = ttest_ind(np.log(a), np.log(b), equal_var=False)
    expected = welch.confidence_interval(0.95)
    assert found.freedom == pytest.approx(welch.df)
    assert found.bounds() == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


def test_a_side_that_is_open_or_unknown_stays_so() -> None:
    opened = between(10.0, 5.0, None, 4)
    low, high = (opened * of_values([2.0, 2.1, 2.2])).bounds()
    assert low is not None and high is None
    assert (of_values([2.0, 2.1]) / opened).bounds()[0] is None
    assert (of_values([3.0]) * of_values([2.0, 2.1])).bounds() == (None, None)


def test_an_interval_with_censored_values_is_kept() -> None:
    mean = censored_mean([10.0, 12.0, 11.0], [14.0])
    found = of_censored(mean)
    assert found is not None and found.bounds() == pytest.approx((mean.low, mean.high))
    assert of_censored(censored_mean([10.0], [12.0])) is None


# --- the critical batch size ---


def needed(rng: np.random.Generator, spread: float, most: float = math.inf) -> list[Needed]:
    """Three seeds at four batch sizes, stopped after `most` samples."""
    made = []
    for batch, seed in ((batch, seed) for batch in (64, 128, 256, 512) for seed in range(3)):
        samples = SMALLEST_STEPS * (batch + CRITICAL) * math.exp(spread * rng.standard_normal())
        made.append(Needed(batch, seed, min(samples, most), samples > most))
    return made


def holds(low: float | None, truth: float, high: float | None) -> bool:
    return (low or 0.0) <= truth <= (math.inf if high is None else high)


@pytest.mark.parametrize("spread", [0.02, 0.15])
def test_the_intervals_of_the_fit_hold_the_truth_in_95_of_100_studies(spread: float) -> None:
    rng = np.random.default_rng(5)
    curves = [fitted(needed(rng, spread)) for _ in range(SIMULATIONS)]
    batches = Seen(sum(holds(curve.low, CRITICAL, curve.high) for curve in curves), SIMULATIONS)
    for batch in (64, 1024):  # within what was measured, and beyond
        bounds = [curve.samples(batch).bounds() for curve in curves]
        truth = SMALLEST_STEPS * (batch + CRITICAL)
        samples = Seen(sum(holds(low, truth, high) for low, high in bounds), SIMULATIONS)
        print(f"spread {spread}: critical batch {batches}, samples at {batch} {samples}")
        assert batches.keeps(0.93, 0.97) and samples.keeps(0.93, 0.97)


def fitted(needed: list[Needed]) -> Curve:
    curve = batch_size.fit(needed)
    assert isinstance(curve, Curve)
    return curve


def test_seeds_that_were_stopped_before_are_no_reason_for_a_smaller_batch() -> None:
    """Half of those of the largest batch are stopped. Dropped, they would leave the quick ones alone."""
    rng, most = np.random.default_rng(5), SMALLEST_STEPS * (512 + CRITICAL)
    found, dropped = [], []
    for _ in range(CENSORED_SIMULATIONS):
        studied = needed(rng, 0.15, most)
        found.append(fitted(studied))
        dropped.append(fitted([one for one in studied if not one.censored]))
    covered = Seen(sum(holds(curve.low, CRITICAL, curve.high) for curve in found), CENSORED_SIMULATIONS)
    print(f"critical batch with censored seeds: {covered}")
    assert covered.keeps(0.90, 0.99)
    at_512 = [np.mean([curve.samples(512).log for curve in curves]) for curves in (found, dropped)]
    assert at_512[1] < at_512[0] - 0.02 and abs(at_512[0] - math.log(most)) < 0.06


def test_batches_far_below_the_critical_one_bound_it_from_below_only() -> None:
    rng = np.random.default_rng(1)
    curve = fitted([replace(one, samples=1e5 * math.exp(0.02 * rng.standard_normal())) for one in needed(rng, 0)])
    assert curve.high is None and curve.low is not None and curve.low > 512
    assert "above" in batch_efficiency.critical(replace(curve, critical=None))


def test_one_batch_size_or_too_few_seeds_give_a_reason() -> None:
    assert "at 1 global batch size, not at two" in str(batch_size.fit([Needed(64, seed, 1e5) for seed in range(9)]))
    assert "2 seeds reached the target" in str(batch_size.fit([Needed(64, 1, 1e5), Needed(128, 1, 2e5)]))


# --- the table ---


def test_the_planted_study_is_read_back(tmp_path: Path) -> None:
    rows = batch_efficiency.efficiency_table(of(tmp_path, *ALONE, *PAIRS))
    assert rows.recipe.unique().tolist() == [1] and set(rows.smallest_batch) == {64}
    for _, row in rows.iterrows():
        true = (64 + CRITICAL) / (row.global_batch + CRITICAL)
        assert row.efficiency == pytest.approx(true, rel=0.1)
        assert row.noise_efficiency == pytest.approx(true, rel=0.15)
        assert row.goodput == pytest.approx(row.samples_per_second * row.efficiency)
        assert row.seconds == pytest.approx(row.measured_steps * row.global_batch / row.samples_per_second)
        assert row.worker_hours == pytest.approx(row.seconds * row.workers / 3600)
    assert rows.critical_batch.iloc[0] == pytest.approx(CRITICAL, rel=0.15)
    assert rows.smallest_steps.iloc[0] == pytest.approx(SMALLEST_STEPS, rel=0.1)


def test_predicted_are_the_other_batches_and_from_the_noise_of_the_two_smallest(tmp_path: Path) -> None:
    rows = batch_efficiency.efficiency_table(of(tmp_path, *ALONE)).set_index("global_batch")
    assert set(rows.predicted_from) == {"64;128"}
    assert rows.predicted_steps.notna().tolist() == [False, False, True, True]
    assert (rows.error_low.loc[256:] < 0).all() and (rows.error_high.loc[256:] > 0).all()
    assert rows.predicted_seconds[512] == pytest.approx(rows.predicted_steps[512] * 512 / rows.samples_per_second[512])


def test_what_never_reached_the_target_is_there_and_claims_nothing(tmp_path: Path) -> None:
    rows = batch_efficiency.efficiency_table(of(tmp_path, *ALONE, Trained(1024, reached=False))).set_index(
        "global_batch"
    )
    assert rows.reached[1024] == 0 and math.isnan(rows.efficiency[1024]) and math.isnan(rows.predicted_steps[1024])
    cells = batch_efficiency.listing(results.read(tmp_path))
    assert cells is not None and "not reached" in cells.rows[-1]


def test_a_recipe_of_its_own_has_a_curve_of_its_own(tmp_path: Path) -> None:
    other = [replace(one, keys=(("train_scale_learning_rate", "sqrt"), ("train_reference_batch", 64))) for one in ALONE]
    read = of(tmp_path, *ALONE, *other)
    assert sorted(set(batch_efficiency.efficiency_table(read).recipe)) == [1, 2]
    said = batch_efficiency.listing(read)
    assert said is not None and sum("critical batch size" in note for note in said.notes) == 2


# --- how many workers pay ---


def test_where_more_workers_are_faster_and_no_sooner_at_the_target_it_is_said(tmp_path: Path) -> None:
    """With a critical batch of 100, 2 workers are 1.9 times as fast as one and need 1.39 times the samples; 4 are 1.37
    times as fast again, and need 1.56 times those."""
    read = of(tmp_path, *(Trained(64, workers=count, speed=speed) for count, speed in WEAK.items()), critical=100.0)
    (one,) = paying(recipes(read)[0])
    assert one.throughput.row["workers"] == 16
    assert one.seconds.of.row["workers"] == 2 and one.seconds.tied == ()
    assert one.hours.of.row["workers"] == 1
    said = batch_efficiency.listing(read)
    assert said is not None
    assert any("beyond it more workers are faster, and no sooner at the target" in note for note in said.notes)


def test_worker_counts_that_seeds_do_not_tell_apart_are_tied_and_single_seeds_unsure(tmp_path: Path) -> None:
    """Two workers at the same seconds as one, to within a hundredth."""
    speed = 1000 * (128 + CRITICAL) / (64 + CRITICAL)
    trained = [Trained(64), Trained(64, workers=2, speed=speed)]
    (one,) = paying(recipes(of(tmp_path, *trained))[0])
    assert {one.seconds.of.row["workers"], *one.seconds.tied} == {1, 2} and one.seconds.unsure == ()
    assert one.hours.of.row["workers"] == 1 and one.hours.tied == ()
    (one,) = paying(recipes(of(tmp_path / "few", *[replace(each, seeds=(1,)) for each in trained]))[0])
    assert one.seconds.unsure != () and one.seconds.tied == ()


# --- records as others may have written them ---


def test_why_there_is_no_noise_scale_is_said(tmp_path: Path) -> None:
    read = of(tmp_path, *ALONE[:2], *[replace(one, noise=False) for one in PAIRS[:2]])
    said = batch_efficiency.listing(read)
    assert said is not None and any("a rank holds only shards of the gradients" in note for note in said.notes)
    assert [row[5] for row in said.rows[2:]] == ["unknown", "unknown"]


def test_older_records_and_trainings_without_a_target_have_no_table(tmp_path: Path) -> None:
    assert batch_efficiency.listing(of(tmp_path / "one", replace(ALONE[0], noise=False))) is None
    assert figures.draw(results.read(tmp_path / "one")).get("efficiency-resnet8") is None


def test_noise_of_no_right_shape_is_skipped_by_name_and_norms_that_are_no_numbers_left_out(tmp_path: Path) -> None:
    said = {"small_batch": 32, "big_batch": 64, "every": 1}
    with pytest.warns(UserWarning, match="is not whole"):
        of(tmp_path / "a", replace(ALONE[0], seeds=(1,), said=said | {"rows": [[1, 2]]}))
    rows = [[1, 2.0, 1.5], [2, None, 1.5]]
    noise = of(tmp_path / "b", replace(ALONE[0], seeds=(1,), said=said | {"rows": rows})).details.noise
    assert noise[["step", "small_sqr", "big_sqr"]].to_numpy().tolist() == [[1.0, 2.0, 1.5]]


# --- what is written ---


@pytest.mark.parametrize("study", ["pairs", "two recipes", "few seeds"])
def test_figures_are_tidy(tmp_path: Path, study: str) -> None:
    trained = {
        "pairs": [*ALONE, *PAIRS],
        "two recipes": [*ALONE, *(replace(one, keys=(("train_schedule", "cosine"),)) for one in ALONE)],
        "few seeds": [replace(one, seeds=(1,), noise=False) for one in ALONE],
    }[study]
    figure = figures.draw(of(tmp_path, *trained))["efficiency-resnet8"]
    assert untidy(figure) == []
