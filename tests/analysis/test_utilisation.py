"""Utilisation and the roofline: planted FLOPs and peaks come back as shares; what was not measured is said to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from drawings import drawn_by
from planted import Planted, plant
from planted_phases import STEP, Phased, plant_phased

from analysis.frames import results
from analysis.views import roofline
from analysis.views.roofline import utilisations

ONE = Planted("single")
MEMORY = {"parameters": 4_000, "gradients": 4_000, "optimizer": 8_000, "buffers": 7, "activations": 50_000,
          "resident": 9_000_000}  # fmt: skip
KNOWN = {"forward_flops_per_sample": 1e9, "peak_flops_per_second": 2e12, "peak_bytes_per_second": 1e11,
         "memory": MEMORY}  # fmt: skip


def test_a_step_is_three_forwards(tmp_path: Path) -> None:
    made = utilisations(results.read(plant_phased(tmp_path, [Phased(ONE, STEP, report=KNOWN)])))[0]
    assert made.flops_per_second == pytest.approx(3e9 * 320)  # 32 samples in 0.1 s
    assert made.share == pytest.approx(0.48)
    moved = 2 * 50_000 + 4 * 4_000 + 2 * 4_000 + 2 * 8_000
    assert made.intensity == pytest.approx(3e9 * 32 / moved)
    assert made.ridge == pytest.approx(20.0) and made.roof == 2e12 and not made.under_memory


def test_the_highest_peak_of_a_device_is_its_roof(tmp_path: Path) -> None:
    other = Phased(replace(ONE, batch_per_worker=64), STEP, report=KNOWN | {"peak_flops_per_second": 4e12})
    half = Phased(replace(ONE, keys=(("precision", "bf16"),)), STEP, report=KNOWN | {"peak_flops_per_second": 8e12})
    made = utilisations(results.read(plant_phased(tmp_path, [Phased(ONE, STEP, report=KNOWN), other, half])))
    assert sorted(one.peak_flops_per_second or 0 for one in made) == [4e12, 4e12, 8e12]


def test_older_records_have_none(tmp_path: Path) -> None:
    read = results.read(plant(tmp_path, [ONE]))
    made = utilisations(read)[0]
    assert made.share is None and made.roof is None
    assert made.why == f"{roofline.NOT_COUNTED} and {roofline.NOT_MEASURED}"
    assert roofline.listing(read) is None
    assert drawn_by(roofline.draw, read) is None


@pytest.mark.parametrize(("peak", "share"), [(0.0, None), (-1.0, None), (1e11, 9.6)])
def test_what_is_no_peak_is_none_and_more_than_the_peak_is_pointed_out(
    tmp_path: Path, peak: float, share: float | None
) -> None:
    report = KNOWN | {"peak_flops_per_second": peak}
    read = results.read(plant_phased(tmp_path, [Phased(ONE, STEP, report=report)]))
    assert utilisations(read)[0].share == (share and pytest.approx(share))
    said = roofline.listing(read)
    assert said and any("1 above their peak" in note for note in said.notes) == bool(share)


@pytest.mark.parametrize(
    "keys",
    [(("accumulation", 4),), (("zero_stage", 3),)],
)
def test_bytes_that_were_not_all_counted_make_no_intensity(
    tmp_path: Path, keys: tuple[tuple[str, object], ...]
) -> None:
    sharded = Planted("torch_fsdp2", workers=2, allreduce="fp32", keys=keys)
    made = utilisations(results.read(plant_phased(tmp_path, [Phased(sharded, STEP, report=KNOWN)])))[0]
    assert made.intensity is None and made.share is not None
