"""A step over a mesh: what is exposed where, links within and between hosts, and the page of published figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.prediction import meshes as steps
from analysis.prediction.meshes import Computing, group_network, seconds, simulate
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.simulate import Step
from benchmarks import published_llama
from scaling_study.settings import CHECKOUT
from scaling_study.study.meshes import SHAPES, Mesh, Work, of_ends

NVLINK, CARD = Link(1e-6, 1 / 400e9), Link(10e-6, 1 / 50e9)
NETWORK = ModelledNetwork(CARD, NVLINK, 8, cards_per_host=8)
SLOW = replace(NETWORK, between=CARD.scaled(1, 1e3), within=NVLINK.scaled(1, 1e3))
FREE = ModelledNetwork(Link(0.0, 0.0), Link(0.0, 0.0), 8)
SHAPE = SHAPES["llama_3_1_8b"]
WORK = Work(samples=4, length=8192)
COMPUTING = Computing(0.01, 0.02, 0.03, 0.06, 0.1)
ALONE = 32 * 0.03 + 0.09


# --- groups on hosts ---


@pytest.mark.parametrize(
    ("members", "apart", "on_host", "cards"),
    [
        (8, 1, 8, 8),  # fills a host
        (64, 1, 8, 8),  # over eight hosts
        (4, 1, 4, 4),  # half of a host, beside another group
        (8, 8, 1, 1),  # one of each host: eight groups share its cards
        (8, 2, 4, 4),
    ],
)
def test_a_group_has_its_share_of_a_hosts_cards(members: int, apart: int, on_host: int, cards: int) -> None:
    found = group_network(NETWORK, members, apart)
    assert (found.local(members), found.cards_per_host, found.between) == (on_host, cards, CARD)


def test_groups_that_share_one_card_wait_for_each_other() -> None:
    one_card = replace(NETWORK, cards_per_host=1)
    assert group_network(one_card, 8, 8).between.seconds_per_byte == pytest.approx(8 * CARD.seconds_per_byte)
    assert group_network(one_card, 64, 1).between == CARD


@pytest.mark.parametrize(
    ("members", "apart", "expected"),
    [
        (8, 1, 7 * (1e-6 + 1e9 / 8 / 400e9)),
        (64, 1, 7 * (1e-6 + 1e9 / 8 / 400e9) + 7 * (1e-5 + 1e9 / 8 / (8 * 50e9))),  # then over all cards of a host
        (8, 8, 7 * (1e-5 + 1e9 / 8 / 50e9)),  # over one of them
    ],
)
def test_a_gather_is_a_ring_on_each_host_and_one_between_them(members: int, apart: int, expected: float) -> None:
    of_group = group_network(NETWORK, members, apart)
    assert seconds("all_gather", 1e9, members, of_group) == pytest.approx(expected)
    assert seconds("reduce_scatter", 1e9, members, of_group) == pytest.approx(expected)


def test_an_exchange_of_all_with_all_passes_each_link_once() -> None:
    """Eight on a host: seven eighths of a worker's part; over eight hosts 56 of 64 parts, of eight workers."""
    assert seconds("all_to_all", 8e9, 8, group_network(NETWORK, 8, 1)) == pytest.approx(7e9 / 400e9, rel=1e-3)
    between = 56 * 8 * 1e9 / 64 / 400e9
    assert seconds("all_to_all", 1e9, 64, group_network(NETWORK, 64, 1)) == pytest.approx(between, rel=0.1)


# --- steps ---


@pytest.mark.parametrize("mesh", [Mesh(replicas=64), Mesh(shards=64), Mesh(tensor=8, replicas=8), Mesh(context=8)])
def test_a_network_that_takes_no_time_exposes_nothing(mesh: Mesh) -> None:
    step = simulate(SHAPE, mesh, WORK, FREE, COMPUTING)
    assert step.step_seconds == pytest.approx(ALONE + 0.1) == step.computing_seconds
    assert not step.exposed_seconds


def test_of_shards_the_first_weights_and_the_last_gradients_are_exposed() -> None:
    """The rest travels while layers compute, on links that are fast enough."""
    mesh = Mesh(shards=64)
    took = steps.costs(SHAPE, mesh, WORK, NETWORK)
    whole = SHAPE.parameters * 2
    outside = took["shards", "all_gather"] * of_ends(SHAPE) / (2 * SHAPE.parameters - of_ends(SHAPE))
    last = took["shards", "reduce_scatter"] * of_ends(SHAPE) / SHAPE.parameters
    step = simulate(SHAPE, mesh, WORK, NETWORK, COMPUTING)
    assert step.exposed_seconds["shards"] == pytest.approx(outside + last, rel=0.25)
    assert sum(took.values()) > 4 * (outside + last) and whole > 0


@pytest.mark.parametrize("mesh", [Mesh(shards=64), Mesh(replicas=64), Mesh(shards=8, replicas=8)])
def test_on_a_slow_network_a_step_is_what_travels(mesh: Mesh) -> None:
    took = sum(steps.costs(SHAPE, mesh, WORK, SLOW).values())
    step = simulate(SHAPE, mesh, WORK, SLOW, COMPUTING)
    assert took <= step.step_seconds <= took + ALONE + 0.1


def test_nothing_hides_what_matrices_and_sequences_wait_for() -> None:
    for mesh, name in ((Mesh(tensor=8), "tensor"), (Mesh(context=8), "context")):
        took = {key: s for key, s in steps.costs(SHAPE, mesh, WORK, NETWORK).items() if key[0] == name}
        step = simulate(SHAPE, mesh, WORK, NETWORK, COMPUTING)
        assert step.exposed_seconds[name] == pytest.approx(sum(took.values()))


