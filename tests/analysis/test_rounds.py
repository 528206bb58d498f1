"""Rounds of peers: what they had and waited for is told, those that failed are counted, and how they differ is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from planted import Planted, plant
from planted_phases import STEP, Phased
from planted_rounds import HIVEMIND, KEYS, ROUND, Peers, of_peers, plant_rounds

from analysis import findings, outputs
from analysis.figures import shares
from analysis.frames import results, rounds, trials
from analysis.frames.results import Results
from analysis.report import content
from analysis.report.material import Material
from analysis.report.sections import tables as section
from analysis.tables import communication, layout, notes, reasons, throughput
from analysis.tables import rounds as table
from analysis.why.attribution import attributions
from analysis.why.bottleneck import bottlenecks
from analysis.why.remedies import remedies

SINGLE = Phased(Planted("single"), STEP)
DDP = Phased(Planted("torch_ddp", workers=2, allreduce="fp32"), {**STEP, "backward": 0.08})
FAILING = Peers(failures={2: ("AllreduceException: a peer left", 1), 5: ("1 of 2 peers took part", 1)})


def read(folder: Path, *peers: Peers, others: tuple[Phased, ...] = (SINGLE, DDP)) -> Results:
    return results.read(plant_rounds(folder, peers, others))


def updates(how: str, **changes: object) -> Peers:
    return Peers(replace(HIVEMIND, keys=(*KEYS, ("updates", how)), **changes))


def test_a_row_says_what_rounds_had_and_waited_for(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    (row,) = table.table(made).to_dict("records")
    assert row["target_batch"] == 512 and row["runs"] == 3 and row["peers"] == row["workers"] == 2
    assert row["achieved_over_target"] == pytest.approx(1.0625) and row["achieved_most"] == pytest.approx(1.125)
    assert (row["rounds"], row["failed"], row["local"], row["failure"]) == (24, 0, 0, "")
    assert row["matchmaking_seconds"] == pytest.approx(2.05) and row["averaging_seconds"] == pytest.approx(0.15)
    assert row["matchmaking_blocked_seconds"] == 0.5 and row["averaging_blocked_seconds"] == pytest.approx(0.1)
    assert row["round_seconds"] == pytest.approx(2.4 * 1.02) and row["blocked_share"] == pytest.approx(0.6 / 2.448)
    shown = layout.markdown(table.listing(made))
    cells = "1.062 [1.062, 1.062] | 24 | 0 | 2 of 2 | 2.45 | 2.05 | 0.50 | 0.15 | 0.10 | 25 %"
    assert cells in shown and "Every round was averaged over all peers." in shown


def test_achieved_has_an_interval_between_runs_and_none_of_one(tmp_path: Path) -> None:
    folder = plant_rounds(tmp_path, [])
    for repeat, most in ((1, 1.0), (2, 1.1), (3, 1.2)):
        made = of_peers(Peers(achieved=(most,)), HIVEMIND.trial(repeat))
        trials.store.write_record(folder / "trials" / made.id, made)
    (row,) = table.table(results.read(folder)).to_dict("records")
    assert row["achieved_low"] < 1.0 < 1.2 < row["achieved_high"]
    assert row["achieved_over_target"] == pytest.approx(1.1, abs=0.002)
    alone = table.table(read(tmp_path / "one", Peers(replace(HIVEMIND, repeats=1))))
    assert alone.achieved_low.isna().all() and alone.achieved_over_target[0] == pytest.approx(1.0625)


def test_a_run_with_a_failed_round_is_failed_and_its_rounds_are_counted(tmp_path: Path) -> None:
    made = read(tmp_path, FAILING)
    run = made.trials[made.trials.framework == "hivemind"].iloc[0]
    assert run.status == "failed" and run.rounds_failed == 2 and np.isnan(run.samples_per_second)
    assert run.reason == (
        "rank 0: 2 of 8 rounds were not averaged over all peers; round 3: AllreduceException: a peer left"
    )
    (row,) = table.table(made).to_dict("records")
    assert (row["runs"], row["rounds"], row["failed"], row["local"]) == (0, 0, 6, 6)
    shown = layout.markdown(table.listing(made))
    assert "6 rounds failed, 6 of them applied with a peer's own gradients alone" in shown
    assert "first: AllreduceException: a peer left. Runs with such a round count as failed." in shown
    assert "6 (6 alone)" in shown


def test_columns_of_results_and_configurations_say_it_too(tmp_path: Path) -> None:
    folder = plant_rounds(tmp_path, [Peers()], [SINGLE])
    outputs.write(folder, page=False)
    runs, shown = (pd.read_csv(folder / f"{name}.csv") for name in ("results", "configurations"))
    assert runs[runs.framework == "hivemind"].achieved_over_target.tolist() == pytest.approx([1.0625] * 3)
    assert runs[runs.framework == "hivemind"].rounds_failed.tolist() == [0, 0, 0]
    assert runs[runs.framework == "single"][["achieved_over_target", "rounds_failed"]].isna().all(axis=None)
    peers = shown[shown.framework == "hivemind"].iloc[0]
    assert peers.achieved_over_target == pytest.approx(1.0625) and peers.matchmaking_seconds == 2.0
    assert (peers.matchmaking_blocked_seconds, peers.averaging_blocked_seconds) == pytest.approx((0.5, 0.1))
    assert (folder / "tables" / "rounds.md").exists() and (folder / "tables" / "rounds.csv").exists()


def test_without_peers_there_is_no_table_and_no_sentence(tmp_path: Path) -> None:
    folder = plant(tmp_path, [Planted("single"), Planted("torch_ddp", workers=2, allreduce="fp32")])
    made = results.read(folder)
    assert table.listing(made) is None and made.details.rounds.empty and not notes.how_it_differs(made.configurations)
    outputs.write(folder, page=False)
    assert not list((folder / "tables").glob("rounds*"))
    parts = section.section(Material(made, str(folder), {})).parts
    assert not [part for part in parts if isinstance(part, content.Heading) and "ounds" in part.text]


def test_the_report_page_has_the_table(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    parts = section.section(Material(made, str(tmp_path), {})).parts
    assert any(isinstance(part, content.Heading) and part.text == "Rounds of decentralised training" for part in parts)


def test_how_it_differs_is_one_sentence_with_this_studys_figures(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    (said,) = notes.how_it_differs(made.configurations)
    assert said == (
        "How hivemind differs: its step is a round, which waits until peers together have 512 samples (1.06 of that on "
        "average were read) and in which they look for each other for about 2 s, of which 0.5 s blocked it here, "
        "hidden only while batches compute; a step of single and torch_ddp is 32 samples a worker."
    )
    under = [throughput.throughput(made, "resnet18").notes, throughput.speedup(made, "resnet18").notes]
    under += [communication.listing(made, "resnet18").notes, *(each.notes for each in reasons.listing(made))]
    assert len(under) > 5 and all(list(lines).count(said) == 1 for lines in under)


def test_ranges_are_said_as_ranges_and_peers_alone_need_no_sentence(tmp_path: Path) -> None:
    larger = Peers(replace(HIVEMIND, keys=(("target_batch_size", 2048),)), achieved=(1.25,))
    made = read(tmp_path, Peers(), larger, others=(SINGLE, DDP, Phased(Planted("horovod", batch_per_worker=64), STEP)))
    (said,) = notes.how_it_differs(made.configurations)
    assert "512 to 2,048 samples (1.06 to 1.25 of that on average were read)" in said and "about 2 to 3 s" in said
    assert said.endswith("a step of the others is 32 to 64 samples a worker.")
    assert not notes.how_it_differs(made.configurations[made.configurations.framework == "hivemind"])


def test_looking_for_peers_is_communication_with_names_of_its_own(tmp_path: Path) -> None:
    waits = Peers(phases={**ROUND, "matchmaking": 2.0})
    made = read(tmp_path, waits)
    (limited,) = [one for one in bottlenecks(made) if one.row["framework"] == "hivemind"]
    assert limited.kind == "communication"
    assert "51 % of a step of 4.14 s" in limited.evidence.replace("4,140 ms", "4.14 s").replace("4140 ms", "4.14 s")
    assert "goes into peers that look for each other (matchmaking)" in limited.evidence
    assert limited.shares["matchmaking"] == pytest.approx(2.0 / 3.9) and limited.shares["averaging"] > 0.02
    assert sum(limited.shares.values()) == pytest.approx(1)
    (lost,) = [one for one in attributions(made) if one.row["framework"] == "hivemind"]
    parts = {part.name: part.lost for part in lost.parts}
    assert sum(parts.values()) == pytest.approx(lost.lost) and parts["matchmaking"] > parts["averaging"] > 0
    assert parts["stragglers"] == 0 if "stragglers" in parts else True
    named = [remedy.name for remedy in remedies(made)[limited.row["configuration"]]]
    assert "Twice the target batch of a round" in named and "Twice the batch on each worker" not in named
    assert named[0] == "Hiding all communication behind computing"
    assert shares.draw(made)


def test_a_round_of_more_than_its_target_is_no_miscounting(tmp_path: Path) -> None:
    made = read(tmp_path, Peers())
    assert not [one for one in findings.all_findings(made) if one.title == "Samples that do not add up"]
    step = next(one for one in bottlenecks(made) if one.row["framework"] == "hivemind")
    assert rounds.samples_of_step(step.row) == pytest.approx(1.0625 * 512)


@pytest.mark.parametrize("how", ["delayed", "local"])
def test_other_updates_stand_apart_and_claim_no_speed_up(tmp_path: Path, how: str) -> None:
    made = read(tmp_path, updates(how))
    (row,) = [row for row in made.rows if row["framework"] == "hivemind"]
    assert row["series"] == f"hivemind, 2 workers, fp32, {how}" and np.isnan(row["speedup"])
    assert row["speedup_reason"].startswith("not comparable with synchronous training: a peer steps by ")
    shown = layout.markdown(throughput.throughput(made, "resnet18"))
    assert f"hivemind, 2 workers, fp32, {how} |" in shown and " § |" in shown
    assert (
        f"- § not comparable with synchronous training: {row['not_comparable'].split(': ', 1)[1]} (hivemind)." in shown
    )
    assert "| not comparable § |" in layout.markdown(throughput.speedup(made, "resnet18"))
    assert "§ not comparable" in layout.markdown(table.listing(made))


def test_synchronous_updates_are_compared_whether_said_or_not(tmp_path: Path) -> None:
    made = read(tmp_path, updates("synchronous"))
    (row,) = [row for row in made.rows if row["framework"] == "hivemind"]
    assert row["not_comparable"] == "" and row["speedup"] > 0 and row["series"] == "hivemind, 2 workers, fp32"


def test_a_record_whose_rounds_are_not_whole_is_skipped(tmp_path: Path) -> None:
    made = of_peers(Peers(), HIVEMIND.trial())
    broken = replace(made, ranks=[replace(rank, rounds=[{"samples": 4}]) for rank in made.ranks])
    folder = plant_rounds(tmp_path, [])
    trials.store.write_record(folder / "trials" / made.id, broken)
    with pytest.warns(trials.SkippedRecord):
        assert results.read(folder).trials.empty
