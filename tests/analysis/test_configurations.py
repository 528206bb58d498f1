"""configurations.csv: throughput, speed-up and efficiency are those that were planted, or a reason stands there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import MACHINE, Planted, plant, planted_row
from simulations import Seen, times

from analysis.frames import configurations, results
from analysis.frames.results import Results
from analysis.report import answer, headline
from analysis.show import notes
from analysis.statistics import ranking, scaling_laws
from analysis.views import allreduce_gain, attribution, catalog, speedup
from scaling_study.stats.intervals import between_repeats
from scaling_study.study import defaults
from scaling_study.study.defaults import Default

SINGLE = Planted("single", speed=100.0)
TWO = Planted("horovod", workers=2, allreduce="fp32", speed=160.0)
BASELINE = {"framework": "single"}


def read(folder: Path, planted: Iterable[Planted], **about: Any) -> Results:
    return results.read(plant(folder, planted, **about))


def row_of(read: Results, one: Planted) -> pd.Series:
    return read.configurations[read.configurations.configuration == one.trial().configuration].iloc[0]


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_speedup_and_efficiency_are_those_planted_and_fewer_than_three_repeats_claim_no_interval(
    tmp_path: Path, repeats: int
) -> None:
    row = row_of(read(tmp_path, [replace(TWO, repeats=repeats), SINGLE], baseline=BASELINE), TWO)
    assert row.samples_per_second == pytest.approx(160, rel=0.05) and row.speedup == pytest.approx(1.6, rel=0.05)
    assert row.efficiency == pytest.approx(row.speedup / 2) and row.baseline == SINGLE.trial().configuration
    assert pd.isna(row.interval_low) == pd.isna(row.speedup_low) == (repeats < 3)
    assert repeats < 3 or row.speedup_low < 1.6 < row.speedup_high == pytest.approx(2 * row.efficiency_high)


def test_failed_repeats_do_not_count_and_are_not_hidden(tmp_path: Path) -> None:
    done = read(tmp_path, [TWO])
    failed = replace(TWO, status="oom", speed=None, repeats=1)
    plant(tmp_path, [failed])  # the first repeat, again, as a failure
    row = row_of(results.read(tmp_path), TWO)
    assert row_of(done, TWO).n == 3
    assert (row.n, row.repeats, row.status, row.failures) == (2, 3, "ok", "oom: 1")


def test_efficiency_over_a_baseline_of_several_workers_is_over_the_ratio_of_workers(tmp_path: Path) -> None:
    """Two workers as fast as the baseline's two are 100 % efficient, and the baseline does not rank against itself."""
    alike = replace(TWO, framework="torch_ddp")
    four = replace(alike, workers=4, speed=256.0)
    about = {"baseline": {"framework": "horovod", "workers": 2}, "machine": MACHINE | {"cores": 4}}
    done = read(tmp_path, [TWO, alike, four], **about)
    rows = [row_of(done, planted) for planted in (TWO, alike, four)]
    assert [row.efficiency for row in rows] == pytest.approx([1.0, 1.0, 0.8], rel=0.03)
    assert rows[0].configuration not in set(ranking.ranking(done, "efficiency").configuration)
    figure = speedup.draw(done, TWO.model)
    assert figure is not None
    assert [list(line.get_xdata()) for line in figure.axes[0].lines if line.get_linestyle() == "--"] == [[2.0, 2.0]]


BIG = replace(SINGLE, batch_per_worker=64, speed=120.0)
OWN = Planted("horovod", speed=97.0)
MPI = replace(OWN, keys=(("controller", "mpi"),))


@pytest.mark.parametrize(
    ("planted", "about", "baseline"),
    [
        pytest.param([SINGLE, BIG], {}, SINGLE, id="weak scaling: the same batch per worker"),
        pytest.param([SINGLE, BIG], {"scaling": "strong"}, BIG, id="strong scaling: the same global batch"),
        pytest.param([SINGLE, OWN], {"baseline": {"workers": 1}}, OWN, id="the framework's own"),
        pytest.param([OWN, MPI], {"baseline": {"workers": 1}}, OWN, id="the same controller"),
    ],
)
def test_the_nearest_baseline_is_taken(
    tmp_path: Path, planted: list[Planted], about: dict[str, Any], baseline: Planted
) -> None:
    row = row_of(read(tmp_path, [*planted, TWO], **{"baseline": BASELINE, **about}), TWO)
    assert row.baseline == baseline.trial().configuration
    assert row.speedup == pytest.approx(160 / (baseline.speed or 0), rel=0.05)


