"""Bytes handed to collectives by kind: planted formulas come back as the shares that the field knows."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from planted import PARAMETERS, Planted, changed_ranks, plant, rank_report
from planted_pipelines import Pipeline, plant_pipelines

from analysis.frames import measured, results
from analysis.views import communication
from scaling_study.records.schema import GroupBytes, RankReport

WHOLE = 4 * PARAMETERS["resnet18"]
DDP = Planted("torch_ddp", workers=2, allreduce="fp32", counted=True)
FSDP = replace(DDP, framework="torch_fsdp2")
ZERO = replace(DDP, framework="deepspeed_zero", keys=(("zero_stage", 1),))
OSS = replace(DDP, framework="fairscale_oss")


def both(*planted: Planted) -> list[Planted]:
    return [replace(one, allreduce=precision) for one in planted for precision in ("fp32", "fp16")]


def read(folder: Path, planted: list[Planted]) -> results.Results:
    return results.read(plant(folder, planted))


def test_results_csv_has_bytes_by_kind(tmp_path: Path) -> None:
    rows = read(tmp_path, [DDP, FSDP, Planted(counted=True)]).trials.set_index(["framework", "repeat"])
    fsdp, ddp, single = rows.loc[("torch_fsdp2", 1)], rows.loc[("torch_ddp", 1)], rows.loc[("single", 1)]
    kinds = [f"communication_{kind}bytes" for kind in ("", "allreduce_", "reduce_scatter_", "all_gather_")]
    assert fsdp[kinds].tolist() == [3 * WHOLE, 0, WHOLE, 2 * WHOLE]
    assert ddp[kinds].tolist() == [WHOLE, WHOLE, 0, 0]
    assert single[kinds].tolist() == [0, 0, 0, 0]


def test_a_kind_nobody_has_heard_of_is_not_lost() -> None:
    rank = rank_report(DDP.trial(), 0, [0.1], communication_bytes={"gossip": 5, "broadcast": 2})
    assert [measured.bytes_sent(rank, kind) for kind in ("other", "broadcast", "send", "")] == [5, 2, 0, 7]


SHARDED = {"all_gather": 2 * WHOLE, "reduce_scatter": WHOLE}


def ranks_of(one: Planted, backend: str, sent: dict[str, int], **more: Any) -> list[RankReport]:
    about = {"communication_bytes": {**sent}, "backend": {"backend": backend}, **more}
    return [rank_report(one.trial(), rank, [0.1], **about) for rank in range(one.workers)]


@pytest.mark.parametrize(("backend", "units"), [("gloo", 4), ("nccl", 3)])
def test_four_units_leave_a_rank_over_gloo_where_nccl_sends_three(backend: str, units: int) -> None:
    """FSDP2 with tuned_for: memory, of which a unit is half of the weights at two workers: gathered twice, reduced."""
    ranks = ranks_of(FSDP, backend, SHARDED)
    assert measured.algorithm_bytes(ranks) == units * WHOLE / 2
    ranks[0].communication_bytes["gossip"] = 5
    assert measured.algorithm_bytes(ranks) is None, "nobody knows what that takes"


GROUPS = [
    GroupBytes("all_gather", "shard", 2, 2 * WHOLE),
    GroupBytes("reduce_scatter", "shard", 2, WHOLE),
    GroupBytes("allreduce", "replicate", 4, WHOLE // 2),
]


def test_bytes_of_a_mesh_are_sent_among_the_ranks_of_each_dimension(tmp_path: Path) -> None:
    sent = SHARDED | {"allreduce": WHOLE // 2}
    ranks = ranks_of(replace(FSDP, workers=8), "nccl", sent, communication_groups=GROUPS)
    assert measured.algorithm_bytes(ranks) == (2 * 1 / 2 + 1 / 2 + 1 / 2 * 2 * 3 / 4) * WHOLE
    assert measured.mesh_bytes(ranks) == (
        f"shard (2): all_gather {2e-6 * WHOLE:.3g} MB, reduce_scatter {1e-6 * WHOLE:.3g} MB; "
        f"replicate (4): allreduce {5e-7 * WHOLE:.3g} MB"
    )
    groups = [asdict(each) for each in GROUPS]
    folder = changed_ranks(plant(tmp_path, both(FSDP)), lambda rank: rank.update(communication_groups=groups), "fp32")
    listing = communication.listing(results.read(folder), "resnet18")
    assert listing
    column = listing.header.index("by dimension of the mesh")
    assert [row[column] for row in listing.rows] == [measured.mesh_bytes(ranks), ""]


@pytest.mark.parametrize(
    ("one", "share", "each"), [(DDP, 1 / 2, 4), (ZERO, 3 / 4, None), (OSS, 3 / 4, None), (FSDP, 5 / 6, 12)]
)
def test_sixteen_bit_gradients_make_the_share_that_the_algorithm_leaves_them(
    tmp_path: Path, one: Planted, share: float, each: int | None
) -> None:
    made = communication.measured(read(tmp_path, both(DDP, one)), "resnet18")
    ours = made[made.framework == one.framework].set_index("allreduce")
    assert (ours.of_fp32["fp32"], ours.of_fp32["fp16"]) == pytest.approx((1.0, share))
    if each:
        assert ours.bytes_per_parameter["fp32"] == pytest.approx(each)
        assert ours.bytes_per_parameter["fp16"] == pytest.approx(each * share)


def test_the_fp32_row_of_another_batch_will_do_and_of_another_stage_will_not(tmp_path: Path) -> None:
    half = replace(ZERO, allreduce="fp16", batch_per_worker=64)
    made = communication.measured(read(tmp_path, [ZERO, half]), "resnet18")
    assert sorted(made.of_fp32) == pytest.approx([3 / 4, 1])
    other = replace(half, keys=(("zero_stage", 3),))
    made = communication.measured(read(tmp_path / "other", [ZERO, other]), "resnet18")
    assert made[made.allreduce == "fp16"].of_fp32.isna().all()


def test_the_table_shows_only_kinds_that_were_used(tmp_path: Path) -> None:
    planted = [*both(DDP, FSDP), Planted(counted=True)]
    listing = communication.listing(read(tmp_path, planted), "resnet18")
    assert listing and listing.header[1:5] == ("allreduce", "reduce-scatter", "all-gather", "payload")
    shares = "0.833", "10.00", "", ""
    assert listing.rows[3] == ("torch_fsdp2, 2 workers, fp16", "", "22.4", "89.5", "112", "55.9", "", *shares)
    assert communication.listing(read(tmp_path / "one", planted[-1:]), "resnet18") is None, "one worker sends nothing"


def test_what_a_pipeline_sends_is_a_kind_of_its_own(tmp_path: Path) -> None:
    done = results.read(plant_pipelines(tmp_path, [Pipeline(p=2, m=4)]))
    assert set(done.trials.communication_send_bytes) == {4_000_000}
    listing = communication.listing(done, "transformer_lm")
    assert listing and listing.header[1:3] == ("send", "payload")
