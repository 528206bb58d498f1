"""What a worker holds by kind, and what sharding saves of it: planted shares come back beside the paper's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from planted import PARAMETERS, Planted, plant, plant_gates

from analysis import outputs
from analysis.frames import results
from analysis.views import memory

WHOLE = 4 * PARAMETERS["resnet18"]
DDP = Planted("torch_ddp", workers=2, allreduce="fp32", counted=True)
ZERO = [replace(DDP, framework="deepspeed_zero", keys=(("zero_stage", stage),)) for stage in (0, 1, 2, 3)]
FSDP = replace(DDP, framework="torch_fsdp2")


def read(folder: Path, planted: list[Planted]) -> results.Results:
    return results.read(plant(folder, planted))


@pytest.mark.parametrize(
    ("stage", "workers", "bytes"), [(0, 4, 24.0), (1, 4, 15.0), (2, 4, 12.0), (3, 4, 6.0), (3, 1, 24.0)]
)
def test_theory_is_the_papers(stage: int, workers: int, bytes: float) -> None:
    assert memory.held((8.0, 4.0, 12.0), stage, workers) == bytes


def test_what_a_process_of_several_configurations_holds_is_none_of_theirs(tmp_path: Path) -> None:
    """As records of a first version in rounds have it."""
    row = read(tmp_path, [replace(DDP, drift=(0.0, 0.0, 0.0))]).trials.iloc[0]
    assert row.warm and row.parameters_bytes == WHOLE
    assert pd.isna(row.resident_bytes)


def test_sharding_saves_what_the_paper_says(tmp_path: Path) -> None:
    made = memory.measured(read(tmp_path, [DDP, FSDP, *ZERO]), "resnet18")
    zero, shares = made[made.framework == "deepspeed_zero"].sort_values("zero_stage"), [0, 1 / 6, 1 / 3, 1 / 2]
    assert zero.saved.tolist() == pytest.approx(shares) and zero.theory.tolist() == pytest.approx(shares)
    fsdp = made[made.framework == "torch_fsdp2"].iloc[0]
    assert (fsdp.saved, fsdp.theory) == pytest.approx((0.5, 0.5)), "FSDP shards everything unless told otherwise"
    assert set(made.reference) == {"torch_ddp"}


def test_of_workers_that_shard_in_groups_each_holds_a_share_of_its_group(tmp_path: Path) -> None:
    four = [replace(DDP, workers=4), replace(FSDP, workers=4), replace(FSDP, workers=4, keys=(("shard_group", 2),))]
    made = memory.measured(read(tmp_path, four), "resnet18")
    assert sorted(made.theory) == pytest.approx([0, 1 - 1 / 2, 1 - 1 / 4])


@pytest.mark.parametrize(
    ("planted", "reference"),
    [
        ([replace(DDP, framework="horovod"), Planted(counted=True)], "horovod"),
        ([Planted(counted=True)], "single"),
        ([replace(DDP, keys=(("precision", "bf16"),))], None),
        ([replace(DDP, keys=(("freeze", "backbone"),))], None),
        ([replace(DDP, keys=(("freeze", "backbone"),)), Planted(counted=True)], "single"),
        ([], None),
    ],
)
def test_what_it_is_compared_with(tmp_path: Path, planted: list[Planted], reference: str | None) -> None:
    made = memory.measured(read(tmp_path, [FSDP, *planted]), "resnet18")
    fsdp = made[made.framework == "torch_fsdp2"].iloc[0]
    assert fsdp.reference == reference
    assert fsdp.saved == (pytest.approx(0.5) if reference else None)


def test_a_framework_that_failed_parity_is_nobodys_reference(tmp_path: Path) -> None:
    planted = [DDP, FSDP, replace(DDP, framework="horovod")]
    plant(tmp_path, planted)
    plant_gates(tmp_path, planted, {"torch_ddp": "another shape of fc.weight"})
    done = results.read(tmp_path)
    made, listing = memory.measured(done, "resnet18"), memory.listing(done, "resnet18")
    assert set(made.reference) == {"horovod"} and set(made.parity) == {"passed", "another shape of fc.weight"}
    assert listing and [row[0] for row in listing.rows if "†" in row[0]] == ["torch_ddp, 2 workers, fp32 †"]


@pytest.mark.parametrize("sharded", [False, True])
def test_a_series_stands_once_at_the_batch_that_most_have_with_what_sharding_saves(
    tmp_path: Path, sharded: bool
) -> None:
    other = FSDP if sharded else replace(DDP, framework="horovod")
    lost = replace(FSDP, batch_per_worker=64, status="oom", speed=None)
    done = read(tmp_path, [DDP, replace(DDP, batch_per_worker=64), other, lost])
    listing = memory.listing(done, "resnet18")
    assert listing and {row[:2] for row in listing.rows} == {
        ("torch_ddp, 2 workers, fp32", "32"),
        (f"{other.framework}, 2 workers, fp32", "32"),
    }
    assert listing.header[-2:] == (("saved", "theory") if sharded else ("peak", "resident"))
    assert not sharded or listing.rows[1][2:5] + listing.rows[1][-2:] == ("22.4", "22.4", "22.4", "50 %", "50 %")
    notes = " ".join(listing.notes)
    assert ("ZeRO-1" in notes) == sharded and "tables/memory-resnet18.csv also has batch 64." in notes
    assert len(memory.measured(done, "resnet18")) == 3, "the CSV has every batch size"


def test_the_table_has_no_column_that_is_empty(tmp_path: Path) -> None:
    """The processes of shared launches hold several configurations: what one grew by is not known."""
    shared = replace(DDP, drift=(0.0, 0.0, 0.0))
    listing = memory.listing(read(tmp_path, [shared]), "resnet18")
    assert listing and listing.header[-1] == "peak" and "Resident" not in " ".join(listing.notes)
    assert all(all(row) for row in listing.rows)


def test_where_memory_was_not_counted_there_is_no_table(tmp_path: Path) -> None:
    done = read(tmp_path, [replace(DDP, counted=False)])
    assert memory.listing(done, "resnet18") is None
    made = outputs.write_tables(done, tmp_path / "tables")
    assert not [path for path in made if path.name.startswith("memory")]