TRAINED = "framework=single with the same batch_per_worker was trained, and this was only timed"


@pytest.mark.parametrize(
    ("others", "about", "reason"),
    [
        ([], {"baseline": None}, "declares no baseline"),
        ([], {}, "no baseline trial with framework=single and batch_per_worker=32"),
        ([replace(SINGLE, batch_per_worker=64)], {}, "batch_per_worker=32 that is otherwise the same"),
        ([replace(SINGLE, model="resnet50")], {}, "otherwise the same"),
        ([replace(SINGLE, keys=(("precision", "bf16"),))], {}, "the nearest differs in precision (bf16, here fp32)"),
        ([replace(SINGLE, keys=(("train_epochs", 3),))], {}, TRAINED),
        ([replace(SINGLE, keys=(("machine", "other"),))], {}, "otherwise the same"),
        ([replace(SINGLE, status="oom", speed=None)], {}, "its baseline is not ok: oom"),
        ([replace(SINGLE, keys=(("launcher", name),)) for name in ("python", "mpirun")], {}, "2 configurations match"),
    ],
)
def test_where_there_is_no_baseline_the_reason_says_so(
    tmp_path: Path, others: list[Planted], about: dict[str, Any], reason: str
) -> None:
    row = row_of(read(tmp_path, [*others, TWO], **({"baseline": BASELINE} | about)), TWO)
    assert pd.isna(row.speedup) and pd.isna(row.efficiency) and reason in row.speedup_reason


def test_a_command_is_held_against_a_baseline_that_names_its_batch_and_the_unlike_work_is_said(tmp_path: Path) -> None:
    """As bench compares one command at two batches; nothing that is ours is."""
    small = Planted(
        "command", "script:bench", 8, keys=(("command", "a {batch_per_worker}"), ("arguments", "command=A"))
    )
    named = {"framework": "command", "batch_per_worker": 8}
    done = read(tmp_path / "a", [small, replace(small, batch_per_worker=64, speed=300.0)], baseline=named)
    row = row_of(done, replace(small, batch_per_worker=64))
    assert row.speedup == pytest.approx(3.0, rel=0.05) and row.baseline == small.trial().configuration
    said = "At unlike work: batch 64 a worker is compared with the baseline's batch 8, so there is no efficiency."
    assert said in notes.under_throughput(done, "script:bench")
    assert pd.isna(row.efficiency) and pd.isna(row.efficiency_low)
    assert "but for what is at unlike work, and is" in " ".join(notes.legend_of_speedup(done))
    ours = read(tmp_path / "b", [SINGLE, BIG], baseline={"framework": "single", "batch_per_worker": 32})
    assert "no baseline trial" in row_of(ours, BIG).speedup_reason
    alike = read(tmp_path / "c", [small, replace(small, keys=(("command", "b"),))], baseline={**named, "command": "b"})
    assert not configurations.unlike(alike.configurations)


def test_at_unlike_work_a_ratio_of_speeds_is_no_scaling(tmp_path: Path) -> None:
    """More workers with another batch: 7.8 times the samples/s are no efficiency, no superlinear speed-up, no law, and
    nothing that a second worker gave. With the batch of the baseline they are all of these."""
    one = Planted("command", "script:bench", 8, keys=(("command", "a {batch_per_worker}"), ("arguments", "command=A")))
    two = replace(one, batch_per_worker=64, workers=2, speed=780.0)
    about = {"baseline": {"framework": "command", "batch_per_worker": 8, "workers": 1}}
    done = read(tmp_path / "unlike", [one, two], **about)
    row = row_of(done, two)
    assert row.speedup == pytest.approx(7.8, rel=0.05) and pd.isna(row.efficiency)
    text = speedup.listing(done, "script:bench").cells[64, str(row.series)].text
    assert text.endswith("; no efficiency at unlike work") and "%" not in text
    assert ranking.best(done, "efficiency").empty and not answer.efficient(done, "script:bench").value
    assert attribution.table(done).empty
    assert not any(finding.flaw == "superlinear" for finding in catalog.all_findings(done))
    assert all(len(family.workers) < 2 for family in scaling_laws.families(done))
    lead = headline.sentences(headline.facts(done))[0]
    assert "worker gives" not in lead and "at unlike work" in lead
    alike = replace(two, batch_per_worker=8)
    done = read(tmp_path / "alike", [one, alike], **about)
    assert row_of(done, alike).efficiency == pytest.approx(3.9, rel=0.05)
    assert answer.efficient(done, "script:bench").value and not attribution.table(done).empty
    assert any(finding.flaw == "superlinear" for finding in catalog.all_findings(done))


