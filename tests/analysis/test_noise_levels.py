"""At which level noise is, found where it was planted: steps, rounds, launches of one, of processes, of all."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Planted, plant, rank_report

from analysis.findings import NOTE, Evidence, Finding
from analysis.frames import configurations, details, results
from analysis.statistics import noise_levels
from analysis.statistics.noise_levels import Levels
from analysis.views import noise, timing
from scaling_study.records import schema, store
from scaling_study.stats.launches import LaunchSpread

STEPS, ROUNDS, LAUNCHES = 5, 8, 12
NOISE = {"steps": 0.06, "rounds": 0.04, "alone": 0.03, "processes": 0.05, "together": 0.1}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> results.Results:
    """Five groups of four configurations, twelve launches."""
    folder = tmp_path_factory.mktemp("levels") / "planted"
    drift = (0.0,) * LAUNCHES
    planted = [
        Planted(framework, batch_per_worker=batch, workers=workers, allreduce=wire, repeats=LAUNCHES, drift=drift)
        for framework, workers, wire in (
            ("single", 1, "none"), ("horovod", 2, "fp32"), ("torch_ddp", 2, "fp32"), ("torch_ddp", 4, "fp32"),
            ("horovod", 4, "fp32"),
        )
        for batch in (16, 32, 64, 128)
    ]  # fmt: skip
    plant(folder, planted, baseline=None)
    rng = np.random.default_rng(8)
    of_all, of_round = NOISE["together"] * rng.standard_normal(LAUNCHES), rng.standard_normal((LAUNCHES, ROUNDS))
    groups: dict[str, Any] = {}
    for record in list(store.read_study(folder)):
        launch = int(record.trial.repeat) - 1
        group = groups.setdefault(record.launch, NOISE["processes"] * rng.standard_normal())
        level = of_all[launch] + group + NOISE["alone"] * rng.standard_normal()
        blocks = level + 0.2 * of_round[launch] + NOISE["rounds"] * rng.standard_normal(ROUNDS)  # rounds drift together
        logs = np.repeat(blocks, STEPS) + NOISE["steps"] * rng.standard_normal(ROUNDS * STEPS)
        seconds = (0.1 * np.exp(logs)).tolist()
        trial = next(one for one in planted if one.trial().configuration == record.configuration).trial(launch + 1)
        ranks = [
            replace(
                rank_report(trial, rank, seconds),
                blocks=[{"round": at, "at": float(at), "steps": STEPS} for at in range(ROUNDS)],
            )
            for rank in range(trial.workers)
        ]
        store.write_record(folder / "trials" / record.id, replace(record, ranks=ranks))
    return results.read(folder)


def test_each_level_has_the_noise_that_was_planted(study: results.Results) -> None:
    levels = noise_levels.levels(study)
    assert levels is not None
    in_a_round = math.hypot(NOISE["rounds"], NOISE["steps"] / math.sqrt(STEPS))
    in_a_launch = math.hypot(NOISE["alone"], in_a_round / math.sqrt(ROUNDS))
    assert levels.steps == pytest.approx(NOISE["steps"], rel=0.05)
    assert levels.rounds == pytest.approx(in_a_round, rel=0.05)
    assert levels.alone == pytest.approx(in_a_launch, rel=0.1)
    assert levels.processes == pytest.approx(math.hypot(NOISE["processes"], in_a_launch / 2), rel=0.2)
    assert levels.together == pytest.approx(NOISE["together"], rel=0.5)
    assert (levels.rounds_a_launch, levels.launches) == (ROUNDS, LAUNCHES)
    parts = levels.parts
    assert sum(parts.values()) == pytest.approx(1) and max(parts, key=lambda name: parts[name]) == "processes"


def test_a_first_set_of_processes_that_is_noisier_than_others_does_not_stand_for_all(
    study: results.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [0.09, *[0.05] * 19]  # of its own, and of all
    found = iter(LaunchSpread(0.03**2, 11.0, own**2, 44.0, members=4) for own in first)
    monkeypatch.setattr(configurations, "spread_of", lambda row: next(found))
    levels = noise_levels.levels(study)
    assert levels is not None and levels.processes == pytest.approx(0.05)


def test_what_a_launch_and_a_round_cost_says_how_many_rounds_are_cheapest(study: results.Results) -> None:
    """Kalibera and Jones: the root of the costs' ratio times that of the variances."""
    mean_of_four = math.hypot(0.03, 0.02 / 2)  # of launches that do 3 % to each, and of rounds
    costly = Levels(
        0.1, 0.04, math.hypot(0.03, 0.02), mean_of_four, 0.02, 4, 3, members=4, start_seconds=36.0, round_seconds=4.0
    )  # fmt: skip
    of_launches = mean_of_four**2 + costly.alone**2 * 3 / 4 - 0.04**2 / 4
    assert costly.cheapest_rounds == round(3 * 0.04 / math.sqrt(of_launches)) == 3
    assert "3 blocks a launch would narrow ratios soonest (here 4)" in noise.levels_text(costly)
    free = replace(costly, alone=0.02, processes=0.009)  # rounds are all that there is
    assert free.cheapest_rounds == 0 and "soonest" not in noise.levels_text(free)
    levels = noise_levels.levels(study)
    assert levels and levels.round_seconds == 1.0 and levels.start_seconds < 0, "planted blocks began in 1970"
    assert levels.cheapest_rounds == 0


