"""A part that cannot be made is named, in its place and at the end, and costs nobody the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, plant

from analysis.__main__ import main
from analysis.execution import NOTHING, Salvage
from analysis.views import catalog
from analysis.views.view import Drawing, StudyTable, View


def breaks() -> Any:
    raise KeyError("workers\x1b[2J")


def test_what_fails_is_named_once_with_the_reason_and_the_line() -> None:
    one = Salvage()
    assert one.made("a table", lambda: "made", "") == "made" and not one.lost
    assert [one.made("a table", breaks, "instead") for _ in range(2)] == ["instead", "instead"]
    (said,) = one.lost
    assert said.startswith("a table could not be made: KeyError: 'workers") and said.isprintable()
    assert "test_salvage.py, line" in said
    assert one.or_else("b", breaks, lambda why: why).startswith("KeyError")


@pytest.mark.parametrize("error", [OSError("disk full"), MemoryError(), KeyboardInterrupt()])
def test_what_means_that_nothing_more_can_be_done_is_not_held_back(error: BaseException) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)):
        Salvage().made("a table", fails, None)


def test_strictly_nothing_is_salvaged() -> None:
    with pytest.raises(KeyError):
        NOTHING.made("a table", breaks, "")


@pytest.mark.slow
def test_tables_and_figures_that_fail_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two = Planted("horovod", workers=2, allreduce="fp32", speed=160.0)
    plant(tmp_path, [Planted(), two, replace(two, allreduce="fp16")])
    broken = View(
        "Does it break?",
        (StudyTable("lost", lambda _: breaks()),),
        (Drawing("lost-gain", lambda _: breaks()),),
    )
    monkeypatch.setattr(catalog, "VIEWS", (broken, *catalog.VIEWS))
    assert main(["-q", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "error: table: lost could not be made: KeyError" in said
    assert "error: figure lost-gain could not be made: KeyError" in said
    assert "Could not be drawn: lost-gain" in (tmp_path / "figures" / "lost-gain.svg").read_text()
    for name in ("tables/throughput-resnet18.md", "tables/cost.md", "figures/throughput.svg", "report.html"):
        assert (tmp_path / name).stat().st_size, name
