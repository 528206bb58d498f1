"""Figures on disk: the same however many processes drew them, whole where one of them dies, named where one is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import default_study, plant

from analysis.execution import Salvage
from analysis.frames import results
from analysis.frames.results import Results
from analysis.views import figures, throughput
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drawn by one process there")


def planted_study(folder: Path) -> Path:
    planted, about = default_study()
    return plant(folder, planted, **about)


@pytest.fixture(scope="module")
def whole_study(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results.read(planted_study(tmp_path_factory.mktemp("study")))


@pytest.fixture
def read(whole_study: Results, monkeypatch: pytest.MonkeyPatch, draw_only: Callable[..., None]) -> Results:
    """A study of which three figures are drawn, by several processes wherever there may be several."""
    monkeypatch.setattr(figures, "SEVERAL_FROM", 0)
    draw_only("throughput", "speedup-resnet18", "allreduce-gain")
    return whole_study


def in_children(monkeypatch: pytest.MonkeyPatch, does: Callable[[], Any]) -> None:
    """The throughput figure does this in any process but this one."""
    here, draw = os.getpid(), throughput.draw
    monkeypatch.setattr(throughput, "draw", lambda read: draw(read) if os.getpid() == here else does())


@pytest.mark.slow
def test_two_processes_draw_what_one_does(read: Results, tmp_path: Path) -> None:
    one, two = (figures.write(read, tmp_path / str(n), processes=n) for n in (1, 2))
    assert len(one) > 2
    assert [(a.name, a.title, a.text) for a in one] == [(b.name, b.title, b.text) for b in two]
    for a, b in zip(figures.paths(one), figures.paths(two), strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name


@pytest.mark.long
def test_a_process_that_dies_costs_no_figure(
    read: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    whole = figures.write(read, tmp_path / "whole")
    in_children(monkeypatch, lambda: os._exit(9))
    assert [one.name for one in figures.write(read, tmp_path / "died", processes=2)] == [one.name for one in whole]


@pytest.mark.slow
def test_without_room_for_processes_one_draws(
    read: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    whole = [one.name for one in figures.write(read, tmp_path / "whole")]
    fork, left = os.fork, [0]

    def scarce() -> int:
        if not left:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left.pop()
        return fork()

    monkeypatch.setattr(os, "fork", scarce)
    for name in ("one child", "none"):
        assert [one.name for one in figures.write(read, tmp_path / name, processes=2)] == whole


@pytest.mark.slow
def test_a_process_that_dies_leaves_no_half_a_file(
    read: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def dies() -> None:
        tmp_path.joinpath(".speedup.png.abcd1234").write_bytes(b"half")
        os._exit(9)

    in_children(monkeypatch, dies)
    figures.write(read, tmp_path, processes=2)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_what_another_process_could_not_draw_is_named(
    read: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_children(monkeypatch, lambda: [][1])
    salvage = Salvage()
    made = {one.name: one.text for one in figures.write(read, tmp_path, salvage, processes=2)}
    (lost,) = salvage.lost
    assert lost.startswith("figure throughput could not be made: IndexError"), lost
    assert "Could not be drawn" in made["throughput"]


@pytest.mark.slow
def test_a_full_disk_ends_it(read: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    in_children(monkeypatch, full)
    with pytest.raises(OSError, match="No space left"):
        figures.write(read, tmp_path, Salvage(), processes=2)


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


@pytest.mark.long
def test_it_ends_with_its_processes(tmp_path: Path) -> None:
    """Nothing is left behind by a command that drew with several."""
    planted_study(tmp_path / "study")
    code = (
        "import sys, psutil; from pathlib import Path; from analysis import outputs\n"
        "from analysis.views import figures\n"
        "kinds = figures.figure_kinds; figures.figure_kinds = lambda read: list(kinds(read))[:3]\n"
        "figures.SEVERAL_FROM = 0\n"
        "outputs.write(Path(sys.argv[1]), page=False, processes=2)\n"
        "print(len(psutil.Process().children(recursive=True)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "study")], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
