"""Benchmarks of decentralised training from planted rates and rounds: who wins, what is tied, what leaving costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from analysis.views import averaging_rounds
from benchmarks import crossover, crossover_text, daemon_core, decentralized, leaving_peers, over_links, slow_links
from benchmarks.crossover import LOSES, OPEN, TIES, WINS, Cell, Measured, Way
from benchmarks.leaving_peers import Round
from benchmarks.options import Options
from scaling_study import datasets
from scaling_study.hosts import hosts
from scaling_study.records.schema import TrainingReport
from scaling_study.settings import CHECKOUT
from scaling_study.stats.intervals import ratio
from scaling_study.study import plan, study
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial
from tests.net import frozen

PEERS, PEERS_16 = Way("hivemind", "fp32"), Way("hivemind", "fp16")
DDP, DDP_16, HOROVOD = Way("torch_ddp", "fp32"), Way("torch_ddp", "fp16"), Way("horovod", "fp32")
ARMS = (Way("hivemind", "fp16", "fp16"), Way("hivemind", "fp16", "fp16", 10))
SLOW, FAST = "100 Mbit/s", "1 Gbit/s"
MACHINE = frozen.MACHINES["2 cores"]


def around(mean: float, spread: float = 0.01) -> list[float]:
    """Three repeats with this mean, and about this relative standard deviation."""
    return [mean * (1 - spread), mean, mean * (1 + spread)]


def one_cell(**rates: list[float]) -> Cell:
    ways = {"peers": PEERS, "peers_16": PEERS_16, "ddp": DDP, "ddp_16": DDP_16, "horovod": HOROVOD}
    measured = Measured({SLOW: {256: {ways[name]: values for name, values in rates.items()}}})
    (cell,) = crossover.cells(measured)
    return cell


@dataclass
class Rank:
    step_seconds: list[float]
    training: TrainingReport | None = None
    samples_seen: int = 0
    rounds: list[Any] = field(default_factory=list)
    communication_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def window_seconds(self) -> float:
        return sum(self.step_seconds)


@dataclass
class Made:
    """As much of a record as the map reads."""

    trial: Trial
    ranks: list[Rank]
    status: str = "ok"


def timed(framework: str, seconds: list[list[float]], status: str = "ok", samples: int = 0, **keys: Any) -> Made:
    """`samples`: of each rank in each round."""
    trial = Trial(framework=framework, workers=2, **keys)
    return Made(trial, [Rank(each, samples_seen=samples * len(each)) for each in seconds], status)


def trained(batch: int, steps: int | None) -> Made:
    trial = Trial(batch_per_worker=batch, train_epochs=3, train_target="loss=1.2")
    said = TrainingReport(reached=None if steps is None else {"steps": steps}, target=str(trial.train_target))
    return Made(trial, [Rank([1.0], said)])


@pytest.mark.parametrize(
    ("rates", "winner", "verdict"),
    [
        ({"peers": around(2.0), "ddp": around(1.0), "horovod": around(0.9)}, PEERS, WINS),
        ({"peers": around(1.0), "ddp": around(2.0), "horovod": around(0.9)}, DDP, LOSES),
        ({"peers": around(1.0), "ddp": around(1.005), "horovod": around(0.5)}, None, TIES),
        ({"peers": around(1.0), "ddp": around(2.0), "ddp_16": around(2.01)}, None, LOSES),  # others tie
        ({"peers": around(2.0), "peers_16": around(2.01), "ddp": around(1.0)}, None, WINS),  # peers among themselves
        ({"peers": [2.0], "ddp": [1.0]}, None, OPEN),  # one repeat claims nothing
        ({"peers": around(1.3, 0.3), "ddp": around(1.0, 0.3)}, None, TIES),  # noise
    ],
)
def test_who_wins_a_cell(rates: dict[str, list[float]], winner: Way | None, verdict: str) -> None:
    cell = one_cell(**rates)
    assert (cell.winner, cell.decentralised) == (winner, verdict)


def test_rounds_are_those_of_the_slowest_rank_and_trainings_count_for_all_links() -> None:
    measured = Measured()
    measured.add(SLOW, [
        timed("hivemind", [[2.0, 2.0], [2.5, 2.5]], samples=160, batch_per_worker=64, target_batch_size=256),
        timed("torch_ddp", [[1.0], [1.0]], batch_per_worker=128, accumulation=2, allreduce="fp16"),
        timed("torch_ddp", [[1.0], [1.0]], batch_per_worker=128, find="parity"),
        timed("horovod", [], status="failed", batch_per_worker=128),
    ])  # fmt: skip
    measured.add("", [trained(256, 30), trained(256, 40), trained(1024, None)])
    assert measured.rates == {SLOW: {256: {PEERS: [0.4], DDP_16: [1.0]}}}
    assert measured.samples == {SLOW: {256: {PEERS: [320.0]}}}
    assert [measured.samples_of(SLOW, 256, way) for way in (PEERS, DDP_16)] == [320.0, 256]
    assert (measured.rounds, measured.missed, measured.loss) == ({256: [30.0, 40.0]}, {1024: 1}, "loss=1.2")


def larger_rounds(samples: float, rounds: dict[int, list[float]]) -> tuple[Cell, Measured]:
    """Peers at half of DDP's rounds per second, of more samples than they were asked for."""
    measured = Measured(
        {SLOW: {256: {DDP: around(2.0), PEERS: around(1.0)}}}, rounds, samples={SLOW: {256: {PEERS: [samples] * 3}}}
    )
    (cell,) = crossover.cells(measured)
    return cell, measured


