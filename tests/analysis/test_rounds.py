"""Rounds of peers: what they had and waited for is told, those that failed are counted, and how they differ is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Planted, changed_ranks, plant
from planted_phases import STEP, Phased
from planted_rounds import HIVEMIND, KEYS, ROUND, Peers, of_peers, plant_rounds
from planted_trainings import TrainedIn, plant_trained, training_in

from analysis.__main__ import main
from analysis.frames import measured, results
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.predict import Asked, forecast
from analysis.show import layout, notes
from analysis.views import (
    attribution,
    averaging_rounds,
    bottleneck,
    catalog,
    communication,
    prediction,
    same_training,
    speedup,
    throughput,
)
from analysis.views import target as target_table
from analysis.views import target as training
from analysis.views.bottleneck import bottlenecks, remedies
from analysis.views.target import trained_configurations
from scaling_study.records import store
from scaling_study.records.schema import Record

SINGLE = Phased(Planted("single"), STEP)
DDP = Phased(Planted("torch_ddp", workers=2, allreduce="fp32"), {**STEP, "backward": 0.08})
FAILING = Peers(failures={2: ("AllreduceException: a peer left", 1), 5: ("1 of 2 peers took part", 1)})


def read(folder: Path, *peers: Peers, others: tuple[Phased, ...] = (SINGLE, DDP)) -> Results:
    return results.read(plant_rounds(folder, peers, others))


def holding(folder: Path, *records: Record) -> Results:
    plant_rounds(folder, [])
    for made in records:
        store.write_record(folder / "trials" / made.id, made)
    return results.read(folder)


def rounds_of(read: Results) -> dict[Any, Any]:
    """The one row of their table."""
    (row,) = averaging_rounds.rounds_table(read).to_dict("records")
    return row


def row_of(read: Results) -> ConfigurationRow:
    """That of the peers."""
    (row,) = (row for row in read.rows if row["framework"] == "hivemind")
    return row


def updates(how: str) -> Peers:
    return Peers(replace(HIVEMIND, keys=(*KEYS, ("updates", how))))


def test_a_row_says_what_rounds_had_and_waited_for(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    row = rounds_of(made)
    assert row["target_batch"] == 512 and row["runs"] == 3 and row["peers"] == row["workers"] == 2
    assert row["achieved_over_target"] == pytest.approx(1.0625) and row["achieved_most"] == pytest.approx(1.125)
    assert (row["rounds"], row["failed"], row["local"], row["failure"]) == (24, 0, 0, "")
    assert row["matchmaking_seconds"] == pytest.approx(2.05) and row["averaging_seconds"] == pytest.approx(0.15)
    assert row["matchmaking_blocked_seconds"] == 0.5 and row["averaging_blocked_seconds"] == pytest.approx(0.1)
    assert row["weights_share"] == 0.75 and row["sent_bytes"] == 1.5e6
    assert row["round_seconds"] == pytest.approx(2.4 * 1.02) and row["blocked_share"] == pytest.approx(0.6 / 2.448)
    runs = made.trials[made.trials.framework == "hivemind"]
    assert runs.achieved_over_target.tolist() == pytest.approx([1.0625] * 3) and set(runs.rounds_failed) == {0}
    peers = row_of(made)
    assert peers["achieved_over_target"] == pytest.approx(1.0625) and peers["matchmaking_seconds"] == 2.0


def test_achieved_has_an_interval_between_runs_and_none_of_one(tmp_path: Path) -> None:
    runs = [of_peers(Peers(achieved=(0.9 + repeat / 10,)), HIVEMIND.trial(repeat)) for repeat in (1, 2, 3)]
    row, alone = rounds_of(holding(tmp_path, *runs)), rounds_of(holding(tmp_path / "one", runs[0]))
    assert row["achieved_low"] < 1.0 < 1.2 < row["achieved_high"]
    assert row["achieved_over_target"] == pytest.approx(1.1, abs=0.002)
    assert not known(alone["achieved_low"]) and alone["achieved_over_target"] == pytest.approx(1.0, abs=0.002)


def test_a_run_with_a_failed_round_is_failed_and_its_rounds_are_counted(tmp_path: Path) -> None:
    made = read(tmp_path, FAILING)
    run = made.trials[made.trials.framework == "hivemind"].iloc[0]
    assert run.status == "failed" and run.rounds_failed == 2 and np.isnan(run.samples_per_second)
    assert run.reason == (
        "rank 0: 2 of 8 rounds were not averaged over all peers; round 3: AllreduceException: a peer left"
    )
    row, shown = rounds_of(made), averaging_rounds.listing(made)
    assert (row["runs"], row["rounds"], row["failed"], row["local"]) == (0, 0, 6, 6)
    assert shown and "6 (6 alone)" in shown.rows[0]
    assert any("first: AllreduceException: a peer left." in note for note in shown.notes)


def test_an_averaging_that_was_under_way_at_the_end_says_nothing(tmp_path: Path) -> None:
    """Of delayed updates the last one mostly is."""
    made = of_peers(Peers(), HIVEMIND.trial())
    last = {"peers": 0, "matchmaking_seconds": 0.0, "averaging_seconds": 0.0}
    ranks = [replace(rank, rounds=[*rank.rounds[:-1], replace(rank.rounds[-1], **last)]) for rank in made.ranks]
    row = rounds_of(holding(tmp_path, replace(made, ranks=ranks)))
    assert row["peers"] == 2 and row["local"] == 0 and row["rounds"] == 8
    assert row["matchmaking_seconds"] == pytest.approx(2.05) and row["achieved_over_target"] == pytest.approx(1.0625)


def test_without_peers_there_is_no_table_and_no_sentence(tmp_path: Path) -> None:
    made = results.read(plant(tmp_path, [Planted("single"), Planted("torch_ddp", workers=2, allreduce="fp32")]))
    assert averaging_rounds.listing(made) is None and made.details.rounds.empty
    assert not notes.how_it_differs(made.configurations)


def test_how_it_differs_is_one_sentence_with_this_studys_figures(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    (said,) = notes.how_it_differs(made.configurations)
    assert "512 samples (1.06 times as many were read)" in said and "about 2 s; 0.5 s blocked a round here" in said
    assert not notes.how_it_differs(made.configurations[made.configurations.framework == "hivemind"])
    under = [throughput.listing(made, "resnet18").notes, speedup.listing(made, "resnet18").notes]
    under += [
        communication.listing(made, "resnet18").notes,
        *(table.notes for view in (attribution, bottleneck) if (table := view.listing(made))),
    ]
    assert len(under) > 4 and all(list(lines).count(said) == 1 for lines in under)


def test_looking_for_peers_is_communication_with_names_of_its_own(tmp_path: Path) -> None:
    waits = Peers(phases={**ROUND, "matchmaking": 2.0})
    made = read(tmp_path, waits)
    name = row_of(made)["configuration"]
    limited = next(one for one in bottlenecks(made) if one.row["configuration"] == name)
    assert limited.kind == "communication"
    assert limited.shares["matchmaking"] == pytest.approx(2.0 / 3.9) and limited.shares["averaging"] > 0.02
    assert sum(limited.shares.values()) == pytest.approx(1)
    lost = attribution.by_name(made)[name]
    parts = {part.name: part.lost for part in lost.parts}
    assert sum(parts.values()) == pytest.approx(lost.lost) and parts["matchmaking"] > parts["averaging"] > 0
    assert "stragglers" not in parts
    named = [remedy.name for remedy in remedies(made)[name]]
    assert "Twice the target batch of a round" in named and "Twice the batch on each worker" not in named
    assert named[0] == "Hiding all communication behind computing"
    assert bottleneck.draw(made, "resnet18")


def test_a_round_of_more_than_its_target_is_no_miscounting(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    assert not [one for one in catalog.all_findings(made) if one.title == "Samples that do not add up"]
    assert measured.samples_of_step(row_of(made)) == pytest.approx(1.0625 * 512)


@pytest.mark.parametrize(("rounds", "found"), [(2, True), (9, True), (10, False)])
def test_a_mean_of_few_rounds_is_doubted(tmp_path: Path, rounds: int, found: bool) -> None:
    made = read(tmp_path, Peers(replace(HIVEMIND, steps=rounds)))
    said = [one for one in catalog.all_findings(made) if one.flaw == "rounds"]
    assert [(one.severity, f"only {rounds} averaging rounds" in one.text) for one in said] == [("doubt", True)] * found


def test_trainings_to_a_result_have_as_many_rounds_as_they_need(tmp_path: Path) -> None:
    one = trained("hivemind", ("target_batch_size", 512), batch=64)
    made = of_peers(Peers(replace(one.planted, steps=3)), replace(one.planted.trial(1), seed=1))
    ranks = [replace(rank, training=training_in(one, 1000, 512, 1)) for rank in made.ranks]
    read = holding(tmp_path, replace(made, ranks=ranks))
    assert not [one for one in catalog.all_findings(read) if one.flaw == "rounds"]


@pytest.mark.parametrize("how", ["delayed", "local"])
def test_other_updates_stand_apart_and_claim_no_speed_up(tmp_path: Path, how: str) -> None:
    made, column = read(tmp_path, updates(how)), f"hivemind, 2 workers, fp32, {how}"
    assert notes.how_it_differs(made.configurations)
    row = row_of(made)
    assert row["series"] == column and np.isnan(row["speedup"])
    assert row["speedup_reason"].startswith("not comparable with synchronous training: a peer steps by ")
    cells = throughput.listing(made, "resnet18").cells
    assert {cell.sign for (_, series), cell in cells.items() if series == column} == {"§"}
    assert "| not comparable § |" in layout.markdown(speedup.listing(made, "resnet18"))
    assert "§ not comparable" in layout.markdown(averaging_rounds.listing(made))


def test_synchronous_updates_are_compared_whether_said_or_not(tmp_path: Path) -> None:
    row = row_of(read(tmp_path, updates("synchronous")))
    assert row["not_comparable"] == "" and row["speedup"] > 0 and row["series"] == "hivemind, 2 workers, fp32"


# --- trained to a result ---


def trained(framework: str, *keys: tuple[str, object], batch: int = 256) -> TrainedIn:
    return TrainedIn(Planted(framework, "resnet8", batch, 2, "fp32", keys=keys), [1000, 1050, 1100])


def test_a_training_counts_the_samples_that_its_rounds_had(tmp_path: Path) -> None:
    one = trained("hivemind", ("target_batch_size", 512), batch=64)
    trial = replace(one.planted.trial(1), seed=1)
    made = of_peers(Peers(one.planted, achieved=(1.25,)), trial)
    said = training_in(one, 1000, trial.global_batch, 1)
    said["rows"] = [{**row, "samples": round(1.25 * row["samples"])} for row in said["rows"]]
    ranks = [replace(rank, training=said | {"steps": 1001}) for rank in made.ranks]
    (run,) = holding(tmp_path, replace(made, ranks=ranks)).details.trained.itertuples()
    assert run.steps == 1001 and run.samples == 1.25 * 1000 * 512 + 512


def test_what_steps_otherwise_is_not_asked_whether_it_is_sooner(tmp_path: Path) -> None:
    target = ("target_batch_size", 512)
    every = [trained("torch_ddp"), trained("hivemind", target, batch=64)]
    delayed = trained("hivemind", target, ("updates", "delayed"), batch=64)
    made = plant_trained(tmp_path, [*every, replace(delayed, step_seconds=0.01)])
    verdicts = trained_configurations(made).set_index("configuration").soonest
    assert verdicts[delayed.configuration] == "best" and "best" in set(verdicts.drop(delayed.configuration))
    pairs = same_training.table(made)
    assert set(pairs.configuration) | set(pairs.reference) == {one.configuration for one in every}
    for shown in (target_table.listing(made), same_training.listing(made), training.resources_listing(made)):
        assert sum(note.startswith("hivemind: a step is a round") for note in shown.notes) == 1, shown.title
    text = layout.markdown(target_table.listing(made))
    assert "delayed, batch 64 per worker (512 global) §" in text
    assert "- § not comparable with synchronous training" in text


def test_f23_goes_by_the_target_of_a_round(tmp_path: Path) -> None:
    def titles(name: str, batch: int) -> list[str]:
        peers = trained("hivemind", ("target_batch_size", 512), ("learning_rate", 0.05), batch=64)
        ddp = trained("torch_ddp", ("learning_rate", 0.05), batch=batch)
        plant_trained(tmp_path / name, [peers, ddp], baseline=None)
        rated = results.read(changed_ranks(tmp_path / name, lambda rank: rank.update(learning_rate=0.05)))
        return [one.text for one in catalog.all_findings(rated) if one.flaw == "F23"]

    (said,) = titles("unlike", 32)
    assert "unlike global batches (hivemind 512; torch_ddp 64) compare numbers of steps, not strategies" in said
    assert titles("alike", 256) == []


# --- predicted ---


def test_rounds_are_not_predicted_and_one_line_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant_rounds(tmp_path / "alone", [Peers()], [SINGLE])
    assert main(["predict", str(folder), "--workers", "4", "--bandwidth", "25Gbit", "--latency", "5us"]) == 2
    assert "hivemind is not predicted" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "tables").exists()
    folder = plant_rounds(tmp_path / "others", [Peers(), updates("local")], [SINGLE, DDP])
    asked = Asked((4,), ("ring",), network=ModelledNetwork(Link(5e-6, 8 / 25e9)))
    made = forecast(results.read(folder), folder, asked)
    assert {one.target.row["framework"] for one in made.predictions} == {"torch_ddp"}
    (said,) = made.wrong
    assert said in layout.markdown(prediction.forecast_listing(made, results.read(folder)))
