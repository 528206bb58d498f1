"""Published ratios: computed from the shipped figures, matched with what a study measured, never a speed of theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted import PUBLISHED, Planted, plant, plant_gates, published_study

from analysis.frames import results
from analysis.published import ratios
from analysis.published.ratios import BATCH, EPOCH, GAIN, SPEEDUP, published
from analysis.report.page import Material
from analysis.report.sections import published_section
from tests.net.examples import example

ONE = Planted("horovod", speed=100.0)
TWO = replace(ONE, workers=2, allreduce="fp32", speed=150.0)
HALF = replace(TWO, allreduce="fp16", speed=180.0)


def test_the_reference_data_is_whole() -> None:
    assert (len(ratios.throughput()), len(ratios.outcomes())) == (130, 47)
    assert ratios.throughput().samples_per_second.min() > 30
    assert ratios.outcome("optimizing_iformer", "DDP 4", "speedup") == 3.59
    with pytest.raises(LookupError, match="0 published rows"):
        ratios.outcome("optimizing_iformer", "DDP 8", "speedup")


def test_ratios_are_those_of_the_tables() -> None:
    by_what = {claim.what: claim for claim in published()}
    assert len(by_what) == len(published()), "each is said once"
    one, fp32, fp16 = PUBLISHED["resnet18"]
    speedup = by_what["horovod, resnet18, batch 256: 2 workers, fp16 / 1 worker"]
    assert speedup.value == pytest.approx((fp16[3] or 0) / (one[3] or 1))
    gain = by_what["horovod, resnet18, batch 32, 2 workers: fp16 / fp32 gradients"]
    assert gain.value == pytest.approx((fp16[0] or 0) / (fp32[0] or 1))
    assert by_what["transformer_lm: pipeline on 2 GPUs / 1 GPU"].value == 12
    assert by_what["vit_base_patch32_224, 4 workers: FSDP in fp16 / DDP in fp32"].value == pytest.approx(82 / 35)
    values = [claim.value for claim in published()]
    assert min(values) > 0.1 and max(values) <= 12


def test_every_claim_names_known_flaws_of_its_study() -> None:
    for claim in published():
        assert claim.flaws and set(claim.flaws) <= set(ratios.FLAWS), claim.what
        assert claim.kind in (SPEEDUP, GAIN, BATCH, EPOCH, ratios.WAY)
    cliff = next(claim for claim in published() if claim.what == "horovod, resnet50, 1 worker: batch 1024 / 512")
    assert cliff.flaws == ("F1", "F2", "F4")
    fsdp = [c for c in published() if c.of["framework"] == "lightning_fsdp" and c.of["model"] == "resnet50"]
    assert fsdp and all("F5" in c.flaws for c in fsdp)
    assert all("F7" in c.flaws for c in fsdp if c.kind == GAIN)


def test_speedup_stands_beside_speedup_and_gain_beside_gain(tmp_path: Path) -> None:
    read = results.read(plant(tmp_path, [ONE, TWO, HALF]))
    section = published_section(Material(read, "r", {}))
    assert section and section.lead.startswith("3 ratios of the public study distributed_dl stand beside")
    made = ratios.claims_table(read).set_index("what")
    assert set(made.index) == {
        "horovod, resnet18, batch 32: 2 workers, fp32 / 1 worker",
        "horovod, resnet18, batch 32: 2 workers, fp16 / 1 worker",
        "horovod, resnet18, batch 32, 2 workers: fp16 / fp32 gradients",
    }
    gain = made.loc["horovod, resnet18, batch 32, 2 workers: fp16 / fp32 gradients"]
    assert gain.published == pytest.approx(986.92 / 589.44) and gain.measured == pytest.approx(1.2, rel=0.03)
    assert gain.measured_low < gain.measured < gain.measured_high and gain.verdict == ratios.DIFFERS
    assert gain.flaws == ("F1", "F2", "F3")


def test_only_what_is_otherwise_the_same_is_divided(tmp_path: Path) -> None:
    other = replace(TWO, keys=(("controller", "mpi"),))
    assert ratios.claims_table(results.read(plant(tmp_path / "a", [ONE, other]))).empty
    plant(tmp_path / "b", [ONE, TWO, replace(TWO, keys=(("compile", True),))])
    assert len(ratios.claims_table(results.read(tmp_path / "b"))) == 1


def test_what_may_not_be_compared_is_left_out(tmp_path: Path) -> None:
    plant(tmp_path, [ONE, TWO])
    plant_gates(tmp_path, [TWO], {"horovod": "gradients: summed"})
    assert ratios.claims_table(results.read(tmp_path)).empty


def test_too_few_repeats_stand_there_without_a_verdict(tmp_path: Path) -> None:
    (row,) = ratios.claims_table(results.read(plant(tmp_path, [replace(ONE, repeats=1), TWO]))).to_dict("records")
    assert row["verdict"] == ratios.NO_INTERVAL and row["measured_low"] is None


def test_the_whole_published_study_finds_every_ratio_that_it_ran(tmp_path: Path) -> None:
    planted, about = published_study()
    made = ratios.claims_table(results.read(plant(tmp_path, planted, **about)))
    ours = [claim for claim in published() if claim.of["framework"] == "horovod" and "resnet" in claim.of["model"]]
    ran = {(one.model, one.batch_per_worker, one.workers, one.allreduce) for one in planted if one.status == "ok"}

    def did(keys: ratios.Keys) -> bool:
        return (keys["model"], keys["batch_per_worker"], keys["workers"], keys["allreduce"]) in ran

    expected = {claim.what for claim in ours if did(claim.of) and did(claim.over)}
    assert set(made.what) == expected and len(made) == len(expected) > 50
    assert (made.verdict == ratios.AGREES).mean() > 0.85, "it was planted from the published figures"


def test_an_epoch_is_told_with_its_ratio_at_equal_work() -> None:
    (row,) = ratios.claims_table(results.read(example("distributed_dl_pipeline"))).to_dict("records")
    assert row["published"] == 12 and row["flaws"] == ("F9", "F10")
    assert row["measured"] > 10 > 1.5 > row["equal_work"]
