"""Epochs: the published comparisons come back with the number at equal work beside them, and the fault named."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import MACHINE, Planted, changed, plant, plant_gates, record

from analysis.findings import Evidence
from analysis.frames import results
from analysis.frames.results import Results
from analysis.show import layout
from analysis.views import catalog, epochs, speedup
from scaling_study.records.store import write_record

FOUR = {"machine": MACHINE | {"cores": 4}}
SINGLE = {"baseline": {"framework": "single"}}


@dataclass(frozen=True)
class Epoch:
    """One configuration that ran a warm-up epoch and another."""

    of: Planted
    steps: int
    running: float  # seconds
    data: float = 0.1
    samples: int | None = None  # over all ranks; steps x global batch where none is given
    step_seconds: float | None = None  # of the timed steps; those of the epoch where none are given
    learning_rate: float | None = None


def plant_epochs(folder: Path, planted: Iterable[Epoch], **about: Any) -> Path:
    plant(folder, [], **about)
    rng = np.random.default_rng(0)
    for one, repeat in itertools.product(planted, (1, 2, 3)):
        trial = one.of.trial(repeat)
        seconds = one.step_seconds or one.running / one.steps
        made = record(replace(one.of, steps=one.steps), trial, trial.global_batch / seconds, "planted", rng)
        samples = one.steps * trial.global_batch if one.samples is None else one.samples
        ranks = []
        for rank in made.ranks:
            slow = 1.0 if rank.rank == 0 else 0.95
            last = {
                "warmup": False, "steps": one.steps, "samples": samples // len(made.ranks),
                "data_seconds": one.data, "training_seconds": slow * (one.running - one.data),
                "running_seconds": slow * one.running,
            }  # fmt: skip
            warmup = {**last, "warmup": True, "running_seconds": 3 * one.running}
            ranks.append(replace(rank, epochs=[warmup, last], learning_rate=one.learning_rate))
        write_record(folder / "trials" / trial.id, replace(made, ranks=ranks))
    return folder


def keys(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple({"epochs": 1, "warmup_epochs": 1, **given}.items())


ONE = Planted("single", "transformer_lm", 20, keys=keys())
PIPE = Planted(
    "torch_pipeline", "transformer_lm", 20, 2,
    keys=keys(schedule="gpipe", stages=2, virtual_stages=1, micro_batches=4, replicas=1, stage_cut="even"),
)  # fmt: skip
UNMASKED = replace(PIPE, model="transformer_lm_unmasked")
IMAGES = Planted("single", "iformer_tiny", 128, keys=keys())
DDP = Planted("torch_ddp", "iformer_tiny", 128, 4, "fp32", keys=keys())
PLANTED = {  # the finding -> a study that has it
    "F9": [Epoch(ONE, 2928, 48.0), Epoch(PIPE, 50, 4.0, samples=1000)],
    "F10": [Epoch(ONE, 100, 48.0), Epoch(UNMASKED, 100, 24.0)],
    "F13": [Epoch(IMAGES, 390, 370.0), Epoch(DDP, 97, 100.0)],  # a tail that fills no batch is no unequal work
    "F17": [Epoch(ONE, 100, 100.0, data=20.0)],
    "F8": [Epoch(ONE, 100, 100.0, step_seconds=0.8)],
    "sound": [Epoch(ONE, 100, 100.0, data=5.0), Epoch(PIPE, 100, 60.0)],
}


def read(folder: Path, planted: Sequence[Epoch], **about: Any) -> Results:
    return results.read(plant_epochs(folder, planted, **{**SINGLE, **FOUR, **about}))


def row_of(done: Results, one: Planted) -> dict[str, Any]:
    made = epochs.epochs_table(done)
    (row,) = made[made.configuration == one.trial().configuration].to_dict("records")
    return {str(key): value for key, value in row.items()}


def said(done: Results) -> str:
    found = epochs.listing(done)
    assert found
    return layout.markdown(found)


def test_epochs_of_a_trial_that_failed_are_not_counted(tmp_path: Path) -> None:
    folder = plant_epochs(tmp_path, PLANTED["sound"], **SINGLE)
    whole = epochs.measured(results.read(folder))
    name = ONE.trial().configuration
    changed(folder, lambda record: record.update(status="failed", reason="shared cores"), name)
    assert set(epochs.measured(results.read(folder))) == set(whole) - {name}


def test_samples_are_summed_and_seconds_those_of_the_slowest_rank(tmp_path: Path) -> None:
    row = row_of(read(tmp_path, [Epoch(DDP, 98, 100.0, data=2.0)]), DDP)
    assert (row["steps"], row["samples"]) == (98, 98 * 512)
    assert (row["running_seconds"], row["training_seconds"], row["data_seconds"]) == (100.0, 98.0, 2.0)
    assert row["samples_per_epoch_second"] == pytest.approx(98 * 512 / 100)
    assert row["epoch_repeats"] == 3
    assert row["why_no_ratio"].startswith("no baseline trial with framework=single")


def test_the_published_tenfold_pipeline_is_a_fifth_at_equal_work(tmp_path: Path) -> None:
    done = read(tmp_path, PLANTED["F9"])
    row = row_of(done, PIPE)
    assert row["epoch_ratio"] == pytest.approx(12.0)
    assert row["equal_work_ratio"] == pytest.approx(1000 / 58_560 * 12)
    assert row_of(done, ONE)["flags"] == ""


def test_another_training_is_said_with_both_readings_of_the_batch(tmp_path: Path) -> None:
    large = replace(IMAGES, batch_per_worker=512)
    planted = [Epoch(IMAGES, 391, 378.2, learning_rate=1e-3), Epoch(DDP, 98, 105.3, learning_rate=1e-3, samples=50048)]
    done = read(tmp_path / "lone", planted)
    row = row_of(done, DDP)
    assert row["epoch_ratio"] == pytest.approx(3.59, abs=0.005)
    assert "at the same global batch no baseline was run" in said(done)
    both = read(tmp_path, [*planted, Epoch(large, 98, 300.0, learning_rate=4e-3)])
    row = row_of(both, DDP)
    assert row["same_batch_baseline"] == large.trial().configuration
    assert row["same_batch_ratio"] == pytest.approx(300 / 105.3)
    assert "at the same global batch it is 2.85x" in said(both)
    assert row_of(both, large)["epoch_ratio"] == 1


def test_a_variant_is_set_beside_its_original_here_and_only_here(tmp_path: Path) -> None:
    done = read(tmp_path, PLANTED["F10"])
    row = row_of(done, UNMASKED)
    assert row["epoch_ratio"] == pytest.approx(2.0) and row["flags"] == "F10"
    assert "no causal mask" in said(done)
    ordinary = done.configurations[done.configurations.model == "transformer_lm_unmasked"].iloc[0]
    assert pd.isna(ordinary.speedup)
    assert speedup.listing(done, "transformer_lm_unmasked") is None and "no baseline" in ordinary.speedup_reason


def test_a_variant_with_a_baseline_of_its_own_is_held_against_that(tmp_path: Path) -> None:
    own = replace(ONE, model=UNMASKED.model)
    done = read(tmp_path, [Epoch(ONE, 100, 48.0), Epoch(own, 100, 40.0), Epoch(UNMASKED, 100, 20.0)])
    row = row_of(done, UNMASKED)
    assert (row["epoch_baseline"], row["flags"]) == (own.trial().configuration, "")
    assert row_of(done, own)["epoch_ratio"] == 1.0, "a baseline is its own, variant or not"


@pytest.mark.parametrize("flaw", PLANTED)
def test_what_the_table_marks_is_a_warning_of_the_study(tmp_path: Path, flaw: str) -> None:
    done = read(tmp_path, PLANTED[flaw])
    marks = {mark for flags in epochs.epochs_table(done)["flags"] for mark in flags.split(";") if mark}
    ours = {one.flaw: one.text for one in epochs.epoch_faults(Evidence(done))}
    assert {one.text for one in catalog.all_findings(done)} >= set(ours.values())
    assert [*ours] == ([] if flaw == "sound" else [flaw]) and marks == {"≠" if one == "F8" else one for one in ours}
    assert all("batch " in text and text.endswith(".") for text in ours.values()), ours


@pytest.mark.parametrize(("step", "flag"), [(0.98, ""), (1.04, ""), (0.8, "≠"), (1.2, "≠")])
def test_epoch_and_steady_state_must_agree(tmp_path: Path, step: float, flag: str) -> None:
    done = read(tmp_path, [Epoch(ONE, 100, 100.0, step_seconds=step)])
    row = row_of(done, ONE)
    assert row["unsteady"] == pytest.approx(1 / step - 1, abs=1e-6)
    assert row["flags"] == flag
    found = [(one.flaw, one.title) for one in epochs.epoch_faults(Evidence(done))]
    shorter = [("epoch", "An epoch shorter than its steps")] if step > 1.05 else []
    assert found == ([("F8", "More than steps in an epoch's time")] if step < 0.95 else shorter)


def test_what_may_not_be_compared_has_seconds_and_no_ratio(tmp_path: Path) -> None:
    plant_gates(tmp_path, [PIPE], {"torch_pipeline": "loss of every step: off by 0.1 at step 1"})
    done = read(tmp_path, [Epoch(ONE, 100, 48.0), Epoch(PIPE, 100, 24.0)])
    row = row_of(done, PIPE)
    assert row["running_seconds"] == 24.0 and pd.isna(row["epoch_ratio"])
    assert "torch_pipeline, 2 workers, batch 20 †" in said(done)


def test_oversubscribed_epochs_have_no_ratio(tmp_path: Path) -> None:
    many = replace(DDP, keys=keys(oversubscribe=True))
    row = row_of(read(tmp_path, [Epoch(IMAGES, 390, 370.0), Epoch(many, 97, 100.0)], machine=MACHINE), many)
    assert row["why_no_ratio"] == "oversubscribed" and pd.isna(row["epoch_ratio"])
