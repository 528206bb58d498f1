"""The best and what is tied with it: planted truths, and by simulation that the true best is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import MACHINE, Planted, plant, plant_gates, planted_row
from simulations import Seen, times

from analysis.frames import results
from analysis.frames.results import Results
from analysis.statistics import ranking
from analysis.statistics.ranking import ALIKE, BEST, NO_INTERVAL, WORSE, WORST, Standing, Uncertainty

SINGLE = Planted("single", speed=100.0, noise=0.005, repeats=5)
TWO = replace(SINGLE, framework="horovod", workers=2, allreduce="fp32", speed=160.0)
BASELINE = {"framework": "single"}


def read(folder: Path, planted: Sequence[Planted], **about: Any) -> Results:
    return results.read(plant(folder, planted, **{"baseline": BASELINE} | about))


def verdicts(made: pd.DataFrame) -> dict[int, str]:
    return dict(zip(made.batch, made.verdict, strict=True))


def name(one: Planted) -> str:
    return one.trial().configuration


def test_the_fastest_of_each_model_with_what_may_be_as_fast(tmp_path: Path) -> None:
    speeds = {32: 160.0, 64: 200.0, 128: 200.5, 256: 120.0}
    made = [replace(TWO, batch_per_worker=batch, speed=speed) for batch, speed in speeds.items()]
    lone = replace(TWO, model="resnet50", speed=40.0)
    done = read(tmp_path, [*made, lone])
    ranked = ranking.ranking(done)
    ours = ranked[ranked.model == "resnet18"]
    assert set(verdicts(ours).values()) == {BEST, ALIKE, WORSE}
    assert verdicts(ours)[32] == verdicts(ours)[256] == WORSE
    best = ranking.best(done)
    assert list(best.model) == ["resnet18", "resnet50"]
    first, other = best.iloc[0], best.iloc[1]
    assert {first.configuration, *first.indistinguishable} == {name(made[1]), name(made[2])}
    assert first.value_low < first.value < first.value_high and first.among == 4
    assert first.ratio_low < 1 < first.ratio_high
    assert (other.configuration, other.indistinguishable, other.among) == (name(lone), (), 1)
    assert pd.isna(other.ratio)


def test_efficiency_is_of_several_workers_and_shares_its_baseline(tmp_path: Path) -> None:
    """Two configurations over one noisy baseline: its luck is in both, and tells nothing apart."""
    noisy = replace(SINGLE, noise=0.2)
    four = replace(TWO, workers=4, allreduce="fp16", speed=200.0, keys=(("oversubscribe", False),))
    machine = MACHINE | {"cores": 8}
    done = read(tmp_path, [noisy, TWO, four], machine=machine)
    ranked = ranking.ranking(done, "efficiency")
    assert list(ranked.workers) == [2, 4] and list(ranked.verdict) == [BEST, WORSE]
    assert ranked.ratio[0] == pytest.approx(160 / 2 / (200 / 4), rel=0.03)
    best = ranking.best(done, "efficiency").iloc[0]
    assert best.value_low < best.value < best.value_high


def test_the_cheapest_is_per_worker(tmp_path: Path) -> None:
    best = ranking.best(read(tmp_path, [SINGLE, TWO]), "samples_per_worker_second").iloc[0]
    assert best.configuration == name(SINGLE) and best.value == pytest.approx(100, rel=0.02)
    two = ranking.best(read(tmp_path / "b", [TWO]), "samples_per_worker_second").iloc[0]
    assert (two.value_low + two.value_high) / 2 == pytest.approx(two.value) == pytest.approx(80, rel=0.02)


def test_fewer_than_three_repeats_claim_nothing(tmp_path: Path) -> None:
    lucky = replace(TWO, batch_per_worker=64, speed=300.0, repeats=1)
    done = read(tmp_path, [TWO, replace(TWO, batch_per_worker=128, speed=150.0), lucky])
    assert list(ranking.ranking(done).verdict) == [NO_INTERVAL, ALIKE, WORSE]
    best = ranking.best(done).iloc[0]
    assert best.configuration == name(lucky) and pd.isna(best.value_low) and pd.isna(best.ratio_low)
    assert best.indistinguishable == (name(TWO),) and best.without_interval == ()
    slow = read(tmp_path / "slow", [TWO, replace(lucky, speed=10.0)])
    assert ranking.best(slow).iloc[0].without_interval == (name(lucky),)


def test_what_may_not_be_compared_is_not_ranked(tmp_path: Path) -> None:
    fast = replace(TWO, framework="torch_ddp", speed=500.0)
    failed = replace(TWO, batch_per_worker=64, status="oom", speed=None)
    crowded = replace(TWO, workers=8, speed=900.0, keys=(("oversubscribe", True),))
    plant(tmp_path, [SINGLE, TWO, fast, failed, crowded], baseline=BASELINE)
    plant_gates(tmp_path, [fast], {"torch_ddp": "gradients: summed"})
    done = results.read(tmp_path)
    assert set(ranking.ranking(done).configuration) == {name(SINGLE), name(TWO)}
    assert list(ranking.ranking(done, "efficiency").configuration) == [name(TWO)]


def test_an_empty_study_has_no_best(tmp_path: Path) -> None:
    done = read(tmp_path, [])
    for by in ranking.QUANTITIES:
        assert ranking.best(done, by).empty and list(ranking.best(done, by)) == list(ranking.BEST_COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize(("wide", "deep", "repeats"), [(8, 1, 3), (8, 1, 5), (16, 1, 5), (2, 16, 3), (4, 8, 3)])
@pytest.mark.parametrize("noises", [(0.01,), (0.01, 0.03), (0.003, 0.03)], ids=["alike", "x3", "x10"])
def test_equal_configurations_are_called_slower_in_at_most_5_percent_of_studies(
    wide: int, deep: int, repeats: int, noises: tuple[float, ...]
) -> None:
    """`deep` rows of `wide` configurations each, all equally fast: no mark and ▼ both claim that one is slower."""
    studies, rng = times(400, 10_000), np.random.default_rng(17)
    spread = np.resize(noises, wide * deep)[:, None]
    alarms = 0
    for _ in range(studies):
        speeds = 100 * (1 + spread * rng.standard_normal((wide * deep, repeats)))
        alarms += any(verdict in (WORSE, WORST) for verdict in in_rows(speeds, wide))
    seen = Seen(alarms, studies)
    print(f"\n{deep} rows of {wide} configurations, {repeats} repeats: called slower in {seen}")
    assert seen.keeps(most=ranking.FALSE_ALARMS)


@pytest.mark.long
@pytest.mark.parametrize(("wide", "deep", "repeats", "least"), [(8, 1, 3, 0.6), (2, 16, 3, 0.8), (4, 8, 3, 0.7)])
@pytest.mark.parametrize("noises", [(0.05,), (0.01, 0.03), (0.003, 0.03), (0.01,) * 6 + (0.06,) * 2])
def test_a_configuration_that_is_20_percent_slower_is_found(
    wide: int, deep: int, repeats: int, least: float, noises: tuple[float, ...]
) -> None:
    """The slower half of each row; of the others none is called slower in more than 5 % of studies."""
    studies, rng = times(60, 4_000), np.random.default_rng(23)
    spread = np.resize(noises, wide * deep)[:, None]
    slow = np.arange(wide * deep) % wide >= wide // 2
    found = alarms = 0
    for _ in range(studies):
        speeds = np.where(slow, 80.0, 100.0)[:, None] * (1 + spread * rng.standard_normal((wide * deep, repeats)))
        worse = np.isin(in_rows(speeds, wide), (WORSE, WORST))
        found, alarms = found + int(worse[slow].sum()), alarms + bool(worse[~slow].any())
    share, seen = found / (studies * int(slow.sum())), Seen(alarms, studies)
    print(
        f"\n{deep} rows of {wide}, noise {noises[0]}, {noises[-1]}: {100 * share:.0f} % found, others slower in {seen}"
    )
    assert share >= (0.5 if len(noises) == 8 else least) and seen.keeps(most=ranking.FALSE_ALARMS)


def in_rows(speeds: np.ndarray, wide: int) -> list[str]:
    """The verdict of each of these, (configurations, repeats), in rows of so many."""
    rows = [planted_row(one, configuration=f"{at}", batch=at // wide) for at, one in enumerate(speeds)]
    found = ranking.row_standings(rows)
    return [found[row["configuration"]].verdict for row in rows]


def test_a_framework_that_is_noisier_than_the_others_is_told_apart_where_they_are() -> None:
    """As in examples/results/lightning_hydra_timm: 2,877 ± 351 was tied with 4,645 ± 125, and 3,799 ± 100 was not."""
    apart = np.array([-1.0, 0.1, 0.9]) / np.std([-1.0, 0.1, 0.9], ddof=1)
    means = {"best": (4645, 0.011), "quiet": (3799, 0.011), "noisy": (2877, 0.05), "other": (4500, 0.012)}
    means |= {f"more {at}": (4600 - at, 0.012) for at in range(4)}
    rows = [planted_row(mean * np.exp(spread * apart), configuration=name) for name, (mean, spread) in means.items()]
    found = ranking.row_standings(rows)
    assert [found[name].verdict for name in ("noisy", "quiet", "other")] == [WORST, WORSE, ALIKE]


SPEEDS = {"a": [100.0, 101, 99], "b": [100.5, 99, 100], "c": [80.0, 81, 80.5], "d": [120.0]}
ROWS = {name: planted_row(speeds, configuration=name) for name, speeds in SPEEDS.items()}


@pytest.mark.parametrize(
    ("names", "verdicts", "kinds"),
    [
        ("abc", [BEST, ALIKE, WORST], [ranking.HIGHEST, ranking.CLOSE, ranking.SLOWER]),
        ("ac", [BEST, WORSE], [ranking.FASTEST, ranking.SLOWER]),  # where all others are slower
        ("da", [BEST, NO_INTERVAL], [ranking.UNTESTED, ranking.UNTESTED]),
    ],
)
def test_a_configuration_that_is_slower_is_called_so(names: str, verdicts: list[str], kinds: list[str]) -> None:
    found = ranking.row_standings([ROWS[name] for name in names])
    assert [found[name].verdict for name in names] == verdicts
    assert [found[name].kind for name in names] == kinds


def test_the_interval_that_decides_stands_beside_its_verdict() -> None:
    found = ranking.row_standings([ROWS[name] for name in "abc"])
    assert found["b"].low < found["b"].ratio < found["b"].high and found["b"].high > 1
    assert found["c"].high == 1 and found["c"].low < 0.805 == found["c"].ratio
    assert found["c"].beside == "a" and found["c"].among == 3


@pytest.mark.long
@pytest.mark.parametrize("noises", [(0.01,) * 8, (0.01, 0.03) * 4, (0.003, 0.03) * 4], ids=["alike", "x3", "x10"])
@pytest.mark.parametrize("apart", [0.0, 0.01])
def test_the_true_best_is_among_what_may_be_the_best(noises: tuple[float, ...], apart: float) -> None:
    """In at least 95 % of simulated studies of 8 configurations with 3 repeats, all equal or close together.

    The first is a best one; where all are equal the second, which may be noisier, is one too.
    """
    studies, rng = times(400, 10_000), np.random.default_rng(9)
    true = 100 * (1 - apart * np.arange(8))
    kept = np.zeros(2, dtype=int)
    for _ in range(studies):
        values = true[:, None] * (1 + np.array(noises)[:, None] * rng.standard_normal((8, 3)))
        rows = [planted_row(one, configuration=str(place)) for place, one in enumerate(values)]
        uncertainty = Uncertainty.of_rows(rows, over_baselines=False)
        found = ranking.bounds([rows], "samples_per_second", uncertainty)
        kept += [found[name][1] > 1 for name in ("0", "1")]
    seen = [Seen(int(count), studies) for count in (kept if apart == 0 else kept[:1])]
    print(f"\n{noises[:2]}, {apart} apart: a true best is kept in {' and '.join(map(str, seen))}")
    assert all(one.keeps(least=0.95) for one in seen)


@pytest.mark.parametrize(
    ("verdict", "ratio", "low", "high", "words"),
    [
        (BEST, 1.2, 1.0, 1.4, "fastest"),  # all others are slower
        (BEST, 1.2, 0.98, 1.4, "highest mean"),
        (BEST, 1.2, None, None, "highest mean, not tested (3 repeats)"),
        (ALIKE, 0.98, 0.9, 1.041, "too close to call (up to 4.1 % faster)"),
        (ALIKE, 0.62, 0.5, 1.09, "probably slower (38 %), not proven with 3 repeats"),
        (ALIKE, 0.62, 0.5, 1.11, "too close to call (up to 11 % faster)"),  # a gain of more than 10 % is not excluded
        (ALIKE, 0.905, 0.8, 1.01, "too close to call (up to 1 % faster)"),
        (WORSE, 0.88, 0.8, 1.0, "slower (12 %)"),
        (WORST, 0.5, 0.4, 1.0, "slower (50 %)"),
        (NO_INTERVAL, 0.5, None, None, "not tested (3 repeats)"),
    ],
)
def test_verdicts_are_said_as_people_read_them(
    verdict: str, ratio: float, low: float | None, high: float | None, words: str
) -> None:
    assert ranking.in_words(Standing(verdict, ratio, low, high, "", 2), "3 repeats") == words


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.61, 1.0, "[0.61, below 1]"),
        (0.92, 1.0041, "[0.92, 1.004]"),  # not 1.00, as if it ended at 1
        (0.8, 1.13, "[0.80, 1.13]"),
        (None, None, ""),
    ],
)
def test_an_interval_that_says_slower_is_told_from_one_that_holds_1(
    low: float | None, high: float | None, text: str
) -> None:
    assert ranking.corrected(low, high) == text


def test_a_training_is_not_ranked_beside_timed_runs() -> None:
    """As it has no speed-up over one."""
    trained = {**ROWS["c"], "train_epochs": 3}
    assert set(ranking.row_standings([ROWS["a"], ROWS["b"], trained])) == {"a", "b"}
    assert ranking.name(trained).endswith("trained") and "trained" not in ranking.name(ROWS["a"])
