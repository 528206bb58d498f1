"""What the observer's lines say, as reports of ranks; and what no report can be made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling_study.launch.observed import NotObserved, Turn, reports, watched
from scaling_study.records.outcome import first_problem
from scaling_study.trial import Trial, Window

TRIAL = Trial(
    framework="command", command="python t.py", device="cpu", workers=2, batch_per_worker=4, window=Window(2, 2, 0.0)
)


def process(rank: int, world: int = 2, steps: int = 8, samples: int | None = 4, **end: Any) -> list[dict[str, Any]]:
    about = {"kind": "process", "rank": rank, "world": world, "pid": 10 + rank, "host": "h", "device": "cpu"}
    parts = {"data": 0.1, "forward": 0.2, "backward": 0.3, "optimizer": 0.1, "evaluation": 0, "saving": 0, "rest": 0.3}
    lines = [
        {
            "kind": "step",
            "step": n,
            "ended": 100.0 + n,
            "seconds": n,
            "parts": parts,
            "loss": 1 / n,
            "learning_rate": 0.1,
        }
        for n in range(1, steps + 1)
    ]
    return [about, *lines, {"kind": "so far", "samples_per_step": samples, "samples_unknown": "two rates", **end}]


def test_another_attempt_begins_with_empty_folders(tmp_path: Path) -> None:
    for _ in range(2):
        assert watched(TRIAL, tmp_path)["PYTHONPATH"] and not list((tmp_path / "run").iterdir())
        (tmp_path / "run" / "left").touch()


def test_reports_of_a_command_are_those_of_any_trial() -> None:
    both = reports(TRIAL, [process(0), process(1)], ())
    assert first_problem(TRIAL, both) == ""
    assert [report.warmup_seconds for report in both] == [[1, 2], [1, 2]]
    assert both[0].step_seconds == [3, 4, 5, 6, 7, 8] and both[0].samples_seen == 24
    assert both[0].phases and both[0].phases.backward_seconds == pytest.approx(0.3)
    assert both[0].loss_first == 1.0 and both[0].first_step_at == 100.0


def test_what_observing_took_is_reported_beside_the_steps_that_it_observed() -> None:
    first, second = reports(TRIAL, [process(0, own_seconds=0.36), process(1)], ())
    assert first.backend == {"observer_seconds": 0.36, "observed_seconds": 36.0}
    assert second.backend["observer_seconds"] is None


def test_blocks_are_the_steps_of_their_turns() -> None:
    turns = [Turn(0, 3, 2, 50.0), Turn(1, 6, 2, 60.0)]
    first = reports(TRIAL, [process(0), process(1)], turns)[0]
    assert first.step_seconds == [4, 5, 7, 8]
    assert [(block.round, block.steps, block.at) for block in first.blocks] == [(0, 2, 50.0), (1, 2, 60.0)]
    assert first.warmup_seconds == [1, 2, 3]


def test_other_samples_than_the_study_says_are_a_contradiction() -> None:
    seen = reports(TRIAL, [process(0, samples=8), process(1, samples=8)], ())
    assert "asked for 4 samples a step, rank 0 took 8" in first_problem(TRIAL, seen)


def test_samples_that_cannot_be_told_are_those_of_the_study_and_said_so() -> None:
    seen = reports(TRIAL, [process(0, samples=None), process(1)], ())
    assert seen[0].samples_per_step == 4 and "two rates" in seen[0].notes[0] and not seen[1].notes


@pytest.mark.parametrize(
    "processes, fact",
    [
        ([], "PYTHONPATH"),
        ([[{"kind": "process", "rank": None}, {"kind": "not observed", "why": "torch 1.9 is older"}]], "torch 1.9"),
        ([process(0)], "1 processes trained, in a world of 2"),
        ([process(0, world=1)], "workers=2"),
        ([process(0, steps=0), process(1, steps=0)], "PYTHONPATH"),
    ],
)
def test_no_report_is_made_of_what_was_not_seen(processes: Any, fact: str) -> None:
    with pytest.raises(NotObserved) as why:
        reports(TRIAL, processes, ())
    assert fact in str(why.value)
