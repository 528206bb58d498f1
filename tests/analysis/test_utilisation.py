"""Utilisation and the roofline: planted FLOPs and peaks come back as shares; what was not measured is said to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from drawings import drawn_by
from planted import MACHINE, Planted, plant
from planted_phases import STEP, Phased, plant_phased

from analysis.findings import Finding
from analysis.frames import results
from analysis.views import roofline
from analysis.views.catalog import all_findings
from analysis.views.roofline import data_sheet_flops, utilisations
from scaling_study.settings import CHECKOUT
from scaling_study.study.on_gpus import H200_TFLOPS

ONE = Planted("single")
MEMORY = {"parameters": 4_000, "gradients": 4_000, "optimizer": 8_000, "buffers": 7, "activations": 50_000,
          "resident": 9_000_000}  # fmt: skip
KNOWN = {"forward_flops_per_sample": 1e9, "peak_flops_per_second": 2e12, "peak_bytes_per_second": 1e11,
         "memory": MEMORY}  # fmt: skip


def read(folder: Path, *planted: Planted, **report: Any) -> results.Results:
    """These, with what is KNOWN of each, but for what is said here."""
    return results.read(plant_phased(folder, [Phased(one, STEP, report=KNOWN | report) for one in planted]))


def test_a_step_is_three_forwards(tmp_path: Path) -> None:
    (made,) = utilisations(read(tmp_path, ONE))
    assert made.flops_per_second == pytest.approx(3e9 * 320)  # 32 samples in 0.1 s
    assert made.share == pytest.approx(0.48)
    moved = 5 * 50_000 + 4 * 4_000 + 2 * 4_000 + 2 * 8_000
    assert made.intensity == pytest.approx(3e9 * 32 / moved) and not made.counted
    assert made.ridge == pytest.approx(20.0) and made.roof == 2e12 and not made.under_memory


def test_a_step_whose_flops_were_counted_is_no_three_forwards(tmp_path: Path) -> None:
    """A frozen backbone has no backward pass, and a teacher none either."""
    study = read(tmp_path, ONE, step_flops_per_sample=1.1e9)
    (made,) = utilisations(study)
    assert made.by_whole_step and made.flops_per_second == pytest.approx(1.1e9 * 320)
    assert made.share == pytest.approx(0.176)
    assert any("counted in a whole step" in line for line in roofline.table(study).notes)
    others = read(tmp_path / "older", ONE)
    assert not utilisations(others)[0].by_whole_step
    assert not any("counted in a whole step" in line for line in roofline.table(others).notes)


def test_bytes_that_were_counted_take_the_place_of_the_estimate(tmp_path: Path) -> None:
    """The roof of memory holds, until more is reached than it allows: then what was counted did not pass memory."""
    several = replace(ONE, keys=(("accumulation", 4),))  # of which no estimate is made
    study = read(tmp_path, several, peak_bytes_per_second=1e10, moved_bytes=8 * 10**8)
    (made,) = utilisations(study)
    assert made.counted and made.intensity == pytest.approx(3e9 * 32 / 8e8)
    assert made.under_memory and made.roof == pytest.approx(120 * 1e10)
    assert made.roof_share == pytest.approx(3e9 * 320 / 1.2e12) == pytest.approx(8e8 / 0.1 / 1e10)
    assert roofline.table(study).rows[0][-2:] == ("120", "1,200 (memory)")
    (beyond,) = utilisations(read(tmp_path / "cached", ONE, peak_bytes_per_second=1e10, moved_bytes=2 * 10**9))
    assert not beyond.under_memory and beyond.roof == 2e12 and beyond.roof_share == beyond.share


def test_a_compiler_may_fuse_what_lies_between_operators(tmp_path: Path) -> None:
    (made,) = utilisations(read(tmp_path, replace(ONE, keys=(("compile", True),))))
    assert made.moved_bytes == 2 * 50_000 + 4 * 4_000 + 2 * 4_000 + 2 * 8_000


def test_the_highest_peak_of_a_device_is_its_roof(tmp_path: Path) -> None:
    other = Phased(replace(ONE, batch_per_worker=64), STEP, report=KNOWN | {"peak_flops_per_second": 4e12})
    half = Phased(replace(ONE, keys=(("precision", "bf16"),)), STEP, report=KNOWN | {"peak_flops_per_second": 8e12})
    made = utilisations(results.read(plant_phased(tmp_path, [Phased(ONE, STEP, report=KNOWN), other, half])))
    assert sorted(one.peak_flops_per_second or 0 for one in made) == [4e12, 4e12, 8e12]


def test_older_records_have_none(tmp_path: Path) -> None:
    study = results.read(plant(tmp_path, [ONE]))
    (made,) = utilisations(study)
    assert made.share is None and made.roof is None and made.roof_share is None
    assert made.why == f"{roofline.NOT_COUNTED} and {roofline.NOT_MEASURED}"
    assert roofline.table(study) is None and drawn_by(roofline.draw, study) is None


@pytest.mark.parametrize(("peak", "share"), [(0.0, None), (-1.0, None), (1e11, 9.6)])
def test_what_is_no_peak_is_none_and_more_than_the_peak_is_pointed_out(
    tmp_path: Path, peak: float, share: float | None
) -> None:
    study = read(tmp_path, ONE, peak_flops_per_second=peak)
    assert utilisations(study)[0].share == (share and pytest.approx(share))
    assert any("1 above their peak" in note for note in roofline.table(study).notes) == bool(share)


@pytest.mark.parametrize("key", [("accumulation", 4), ("zero_stage", 3)])
def test_bytes_that_were_not_all_counted_make_no_intensity(tmp_path: Path, key: tuple[str, int]) -> None:
    (made,) = utilisations(read(tmp_path, Planted("torch_fsdp2", workers=2, allreduce="fp32", keys=(key,))))
    assert made.intensity is None and made.share is not None


# --- GPUs: data sheets, and whether scaling says anything ---


@pytest.mark.parametrize(
    ("name", "precision", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),  # dense: 1,979 is with sparsity
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H200", "tf32", 494.5e12),
        ("NVIDIA H100 PCIe", "fp16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100 80GB PCIe", "tf32", 156e12),
        ("Tesla V100-SXM2-32GB", "fp16", 125e12),
        ("Tesla V100-SXM2-32GB", "bf16", None),  # it has none
        ("NVIDIA H200 NVL", "bf16", None),  # another board than the H200
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),  # a part of one
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("Somebody's GPU", "bf16", None),
    ],
)
def test_a_data_sheet_gives_the_dense_peak_of_the_whole_board(name: str, precision: str, flops: float | None) -> None:
    assert data_sheet_flops(name, precision) == flops


def test_estimates_and_machine_files_have_the_peaks_of_the_data_sheets() -> None:
    assert data_sheet_flops("NVIDIA H200", "bf16") == H200_TFLOPS * 1e12
    files = [yaml.safe_load(path.read_text()) for path in (CHECKOUT / "machines").glob("*.yaml")]
    gpus = [each["hardware"]["gpus"] for each in files if each.get("hardware", {}).get("gpus")]
    assert gpus and all(each["tflops"] * 1e12 == data_sheet_flops(each["name"], "bf16") for each in gpus)


EIGHT = {**MACHINE, "gpus": ["NVIDIA H200"] * 8}
ON_A_GPU = (("device", "cuda"), ("precision", "fp32"))


def scaled(folder: Path, share: float, **report: Any) -> results.Results:
    """One worker and two on GPUs, the one at this share of the measured peak."""
    peak = 3e9 * 320 / share
    known: Mapping[str, Any] = KNOWN | {"peak_flops_per_second": peak, "device_name": "NVIDIA H200", **report}
    one = replace(ONE, keys=ON_A_GPU)
    two = Planted("torch_ddp", workers=2, allreduce="fp32", keys=ON_A_GPU)
    planted = [Phased(each, STEP, report=known) for each in (one, two)]
    return results.read(plant_phased(folder, planted, machine=EIGHT))


def found(read: results.Results) -> list[Finding]:
    return [finding for finding in all_findings(read) if finding.flaw == "slow-compute"]


def test_scaling_of_slow_compute_is_doubted_with_what_to_switch_on(tmp_path: Path) -> None:
    slow, fast = scaled(tmp_path / "slow", 0.29, tf32=True), scaled(tmp_path / "fast", 0.31)
    (doubt,) = found(slow)
    (two,) = [row["configuration"] for row in slow.rows if row["framework"] == "torch_ddp"]
    assert doubt.configurations == (two,) and "29 % of its GPU's measured peak" in doubt.text
    switched = ("`precision: bf16`", "`compile: true`", "`memory_format: channels_last`", "a larger batch")
    assert doubt.text.endswith(f"Switch on: {'; '.join(switched)}.")
    listed = roofline.table(slow)
    cells = dict(zip(listed.header, listed.rows[0], strict=True))
    assert (cells["utilisation"], cells["representative"]) == ("29 %", "no")
    assert cells["data sheet"] == "0.2 %", "0.96 of 494.5 TFLOP/s, as its fp32 is TF32"
    assert not found(fast) and {used.representative for used in utilisations(fast)} == {True}