LATER = {"single": 0.0, "horovod": 0.25, "torch_ddp": 0.5}  # begins its blocks so much after the round


@pytest.mark.parametrize("changed", [False, True])
def test_what_changed_over_a_launch_shows_on_what_is_first_and_last(changed: bool, tmp_path: Path) -> None:
    planted = [Planted(name, workers=1 + (name != "single"), drift=(0.0,) * 3) for name in LATER]
    plant(tmp_path, planted, baseline=None)
    for record in list(store.read_study(tmp_path)):
        trial = next(one for one in planted if one.trial().configuration == record.configuration).trial()
        last, slower = trial.framework == "single", changed and record.trial.repeat == 2
        starts = [1 + at + LATER[trial.framework] + (at == 3 and last) for at in range(4)]
        seconds = [0.1, 0.102, 0.099, 0.2 if slower else 0.101]
        seen = [{"round": at, "at": start, "steps": 1} for at, start in enumerate(starts)]
        ranks = [replace(rank_report(trial, rank, seconds), blocks=seen) for rank in range(trial.workers)]
        store.write_record(tmp_path / "trials" / record.id, replace(record, ranks=ranks))
    study = results.read(tmp_path)
    within = noise.drift_in_launches(study)
    assert within and [name.partition("-")[0] for name in within.configurations] == ["single"]
    assert within.changes["1/0"] == pytest.approx(-math.log(1.01))
    assert within.noise == pytest.approx(math.log(102 / 99)) and within.freedom == 3
    assert within.changed == (["2/0"] if changed else [])
    (said,) = (line for line in noise.machine(study) if line.startswith("Drift: "))
    assert "throughput of resnet" in said and ("In 2/0 that is more than noise" in said) == changed


def test_a_study_of_launches_of_their_own_has_no_levels(tmp_path: Path) -> None:
    read = results.read(plant(tmp_path, [Planted()]))
    assert noise_levels.levels(read) is None and noise.drift_in_launches(read) is None and len(noise.machine(read)) == 2


def test_a_block_has_its_own_steps(tmp_path: Path) -> None:
    plant(tmp_path, [Planted(drift=(0.0,), repeats=1)])
    (record,) = store.read_study(tmp_path)
    rank = replace(record.ranks[0], step_seconds=[1.0, 3.0, 5.0], blocks=[schema.Block(0, 2), schema.Block(1, 1)])
    with pytest.raises(ValueError, match=r"blocks of \[4\] steps are not its 3"):
        details.block_rows(replace(record, ranks=[replace(rank, blocks=[schema.Block(0, 4)])]))
    first, second = details.block_rows(replace(record, ranks=[rank]))
    assert first[2:4] == ("1/0", 0) and math.isnan(first[4])
    assert first[5:] == (2, pytest.approx(math.log(2.0)), pytest.approx(2.0 / 4.0))
    assert second[5:] == (1, pytest.approx(math.log(5.0)), None)


def test_launches_of_unequal_length_are_named(study: results.Results) -> None:
    """The third launch of all is cut to five rounds."""

    def named(read: results.Results) -> list[Finding]:
        return list(timing.unequal_launches(Evidence(read)))

    assert not named(study)
    blocks = study.details.blocks
    cut = blocks[~(blocks.together.str.startswith("3/") & (blocks["round"] >= 5))]
    (note,) = named(replace(study, details=replace(study.details, blocks=cut)))
    assert "had 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 5 blocks" in note.text and note.severity == NOTE
