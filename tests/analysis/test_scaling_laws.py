"""Scaling laws: planted ones are recovered, four counts are the least, and intervals hold what was not run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, plant
from planted_laws import ROOM, STRONG, WEAK, family, study
from scipy.optimize import nnls

from analysis.frames import results
from analysis.statistics import scaling_laws
from analysis.statistics.knee import Extrapolation, knee
from analysis.statistics.scaling_laws import Declined, LawComparison, compare, families, solve
from analysis.views import scaling

COUNTS = (1, 2, 4, 8, 16, 32)


def compared(name: str, counts: tuple[int, ...] = COUNTS, **more: object) -> LawComparison:
    made = compare(family({**WEAK, **STRONG}[name], counts, strong=name in STRONG, **more))  # type: ignore[arg-type]
    assert isinstance(made, LawComparison)
    return made


# --- least squares without negative coefficients ---

NUMBERS = st.floats(-10, 10).map(lambda value: round(value, 3))


@pytest.mark.slow
@given(st.data())
def test_it_is_lawsons_and_hansons(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(3, 6)), data.draw(st.integers(1, 3))
    design = np.array([[data.draw(NUMBERS) for _ in range(columns)] for _ in range(rows)])
    target = np.array([data.draw(NUMBERS) for _ in range(rows)])
    found, squares = solve(design[None], target[None])
    _, residual = nnls(design, target)
    assert (found >= 0).all()
    assert squares[0, 0] == pytest.approx(residual**2, abs=1e-6)
    assert ((target - design @ found[0, 0]) ** 2).sum() == pytest.approx(squares[0, 0], abs=1e-6)


# --- recovery ---


@pytest.mark.parametrize(
    ("name", "best"),
    [("Amdahl", "Amdahl"), ("USL", "USL"), ("ring", "alpha-beta"), ("tree", "alpha-beta"), ("root", "Extra-P"),
     ("hidden", "alpha-beta"), ("strong Amdahl", "Amdahl")],
)  # fmt: skip
def test_a_planted_law_is_found_and_exact_without_noise(name: str, best: str) -> None:
    made = compared(name, noise=0.0)
    kept = {one.law.name: one for one in made.fits}[best]
    exact = 1e-9 if best != "Extra-P" else 2e-2  # whose truth is not quite in the family
    if name == "hidden":  # without the run of one worker nobody can know that what two send is hidden
        assert np.abs(kept.held_out[1:]).max() < exact and kept.curve.squares[0] < exact**2
        return
    assert kept.error < exact, "every count is predicted from the others"
    assert kept in made.kept or kept.error <= made.best.error + 1e-9


def test_coefficients_are_the_planted_seconds() -> None:
    made = compared("ring", noise=0.0)
    names = made.best.law.forms[int(made.best.curve.form[0])]
    assert names == ("1", "n-1", "(n-1)/n")
    assert 32 * made.best.curve.coefficients[0] == pytest.approx([0.32, 0.002, 0.1])
    assert re.fullmatch(r"0\.01 \+ 6\.25e-05 \(n-1\) \+ 0\.0031[23] \(n-1\)/n", made.best.formula)


def test_where_no_law_describes_what_was_measured_nothing_is_said_of_more() -> None:
    """A link that all share is full from 4 workers on: no sum of terms in the worker count bends so sharply."""
    made = compare(family(lambda n: 640.0 * min(n, 4), (1, 2, 4, 8, 16), noise=0.01))
    assert isinstance(made, LawComparison)
    assert re.fullmatch(r"the best of them, [\w-]+, misses counts that were measured by \d+ %, .* ±[\d.]+ %", made.why)
    assert not compared("ring", noise=0.01).why and not compared("USL", noise=0.03).why
    assert not compared("ring", repeats=1).why, "of single runs nobody knows the noise"


@pytest.mark.long
def test_a_law_that_is_right_is_believed() -> None:
    doubted = sum(bool(compared(name, noise=0.02, seed=seed).why) for name in WEAK for seed in range(20))
    assert doubted == 0


@pytest.mark.long
def test_held_out_errors_are_of_counts_that_were_not_seen() -> None:
    spent = COUNTS / np.array([WEAK["ring"](count) for count in COUNTS])
    off = spent.copy()
    off[3] *= 2.0
    clean, dirty = (
        scaling_laws.fitted(
            scaling_laws.AMDAHL, np.array(COUNTS, float), one, scaling_laws.RepeatNoise(None, 0)
        ).held_out[3]
        for one in (spent, off)
    )
    assert (1 + dirty) / (1 + clean) == pytest.approx(2.0), "what is left out changes nothing in its own prediction"


# --- when none is claimed ---


def test_fewer_than_four_counts_are_declined_with_the_reason() -> None:
    made = compare(family(WEAK["ring"], (1, 2, 4)))
    assert isinstance(made, Declined)
    assert made.why == "3 worker counts (1, 2, 4), and a law needs at least 4"


# --- intervals ---


def bounds(made: LawComparison, *counts: float) -> list[tuple[float, float, float]]:
    """(low, rate, high) at each count."""
    at = np.array(counts, dtype=float)
    beyond = Extrapolation(made)
    between = beyond.bounds(at)
    assert between is not None and (between[0] <= beyond.rates(at)).all() and (beyond.rates(at) <= between[1]).all()
    return list(zip(between[0], beyond.rates(at), between[1], strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", [*WEAK, *STRONG])
@pytest.mark.parametrize("seed", [0])
def test_intervals_hold_the_truth_beyond_the_largest_count(name: str, seed: int) -> None:
    law, count, hits = {**WEAK, **STRONG}[name], 100, {64: 0, 128: 0}
    for index in range(count):
        made = bounds(compared(name, seed=1000 * seed + index), *hits)
        for workers, (low, _, high) in zip(hits, made, strict=True):
            hits[workers] += low <= law(workers) <= high
    assert hits[64] >= 93 and hits[128] >= 90, f"{name}: {hits}"


# --- families of a study ---


def test_a_family_has_the_run_of_one_worker_in_every_precision(tmp_path: Path) -> None:
    planted = study(WEAK["ring"], COUNTS)
    planted += [replace(one, allreduce="fp16") for one in planted if one.workers > 1]
    read = results.read(plant(tmp_path, planted, machine=ROOM))
    made = families(read)
    assert [one.label for one in made] == ["horovod, fp32, batch 32", "horovod, fp16, batch 32"]
    assert all(list(one.workers) == list(COUNTS) for one in made)


def test_a_framework_without_one_worker_takes_the_baseline(tmp_path: Path) -> None:
    planted = [Planted("single", speed=100.0), *study(WEAK["ring"], COUNTS[1:])]
    made = families(results.read(plant(tmp_path, planted, machine=ROOM, baseline={"framework": "single"})))
    assert [row["framework"] for row in made[0].rows[:2]] == ["single", "horovod"]


def test_what_does_not_compare_is_left_out_and_said(tmp_path: Path) -> None:
    planted = [*study(WEAK["ring"], (1, 2, 4)), *study(WEAK["ring"], (8,), keys=(("oversubscribe", True),))]
    read = results.read(plant(tmp_path, planted, machine={**ROOM, "cores": 4}))
    (made,) = scaling_laws.comparisons(read)
    assert isinstance(made, Declined)
    assert made.why.endswith("a law needs at least 4; left out: 8 workers: oversubscribed")
    said = scaling.laws_listing(read)
    assert (
        said and not said.rows and any("No scaling law of resnet18, horovod, fp32, batch 32" in n for n in said.notes)
    )


def test_strong_scaling_holds_the_global_batch(tmp_path: Path) -> None:
    planted = [
        Planted("horovod", "resnet18", 256 // n, n, "none" if n == 1 else "fp32", STRONG["strong ring"](n), noise=0.001)
        for n in (1, 2, 4, 8, 16)
    ]
    read = results.read(plant(tmp_path, planted, scaling="strong", machine=ROOM))
    (made,) = scaling_laws.comparisons(read)
    assert isinstance(made, LawComparison) and made.family.label == "horovod, fp32, global batch 256"
    assert made.best.error < 0.05


# --- inside a host, and over hosts ---


def placed(counts: tuple[int, ...], hosts: int) -> list[Planted]:
    keys = (("hosts", hosts),) if hosts > 1 else ()
    return [replace(one, keys=keys if one.workers > 1 else ()) for one in study(WEAK["ring"], counts)]


def test_a_law_is_fitted_within_one_regime(tmp_path: Path) -> None:
    """Before: one law through eight counts, of which a second host serves the upper four."""
    both = [*placed((1, 2, 4, 8), 1), *placed((16, 32, 64, 128), 2)]
    inside, over = families(results.read(plant(tmp_path / "a", both, machine=ROOM)))
    assert (inside.label.endswith("inside a host"), over.label.endswith("over hosts")) == (True, True)
    assert inside.workers.tolist() == [1, 2, 4, 8] and over.workers.tolist() == [1, 16, 32, 64, 128]
    assert (inside.most, over.fewest, over.most) == (8, 16, None)
    asked_for = [
        Extrapolation(made).counts for one in (inside, over) if isinstance(made := compare(one), LawComparison)
    ]
    assert asked_for == [[], [256, 512]]
    few = [*placed((1, 2, 4), 1), *placed((8, 16), 2)]
    (declined,) = map(compare, families(results.read(plant(tmp_path / "b", few, machine=ROOM))))
    assert isinstance(declined, Declined) and "workers over hosts follow no one law" in declined.why


def test_a_law_of_one_host_ends_where_the_host_does(tmp_path: Path) -> None:
    """64 cores: two counts up to there may be asked for, 128 may not."""
    read = results.read(plant(tmp_path, placed((1, 2, 4, 8, 16), 1), machine=ROOM))
    (one,) = families(read)
    made = compare(one)
    assert isinstance(made, LawComparison) and one.most == 64
    assert Extrapolation(made).counts == [32, 64] and knee(Extrapolation(made), 0.01).looked == 64
    listing = scaling.laws_listing(read)
    assert listing and "beyond the 64 workers that one host holds" in " ".join(listing.notes)
