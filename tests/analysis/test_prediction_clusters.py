"""Predictions for clusters: hosts and their cards, hosts that are slow for good, GPUs that also communicate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Planted, changed_ranks, plant
from planted_networks import plant_probe

from analysis import commands
from analysis.__main__ import main
from analysis.commands import by_name
from analysis.frames import results
from analysis.prediction import inputs, network
from analysis.prediction.inputs import OneWorker, TrainingTarget
from analysis.prediction.network import CannotPredict, Link, ModelledNetwork, Rate, seconds
from analysis.prediction.predict import Asked, forecast, network_for, predict
from analysis.prediction.simulate import DDP, Backward, Step, expected_maximum, slowdown
from analysis.views.prediction import network_text, sentences

BYTES = 498e6  # of fp32 gradients
NVLINK, CARD = Link(2e-6, 1 / 300e9), Link(5e-6, 1 / 50e9)
ONE, TWO = Planted("torch_ddp", speed=320.0), Planted("torch_ddp", workers=2, allreduce="fp32", speed=600.0)


def target(device: str = "cpu", variation: float = 0.0) -> TrainingTarget:
    step = Step(0.03, 0.06, 0.01, ((BYTES / 2, 0.03), (BYTES / 2, 0.06)))
    row = {"framework": "torch_ddp", "model": "m", "precision": "fp32", "batch_per_worker": 32, "device": device}
    return TrainingTarget(row, "torch_ddp", OneWorker("x", step, 32, 5, 0.0, variation, True), DDP, ("fp32",))


def assumed(folder: Path, **asked: Any) -> str:
    """The sentences under a prediction over a link that is given."""
    made = forecast(results.read(folder), folder, Asked((64,), ("ring",), network=ModelledNetwork(CARD), **asked))
    return " ".join(sentences(made))


def said(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str, workers: str = "2,64") -> tuple[int, str]:
    code = main(["predict", str(folder), "--workers", workers, *flags])
    out = capsys.readouterr()
    return code, " ".join((out.out + out.err).split())


# --- one host and several ---


def test_one_hosts_network_is_not_that_between_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """498 MB over 64 GPUs: 3.5 ms by NVLink's figures, 20.2 ms over one card of 50 GB/s a host."""
    assert seconds("ring", 64, BYTES, ModelledNetwork(NVLINK)) == pytest.approx(3.5e-3, rel=0.01)
    assert seconds("ring", 64, BYTES, ModelledNetwork(CARD, NVLINK, 8)) == pytest.approx(20.2e-3, rel=0.01)
    probed = ModelledNetwork(NVLINK, NVLINK, 8, one_host=True)
    assert predict(target(), "fp32", "ring", 8, probed).workers == 8
    with pytest.raises(CannotPredict, match="64 workers need a network between hosts"):
        predict(target(), "fp32", "ring", 64, probed)
    folder = plant(tmp_path, [ONE, TWO])
    plant_probe(folder, repeats=3, launcher="torchrun")
    code, text = said(capsys, folder)
    assert code == 2 and text.count("error:") == 1
    assert "Measure it (a sweep with framework: network_probe, hosts: 2), give it (--bandwidth 400Gbit/host" in text
    assert said(capsys, folder, "-q", "--per-host", "64")[0] == 0, "one host may hold them all"


def test_a_run_over_hosts_is_not_held_against_one_hosts_network(tmp_path: Path) -> None:
    far = replace(TWO, speed=300.0, keys=(("hosts", 2),))
    folder = plant(tmp_path, [ONE, TWO, far])
    plant_probe(folder, repeats=3, launcher="torchrun")
    assert [one.hosts for one in forecast(results.read(folder), folder, Asked((2,), ("ring",))).checked] == [1]


def test_workers_of_a_host_need_a_probe_of_one_host(tmp_path: Path) -> None:
    folder = plant(tmp_path, [ONE, TWO])
    plant_probe(folder, repeats=3, launcher="torchrun", hosts=2)
    with pytest.raises(CannotPredict, match="--per-host: no network_probe of this study ran on one host alone"):
        forecast(results.read(folder), folder, Asked((64,), ("ring",), per_host=8))
    (made,) = forecast(results.read(folder), folder, Asked((64,), ("ring",))).predictions
    assert "on 2 hosts (switches that more share it has not seen)" in made.network.source


