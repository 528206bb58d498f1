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

from scaling_study import control_groups
from scaling_study.launch import shared_launch
from scaling_study.launch.launch_folders import GroupRecord, GroupState, LaunchRecord
from scaling_study.launch.shared_launch import Launch, Watch
from scaling_study.launch.warm_group import GroupFailed
from scaling_study.records import store
from scaling_study.records.results import Summary
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.study import Measure
from scaling_study.trial import Trial

ONE = Trial(framework="single", launcher="python", device="cpu", cores_per_worker=1, machine="here")
DDP = replace(ONE, framework="torch_ddp", workers=2, launcher="torchrun")


def known(trial: Trial, status: str = "ok") -> dict[str, Any]:
    keys = (trial.id, trial.configuration, trial, status, "", "", 1.0, 1.0, None, "1/0-0-single")
    return {trial.id: Summary(*keys)}


def test_the_baseline_is_measured_again_beside_what_other_launches_left() -> None:
    """Under a repeat that nobody asks for, each time another."""
    one, other = (groups.warmed(replace(ONE, batch_per_worker=batch), Measure(warm=True)) for batch in (32, 64))
    due = [groups.warmed(replace(DDP, batch_per_worker=32), Measure(warm=True))]
    planned = Planned(one, Measure(warm=True, repeats=3, max_repeats=5))
    baseline = [planned, Planned(other, planned.measure)]
    assert shared_launch.again(due, baseline, {}, "weak") == [], "it is to be measured in this launch"
    assert shared_launch.again(due, baseline, known(one, "failed"), "weak") == [], "nothing is held against it"
    before = known(one) | known(other)
    [again] = shared_launch.again(due, baseline, before, "weak")
    assert again.trial == replace(one, repeat=6) and again.measure.repeats == 6, "not because of what any other showed"
    [again] = shared_launch.again(due, baseline, before | known(again.trial), "weak")
    assert again.trial.repeat == 7
    assert shared_launch.again([*due, one], baseline, before, "weak") == [], "it is run again by itself"
    assert shared_launch.again([replace(due[0], model="resnet50")], baseline, before, "weak") == []
    [again] = shared_launch.again(due, baseline, before, "strong")
    assert again.trial == replace(other, repeat=6), "of the same global batch"


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
    found = shared_launch.alone([planned], {warm.id: record})
    assert [each.trial for each in found] == ([ONE] if measured else [])
    assert shared_launch.alone([planned], {}) == []


