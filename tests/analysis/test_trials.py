"""Records -> results.csv: planted records, known truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, plant, rank_report, record

from analysis.frames import columns, results, trials
from scaling_study.records.store import write_record
from scaling_study.trial import Trial

HOROVOD = Planted("horovod", workers=2, allreduce="fp16", speed=640.0, noise=0.0)


def made(*ranks: dict[str, object], one: Planted = HOROVOD, steps: tuple[list[float], ...] = ()) -> dict[str, object]:
    """The row of a trial whose ranks report these changes, with these step seconds."""
    trial = one.trial()
    base = record(one, trial, 640.0, "s", np.random.default_rng(0))
    seconds = steps or ([0.1] * 60,) * len(ranks)
    reports = [rank_report(trial, i, seconds[i], **changes) for i, changes in enumerate(ranks)]
    return trials.row(replace(base, ranks=reports))


def test_the_frames_have_the_columns_and_no_other(tmp_path: Path) -> None:
    read = results.read(plant(tmp_path, [HOROVOD]))
    assert list(read.trials) == [column.name for column in columns.TRIALS]
    assert list(read.configurations) == [column.name for column in (*columns.of_configurations(), *columns.SHOWN)]
    assert len(set(read.trials)) == len(read.trials.columns)
    assert {key.name for key in columns.TRIAL_KEYS} == set(Trial().to_dict())


def test_the_interval_is_that_of_the_slowest_ranks_steps() -> None:
    noisy = (0.2 * np.random.default_rng(1).lognormal(0, 0.05, 60)).tolist()
    row = made({}, {}, steps=([0.1] * 60, noisy))
    assert row["interval_low"] < row["samples_per_second"] < row["interval_high"]
    assert row["step_seconds_median"] == pytest.approx(float(np.median(noisy)))


def test_folding_over_ranks_that_differ() -> None:
    row = made(
        {"peak_memory_bytes": 5, "communication_bytes": {"allreduce": 10, "broadcast": 3}, "loss_first": 2.0},
        {"peak_memory_bytes": 7, "communication_bytes": {"allreduce": 10}, "loss_first": None},
    )
    assert (row["peak_memory_bytes"], row["communication_bytes"], row["loss_first"]) == (7, 13, 2.0)


def test_energy_is_summed_over_devices_not_ranks() -> None:
    shared = made({"energy_joules": 100.0}, {"energy_joules": 101.0})
    hosts = made({"energy_joules": 100.0, "host": "a"}, {"energy_joules": 101.0, "host": "b"})
    assert (shared["energy_joules"], hosts["energy_joules"]) == (101.0, 201.0)
    assert made({"energy_joules": None}, {"energy_joules": None})["energy_joules"] is None
    first = made({"energy_joules": 100.0}, {"energy_joules": None})
    assert first["energy_joules"] == 100.0, "the first worker of a host reads the packages for all"


def test_a_gpu_is_one_device_by_its_uuid() -> None:
    """Where each rank sees its own GPU only, all of a host are cuda:0."""

    def energy(*uuids: str | None, **second: Any) -> float | None:
        ranks = [{"energy_joules": 100.0 + n, "device": "cuda:0", "gpu_uuids": [u] if u else []}
                 for n, u in enumerate(uuids)]  # fmt: skip
        ranks[-1] |= second
        return made(*ranks)["energy_joules"]

    assert energy("GPU-a", "GPU-b") == 201.0
    assert energy("GPU-a", "GPU-a") == 101.0
    assert energy("GPU-a", None) is None, "it may be the other's, or not"
    assert energy("GPU-a", "GPU-b", energy_joules=None) is None, "a sum without one of them would be too small"
    assert energy(None) == 100.0, "alone, as in older records, it is shared with no rank"


def test_what_is_unknown_stays_empty_and_what_is_nothing_is_zero() -> None:
    unknown = made({"allreduce_bytes": None, "communication_bytes": {}, "phases": None})
    assert unknown["communication_bytes"] is None
    assert unknown["allreduce_bytes"] is None
    assert unknown["forward_seconds"] is None
    nothing = made({}, one=Planted())
    assert nothing["communication_bytes"] == 0


@pytest.mark.parametrize(("steps", "reason"), [(12, "too short"), (60, "")])
def test_runs_too_short_for_their_interval_are_labelled(steps: int, reason: str) -> None:
    series = np.random.default_rng(3).normal(0.1, 0.002, steps).tolist()
    assert made({}, {}, steps=(series, series))["reason"] == reason


def test_of_a_pipeline_only_the_last_stage_has_samples_and_losses() -> None:
    first = {"samples_seen": 0, "samples_per_step": 0, "loss_first": None, "loss_last": None, "tokens_seen": 0}
    row = made({**first, "communication_bytes": {"send": 8}}, {"tokens_seen": 600, "communication_bytes": {"send": 8}})
    assert row["samples_per_second"] == pytest.approx(32 * 60 / 6.0)
    assert row["tokens_per_second"] == pytest.approx(600 / 6.0)
    assert (row["loss_first"], row["communication_send_bytes"]) == (3.3, 8)
    with pytest.raises(ValueError, match="no rank saw a sample"):
        made(first)


def test_types_do_not_depend_on_the_rows(tmp_path: Path) -> None:
    full = plant(tmp_path / "full", [HOROVOD, Planted(model="resnet50", status="failed", speed=None)])
    some, none = (trials.read(folder)[0] for folder in (full, plant(tmp_path / "empty", [])))
    assert list(some.columns) == list(none.columns) and (some.dtypes == none.dtypes).all()


def test_unreadable_records_are_skipped_and_named(tmp_path: Path) -> None:
    plant(tmp_path, [HOROVOD])
    good = record(HOROVOD, HOROVOD.trial(), 640.0, "s", np.random.default_rng(0))
    broken = {f"{n}-workers": replace(good, trial=replace(good.trial, workers=n)) for n in (0, -2)}
    broken |= {"no-ranks": replace(good, ranks=[]), "strange-status": replace(good, status="fine")}
    for name, steps in {"no-time": [1e-320] * 50, "for-ever": [1e308] * 50, "back-in-time": [-0.1, 0.1]}.items():
        broken[name] = replace(good, ranks=[replace(rank, step_seconds=steps) for rank in good.ranks])
    for name, wrong in broken.items():
        write_record(tmp_path / "trials" / name, wrong)
    words = good.to_dict() | {"trial": {**good.trial.to_dict(), "workers": "two"}}
    texts = {"not-json": "{", "another-schema": '{"schema": 99}', "wrong-type": json.dumps(words)}
    for name, text in texts.items():
        (tmp_path / "trials" / name).mkdir()
        (tmp_path / "trials" / name / "record.json").write_text(text)
    with pytest.warns(trials.SkippedRecord) as caught:
        assert len(trials.read(tmp_path)[0]) == 3
    for name in (*broken, *texts):
        assert any(name in str(warning.message) for warning in caught), name


@given(st.lists(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=30), min_size=1, max_size=4))
def test_throughput_never_exceeds_what_any_rank_could_claim(steps: list[list[float]]) -> None:
    row = made(*({} for _ in steps), steps=tuple(steps), one=HOROVOD)
    samples = sum(32 * len(one) for one in steps)
    assert row["samples_per_second"] == pytest.approx(samples / max(sum(one) for one in steps))
    if row["interval_low"] is not None:
        assert row["interval_low"] <= row["samples_per_second"] * (1 + 1e-9)
        assert row["interval_high"] >= row["samples_per_second"] * (1 - 1e-9)
