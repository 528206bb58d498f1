"""Rows of one model that do unlike work are no rivals: a sample of 32 pixels is not one of 224."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, plant

from analysis.frames import results
from analysis.frames.results import Results
from analysis.report.answer import cheapest, fastest
from analysis.statistics import ranking
from analysis.views import cost, throughput

LARGE = Planted("single", speed=100.0, noise=0.005, repeats=5, keys=(("image_size", 224),))
TWO = replace(LARGE, framework="horovod", workers=2, allreduce="fp32", speed=160.0)
SMALL = replace(LARGE, speed=4000.0, keys=(("image_size", 32),))
GENERATED = replace(LARGE, speed=110.0, keys=(("image_size", 224), ("data", "synthetic")))


@pytest.fixture
def read(tmp_path: Path) -> Results:
    return results.read(plant(tmp_path, [LARGE, TWO, SMALL], baseline={"framework": "single"}))


def test_rows_are_alike_in_size_of_images_length_of_text_and_data(tmp_path: Path) -> None:
    read = results.read(plant(tmp_path, [LARGE, TWO, SMALL, GENERATED]))
    groups = ranking.by_work(read.rows)
    assert [len(ours) for ours in groups] == [2, 1, 1], "the most frequent first"
    assert "224 px" in ranking.name(groups[0][0])
    assert {ranking.name(ours[0]) for ours in groups[1:]} == {"32 px, cifar10 data", "224 px, synthetic data"}
    of_images = dict.fromkeys(("image_size", "image_width", "freeze", "warm"))
    longer = [{**of_images, "sequence_length": n, "data": "real"} for n in (32, 128, 128)]
    assert [len(ours) for ours in ranking.by_work(longer)] == [2, 1]


def test_what_was_measured_in_rounds_is_held_against_its_like_alone(tmp_path: Path) -> None:
    warm = (*TWO.keys, ("warm", True))
    planted = [LARGE, TWO, replace(LARGE, keys=warm), replace(TWO, speed=180.0, keys=warm)]
    read = results.read(plant(tmp_path, planted, baseline={"framework": "single"}))
    assert [len(ours) for ours in ranking.by_work(read.rows)] == [2, 2]
    speedups = {row["series"]: row["speedup"] for row in read.rows if row["framework"] == "horovod"}
    assert speedups == {
        "horovod, 2 workers, fp32": pytest.approx(1.6, rel=0.02),
        "horovod, 2 workers, fp32, interleaved": pytest.approx(1.8, rel=0.02),
    }
    alone = results.read(plant(tmp_path / "mixed", planted[1:3], baseline={"framework": "single"}))
    assert next(row["speedup_reason"] for row in alone.rows if row["framework"] == "horovod").startswith("no baseline")


def test_the_fastest_is_the_fastest_of_the_same_work(read: Results) -> None:
    best = ranking.best(read)
    assert list(best.configuration) == [TWO.trial().configuration, SMALL.trial().configuration]
    assert [text.split(",")[0] for text in best.work] == ["224 px", "32 px"] and list(best.among) == [2, 1]
    assert "among 224 px" in fastest(read, "resnet18").note and "among 224 px" in cheapest(read, "resnet18").note
    assert {one.row["image_size"] for one in cost.points(read, "resnet18")} == {224}


def test_a_table_marks_the_fastest_of_each_work(read: Results) -> None:
    cells = {place[1]: cell for place, cell in throughput.listing(read, "resnet18").cells.items()}
    best = [name for name, cell in cells.items() if cell.mark == throughput.BEST]
    assert best == ["horovod, 2 workers, fp32, 224 px"]
    assert throughput.listing(read, "resnet18").best_row == 32
