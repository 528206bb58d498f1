"""What a launch measures beside what is due. That launches are run: tests/test_shared_launches.py."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaling_study.launch import shared_launch
from scaling_study.launch.rounds import Unwatched
from scaling_study.records.summary import Summary
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.schema import Measure
from scaling_study.trial import Trial

ONE = Trial(framework="single", launcher="python", device="cpu", cores_per_worker=1, machine="here")
DDP = replace(ONE, framework="torch_ddp", workers=2, launcher="torchrun")


def known(trial: Trial, status: str = "ok") -> dict[str, Any]:
    keys = (trial.id, trial.configuration, trial.to_dict(), {}, status, "", "", 1.0, 1.0, None, "1/0-0-single")
    return {trial.id: Summary(*keys)}


def test_the_baseline_is_measured_again_beside_what_other_launches_left() -> None:
    """Under a repeat that nobody asks for, each time another."""
    one, other = (groups.warmed(replace(ONE, batch_per_worker=batch), Measure(warm=True)) for batch in (32, 64))
    due = [groups.warmed(replace(DDP, batch_per_worker=32), Measure(warm=True))]
    planned = Planned(one, Measure(warm=True, repeats=3, max_repeats=5))
    baseline = [(one, planned), (other, Planned(other, planned.measure))]
    assert shared_launch.again(due, baseline, {}, "weak") == [], "it is to be measured in this launch"
    assert shared_launch.again(due, baseline, known(one, "failed"), "weak") == [], "nothing is held against it"
    before = known(one) | known(other)
    [(again, as_planned)] = shared_launch.again(due, baseline, before, "weak")
    assert again == replace(one, repeat=6) and as_planned.measure.repeats == 6, "not because of what any other showed"
    [(again, _)] = shared_launch.again(due, baseline, before | known(again), "weak")
    assert again.repeat == 7
    assert shared_launch.again([*due, one], baseline, before, "weak") == [], "it is run again by itself"
    assert shared_launch.again([replace(due[0], model="resnet50")], baseline, before, "weak") == []
    [(again, _)] = shared_launch.again(due, baseline, before, "strong")
    assert again == replace(other, repeat=6), "of the same global batch"


@pytest.mark.parametrize(
    ("status", "reason", "measured"),
    [
        ("failed", f"{shared_launch.AMONG_OTHERS}rank 0: LeftBehind: hooks", True),
        ("failed", "rank 0: ValueError: a bug", False),  # by itself too
        ("oom", "", False),
        ("ok", "", False),
    ],
)
def test_what_is_well_by_itself_only_is_measured_so(status: str, reason: str, measured: bool) -> None:
    warm = groups.warmed(ONE, Measure(warm=True))
    planned = Planned(warm, Measure(warm=True))
    record = replace(known(warm, status)[warm.id], reason=reason)
    found = shared_launch.alone([(warm, planned)], {warm.id: record})
    assert [(trial, each.trial) for trial, each in found] == ([(ONE, ONE)] if measured else [])
    assert shared_launch.alone([(warm, planned)], {}) == []


def test_large_batches_are_built_first_and_what_has_no_room_is_known_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[int]] = []

    def built(self: object, order: Sequence[Trial], room: float, alive: object) -> Any:
        started.append([trial.batch_per_worker for trial in order])
        return SimpleNamespace(trials=order, resident_bytes=5, ending=contextlib.ExitStack())

    monkeypatch.setattr(shared_launch._Launch, "_built", built)
    monkeypatch.setattr(shared_launch._Launch, "_room", lambda self, built: 3.0 if built else math.inf)
    trials = [replace(each, warm=True, batch_per_worker=batch) for each in (ONE, DDP) for batch in (16, 8, 64, 32)]
    attempts: Any = SimpleNamespace(group_bytes={})
    for times, expected in (1, [[16, 64, 32, 8], [64, 32, 16, 8]]), (2, [[16, 64, 32, 8]]):
        alive, groups_alive = contextlib.ExitStack(), list[Any]()
        due = dict.fromkeys(trials, Measure(warm=True))
        launch = shared_launch._Launch(due, {}, tmp_path, 0, attempts, Unwatched(), ())
        launch._build(groups_alive, alive)
        assert started == expected, f"launch {times}; the first, which is waited for, before all others"
        assert len(groups_alive) == 1
        started.clear()
