"""A step over a mesh: what is exposed where, links within and between hosts, and the page of published figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted
from planted_phases import STEP, Phased, plant_phased

from analysis.__main__ import main
from analysis.frames import results
from analysis.prediction import meshes as steps
from analysis.prediction.meshes import Computing, group_network, seconds, simulate
from analysis.prediction.network import CannotPredict, Link, ModelledNetwork
from analysis.prediction.predict import Asked, Forecast, forecast
from analysis.prediction.simulate import Step
from analysis.views import prediction
from analysis.views.meshes import ROWS
from benchmarks import published_llama
from scaling_study.settings import CHECKOUT
from scaling_study.study.meshes import SHAPES, Mesh, Work, outermost

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
    whole, ends = SHAPE.parameters * 2, outermost(SHAPE, mesh).elements
    outside = took["shards", "all_gather"] * ends / (2 * SHAPE.parameters - ends)
    last = took["shards", "reduce_scatter"] * ends / SHAPE.parameters
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


def test_a_stage_gathers_its_shards_once_however_many_micro_batches_it_has() -> None:
    mesh = Mesh(stages=2, shards=4, zero_stage=2, micro_batches=8)
    took = sum(s for (of, _), s in steps.costs(SHAPE, mesh, WORK, SLOW).items() if of == "shards")
    step = simulate(SHAPE, mesh, WORK, SLOW, COMPUTING)
    assert took - 8 * ALONE < step.exposed_seconds["shards"] <= took


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


# --- from a study's runs ---

SINGLE = Planted("single", "llama_tiny", 8)
COMPUTED, UPDATE = 0.092, 0.008  # of STEP: data, forward and backward; the optimiser and what no phase covers
NO_TIME = ModelledNetwork(Link(0.0, 0.0))


def split(
    framework: str, workers: int = 2, allreduce: str = "none", model: str = "llama_tiny", **keys: object
) -> Planted:
    return Planted(framework, model, 8, workers, allreduce, keys=tuple(keys.items()))


def predicted(folder: Path, ran: Planted, workers: tuple[int, ...], network: ModelledNetwork = NO_TIME) -> Forecast:
    """Of a study that ran one worker, and this; both in 100 ms."""
    plant_phased(folder, [Phased(SINGLE, STEP), Phased(ran, STEP)])
    return forecast(results.read(folder), folder, Asked(workers, network=network, straggle=False, check=True))


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (split("torch_tp", tensor_parallel=2), {2: (COMPUTED + UPDATE) / 2, 8: COMPUTED / 2 + UPDATE / 8}),
        (split("torch_fsdp2", allreduce="fp32"), {2: COMPUTED + UPDATE / 2, 6: COMPUTED + UPDATE / 6}),
        (split("torch_fsdp2", 4, "fp32", shard_group=2), {2: COMPUTED + UPDATE / 2, 6: COMPUTED + UPDATE / 2}),
        (split("torch_context", context_parallel=2, attention="all_gather"), {2: COMPUTED / 2 + UPDATE,
                                                                             4: COMPUTED / 2 + UPDATE}),
        (split("torch_pipeline", stages=2, micro_batches=4, schedule="1f1b"),
         {2: COMPUTED / 2 * 5 / 4 + UPDATE / 2, 4: COMPUTED / 2 * 5 / 4 + UPDATE / 2}),  # a bubble of 1/5
    ],
)  # fmt: skip
def test_more_workers_of_a_mesh_are_more_groups_of_it(ran: Planted, expected: dict[int, float], tmp_path: Path) -> None:
    """On a network that takes no time a step is its share of one worker's, which the mesh and its bubble say."""
    made = predicted(tmp_path, ran, tuple(expected))
    assert {one.workers: one.step_seconds for one in made.predictions} == pytest.approx(expected)
    groups = {count: count // (2 if ran.framework != "torch_fsdp2" else 1) for count in expected}
    bubble = COMPUTED / 2 / 4 if ran.framework == "torch_pipeline" else 0.0
    for one in made.predictions:
        assert one.samples_per_second.mean == pytest.approx(8 * groups[one.workers] / expected[one.workers])
        assert one.target.samples(one.workers) == 8 * groups[one.workers]
        assert one.exposed_seconds.mean == pytest.approx(bubble, abs=1e-12)
    if ran.framework == "torch_fsdp2":  # whose ranks all read samples, as planted ones do
        (held,) = made.checked if ran.workers == 2 else [None]
        assert held is None or held.error == pytest.approx(0.1 / expected[2] - 1), "the run took 100 ms, as planted"


def test_what_a_mesh_exposes_is_its_bytes_over_the_link(tmp_path: Path) -> None:
    """Planted: 1 ms and 1 GB/s; eight calls each of (4 L + 2) T d e allreduced and T V e gathered."""
    made = predicted(tmp_path, split("torch_tp", tensor_parallel=2), (2,), ModelledNetwork(Link(1e-3, 1e-9)))
    reduced, gathered = 10 * 512 * 64 * 4, 512 * 512 * 4
    expected = 8 * 2 * (1e-3 + reduced / 8 / 2 * 1e-9) + 8 * (1e-3 + gathered / 8 / 2 * 1e-9)
    (one,) = made.predictions
    assert one.exposed_seconds.mean == one.communication_seconds == pytest.approx(expected)
    assert one.efficiency.mean == pytest.approx(0.05 / (0.05 + expected)) and one.algorithm == "mesh"


def test_links_within_a_host_and_between_hosts_are_told_apart(tmp_path: Path) -> None:
    """Matrices that are shared over hosts wait for the slower link; on one host they never meet it."""
    fast, slow = Link(1e-6, 1e-10), Link(1e-3, 1e-8)
    (inside, between) = (
        predicted(tmp_path, split("torch_tp", tensor_parallel=2), (2,), ModelledNetwork(slow, fast, per_host))
        for per_host in (2, 1)
    )
    assert inside.predictions[0].exposed_seconds.mean < between.predictions[0].exposed_seconds.mean / 50


def test_what_no_mesh_can_be_is_said_with_both_numbers(tmp_path: Path) -> None:
    tensor = split("torch_tp", tensor_parallel=2)
    made = predicted(tmp_path, tensor, (2, 3))
    assert [one.workers for one in made.predictions] == [2]
    (wrong,) = made.wrong
    assert wrong.startswith("torch_tp, batch 8") and wrong.endswith(
        ": 3 workers are no multiple of 2, that share a batch"
    )
    notes = prediction.forecast_listing(made, results.read(tmp_path)).notes
    assert any("more workers are more of these groups" in note for note in notes)
    for name, ran, said in (
        ("hybrid", split("torch_fsdp2", 4, "fp32", shard_group=2), "shard_group=2 does not divide 3, of 3 workers"),
        ("resnet", split("torch_fsdp2", 2, "fp32", "resnet18"), "torch_fsdp2 of resnet18 is not predicted: the bytes"),
        ("length", split("torch_tp", tensor_parallel=2, sequence_length=32), "no run with one worker and the same"),
    ):  # fmt: skip
        plant_phased(tmp_path / name, [Phased(ran, STEP), *([Phased(SINGLE, STEP)] if name != "resnet" else [])])
        with pytest.raises(CannotPredict, match=said):
            forecast(results.read(tmp_path / name), tmp_path / name, Asked((3,), network=NO_TIME))


# --- published ---


def test_torchtitans_rows_are_predicted_from_one_of_them() -> None:
    """Other published results leave predictions alone; the page holds every figure."""
    page = (CHECKOUT / "docs" / "internals" / "predictions.md").read_text(encoding="utf-8")
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


def test_the_page_shows_what_the_command_writes(tmp_path: Path) -> None:
    assert main(["estimate", "llama_3_1_8b", "--workers", "8", "--all", "-q", "--out", str(tmp_path)]) == 0
    written = (tmp_path / "estimate.md").read_text(encoding="utf-8").splitlines()
    page = (CHECKOUT / "docs/guide/pipelines-meshes-and-peers.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in page if re.match(r"\| torch_\w+ \| 8 \|", line)]
    assert len(shown) > 5 and {*shown} <= {*written}
    assert (tmp_path / "estimate.csv").read_text().startswith("framework,workers,tensor,context,stages,shards")


def test_an_estimate_is_one_screen_of_what_fits_and_is_fastest_unless_all_is_asked_for(tmp_path: Path) -> None:
    words = ["estimate", "llama_3_1_8b", "--workers", "64", "-q", "--out", str(tmp_path)]
    assert main(words) == 0
    lines = (tmp_path / "estimate.md").read_text(encoding="utf-8").splitlines()
    _, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    made = len((tmp_path / "estimate.csv").read_text().splitlines()) - 1
    assert len(rows) == ROWS < made and any(f"{ROWS} of {made} meshes" in line for line in lines)
    ranked = [(row[3] == "no", -float(row[-2].replace(",", ""))) for row in rows]
    assert ranked == sorted(ranked)
    assert main([*words, "--all"]) == 0
    every = (tmp_path / "estimate.md").read_text(encoding="utf-8")
    assert len([line for line in every.splitlines() if line.startswith("| torch")]) == made
    assert "| tensor_parallel 4, stages 2, replicas 8 |" in every
    assert "| stages 4, shard_group 8 |" in every


def test_an_estimate_fits_a_terminal_of_80_columns_and_40_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["estimate", "llama_3_1_8b", "--workers", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert "torch_fsdp2     shard_group 32" in "\n".join(lines) and "…" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["llama_9", "--workers", "8"], "llama_9 is no model with closed forms: there are llama_tiny"),
        (["llama_tiny", "--workers", "8", "--precision", "int8"], "int8 is no precision"),
        (["llama_tiny", "--workers", "8", "--machine", "nowhere"], "there is no machines/nowhere.yaml"),
        (["llama_tiny", "--workers", "8", "--global-batch", "3", "--utilisation", "0%"], "above 0 and below 100 %"),
    ],
)
def test_what_cannot_be_estimated_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *words]) == 2
    assert said in capsys.readouterr().err
