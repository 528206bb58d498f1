"""Maps and arms: planted truths in tables, figures and findings, and files that are damaged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawings import drawn_by, untidy
from planted_maps import MODEL, VIDEOS, Arm, plant_arms

from analysis.frames import results
from analysis.frames.trials import SkippedRecord
from analysis.views import catalog, maps

PRE = Arm("imagenet", rates={0.001: 0.5}, pointing=0.7, seeds=(1, 2, 3))
RANDOM = Arm("none", rates={0.001: 0.2}, pointing=0.15, seeds=(1, 2, 3))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory):
    trained = [replace(one, freeze="none", pointing=None) for one in (PRE, RANDOM)]
    return plant_arms(tmp_path_factory.mktemp("study"), [PRE, RANDOM, *trained])


def test_maps_are_scored_beside_what_needs_no_model(study) -> None:
    rows = maps.maps_table(study)
    own = rows[(rows.method == "own") & (rows.freeze == "backbone")].set_index("weights")["mask"]
    assert own["imagenet"] == pytest.approx(0.7, abs=0.1) and own["random"] == pytest.approx(0.15, abs=0.1)
    assert (rows.method == "chance").sum() == 1 and (rows.method == "hidden").sum() == 2
    assert set(rows.videos) == {len(VIDEOS)} and rows.mask_low.notna().all()


def test_pictures_show_hits_and_misses_side_by_side(study) -> None:
    made = drawn_by(maps.draw_maps, study)
    assert set(made) == {f"maps-{MODEL}-frozen"}, "the trained arms have no maps"
    (figure,) = made.values()
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert "pre-trained (imagenet)" in texts and "random weights" in texts and texts.count("Grad-CAM") == 2
    markers = {line.get_marker() for axis in figure.axes for line in axis.lines}
    assert {maps.HIT, maps.MISS} <= markers
    assert re.search(r"both hit \d+ %, only the pre-trained one \d+ %", " ".join(t.get_text() for t in figure.texts))
    assert not untidy(figure)


def test_rows_of_every_kind_are_drawn_however_rare() -> None:
    pre, random = np.ones(20, bool), np.zeros(20, bool)
    pre[7], random[11] = False, True
    assert {7, 11} < set(maps.chosen_rows([pre, random], np.arange(20) % 6))
    alone = maps.chosen_rows([pre], np.arange(20) % 6)
    assert 7 in alone and len({row % 6 for row in alone}) >= 4, "of several instruments"


def test_pointing_is_drawn_with_each_video(study) -> None:
    figure = drawn_by(maps.draw_pointing, study, MODEL)
    assert figure is not None and not untidy(figure)


def test_f12_in_the_maps_that_lie_beside_a_record(tmp_path: Path) -> None:
    hidden = replace(RANDOM, seeds=(1,), shown={"channels": "hidden", "class": "most likely"})
    flawed = catalog.all_findings(plant_arms(tmp_path, [replace(PRE, seeds=(1,)), hidden]))
    (seen,) = [one for one in flawed if one.flaw == "F12"]
    assert "hidden channels, of the most likely class" in seen.text and len(seen.configurations) == 1
    sound = plant_arms(tmp_path / "sound", [replace(PRE, seeds=(1,))])
    assert not [one for one in catalog.all_findings(sound) if one.flaw == "F12"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("scores.csv", "frame,video\n1,2\n"), ("scores.csv", None), ("maps.json", '{"schema": 2}'),
     ("maps.json", '{"schema": 1, "step": "x"}')],
)  # fmt: skip
def test_damaged_maps_are_skipped_by_name(tmp_path: Path, name: str, content: str | None) -> None:
    one = replace(PRE, rates={0.001: 0.5}, seeds=(1,))
    plant_arms(tmp_path, [one])
    (path,) = tmp_path.glob(f"trials/*/maps/{name}")
    path.unlink() if content is None else path.write_text(content)
    with pytest.warns(SkippedRecord, match=re.escape(str(path))):
        made = results.read(tmp_path)
    assert not made.maps.about and maps.listing(made) is None


def test_damaged_pictures_cost_their_figure_alone(tmp_path: Path) -> None:
    made = plant_arms(tmp_path, [replace(PRE, seeds=(1,)), replace(RANDOM, seeds=(1,))])
    for path in tmp_path.glob("trials/*/maps/panels.npz"):
        path.write_bytes(b"PK")
    with pytest.raises(Exception, match=r"panels.npz cannot be read"):
        maps.draw_maps(made)
    assert maps.listing(made) is not None