def test_groups_within_a_host_are_faster_than_over_hosts() -> None:
    inside, over = (simulate(SHAPE, Mesh(tensor=8), WORK, network, COMPUTING).step_seconds
                    for network in (NETWORK, replace(NETWORK, workers_per_host=1, cards_per_host=1)))  # fmt: skip
    assert inside < over
    narrow, slow = replace(WORK, allreduce="bf16"), replace(NETWORK, between=CARD.scaled(1, 20))
    hybrid, whole = (simulate(SHAPE, mesh, narrow, slow, COMPUTING).step_seconds
                     for mesh in (Mesh(shards=8, replicas=8), Mesh(shards=64)))  # fmt: skip
    assert hybrid < whole  # what hybrid sharding is for: weights stay on the host


def test_a_pipeline_is_stretched_by_its_bubble() -> None:
    """(p-1)/(m+p-1) of 8 stages and 8 micro-batches: 7/15."""
    step = simulate(SHAPE, Mesh(stages=8, micro_batches=8), WORK, FREE, COMPUTING)
    computing = 8 * (4 * 0.03 + 0.09 / 8)
    assert step.step_seconds == pytest.approx(computing * 15 / 8 + 0.1)


def test_what_is_hidden_takes_its_share_of_a_gpu() -> None:
    mesh = Mesh(shards=8)
    idle, taken = (simulate(SHAPE, mesh, WORK, replace(NETWORK, gpu_share=share), COMPUTING) for share in (0.0, 0.15))
    took = sum(steps.costs(SHAPE, mesh, WORK, NETWORK).values())
    hidden = took - idle.exposed_seconds["shards"]
    assert taken.step_seconds - idle.step_seconds == pytest.approx(0.15 * hidden)


def test_a_measured_step_is_cut_as_flops_are() -> None:
    """Of one worker with two samples: 3 s of forward, 6 s of backward, 1 s of update."""
    alone = Step(3.0, 6.0, 1.0, ())
    whole = steps.as_alone(SHAPE, Mesh(), replace(WORK, samples=2), alone, 2)
    assert 32 * whole.layer_forward + whole.outside_forward == pytest.approx(3.0)
    assert 32 * whole.layer_backward + whole.outside_backward == pytest.approx(6.0) and whole.update == 1.0
    rate = steps.at_rate(SHAPE, Mesh(), WORK, 1e15)
    assert whole.layer_forward / whole.outside_forward == pytest.approx(rate.layer_forward / rate.outside_forward)
    step = simulate(SHAPE, Mesh(tensor=2), replace(WORK, samples=2), FREE, steps.as_alone(
        SHAPE, Mesh(tensor=2), replace(WORK, samples=2), alone, 2))  # fmt: skip
    assert step.step_seconds == pytest.approx(5.0)
    again = steps.as_alone(SHAPE, Mesh(), replace(WORK, samples=2, checkpoint="block"), alone, 2)
    assert again.layer_backward == pytest.approx(whole.layer_backward + whole.layer_forward)


# --- published ---


def test_torchtitans_rows_are_predicted_from_one_of_them() -> None:
    """Other published results leave predictions alone; the page holds every figure."""
    page = (CHECKOUT / "docs" / "meshes.md").read_text(encoding="utf-8")
    rows = published_llama.rows()
    assert [(row.gpus, row.kind) for row in rows] == [(n, k) for n in (8, 128) for k in ("eager", "compiled", "float8")]
    made = published_llama.predicted(rows)
    others = [row if row.given else replace(row, tokens_per_second=1.0) for row in rows]
    assert [one.tokens_per_second for one in published_llama.predicted(others)] == [m.tokens_per_second for m in made]
    assert made[0].tokens_per_second == pytest.approx(rows[0].tokens_per_second)
    for one in made:
        row = one.row
        published = f"{row.gpus} | {row.kind} | {row.tokens_per_second:,.0f}"
        assert f"| {published} | {' | '.join(one.cells)} |" in page


def test_kernels_that_are_fused_move_less() -> None:
    assert sum(published_llama.fused_bytes()) < sum(published_llama.eager_bytes()) / 3


# --- the command ---


@pytest.mark.parametrize("workers", ["8", "64"])
def test_the_page_shows_what_the_command_writes(workers: str, tmp_path: Path) -> None:
    assert main(["estimate", "llama_3_1_8b", "--workers", workers, "-q", "--out", str(tmp_path)]) == 0
    written = (tmp_path / "estimate.md").read_text(encoding="utf-8").splitlines()
    page = (CHECKOUT / "docs" / "meshes.md").read_text(encoding="utf-8")
    table = [line for line in written if line.startswith("|")]
    assert len(table) > 10 and "\n".join(table) in page
    assert (tmp_path / "estimate.csv").read_text().startswith("framework,workers,tensor,context,stages,shards")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["llama_9", "--workers", "8"], "llama_9 is no model with closed forms: there are llama_tiny"),
        (["llama_tiny", "--workers", "8", "--precision", "int8"], "int8 is no precision"),
        (["llama_tiny", "--workers", "8", "--machine", "nowhere"], "there is no machines/nowhere.yaml"),
        (["llama_tiny", "--workers", "8", "--global-batch", "3", "--utilisation", "0%"], "between 0 and 100 %"),
    ],
)
def test_what_cannot_be_estimated_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *words]) == 2
    assert said in capsys.readouterr().err