@pytest.mark.parametrize(
    ("samples", "takes"),
    [(256, 2.0), (512, 2 * 0.5**0.5), (1024, 1.0), (1100, 1.0), (240, 2.0)],  # a fourth: half the rounds
)
def test_a_larger_round_counts_by_the_curve(samples: float, takes: float) -> None:
    rounds = {256: [400.0, 410.0, 390.0], 1024: [200.0, 210.0, 190.0]}
    cell, _ = larger_rounds(samples, rounds)
    peers = cell.best(decentralised=True)
    assert peers and peers.behind.mean == pytest.approx(takes) and peers.samples == samples
    assert peers.seconds and cell.timed[1 - cell.timed.index(peers)].seconds
    assert peers.seconds.mean == pytest.approx(200 * takes)
    if samples == 512:  # the curve is uncertain too
        narrow = ratio(around(2.0), around(1.0)).relative_half_width
        assert (peers.behind.relative_half_width or 0) > 1.2 * (narrow or 0)


@pytest.mark.parametrize("rounds", [{}, {256: [400.0, 410.0, 390.0]}])
def test_without_a_curve_samples_per_second_decide(rounds: dict[int, list[float]]) -> None:
    cell, measured = larger_rounds(512, rounds)
    assert cell.decentralised == TIES and cell.timed[1].behind.mean == pytest.approx(1.0)
    cell, measured = larger_rounds(640, rounds)
    assert (cell.winner, cell.decentralised) == (PEERS, WINS)
    assert cell.timed[1].behind.mean == pytest.approx(1.25) and cell.fastest.seconds is None
    assert "goes by samples per second" in crossover_text.page(measured)


@pytest.mark.parametrize("small", [False, True])
def test_every_way_of_the_study_reaches_the_same_target_batches(small: bool) -> None:
    asked = study.load(CHECKOUT / "studies/decentralized.yaml", small)
    over = Cluster(hosts.parse_option("a:1,b:1"))
    data = {"cifar10": datasets.DataSource("cifar10", "")}
    made = plan.make(asked, MACHINE, data, ALONE if small else over)
    assert not {planned.unsupported for planned in made.configurations} - {""}
    trials = [planned.trial for planned in made.configurations]
    targets: dict[Any, set[int]] = {}
    for trial in trials:
        targets.setdefault(Way.of(trial), set()).add(trial.global_batch)
        micro_batches = trial.accumulation if trial.framework != "hivemind" else 1
        assert trial.batch_per_worker / micro_batches == 64
    expected = {256, 1024} if small else {256, 2048, 8192}
    ways = (PEERS, PEERS_16, *ARMS, DDP, DDP_16, HOROVOD, Way("single", "none"))
    assert targets == dict.fromkeys(ways, expected)
    assert asked.measure.min_steps >= averaging_rounds.FEWEST_ROUNDS