# --- whose bandwidth ---


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50GB/card", Rate(50e9, "card")), ("50GB/s/card", Rate(50e9, "card")), ("400Gbit/host", Rate(50e9, "host")),
        ("400Gbit/s/host", Rate(50e9, "host")), ("25Gbit", Rate(3.125e9)), ("3GB/s", Rate(3e9)),
    ],
)  # fmt: skip
def test_a_rate_says_whose_it_is(text: str, rate: Rate) -> None:
    assert network.rate(text) == rate


@pytest.mark.parametrize(
    ("rate", "cards", "host_bytes", "sentence"),
    [
        ("50GB/card", 8, 400e9, "400 Gbit/s a card, 8 cards a host"),
        ("3200Gbit/host", 8, 400e9, "400 Gbit/s a card, 8 cards a host"),
        ("400Gbit/host", None, 50e9, "Between hosts 5 us and 400 Gbit/s a host"),
        ("400Gbit", None, 50e9, "Between hosts 5 us and 400 Gbit/s a host"),  # as it always was
    ],
)
def test_the_output_says_whose_bandwidth_it_took(
    rate: str, cards: int | None, host_bytes: float, sentence: str
) -> None:
    made = commands.network(network.rate(rate), 5e-6, cards, 8, 300e9, 2e-6)
    assert made is not None and sentence in network_text(made)
    inside, between = 14 / 8 * BYTES / 300e9 + 14 * 2e-6, 14 / 8 * BYTES / host_bytes + 14 * 5e-6
    assert seconds("hierarchical", 64, BYTES, made) == pytest.approx(inside + between)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--bandwidth", "50GB/card"], "--bandwidth is of a card: give --cards-per-host too"),
        (["--bandwidth", "25Gbit", "--cards-per-host", "2"], "say whether --bandwidth is of a card or of a host"),
        (["--bandwidth", "25Gbit/rack"], "25Gbit/rack is not a bandwidth, such as"),
        (["--gpu-share", "120%"], "120% is no share from 0 to below 1, such as 15% or 0.15"),
        (["--gpu-share", "10%", "--bandwidth", "25Gbit"], "--gpu-share has no effect here: it is for GPUs"),
        (["--host-spread", "1%", "--no-stragglers", "--bandwidth", "25Gbit"], "exclude each other: give one"),
        (["--host-spread", "-1%"], "-1% is no share from 0 to below 1"),
        (["--machine", "dgx-h100"], "--machine names a network: give it, or its links by options"),
    ],
)
def test_what_is_open_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], line: str) -> None:
    code, text = said(capsys, plant(tmp_path, [ONE]), "--latency", "5us", *flags)
    assert code == 2 and line in text


def test_a_host_uses_no_more_cards_than_it_has_workers() -> None:
    eight = ModelledNetwork(CARD, NVLINK, 8, cards_per_host=8)
    assert eight.host_link(64).seconds_per_byte == pytest.approx(1 / 400e9)
    assert replace(eight, workers_per_host=2).host_link(64).seconds_per_byte == pytest.approx(1 / 100e9)


# --- by name ---


def test_a_machine_file_names_a_hierarchy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dgx = by_name("dgx-h100")
    assert (dgx.workers_per_host, dgx.cards_per_host) == (8, 8)
    assert dgx.host_link(64).seconds_per_byte == pytest.approx(1 / 400e9)
    folder = plant(tmp_path / "r", [ONE])
    code, text = said(capsys, folder, "--machine", "dgx-h100", workers="64")
    assert code == 0 and "Network: of machine file dgx-h100. Between hosts 14 us and 400 Gbit/s a card, 8 cards" in text
    wrong = tmp_path / "m.yaml"
    wrong.write_text("description: no network\n")
    assert "m.yaml has no `topology`: machines/dgx-h100.yaml" in said(capsys, folder, "--machine", str(wrong))[1]
    wrong.write_text("topology:\n  workers_per_host: 2\n  card: {bandwidth: 25gb, latency: 5us}\n")
    assert "m.yaml:1: topology: 2 workers a host need `within`" in said(capsys, folder, "--machine", str(wrong))[1]
    wrong.write_text("topology:\n  workers_per_host: 1\n  card: {bandwidth: 25gb, latency: 5us}\n")
    assert "topology.card: 25gb may be bits or bytes" in said(capsys, folder, "--machine", str(wrong))[1]


