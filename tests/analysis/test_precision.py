"""What a study's target is asked of: ratios of what shared launches, throughputs of the rest."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, plant

from analysis.frames import results
from analysis.frames.results import Results
from analysis.report import trust
from analysis.show import notes
from analysis.statistics import estimates
from analysis.statistics.estimates import said_of, widths

DRIFT = (0.2, -0.1, 0.0)  # of the machine, launch by launch
SINGLE = Planted("single", model="resnet18", speed=100.0, steps=12, drift=DRIFT)
HOROVOD = Planted("horovod", model="resnet18", workers=2, allreduce="fp32", speed=160.0, steps=12, drift=DRIFT)
PER_BATCH = [SINGLE, HOROVOD, replace(HOROVOD, allreduce="fp16", speed=150.0)]
STUDY = [*PER_BATCH, *(replace(each, batch_per_worker=64) for each in PER_BATCH)]


def read(folder: Path, planted: list[Planted], **about: Any) -> Results:
    return results.read(plant(folder, planted, baseline={"framework": "single", "workers": 1}, **about))


def test_in_rounds_it_is_that_of_ratios_which_a_drift_leaves_alone(tmp_path: Path) -> None:
    study = read(tmp_path / "planted", STUDY, target_interval=0.001)
    asked, text = widths(study), " ".join(notes.under_throughput(study, "resnet18"))
    assert [(width.row["framework"], width.of_ratio) for width in asked] == [("horovod", True)] * 4
    for width in asked:
        row = width.row
        log_half = math.log(row["speedup_high"] / row["speedup_low"]) / 2
        assert width.half == pytest.approx(log_half, rel=0.01) and 4 * width.half < row["relative_half_width"]
        assert width.repeats_needed and row["repeats_needed"] and 4 * width.repeats_needed < row["repeats_needed"]
    said = "4 of 4 intervals of ratios to the baseline are wider than the target of ±0.1 %"
    assert said in trust.precision(study) and said in text
    assert re.search(r"(this would need \d+|it would need more than 100) launches", text)
    assert "too short for a reliable interval" not in text, "blocks are no series"


@pytest.mark.parametrize(
    "needed, said",
    [(100, "this would need 100 launches"), (101, "cannot be reached here: it would need more than 100")],
)
def test_a_target_that_no_study_can_reach_gives_no_number(
    needed: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read(tmp_path / "planted", STUDY, target_interval=0.001)
    wide = [width._replace(repeats_needed=needed) for width in widths(study)]
    monkeypatch.setattr(estimates, "widths", lambda _: wide)
    assert said in " ".join(notes.under_throughput(study, "resnet18"))


def test_alone_it_is_that_of_throughputs(tmp_path: Path) -> None:
    study = read(tmp_path / "planted", [replace(each, drift=()) for each in STUDY])
    asked = widths(study)
    assert [width.row["framework"] for width in asked].count("single") == 2 and len(asked) == len(STUDY)
    assert all((width.half, width.of_ratio) == (width.row["relative_half_width"], False) for width in asked)
    assert [width.repeats_needed for width in asked] == [width.row["repeats_needed"] for width in asked]
    assert said_of(asked) == ""
    assert "too short for a reliable interval" in " ".join(notes.under_throughput(study, "resnet18"))


def test_what_nothing_is_held_against_has_its_throughput(tmp_path: Path) -> None:
    other = Planted("single", model="resnet8", speed=100.0, drift=DRIFT)
    asked = widths(read(tmp_path / "planted", [*STUDY, other]))
    assert [(width.row["model"], width.of_ratio) for width in asked if not width.of_ratio] == [("resnet8", False)]
    assert said_of(asked) == " of ratios to the baseline (of throughputs where there is none)"


def test_one_that_did_not_run_has_none(tmp_path: Path) -> None:
    study = read(tmp_path / "planted", [*STUDY, replace(HOROVOD, model="resnet8", status="failed")])
    assert len(widths(study)) == 4