# --- ways that older studies lack ---


def older() -> Measured:
    """A map without the arms: Hivemind loses by 1.5 to 3 times, the least in the second cell."""
    others = {DDP: around(3.0), DDP_16: around(2.0), PEERS: around(1.0)}
    return Measured({SLOW: {256: dict(others), 2048: {**others, PEERS_16: around(2.0)}}})


@pytest.mark.parametrize(("minutes", "cells"), [(None, [2048, 256]), (0.0, []), (1e9, [2048, 256])])
def test_cells_are_measured_from_the_nearest_on_while_there_is_time(
    minutes: float | None, cells: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def over(rate: str | None, study: dict[str, Any], *_: object) -> Path:
        asked.append(study)
        return tmp_path / str(study["study"])

    def whole(folder: Path, *_: object) -> bool:
        return folder.name in {one["study"] for one in asked}

    faster = [
        timed("hivemind", [[0.25]], samples=1024, batch_per_worker=64, target_batch_size=2048, allreduce="fp16",
              state_allreduce="fp16", average_state_every=10),
        timed("torch_ddp", [[0.5]], batch_per_worker=1024),
    ]  # fmt: skip
    small = [timed("torch_ddp", [[0.5]], batch_per_worker=128)]
    for name, other in {"over": over, "whole": whole, "kept": lambda *_: None}.items():
        monkeypatch.setattr(decentralized, name, other)
    monkeypatch.setattr(decentralized.store, "read_study", lambda folder: faster if "2048" in folder.name else small)
    measured = older()
    decentralized.measure_arms(measured, Options(minutes=minutes), tmp_path, tmp_path)
    assert [one["study"] for one in asked] == [f"decentralized-100mbit-{cell}" for cell in cells]
    if cells:
        assert measured.rates[SLOW][2048] == {ARMS[1]: [4.0], DDP: [2.0]}, "nothing of another sitting"
    said = "1 of 2 cells have" if cells else "0 of 2 cells have"
    assert said in crossover_text.page(measured)


def test_a_cell_is_asked_for_what_it_lacks_beside_the_fastest_other(tmp_path: Path) -> None:
    small, large = crossover.cells(older())
    asked = decentralized.arms_study("100mbit", large, 3)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(asked))
    data = {"cifar10": datasets.DataSource("cifar10", "")}
    made = plan.make(study.load(tmp_path / "study.yaml"), MACHINE, data, Cluster(hosts.parse_option("a:1,b:1")))
    trials = [planned.trial for planned in made.configurations]
    assert {Way.of(trial) for trial in trials} == {*ARMS, DDP} and {trial.global_batch for trial in trials} == {2048}
    assert {planned.measure.repeats for planned in made.configurations} == {3} and not made.gates
    assert decentralized.arms_study("100mbit", small, 3)["study"] == "decentralized-100mbit-256"


def test_an_older_study_is_kept_unless_it_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(decentralized, "KEPT", tmp_path)
    asked = over_links.timed_part(decentralized.STUDY, "decentralized-1gbit", False, 3)
    assert decentralized.kept(asked, 3), "it lacks the arms, and timed two rounds"
    assert not decentralized.kept(asked, 4)
    asked["sweeps"][0] = {**asked["sweeps"][0], "image_size": 32}
    assert not decentralized.kept(asked, 3)


def test_bytes_that_peers_packed_stand_beside_those_of_theory() -> None:
    """Two peers hand over 44 MB and pack as much; the first round's weights came in the second."""
    one = timed("hivemind", [[1.0, 1.0]], samples=64, batch_per_worker=64, allreduce="fp16", state_allreduce="fp16")
    one.ranks[0].rounds = [SimpleNamespace(sent_bytes=sent) for sent in (22_000_000, 64_000_000)]
    one.ranks[0].communication_bytes = {"allreduce": 22_000_000, "weights": 22_000_000}
    measured = Measured()
    measured.add(SLOW, [one])
    assert measured.packed == {ARMS[0]: [(43e6, 44e6)]}
    assert "in a round (in theory): Hivemind fp16+fp16 43.0 (44.0)." in crossover_text.page(measured)
    assert "in theory" not in crossover_text.page(older()), "older records count nothing"