def test_nccl_takes_a_tree_between_hosts_where_latency_counts() -> None:
    dgx = by_name("dgx-h100")
    for hosts, size in ((448, 51e6), (8, 1e4), (2, 51e6)):
        ring, chosen = (seconds(name, 8 * hosts, size, dgx) for name in ("hierarchical", "nccl"))
        assert chosen <= ring
    assert seconds("nccl", 3584, 51e6, dgx) < 0.2 * seconds("hierarchical", 3584, 51e6, dgx)


# --- computing beside communication ---


def test_a_gpu_computes_more_slowly_while_a_collective_runs() -> None:
    backward = Backward(1.0)
    backward.reduce(0.5, 0.5, 0.2)
    assert (backward.done, backward.wall) == pytest.approx((0.4, 0.5))
    made = [
        predict(target("cuda"), "fp32", "ring", 8, ModelledNetwork(CARD, gpu_share=s)).step_seconds for s in (0, 0.15)
    ]
    assert made[0] < made[1] < 1.15 * made[0]


def test_the_share_of_a_gpu_is_stated_and_can_be_given() -> None:
    asked = Asked((8,), network=ModelledNetwork(CARD))
    assert network_for(target("cuda"), asked, ()).gpu_share == pytest.approx(20 / 132)
    assert network_for(target("cuda"), replace(asked, gpu_share=0.0), ()).gpu_share == 0
    assert network_for(target("cpu"), asked, ()).gpu_share == 0


# --- slow for good ---


@pytest.mark.parametrize(("workers", "per_host"), [(8, 1), (64, 8), (3584, 8)])
@pytest.mark.parametrize(("variation", "spread"), [(0.02, 0.03), (0.0, 0.03), (0.02, 0.0), (0.05, 0.005)])
def test_the_slowest_of_hosts_is_what_drawn_clusters_have(
    workers: int, per_host: int, variation: float, spread: float
) -> None:
    random = np.random.default_rng(0)
    hosts, draws = workers // per_host, 400
    paces = spread * random.standard_normal((draws, hosts, 1)) + variation * random.standard_normal(
        (draws, hosts, per_host)
    )
    drawn = paces.max(axis=(1, 2))
    error = drawn.std() / draws**0.5
    assert slowdown(workers, variation, per_host, spread) == pytest.approx(1 + drawn.mean(), abs=4 * error + 1e-5)


def test_a_slow_host_costs_more_the_more_hosts_there_are() -> None:
    free = ModelledNetwork(Link(0.0, 0.0), Link(0.0, 0.0), 8)
    made = [predict(target(), "fp32", "ring", n, free, host_spread=0.03).efficiency.mean for n in (8, 64, 512)]
    assert made == pytest.approx([1 / (1 + 0.03 * expected_maximum(hosts)) for hosts in (1, 8, 64)], rel=1e-3)


def spread_out(folder: Path, slower: float, noise: float) -> Path:
    """Two hosts whose second takes `slower` times as long in forward, for good; each anew by `noise`."""
    random = np.random.default_rng(3)

    def change(rank: dict[str, Any]) -> None:
        rank["host"] = f"h{rank['rank']}"
        rank["phases"]["forward_seconds"] = 0.03 * slower ** rank["rank"] * np.exp(noise * random.standard_normal())

    return changed_ranks(plant(folder, [ONE, replace(TWO, keys=(("hosts", 2),), repeats=6)]), change)


def test_hosts_that_are_slow_for_good_are_seen_in_forward(tmp_path: Path) -> None:
    folder = spread_out(tmp_path / "slow", 1.06, 0.005)
    found = inputs.host_spread(results.read(folder).trials, folder)
    assert found is not None and found == pytest.approx(np.log(1.06) / 2**0.5, rel=0.2)
    assert f"Hosts differ for good by {100 * found:.1f} % (standard deviation, by forward" in assumed(folder)
    assert "Hosts differ for good by 2.0 % (standard deviation, given)" in assumed(folder, host_spread=0.02)
    by_luck = spread_out(tmp_path / "luck", 1.0, 0.02)
    luck = inputs.host_spread(results.read(by_luck).trials, by_luck)
    assert luck is not None and luck < 0.012, "luck that does not stay is taken off"
    alone = plant(tmp_path / "one", [ONE, TWO])
    assert inputs.host_spread(results.read(alone).trials, alone) is None
    assert "Hosts are taken to be equally fast for good" in assumed(alone)