@pytest.mark.parametrize(("limit_bytes", "room_bytes"), [(5000, 600 - 150), (500, 300 - 150)])
def test_groups_have_three_fifths_of_the_memory_together(
    limit_bytes: int, room_bytes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the machine's, or of what a container may use."""
    monkeypatch.setattr(control_groups, "memory_limit_bytes", lambda: limit_bytes)
    launch = Launch({}, {}, LaunchRecord(tmp_path, 1), 1000, SimpleNamespace(), Watch())  # type: ignore[arg-type]
    alive: list[Any] = [SimpleNamespace(resident_bytes=size) for size in (100, 50)]
    assert launch._room(alive) == pytest.approx(room_bytes)


class Unready:
    """A group whose ranks join only at its last attempt."""

    def __init__(self, attempts: list[int], last: int, joins: bool, late: bool) -> None:
        self.attempts, self.last, self.joins, self.late, self.ranks = attempts, last, joins, late, list[int]()

    def __call__(self, trials: Sequence[Trial], folder: Path, *rest: Any) -> Any:
        attempt = rest[-1]
        self.attempts.append(attempt)
        assert folder.name == f"0-{len(self.attempts) - 1}-single", "each has a folder of its own"
        self.folder, self.trials = folder, trials
        return self if attempt < self.last else contextlib.nullcontext("the group")

    def __enter__(self) -> None:
        self.ranks = [0] if self.joins else []
        raise GroupFailed("the launch ended before its ranks had joined", self.trials, late=self.late)

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("joins", "late", "retries", "attempts", "is_built"),
    [
        (False, False, 2, [1, 2], True),
        (False, False, 0, [1], False),
        (True, False, 2, [1], False),
        (False, True, 2, [1], False),
    ],
)
def test_a_group_that_could_not_be_started_is_tried_again(
    joins: bool,
    late: bool,
    retries: int,
    attempts: list[int],
    is_built: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As often as the study says, and only where no rank had joined, nor time had run out: nothing of it was tried."""
    tried: list[int] = []
    monkeypatch.setattr(shared_launch, "WarmGroup", Unready(tried, 2, joins, late))
    monkeypatch.setattr(shared_launch.Built, "of", lambda *_: SimpleNamespace(trials=[]))
    due = {replace(ONE, warm=True): Measure(warm=True, retries=retries)}
    places = {trial.id: tmp_path / trial.id for trial in due}
    running: Any = SimpleNamespace(cluster=None, supervisor=None)
    running.group_bytes = {}
    launch = Launch(due, places, LaunchRecord(tmp_path, 1), 0, running, Watch())
    with launch.alive:
        built = launch._started(list(due), math.inf)
    assert tried == attempts and bool(built) == is_built
    assert list(launch.failed) == ([] if is_built else list(due)), "what is not built is run alone"
    states = [group["state"] for group in store.load(tmp_path / "launch.json")["groups"]]
    assert states == ["failed"] * (len(attempts) - 1) + (["warming"] if is_built else ["failed"])


class Joining:
    """A group that only notes what is done with it."""

    def __init__(self, log: list[tuple[str, str]], trials: Sequence[Trial], fails: bool) -> None:
        self.log, self.trials, self.fails, self.ranks = log, trials, fails, list[int]()

    def begin(self) -> None:
        self.log.append(("begin", self.trials[0].framework))

    def join(self) -> None:
        self.log.append(("join", self.trials[0].framework))
        if self.fails:
            raise GroupFailed("its ranks had not joined", self.trials)

    def end(self) -> None:
        self.log.append(("end", self.trials[0].framework))

    def __enter__(self) -> Any:
        if self.fails:
            raise GroupFailed("its ranks had not joined", self.trials)
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("known_bytes", "fails", "side_by_side", "states"),
    [
        ((300, 200), False, ["single", "torch_ddp"], ["warming", "warming"]),
        ((300, 200), True, ["single", "torch_ddp"], ["warming", "failed"]),  # the one that failed is run alone
        ((300, 700), False, ["single"], ["warming"]),  # together they have no room
        ((300, None), False, ["single"], ["warming", "warming"]),  # no earlier launch has told
        ((None, None), False, [], ["warming", "warming"]),
    ],
)
def test_groups_of_known_size_start_side_by_side_and_none_is_built_before_all_have_joined(
    known_bytes: tuple[int | None, int | None], fails: bool, side_by_side: list[str], states: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    log: list[tuple[str, str]] = []
    trials = [replace(trial, warm=True) for trial in (ONE, DDP)]
    monkeypatch.setattr(
        shared_launch, "WarmGroup", lambda given, *_: Joining(log, given, fails and given[0].framework == "torch_ddp")
    )

    def build(group: Any, record: GroupRecord, *_: Any) -> Any:
        log.append(("build", group.trials[0].framework))
        return SimpleNamespace(trials=group.trials, resident_bytes=100, gpu_share=0.0, record=record)

    monkeypatch.setattr(shared_launch.Built, "of", build)
    told = {
        frozenset([trial.configuration]): size
        for trial, size in zip(trials, known_bytes, strict=True)
        if size is not None
    }
    attempts: Any = SimpleNamespace(group_bytes=told, cluster=None, supervisor=None)
    places = {trial.id: tmp_path / trial.id for trial in trials}
    due = dict.fromkeys(trials, Measure(warm=True, retries=0))
    launch = Launch(due, places, LaunchRecord(tmp_path, 1), 1000, attempts, Watch())
    with launch.alive:
        launch._start_groups([])
    began = [("begin", name) for name in side_by_side] + [("join", name) for name in side_by_side]
    assert log[: len(began)] == began and log[len(began)][0] == "build"
    assert [group["state"] for group in store.load(tmp_path / "launch.json")["groups"]] == states
    assert {name for what, name in log if what == "end"} == {*side_by_side}


@pytest.mark.parametrize(("first_share", "second_share", "first_time"), [(0.0, 0.0, 2), (0.1, 0.7, 2), (0.7, 0.7, 1)])
def test_large_batches_are_built_first_and_what_has_no_room_is_known_the_next_time(
    first_share: float, second_share: float, first_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the memory of the host (no share), or in that of a GPU, which may be full before it is started."""
    started: list[list[int]] = []
    device = "cuda" if second_share else "cpu"

    def build(self: Launch, order: Sequence[Trial], room: float) -> Any:
        started.append([trial.batch_per_worker for trial in order])
        share = second_share if len(started) > 1 else first_share
        record, ending = GroupRecord(0, "", [], GroupState.WARMING), contextlib.ExitStack()
        return SimpleNamespace(record=record, trials=order, resident_bytes=5, gpu_share=share, ending=ending)

    monkeypatch.setattr(Launch, "_started", build)
    monkeypatch.setattr(Launch, "_begin_known", lambda self, orders: None)
    room = 100.0 if second_share else 3.0
    monkeypatch.setattr(Launch, "_room", lambda self, built: room if built else math.inf)
    each = [replace(trial, device=device) for trial in (ONE, DDP)]
    trials = [replace(trial, warm=True, batch_per_worker=batch) for trial in each for batch in (16, 8, 64, 32)]
    attempts: Any = SimpleNamespace(group_bytes={})
    both = [[16, 64, 32, 8], [64, 32, 16, 8]]
    for times, expected in (1, both[:first_time]), (2, both[:1]):
        groups_alive = list[Any]()
        due = dict.fromkeys(trials, Measure(warm=True))
        launch = Launch(due, {}, LaunchRecord(tmp_path, 1), 0, attempts, Watch())
        launch._start_groups(groups_alive)
        assert started == expected, f"launch {times}; the first, which is waited for, before all others"
        assert len(groups_alive) == 1
        started.clear()
