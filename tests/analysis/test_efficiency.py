"""Statistical efficiency, goodput and what is predicted of them, on trainings whose truth is planted."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawings import Figures, untidy
from planted_trainings import CRITICAL, NOISE_SCALE, SMALLEST_STEPS, Trained, plant_trainings
from simulations import LONG, Seen, times

from analysis.findings import DOUBT, Evidence
from analysis.frames import results
from analysis.show.layout import Listing
from analysis.statistics import batch_size
from analysis.statistics.batch_size import Curve, Needed, recipes
from analysis.statistics.estimates import between, censored_mean, of_censored, of_values
from analysis.text import number
from analysis.views import batch_efficiency, target
from analysis.views.batch_efficiency import paying

SIMULATIONS = times(quick=40, long=1000)
ALONE = [Trained(batch, speed=1000.0) for batch in (64, 128, 256, 512)]
PAIRS = [Trained(batch, workers=2, speed=1900.0) for batch in (32, 64, 128, 256)]
WEAK = {1: 1000.0, 2: 1900.0, 4: 2600.0, 8: 3600.0, 16: 5000.0}  # samples a second of workers with 64 each


def of(folder: Path, *trained: Trained, **truth: Any) -> results.Results:
    return results.read(plant_trainings(folder, trained, baseline={"framework": "single"}, **truth))


def said_of(read: results.Results) -> Listing:
    said = batch_efficiency.listing(read)
    assert said is not None
    return said


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
    mean = censored_mean([10.0, 12.0, 11.0, 14.0], [10.0, 12.0, 11.0, math.inf])
    found = of_censored(mean)
    assert found is not None and found.bounds() == pytest.approx((mean.low, mean.high))
    assert of_censored(censored_mean([10.0, 12.0], [10.0, math.inf])) is None


# --- the critical batch size ---


def needed(rng: np.random.Generator, spread: float, most: float = math.inf) -> list[Needed]:
    """Three seeds at four batch sizes, stopped after `most` samples."""
    made = []
    for batch, seed in ((batch, seed) for batch in (64, 128, 256, 512) for seed in range(3)):
        samples = SMALLEST_STEPS * (batch + CRITICAL) * math.exp(spread * rng.standard_normal())
        made.append(Needed(batch, seed, min(samples, most), samples if samples <= most else math.inf))
    return made


def holds(low: float | None, truth: float, high: float | None) -> bool:
    return (low or 0.0) <= truth <= (math.inf if high is None else high)


def fitted(needed: list[Needed]) -> Curve:
    curve = batch_size.fit(needed)
    assert isinstance(curve, Curve)
    return curve


def test_seeds_that_were_stopped_before_are_no_reason_for_a_smaller_batch() -> None:
    """Half of those of the largest batch are stopped. Dropped, they would leave the quick ones alone."""
    rng, most = np.random.default_rng(5), SMALLEST_STEPS * (512 + CRITICAL)
    found, dropped = [], []
    for _ in range(SIMULATIONS):
        studied = needed(rng, 0.15, most)
        found.append(fitted(studied))
        dropped.append(fitted([one for one in studied if math.isfinite(one.by)]))
    covered = Seen(sum(holds(curve.low, CRITICAL, curve.high) for curve in found), SIMULATIONS)
    print(f"critical batch with censored seeds: {covered}")
    assert covered.keeps(0.90, 0.99)
    at_512 = [np.mean([curve.samples(512).log for curve in curves]) for curves in (found, dropped)]
    assert at_512[1] < at_512[0] - 0.02 and abs(at_512[0] - math.log(most)) < 0.06


def test_batches_far_below_the_critical_one_bound_it_from_below_only() -> None:
    rng = np.random.default_rng(1)
    alike = [(one, 1e5 * math.exp(0.02 * rng.standard_normal())) for one in needed(rng, 0)]
    curve = fitted([replace(one, after=samples, by=samples) for one, samples in alike])
    assert curve.high is None and curve.low is not None and curve.low > 512
    assert "above" in batch_efficiency.critical(replace(curve, critical=None))


def test_one_batch_size_or_too_few_seeds_give_a_reason() -> None:
    def reason(batches: tuple[int, ...], seeds: int, after: float) -> str:
        return str(batch_size.fit([Needed(batch, seed, after, 1e5) for batch in batches for seed in range(seeds)]))

    assert "at 1 global batch size, not at two" in reason((64,), 9, 1e5)
    assert "2 seeds reached the target" in reason((64, 128), 1, 1e5)
    assert "every seed met the target at its first evaluation" in reason((64, 128), 3, 0.0)


# --- a target that is met only at an evaluation ---


def bracketed(rng: np.random.Generator, seeds: int, spread: float, evaluations: float) -> list[Needed]:
    """Seeds at four batch sizes, which are evaluated about so many times before they reach the target, at each batch
    size in steps of its own."""
    made = []
    for batch in (64, 128, 256, 512):
        whole = SMALLEST_STEPS * (batch + CRITICAL)
        every = whole / evaluations * math.exp(rng.uniform(-0.3, 0.3))
        for seed in range(seeds):
            met = math.ceil(whole * math.exp(spread * rng.standard_normal()) / every)
            made.append(Needed(batch, seed, (met - 1) * every, met * every))
    return made


FEW = [(0.15, 3, 1.3), (0.15, 3, 3), (0.15, 5, 3), (0.15, 3, 8), (0.02, 3, 1000)]
MANY = [(spread, seeds, each) for spread in (0.05, 0.15, 0.3) for seeds in (3, 5) for each in (1, 3, 8, 20)]


@pytest.mark.parametrize(("spread", "seeds", "evaluations"), [*FEW, *(MANY if LONG else [])])
def test_intervals_hold_the_truth_however_far_apart_evaluations_are(
    spread: float, seeds: int, evaluations: float
) -> None:
    """The critical batch size, samples within what was trained and beyond, and the mean at one batch size."""
    rng, seen = np.random.default_rng(5), Counter[str]()
    for _ in range(SIMULATIONS):
        studied = bracketed(rng, seeds, spread, evaluations)
        one = [each for each in studied if each.batch == 128]
        mean = censored_mean([each.after for each in one], [each.by for each in one])
        seen["mean at 128"] += holds(mean.low, SMALLEST_STEPS * (128 + CRITICAL), mean.high)
        if isinstance(curve := batch_size.fit(studied), str):
            seen["no curve"] += 1
            continue
        seen["critical batch"] += holds(curve.low, CRITICAL, curve.high)
        for batch in (64, 1024):
            low, high = curve.samples(batch).bounds()
            seen[f"samples at {batch}"] += holds(low, SMALLEST_STEPS * (batch + CRITICAL), high)
    curves = SIMULATIONS - seen.pop("no curve", 0)
    shares = {what: Seen(count, curves if what != "mean at 128" else SIMULATIONS) for what, count in seen.items()}
    print(
        f"spread {spread}, {seeds} seeds, {evaluations} evaluations:", ", ".join(f"{k} {v}" for k, v in shares.items())
    )
    assert all(share.keeps(0.92) for share in shares.values())


def test_a_late_evaluation_of_the_largest_batch_makes_no_smaller_critical_batch(tmp_path: Path) -> None:
    """Its seeds reach the target at step 695, and are evaluated at steps 600 and 1,200 alone."""
    late = [replace(one, every=600 * (one.batch_per_worker == 512)) for one in ALONE]
    read = of(tmp_path, *late)
    (critical,) = set(batch_efficiency.efficiency_table(read).critical_batch_low)
    assert critical < CRITICAL
    (curve,) = (recipe.curve for recipe in recipes(read))
    assert isinstance(curve, Curve) and curve.high is not None and curve.high > CRITICAL
    row = target.trained_configurations(read).set_index("global_batch").loc[512]
    assert (row.met_steps, row.before_steps) == pytest.approx((1200, 600))
    true = SMALLEST_STEPS * (1 + CRITICAL / 512)
    for unit, each in (("steps", 1.0), ("samples", 512.0), ("seconds", 512 / row.samples_per_second)):
        assert row[f"{unit}_to_target_low"] < true * each < row[f"{unit}_to_target_high"]


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
    read = of(tmp_path, *ALONE, Trained(1024, reached=False))
    row = batch_efficiency.efficiency_table(read).set_index("global_batch").loc[1024]
    assert row.reached == 0 and math.isnan(row.efficiency) and math.isnan(row.predicted_steps)
    assert "not reached" in said_of(read).rows[-1]


def test_a_recipe_of_its_own_has_a_curve_of_its_own(tmp_path: Path) -> None:
    other = [replace(one, keys=(("train_scale_learning_rate", "sqrt"), ("train_reference_batch", 64))) for one in ALONE]
    read = of(tmp_path, *ALONE, *other)
    assert sorted(set(batch_efficiency.efficiency_table(read).recipe)) == [1, 2]
    assert sum("critical batch size" in note and "fitted to" in note for note in said_of(read).notes) == 2


# --- whether throughput and the noise scale say what the trainings needed ---


def test_a_noise_scale_that_is_not_the_critical_batch_is_found_and_one_that_may_be_is_not(tmp_path: Path) -> None:
    for critical, word in ((NOISE_SCALE, "not shown to disagree"), (5 * NOISE_SCALE, "they disagree")):
        read = of(tmp_path / word, *ALONE, critical=critical)
        found = [*batch_efficiency.noise_and_critical_batch(Evidence(read))]
        assert any(word in note for note in said_of(read).notes)
        assert [finding.severity for finding in found] == [DOUBT] * (critical > NOISE_SCALE)
    row = batch_efficiency.efficiency_table(read).iloc[0]
    assert row.recipe_noise_scale == pytest.approx(NOISE_SCALE, rel=0.1)
    assert row.recipe_noise_scale_low < row.recipe_noise_scale < row.recipe_noise_scale_high
    assert "larger batch dearer than it was" in found[0].text and row.critical_over_noise == pytest.approx(5, rel=0.2)


@pytest.mark.parametrize(("growth", "word"), [(1.0, "not resolved"), (1.2, "faster"), (0.8, "slower")])
def test_whether_a_larger_batch_is_faster_is_read_from_the_rates(tmp_path: Path, growth: float, word: str) -> None:
    speeds = (replace(one, speed=one.speed * growth**place) for place, one in enumerate(ALONE))
    said = said_of(of(tmp_path, *speeds))
    (note,) = (note for note in said.notes if "samples a second at the largest global batch" in note)
    assert f"single, 1 worker: {number(growth**3)[:3]}" in note and note.endswith(f"from 64 to 512, {word}.")


# --- how many workers pay ---


def test_where_more_workers_are_faster_and_no_sooner_at_the_target_it_is_said(tmp_path: Path) -> None:
    """With a critical batch of 100, 2 workers are 1.9 times as fast as one and need 1.39 times the samples; 4 are 1.37
    times as fast again, and need 1.56 times those."""
    read = of(tmp_path, *(Trained(64, workers=count, speed=speed) for count, speed in WEAK.items()), critical=100.0)
    (one,) = paying(recipes(read)[0])
    assert one.throughput.row["workers"] == 16
    assert one.seconds.of.row["workers"] == 2 and one.seconds.tied == ()
    assert one.hours.of.row["workers"] == 1
    said = said_of(read)
    assert any("beyond it more workers are faster" in note for note in said.notes)
    assert {"pooled steps", "seconds from pooled steps"} <= {*said.header}, "table target has those of its own seeds"


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
    said = said_of(of(tmp_path, *ALONE[:2], *[replace(one, noise=False) for one in PAIRS[:2]]))
    assert any("a rank holds only shards of the gradients" in note for note in said.notes)
    assert [row[5] for row in said.rows[2:]] == ["unknown", "unknown"]


def test_older_records_and_trainings_without_a_target_have_no_table(tmp_path: Path) -> None:
    assert batch_efficiency.listing(of(tmp_path / "one", replace(ALONE[0], noise=False))) is None
    assert not Figures(results.read(tmp_path / "one"), "efficiency")


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
    assert untidy(Figures(of(tmp_path, *trained))["efficiency-resnet8"]) == []
