"""Figures on disk: named where one is lost, small, and with every word in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from planted import default_study, plant

from analysis.execution import Salvage
from analysis.frames import results
from analysis.frames.results import Results
from analysis.views import figures


@pytest.fixture(scope="module")
def whole_study(tmp_path_factory: pytest.TempPathFactory) -> Results:
    planted, about = default_study()
    return results.read(plant(tmp_path_factory.mktemp("study"), planted, **about))


@pytest.fixture
def read(whole_study: Results, draw_only: Callable[..., None]) -> Results:
    """A study of which three figures are drawn."""
    draw_only("throughput", "speedup-resnet18", "allreduce-gain")
    return whole_study


def raising(error: Exception) -> Callable[[Results], list[tuple[str, Callable[[], None]]]]:
    """Figures of which the only one raises this."""

    def draw() -> None:
        raise error

    return lambda read: [("throughput", draw)]


def test_a_figure_that_cannot_be_drawn_is_named(
    whole_study: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "figure_kinds", raising(IndexError("list index out of range")))
    salvage = Salvage()
    (made,) = figures.write(whole_study, tmp_path, salvage)
    (lost,) = salvage.lost
    assert lost.startswith("figure throughput could not be made: IndexError"), lost
    assert "Could not be drawn" in made.text


def test_a_full_disk_ends_it(whole_study: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "figure_kinds", raising(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        figures.write(whole_study, tmp_path, Salvage())


@pytest.mark.slow
def test_a_poster_has_fewer_points_an_inch(read: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(figures, "MOST_PIXELS", 50_000)
    for one in figures.write(read, tmp_path):
        width, height = Image.open(one.paths[0]).size
        assert width * height <= 50_000 * 1.02, one.name


@pytest.mark.slow
def test_vectors_are_to_a_hundredth_of_a_point_and_words_are_whole(read: Results, tmp_path: Path) -> None:
    made = {one.name: one.paths[1].read_text(encoding="utf-8") for one in figures.write(read, tmp_path)}
    assert not any(figures.FURTHER.search(place) for text in made.values()
                   for place in figures.GEOMETRY.findall(text.encode()))  # fmt: skip
    assert read.study.machine_text in made["throughput"].replace("\n", " ")