def test_a_way_names_what_travels() -> None:
    ways = [PEERS, *ARMS, Way("hivemind", "fp32", "", 5), DDP]
    assert [str(way) for way in ways] == [
        "Hivemind fp32", "Hivemind fp16+fp16", "Hivemind fp16+fp16/10", "Hivemind fp32+fp32/5", "DDP fp32",
    ]  # fmt: skip


def test_a_shared_core_is_compared_within_each_launch() -> None:
    def launch(speed: float) -> list[dict[str, Any]]:
        """Batches of 0.1 s with the daemon elsewhere, of 0.15 beside it; of its rounds one has twice as many."""
        return [
            {"place": place, "block": block, "seconds": speed * took * (1 + (block > 1)), "batches": n,
             "forward": speed * n * each, "backward": speed}
            for place, each, took in (
                (daemon_core.HERE, 0.15, 6.0), (daemon_core.THERE, 0.1, 5.0), (daemon_core.WITHOUT, 0.1, 3.0),
            )
            for block, n in ((0, 10), (1, 10), (2, 20), (3, 20))
        ]  # fmt: skip

    found = {one.claim: one.figure for one in daemon_core.findings([launch(1.0), launch(2.0), launch(3.0)])}
    forward, backward, whole, apart, beside = found.values()
    assert (forward.mean, backward.mean, whole.mean) == (pytest.approx(1.5), 1.0, pytest.approx(1.2))
    controls = [one.control for one in daemon_core.findings([launch(1.0), launch(2.0), launch(4.0)])]
    assert [control and control.holds for control in controls] == [True] * 5
    assert (apart.mean, beside.mean) == (1.0, pytest.approx(1.5)) and forward.high == pytest.approx(1.5)
    assert (
        next(iter(found))
        == "seconds of the forward of a batch, its daemon on the peer's core, over those on another core"
    )


def rounds(*seconds_and_peers: tuple[float, int]) -> list[Round]:
    made, at = [], 0.0
    for seconds, peers in seconds_and_peers:
        at += seconds
        made.append(Round(at, seconds, peers))
    return made


def test_only_what_slow_rounds_took_longer_is_lost() -> None:
    taken = rounds((0.5, 2), (5.5, 2), (5.5, 2), (0.6, 1), (0.5, 1))
    assert leaving_peers.lost(taken, 0.5) == pytest.approx(10.0)
    assert leaving_peers.lost(leaving_peers.since(taken, 6.0), 0.5) == pytest.approx(5.0)


def test_rounds_of_one_and_of_two_are_counted_from_the_latest() -> None:
    taken = rounds((1, 1), (1, 2), (1, 2), (1, 1), (1, 1), (1, 1))
    assert (leaving_peers.alone(taken), leaving_peers.together(taken)) == (3, 0)
    assert leaving_peers.together(taken[:3]) == 2 and leaving_peers.alone(taken[:1]) == 1


# --- ways to send less over slow links ---


def sent_less() -> slow_links.Measured:
    """Planted: PowerSGD twice as fast at 100 Mbit/s and 1.25 times as many samples; DiLoCo misses with one seed."""
    measured = slow_links.Measured()
    for link, factor in ((SLOW, 2.0), (FAST, 1.0)):
        speeds = {"torch_ddp": 1.0, "powersgd2": factor, "diloco": 4.0}
        for name, speed in speeds.items():
            keys: dict[str, Any] = {"outer": "nesterov", "sync_every": 64} if name == "diloco" else {}
            keys |= {"allreduce": "powersgd2"} if name == "powersgd2" else {}
            framework = "diloco" if name == "diloco" else "torch_ddp"
            for pace in around(1 / speed):
                measured.timed(link, [timed(framework, [[pace], [pace]], samples=32, batch_per_worker=32, **keys)])  # type: ignore[list-item]
    to_loss = {"DDP fp32": 6400.0, "PowerSGD 2": 8000.0, "DiLoCo 64": 6400.0}
    for name, samples in to_loss.items():
        measured.samples[name] = {seed: (value, value) for seed, value in enumerate(around(samples))}
    measured.missed["DiLoCo 64"] = 1
    measured.seconds["DDP fp32"] = {seed: 105 / 6400 * met[1] for seed, met in measured.samples["DDP fp32"].items()}
    return measured


