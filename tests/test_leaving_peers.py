"""What peers that leave cost, from planted rounds."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import leaving_figure, leaving_peers
from benchmarks.leaving_peers import Lost, Peers, Round
from benchmarks.options import Unavailable


def rounds(*seconds_and_peers: tuple[float, int]) -> list[Round]:
    made, at = [], 0.0
    for seconds, peers in seconds_and_peers:
        at += seconds
        made.append(Round(at, seconds, peers))
    return made


def test_only_what_slow_rounds_took_longer_is_lost() -> None:
    taken = rounds((0.5, 2), (5.5, 2), (5.5, 2), (0.6, 1), (0.5, 1))
    assert leaving_peers.lost(taken, 0.5) == pytest.approx(10.0)
    assert leaving_peers.lost(leaving_peers.since(taken, 6.0), 0.5) == pytest.approx(5.0)


def test_rounds_of_one_and_of_two_are_counted_from_the_latest() -> None:
    taken = rounds((1, 1), (1, 2), (1, 2), (1, 1), (1, 1), (1, 1))
    assert (leaving_peers.alone(taken), leaving_peers.together(taken)) == (3, 0)
    assert leaving_peers.together(taken[:3]) == 2 and leaving_peers.alone(taken[:1]) == 1


def test_a_line_that_is_being_written_is_no_round_yet(tmp_path: Path) -> None:
    lines = [{"at": 1.0, "epoch": 1, "peers": 1}, {"at": 3.5, "epoch": 2, "peers": 2}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"at": 4')
    with ExitStack() as over:
        assert Peers(tmp_path, [], over).rounds("a") == [Round(3.5, 2.5, 2)]


def test_what_does_not_happen_is_said_with_the_peers_logs(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("why it stood still")
    with ExitStack() as over, pytest.raises(Unavailable, match="no rounds of two within 0 s") as caught:
        Peers(tmp_path, [], over).until("rounds of two", lambda: False, 0)
    assert "why it stood still" in caught.value.detail


def test_each_figure_of_a_setting_has_its_interval_and_the_curve_is_drawn() -> None:
    findings = [
        finding
        for timeout in (5.0, 15.0)
        for expiration in (15.0, 60.0)
        for finding in leaving_peers.found(timeout, expiration, [Lost(expiration + n, 1.0, 0.2) for n in range(3)])
    ]
    first = findings[0]
    assert first.claim.startswith(
        "lost by a peer whose only other one is killed; averaging timeout 5 s, expiration 15 s"
    )
    assert first.figure.mean == 16.0 and first.figure.low is not None and first.unit == "s"
    figure = leaving_figure.draw([each for each in findings if each.evidence["measured"] == "killed_seconds"])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["15 s", "60 s"]