def test_keys_that_the_baselines_framework_does_not_have_cannot_differ(tmp_path: Path) -> None:
    allowed = replace(TWO, keys=(("oversubscribe", True), ("cores_per_worker", 1)))
    row = row_of(read(tmp_path, [SINGLE, allowed], baseline=BASELINE), allowed)
    assert row.speedup == pytest.approx(1.6, rel=0.05)
    assert not row.oversubscribed  # allowed to, but 2 workers of 1 core each do fit 2 cores


SHAPE = (("stages", 2), ("schedule", "1f1b"), ("micro_batches", 4))
CUT = Planted("torch_pipeline", workers=2, speed=160.0, keys=SHAPE)


@pytest.mark.parametrize("row", defaults.ON_GPUS, ids=lambda row: row.key)
def test_what_follows_the_device_is_joined_with_nothing_that_does_not(tmp_path: Path, row: Default) -> None:
    """Nor where a framework has no such key: a pipeline that no compiler made is not held against compiled kernels."""
    follows = replace(SINGLE, keys=((row.key, row.value),))
    for other in (TWO, CUT):
        alike = replace(other, keys=(*other.keys, (row.key, row.value)))
        seen = read(tmp_path / other.framework, [follows, other, alike], baseline=BASELINE)
        apart = row_of(seen, other)
        assert pd.isna(apart.speedup) and "otherwise the same was run" in apart.speedup_reason
        assert row_of(seen, alike).speedup > 1


def test_under_tables_stands_what_follows_the_gpu_where_no_label_says_it(tmp_path: Path) -> None:
    gpu = (("device", "cuda"), ("precision", "bf16"), ("compile", True))
    images = [replace(each, keys=(*gpu, ("memory_format", "channels_last"))) for each in (SINGLE, TWO)]
    machine = {**MACHINE, "gpus": ["NVIDIA H100"] * 2}
    assert "bf16 compute, channels_last, compiled" in notes.source(read(tmp_path / "a", images, machine=machine))
    both = read(tmp_path / "b", [*images, replace(SINGLE, model="albert_tiny", keys=gpu)], machine=machine)
    assert "bf16 compute, channels_last (resnet18), compiled" in notes.source(both)
    eager = replace(images[1], keys=(*images[1].keys, ("compile", False)))
    said = notes.source(read(tmp_path / "c", [*images, eager], machine=machine))
    assert "compiled" not in said and "bf16 compute" in said  # the labels say which is compiled
    assert "precision" not in notes.source(read(tmp_path / "d", [SINGLE, TWO]))


@pytest.mark.parametrize("machine", [MACHINE, {}])
def test_oversubscribed_rows_carry_no_speedup_and_are_marked(tmp_path: Path, machine: dict[str, Any]) -> None:
    four = replace(TWO, workers=4, keys=(("oversubscribe", True),))
    done = read(tmp_path, [SINGLE, four], baseline=BASELINE, machine=machine)
    row = row_of(done, four)
    assert row.oversubscribed
    assert pd.isna(row.speedup)
    assert row.speedup_reason.startswith("oversubscribed")
    assert row.series == "horovod, 4 workers, fp32, oversubscribed"