def test_seconds_to_a_loss_are_samples_to_it_over_those_of_a_second() -> None:
    measured = sent_less()
    seconds = measured.derived(SLOW, "DDP fp32")
    assert seconds and seconds.value == pytest.approx(100.0, rel=1e-3) and (seconds.bounds()[0] or 0) > 90
    behind = [measured.longer(link, "PowerSGD 2") for link in (SLOW, FAST)]
    assert [one and one.value for one in behind] == pytest.approx([1.25 / 2, 1.25], rel=1e-3)
    checked = measured.checked("DDP fp32")
    assert checked and checked.mean == pytest.approx(100 / 105, rel=1e-3)
    claims = [finding.claim for finding in slow_links.findings(measured)]
    assert f"{SLOW}: seconds to the loss (derived), PowerSGD 2 over DDP fp32" in claims
    page = slow_links.page(measured)
    assert "DDP fp32 over 100 Mbit/s, trained directly: 105 s; derived over direct 0.95 (" in page


def test_seeds_that_meet_a_loss_at_one_evaluation_leave_its_distance_to_the_one_before_unknown() -> None:
    measured = sent_less()
    measured.samples["DDP fp32"] = dict.fromkeys(range(3), (6080.0, 6400.0))
    samples = measured.to_loss("DDP fp32")
    assert samples and samples.bounds()[0] and samples.bounds()[0] < 6240 < 6400 < (samples.bounds()[1] or 0)  # type: ignore[operator]
    measured.samples["DDP fp32"].popitem()
    assert measured.to_loss("DDP fp32") is None  # of two seeds nothing is claimed


def test_losses_are_compared_after_as_many_samples_as_all_had() -> None:
    measured = slow_links.Measured()
    measured.losses = {
        "DDP fp32": [[(640.0, 2.0), (1280.0, 1.6)], [(640.0, 2.2), (1280.0, 1.8)]],
        "DiLoCo 64": [[(700.0, 1.9), (1400.0, 1.5), (2100.0, 1.2)]],
    }
    samples, losses = measured.at_equal_samples()
    assert samples == 1280 and losses == pytest.approx({"DDP fp32": 1.7, "DiLoCo 64": 1.9})
    measured.losses["late"] = [[(1300.0, 1.0)]]
    assert "late" not in measured.at_equal_samples()[1]
    assert slow_links.Measured().at_equal_samples() == (0.0, {})


def test_nothing_is_derived_of_a_way_that_a_seed_missed() -> None:
    measured = sent_less()
    assert measured.derived(SLOW, "DiLoCo 64") is None and measured.longer(SLOW, "DiLoCo 64") is None
    assert "| DiLoCo 64 | not reached by 1 | 100 Mbit/s | 256 |  |  |" in slow_links.page(measured)


def test_ways_are_trained_on_this_machine_and_timed_over_two_hosts() -> None:
    trained = over_links.trained_part(slow_links.STUDY, "x", quick=False)
    over = over_links.timed_part(slow_links.STUDY, "x", quick=False, repeats=3)
    assert all("train" in sweep and "hosts" not in sweep for sweep in trained["sweeps"])
    assert all("train" not in sweep and sweep["hosts"] == 2 for sweep in over["sweeps"])
    ways = [
        {(s["framework"], *map(str, keys.values())) for s in each["sweeps"] for keys in decentralized._combinations(s)}
        for each in (trained, over)
    ]
    assert ways[0] == ways[1] and len(ways[0]) == 10
    asked = slow_links.direct()
    assert [sweep["matrix"] for sweep in asked["sweeps"]] == [
        {"allreduce": ["fp32"]}, {"outer": ["nesterov"], "sync_every": [64]}
    ]  # fmt: skip
