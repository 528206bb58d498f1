"""Memory against batch: the line through what fitted, and the bracket between that and what did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawings import drawn_by, shown
from planted import PARAMETERS, Planted, plant, plant_gates, record
from planted_phases import STEP, Phased, plant_phased

from analysis.frames import results
from analysis.views import catalog, memory
from analysis.views.memory import BatchFamily, families
from scaling_study.records import schema
from scaling_study.records.store import write_record

ONE = Planted("single", counted=True, speed=100.0)
STATE = 3 * 4 * PARAMETERS["resnet18"] + 38_560


def sizes(*batches: int) -> list[Planted]:
    return [replace(ONE, batch_per_worker=batch, speed=100.0 + batch) for batch in batches]


def out(batch: int, implied_by: int | None = None) -> Planted:
    reason = f"{schema.IMPLIED}batch_per_worker={implied_by} was out of memory" if implied_by else "CUDA out of memory"
    return replace(ONE, batch_per_worker=batch, status="oom", speed=None, repeats=1, reason=reason)


def only(folder: Path, planted: list[Planted]) -> BatchFamily:
    (made,) = families(results.read(plant(folder, planted)))
    return made


def test_the_line_has_the_planted_slope_and_offset(tmp_path: Path) -> None:
    made = only(tmp_path, sizes(32, 64, 128))
    assert made.line == (pytest.approx(STATE), pytest.approx(456_000))
    assert made.bytes_at(256) == pytest.approx(STATE + 256 * 456_000)
    assert (made.largest, made.smallest_out, made.out, made.implied) == (128, None, (), ())


def test_the_bracket_is_what_fitted_and_what_did_not(tmp_path: Path) -> None:
    made = only(tmp_path, [*sizes(32, 64), out(128), out(256, implied_by=128)])
    assert (made.largest, made.smallest_out, made.out, made.implied) == (64, 128, (128,), (256,))
    said = memory.frontier_listing(read := results.read(tmp_path))
    assert said and said.rows[0][:3] == ("single", "64", "128")
    assert said.rows[0][5] == f"{(STATE + 64 * 456_000) / 1e6:.0f} to {(STATE + 128 * 456_000) / 1e6:.0f}"
    assert "single: oom at 128; oom (implied) at 256" in shown(drawn_by(memory.draw, read))


def test_a_line_is_drawn_through_three_sizes_or_more_and_two_are_no_figure(tmp_path: Path) -> None:
    assert drawn_by(memory.draw, results.read(plant(tmp_path / "two", sizes(32, 64)))) is None
    for planted, drawn in ((sizes(32, 64, 128), True), ([*sizes(32, 64), out(128)], False)):
        figure = drawn_by(memory.draw, results.read(plant(tmp_path / str(drawn), planted)))
        assert figure is not None and ("Lines: fixed + per sample x batch" in shown(figure)) == drawn
        assert any(len(line.get_xdata()) == 60 for line in figure.axes[0].lines) == drawn


def test_an_unlucky_smaller_batch_is_no_frontier(tmp_path: Path) -> None:
    made = only(tmp_path, [*sizes(32, 128), out(64)])
    assert made.out == (64,) and made.smallest_out is None


def test_one_size_makes_no_line_and_growth_is_of_the_last_step(tmp_path: Path) -> None:
    alone = only(tmp_path / "one", sizes(32))
    assert alone.line is None and alone.growth is None and alone.bytes_at(64) is None
    made = only(tmp_path, [replace(one, noise=0.0) for one in sizes(32, 64, 128)])
    assert made.growth is not None
    before, after, ratio = made.growth
    assert (before, after) == (64, 128) and ratio.mean == pytest.approx(228 / 164)


def test_what_failed_parity_carries_the_sign_that_is_explained_below(tmp_path: Path) -> None:
    planted = [replace(one, framework="torch_ddp", workers=2, allreduce="fp32") for one in sizes(32, 64)]
    plant(tmp_path, planted)
    plant_gates(tmp_path, planted, {"torch_ddp": "another shape of fc.weight"})
    said = memory.frontier_listing(results.read(tmp_path))
    assert said and [row[0] for row in said.rows] == ["2 workers, fp32 †"] and said.notes[0].startswith("† ")


@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_searched_batch_is_the_largest_that_fits(tmp_path: Path, in_rounds: bool) -> None:
    """Searched by launches of its own, also for what is otherwise measured in rounds; its steps have what it found."""
    measured = [replace(one, keys=(("warm", True),)) for one in sizes(32, 64)] if in_rounds else sizes(32, 64)
    folder = plant(tmp_path, measured)
    trial = replace(ONE.trial(), find="max_batch")
    begun = record(ONE, trial, 100.0, "planted", np.random.default_rng(0))
    ranks = [replace(rank, samples_seen=208 * len(rank.step_seconds)) for rank in begun.ranks]
    searched = replace(begun, ranks=ranks, found={"max_batch": 208, "tries": {"32": "ok"}})
    write_record(folder / "trials" / trial.id, searched)
    read = results.read(folder)
    (family,) = families(read)
    assert family.searched == family.largest == 208
    said = memory.frontier_listing(read)
    assert said and said.rows[0][1] == "208 (searched)"
    assert "Samples that do not add up" not in {finding.title for finding in catalog.all_findings(read)}


def test_memory_that_was_never_measured_is_no_family(tmp_path: Path) -> None:
    report = {"peak_memory_bytes": None, "memory": {}}
    read = results.read(plant_phased(tmp_path, [Phased(ONE, STEP, report=report)]))
    assert families(read) == [] and memory.frontier_listing(read) is None and drawn_by(memory.draw, read) is None