def test_no_difference_is_a_test_of_equivalence(tmp_path: Path) -> None:
    """An interval of [0.73, 1.21] holds 1 and shows nothing; one within the target shows that it does not matter."""
    pairs = [(32, 0.10, 3), (64, 0.002, 8), (128, 0.005, 8)]
    planted = [
        replace(one, batch_per_worker=batch, noise=noise, repeats=repeats, speed=160 * (1.03 if batch == 128 else 1))
        for batch, noise, repeats in pairs
        for one in (TWO, replace(TWO, allreduce="fp16"))
    ]
    planted[-1] = replace(planted[-1], speed=160.0)
    table = allreduce_gain.gains_of(read(tmp_path, planted).configurations, 0.02)
    verdicts = dict(zip(table.batch_per_worker, table.verdict, strict=True))
    assert verdicts == {32: "not resolved", 64: "no difference", 128: "slower"}


@pytest.mark.slow
def test_of_many_equal_pairs_none_is_called_faster_or_slower_in_95_percent_of_studies() -> None:
    studies, rng, wide = times(300, 10_000), np.random.default_rng(23), 8
    alarms = 0
    for _ in range(studies):
        rows = [
            planted_row(
                100 * (1 + 0.01 * rng.standard_normal(3)),
                **{"configuration": f"{batch}-{wire}", "batch_per_worker": batch, "allreduce": wire},
            )
            for batch in range(wide)
            for wire in ("fp32", "fp16")
        ]
        verdicts = set(allreduce_gain.gains_of(pd.DataFrame(rows, dtype=object), 0.02).verdict)
        alarms += bool(verdicts & {"faster", "slower"})
    assert Seen(alarms, studies).keeps(most=ranking.FALSE_ALARMS), alarms


@pytest.mark.slow
def test_gain_pairs_what_differs_in_allreduce_only(tmp_path: Path) -> None:
    half = replace(TWO, allreduce="fp16", speed=200.0)
    same = [replace(one, batch_per_worker=64, speed=170.0, noise=0.03) for one in (TWO, half)]
    lost = [replace(TWO, batch_per_worker=128, status="oom", speed=None), replace(half, batch_per_worker=128)]
    few = [replace(one, batch_per_worker=256, repeats=2) for one in (TWO, half)]
    lone = replace(half, batch_per_worker=512)
    table = allreduce_gain.gains_of(read(tmp_path, [TWO, half, *same, *lost, *few, lone]).configurations, 0.02)
    verdicts = dict(zip(table.batch_per_worker, table.verdict, strict=True))
    assert verdicts == {32: "faster", 64: "not resolved", 128: "fp32: oom", 256: "no interval"}
    first = table[table.batch_per_worker == 32].iloc[0]
    assert first.gain_low < 1.25 < first.gain_high
    slower = allreduce_gain.gains_of(read(tmp_path / "slower", [TWO, replace(half, speed=120.0)]).configurations, 0.02)
    assert list(slower.verdict) == ["slower"]


def test_synthetic_data_is_seen_in_failed_trials_too(tmp_path: Path) -> None:
    keys = (("data", "synthetic"),)
    assert not read(tmp_path / "real", [SINGLE]).synthetic
    assert read(tmp_path / "made", [replace(SINGLE, keys=keys)]).synthetic
    assert read(tmp_path / "failed", [replace(SINGLE, keys=keys, status="failed", speed=None)]).synthetic


def test_repeats_that_were_added_do_not_narrow_the_spread(tmp_path: Path) -> None:
    one = Planted(noise=0.05, repeats=8)
    plain = read(tmp_path / "plain", [one]).configurations
    staged = read(tmp_path / "staged", [replace(one, planned_repeats=3)]).configurations
    assert plain.samples_per_second[0] == staged.samples_per_second[0]
    speeds = [float(value) for value in staged.repeat_values[0].split(";")]
    expected = between_repeats(speeds, first=3)
    assert staged.interval_low[0] == pytest.approx(expected.low)
    assert staged.interval_low[0] != pytest.approx(plain.interval_low[0])


def test_what_the_study_no_longer_asks_for_is_counted_and_not_shown(tmp_path: Path) -> None:
    now, before = Planted(batch_per_worker=32), Planted(batch_per_worker=64)
    done = read(tmp_path, [now, before], configurations=[now.trial().configuration])
    assert list(done.configurations.batch_per_worker) == [32]
    assert done.older == 1 and len(done.trials) == 6
    expected = "1 measured configuration(s) are no longer in the study"
    assert any(expected in note for note in notes.legend(done))
