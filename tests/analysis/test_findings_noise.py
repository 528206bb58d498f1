"""The noise floor and the drift of a machine, where both are known."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawings import Figures, shown
from matplotlib.collections import LineCollection
from planted import Planted, plant, plant_gates, record
from simulations import Seen

from analysis import findings
from analysis.figures import drift as figure
from analysis.findings import noise
from analysis.frames import results
from analysis.frames.results import Results
from analysis.tables import findings as listing
from scaling_study.records.store import write_record
from scaling_study.stats.intervals import repeats_for

ONE = Planted()


def swept(folder: Path, repeats: int = 8, drift: float = 0.0, spread: float = 0.01, **about: Any) -> Results:
    """Three configurations, run in turns; speeds change by `drift` from the first trial to the last."""
    planted = [replace(ONE, batch_per_worker=batch, repeats=repeats) for batch in (16, 32, 64)]
    plant(folder, [], **about)
    rng = np.random.default_rng(1)
    last = repeats * len(planted) - 1
    for index, (repeat, one) in enumerate(itertools.product(range(1, repeats + 1), planted)):
        trial = one.trial(repeat)
        speed = 100.0 * (1 + drift * (index / last - 0.5)) * (1 + spread * rng.standard_normal())
        made = record(one, trial, speed, "planted", rng)
        at = pd.Timestamp("2026-01-31T10:00:00Z") + pd.Timedelta(minutes=5 * index)
        write_record(folder / "trials" / trial.id, replace(made, started_at=at.isoformat()))
    return results.read(folder)


def sentinel(batch: int = 16) -> str:
    return replace(ONE, batch_per_worker=batch).trial().configuration


# --- floor ---


def test_the_floor_is_the_planted_spread(tmp_path: Path) -> None:
    least = noise.floor(noise.table(swept(tmp_path, repeats=40, spread=0.03)))
    assert least is not None and least.low < 0.03 < least.high and least.high / least.low < 1.4
    assert (least.repeats, least.configurations, least.sentinel) == (120, 3, False)


def test_of_a_study_with_a_sentinel_it_is_the_sentinels(tmp_path: Path) -> None:
    least = noise.floor(noise.table(swept(tmp_path, sentinel=sentinel())))
    assert least is not None and (least.repeats, least.configurations, least.sentinel) == (8, 1, True)


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_sentinel_with_too_few_repeats_is_pooled_with_the_others(tmp_path: Path, repeats: int) -> None:
    least = noise.floor(noise.table(swept(tmp_path, repeats=repeats, sentinel=sentinel())))
    assert least is not None and (least.configurations, least.sentinel) == (3, False)


def test_too_few_repeats_have_no_floor_and_no_drift(tmp_path: Path) -> None:
    done = swept(tmp_path, repeats=1)
    assert noise.floor(noise.table(done)) is None and noise.drift(noise.table(done)) is None and noise.table(done).empty
    assert figure.draw(done) == {} and "drift" not in Figures(done)


def test_the_interval_of_the_floor_covers_it() -> None:
    rng = np.random.default_rng(3)
    from scipy.special import chdtri

    squares = 0.02**2 * rng.chisquare(10, 4000)
    low, high = (np.sqrt(squares / chdtri(10, tail)) for tail in (0.025, 0.975))
    assert 0.94 < np.mean((low < 0.02) & (high > 0.02)) < 0.96


def test_the_smallest_difference_is_that_of_a_t_test() -> None:
    least = noise.Floor(0.01, 0.008, 0.012, 24, 3, False)
    assert math.isclose(least.smallest(3), 2.776 * 0.01 * math.sqrt(2 / 3), rel_tol=1e-3)
    assert least.smallest(10) < least.smallest(3)


def test_a_noisy_machine_is_said_with_what_is_noise(tmp_path: Path) -> None:
    (seen,) = [one for one in findings.all_findings(swept(tmp_path, repeats=20, spread=0.05)) if one.flaw == "noise"]
    assert "more than the target of ±2 %" in seen.text
    assert re.search(r"With 20 repeats a side take differences below \d %", seen.text)


def test_what_may_be_within_the_target_is_no_finding(tmp_path: Path) -> None:
    done = swept(tmp_path, repeats=3, spread=0.022)
    least = noise.floor(noise.table(done))
    assert least is not None and least.low < 0.02 < least.spread
    assert "noise" not in {one.flaw for one in findings.all_findings(done)}


def test_a_wild_machine_is_said_without_powers_of_ten() -> None:
    said = listing.floor_text(noise.Floor(0.42, 0.251, 1.206, 5, 1, True))
    assert "±42 %" in said and "interval 25 to 121 %" in said
    assert "±0.099 %" in listing.floor_text(noise.Floor(0.00099, 0.0005, 0.002, 5, 1, True))


# --- drift ---


def test_a_machine_that_slows_down_is_seen_with_how_much(tmp_path: Path) -> None:
    done = swept(tmp_path, drift=-0.10)
    moved = noise.drift(noise.table(done))
    assert moved is not None and moved.found and moved.p < 1e-4
    assert -0.13 < moved.total < -0.07 and moved.trials == 24 and math.isclose(moved.hours, 23 / 12)
    (seen,) = [one for one in findings.all_findings(done) if one.flaw == "drift"]
    assert seen.severity == "doubt" and "tend to be slower: -" in seen.text


def test_a_small_drift_is_a_note(tmp_path: Path) -> None:
    (seen,) = [one for one in findings.all_findings(swept(tmp_path, drift=0.015, spread=0.001)) if one.flaw == "drift"]
    assert seen.severity == "note" and "tend to be faster: +" in seen.text


def test_a_level_machine_does_not_drift(tmp_path: Path) -> None:
    moved = noise.drift(noise.table(swept(tmp_path)))
    assert moved is not None and not moved.found


@pytest.mark.parametrize("lengths", [(3,), (4,), (2, 3), (3, 3), (2, 2, 2)])
def test_the_p_value_is_that_of_counting_all_orders(lengths: tuple[int, ...]) -> None:
    def falls(order: tuple[tuple[int, ...], ...]) -> int:
        return sum(a > b for one in order for a, b in itertools.combinations(one, 2))

    orders = list(itertools.product(*(itertools.permutations(range(n)) for n in lengths)))
    counts = Counter(map(falls, orders))
    pairs = sum(n * (n - 1) // 2 for n in lengths)
    for order in orders:
        low = min(falls(order), pairs - falls(order))
        expected = min(1.0, 2 * sum(counts[k] for k in range(low + 1)) / len(orders))
        assert math.isclose(noise.trend([np.array(one, float) for one in order]), expected, abs_tol=1e-12)


def test_beyond_what_is_counted_the_normal_limit_is_as_good() -> None:
    rng = np.random.default_rng(5)
    series = [rng.standard_normal(3) + 0.01 * np.arange(3) for _ in range(1300)]
    exact = noise.trend(series)
    limit = noise.trend([*series, *([np.zeros(1)] * 5)])
    assert exact == limit, "one repeat says nothing"
    more = [*series, *(rng.standard_normal(3) for _ in range(60))]
    assert sum(len(one) for one in more) > noise.MOST_EXACT and 0 <= noise.trend(more) <= 1


def test_it_is_wrong_as_rarely_as_it_says() -> None:
    """Whatever the noise of each configuration: heavy tails, unlike scales."""
    rng = np.random.default_rng(11)
    ps = []
    for _ in range(2000):
        scales = rng.uniform(0.001, 0.2, 8)
        ps.append(noise.trend([scale * rng.standard_t(2, size=int(rng.integers(2, 6))) for scale in scales]))
    for level in (noise.FALSE_ALARMS, 0.05, 0.2):
        assert Seen(int(np.sum(np.array(ps) <= level)), len(ps)).keeps(most=level)


def test_repeats_that_were_added_because_of_a_spread_are_no_drift() -> None:
    """More are run, later, of what its first repeats show to be noisy: that says nothing of the machine."""
    rng = np.random.default_rng(13)
    ps = []
    for _ in range(1000):
        speeds = 100 * np.exp(rng.uniform(0.002, 0.06, (8, 1)) * rng.standard_normal((8, 10)))
        ps.append(noise.trend([one[: min(10, repeats_for(one[:3], 0.02))] for one in speeds]))
    false = int(np.sum(np.array(ps) <= noise.FALSE_ALARMS))
    assert Seen(false, len(ps)).keeps(most=noise.FALSE_ALARMS)


def test_repeats_whose_start_is_not_known_are_left_out(tmp_path: Path) -> None:
    done = swept(tmp_path)
    done.trials.loc[done.trials.index[:5], "started_at"] = ""
    done.trials.loc[done.trials.index[5], "started_at"] = "yesterday"
    assert len(noise.table(done)) == 18


# --- the figure ---


def test_the_figure_says_the_floor_the_trend_and_the_sentinel(tmp_path: Path) -> None:
    made = Figures(swept(tmp_path, drift=-0.10, sentinel=sentinel()))["drift"]
    text = shown(made)
    assert "The machine over the sweep: planted" in text and "the sentinel" in text
    assert "one standard deviation between repeats of the sentinel" in text.replace("\n", " ")
    assert (
        "Shaded: Noise floor: ±" in text
        and "Line: Drift: yes, -" in text
        and "minutes since the first run began" in text
    )


def test_the_sentinels_name_is_tied_to_its_last_run(tmp_path: Path) -> None:
    made = Figures(swept(tmp_path, sentinel=sentinel()))["drift"]
    (axis,) = made.axes
    (line,) = (line for line in axis.lines if line.get_marker() == "D")
    (ties,) = (one for one in axis.collections if isinstance(one, LineCollection))
    ((begin, end),) = ties.get_segments()
    last = (axis.transData - axis.transAxes).transform(np.array(line.get_data())[:, -1])
    assert begin == pytest.approx(last) and 0 < begin[0] < end[0] < 1.05


def test_the_table_of_findings_has_the_machine_under_it(tmp_path: Path) -> None:
    (made,) = listing.listing(swept(tmp_path, drift=-0.10, sentinel=sentinel()))
    assert ("The machine drifts", "doubt", "drift") in [row[:3] for row in made.rows]
    assert made.title == "Warnings (planted)" and any(note.startswith("Drift: yes, -") for note in made.notes)
    (sound,) = listing.listing(swept(tmp_path / "few", repeats=1))
    assert (
        "Noise floor: not known, too few repeats." in sound.notes
        and "Drift: not known, too few repeats." in sound.notes
    )


def test_where_nothing_is_found_the_table_says_so(tmp_path: Path) -> None:
    (made,) = listing.listing(results.read(plant(tmp_path, [])))
    assert made.rows == () and made.notes[0] == "Nothing was measured."
    plant(tmp_path, [ONE])
    plant_gates(tmp_path, [ONE])
    (made,) = listing.listing(results.read(tmp_path))
    assert made.rows == () and made.notes[0] == "No warnings."


def test_a_long_sweep_is_in_hours(tmp_path: Path) -> None:
    assert "hours since the first run began" in shown(Figures(swept(tmp_path, repeats=12))["drift"])
