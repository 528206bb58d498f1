"""PowerSGD, local SGD and DiLoCo in tables: by their names, never as a precision, and beside what they are like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, plant, plant_gates

import analysis
from analysis.findings import Evidence
from analysis.frames import configurations, results
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.prediction import inputs
from analysis.report import trust
from analysis.show import notes
from analysis.views import allreduce_gain, communication, speedup, throughput

SINGLE = Planted("single", speed=100.0)
DDP = Planted("torch_ddp", workers=2, allreduce="fp32", speed=180.0)
LOW, LOWER = replace(DDP, allreduce="powersgd4", speed=170.0), replace(DDP, allreduce="powersgd1", speed=175.0)
SGD = replace(DDP, framework="diloco", speed=190.0, keys=(("sync_every", 8), ("outer", "average")))
DILOCO = replace(SGD, keys=(("sync_every", 64), ("outer", "nesterov")))
ALL = [SINGLE, DDP, replace(DDP, allreduce="fp16"), LOWER, LOW, SGD, DILOCO]


def study(folder: Path, planted: list[Planted]) -> Results:
    plant(folder, planted, baseline={"framework": "single"})
    plant_gates(folder, planted)
    return results.read(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    folder = tmp_path_factory.mktemp("study")
    return folder, study(folder, ALL)


def row_of(read: Results, one: Planted) -> dict[Any, Any]:
    return dict(read.by_name[one.trial().configuration])


def test_each_has_its_name_from_wide_to_narrow(whole: tuple[Path, Results]) -> None:
    _, read = whole
    names = read.configurations.sort_values("series_order").series.unique()
    assert [name for name in names if "torch_ddp" in name] == [
        f"torch_ddp, 2 workers, {wire}" for wire in ("fp32", "fp16", "powersgd4", "powersgd1")
    ]
    assert [name for name in names if "diloco" in name] == [
        "diloco, 2 workers, fp32, averaged every 8 steps, local SGD",
        "diloco, 2 workers, fp32, averaged every 64 steps, DiLoCo",
    ]


def test_local_sgd_does_not_stand_under_the_name_of_diloco_where_nothing_else_was_run(tmp_path: Path) -> None:
    assert list(study(tmp_path, [SGD]).configurations.series) == ["2 workers, fp32, local SGD"]


def test_what_trains_alone_is_an_algorithm_of_its_own_and_powersgd_is_compared(whole: tuple[Path, Results]) -> None:
    _, read = whole
    alone = row_of(read, DILOCO)
    why = "DiLoCo, whose workers step by their own gradients and average weights every 64 steps"
    assert alone["not_comparable"] == f"not comparable with synchronous training: {why}"
    assert configurations.sign(read.by_name[DILOCO.trial().configuration]) == "§" and not known(alone["speedup"])
    assert row_of(read, LOW)["not_comparable"] == "" and row_of(read, LOW)["speedup"] == pytest.approx(1.7, rel=0.05)
    one = replace(DILOCO, workers=1, allreduce="none")
    assert configurations.why_not({**alone, "workers": one.workers}) == ""


def test_no_table_fails_and_none_calls_it_a_precision(
    whole: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = whole
    monkeypatch.setattr("analysis.views.figures.write", lambda *_: [])
    analysis.write(folder, page=True)  # a part that fails is an error here
    assert set(allreduce_gain.gains(read).allreduce) == {"fp16"}, "what 16 bits gain"
    assert "MB by PowerSGD of rank 4" in " ".join(notes.under_throughput(read, "resnet18"))
    legend = communication.listing(read, "resnet18")
    assert legend and any("r (rows + columns)" in note for note in legend.notes)
    assert any("bytes of one averaging over H" in note for note in legend.notes)
    assert any("gradients=powersgd1 is not predicted" in wrong for wrong in inputs.targets(read, folder)[1])


def test_figures_have_lines_and_marks_for_it(whole: tuple[Path, Results]) -> None:
    _, read = whole
    figure = throughput.draw(read)
    said = " ".join(text.get_text() for text in figure.texts) if figure else ""
    assert "Squares: 16-bit or PowerSGD gradients." in said
    wires = {wire for column in speedup.arrange(read.configurations, ["framework"], True) for wire in column.precisions}
    assert {"fp32", "fp16", "powersgd4", "powersgd1"} == wires


def test_unlike_ways_of_sending_are_no_unlike_precisions(tmp_path: Path) -> None:
    horovod = replace(DDP, framework="horovod", allreduce="fp16")
    read = study(tmp_path, [SINGLE, LOW, LOWER, horovod])
    (found,) = (f for f in allreduce_gain.mixed_precisions(Evidence(read)) if f.flaw == "F7")
    assert found.title == "Frameworks that send gradients in unlike ways" and "precision" not in found.text
    assert "horovod in fp16; torch_ddp by PowerSGD of rank 1 and by PowerSGD of rank 4" in found.text


def test_the_page_says_what_a_gate_is_held_against(whole: tuple[Path, Results], tmp_path: Path) -> None:
    _, read = whole
    (grid,) = [part for fold in trust._parity(read) for part in getattr(fold, "parts", ()) if hasattr(part, "header")]
    assert grid.header[-2:] == ("verdict", "held against")
    said = {row[-1].text for row in grid.rows}
    assert {"one process", "one process: PowerSGD of rank 1", "one process: DiLoCo every 3 steps"} < said
    plain = study(tmp_path, [SINGLE, DDP])
    assert all("held against" not in part.header for fold in trust._parity(plain) for part in fold.parts)
