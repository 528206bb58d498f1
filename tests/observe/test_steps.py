"""Events make the same steps whenever they are folded, cost little, and optimizers that take turns are told apart."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from observe import scripts
from observe.test_kinds import Run, run  # noqa: F401  a fixture
from scaling_study import observe
from scaling_study.observe.held import Held
from scaling_study.observe.hooks import Observer
from scaling_study.observe.steps import (
    LEARNING,
    MOST_ACCUMULATED,
    PATIENCE,
    SETTLED_ALONE,
    WITHOUT_OPTIMIZER,
    Steps,
    UpTo,
)

NO = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
TORCH = SimpleNamespace(__version__="2.1", cuda=NO, distributed=NO)
Event = tuple[float, str, tuple[Any, ...]]  # seconds before it, a function of Steps, its arguments


class AtOnce(Observer):
    def plan(self) -> None:
        """Keep nothing for later."""


class Driver(UpTo):
    """Lets a run go on for a few steps each time it is asked, and knows at which event that was."""

    def __init__(self, until: int | None) -> None:
        super().__init__(until)
        self.event, self.asked = 0, list[tuple[int, int]]()

    def go_on(self, done: int) -> bool:
        self.asked.append((done, self.event))
        self.until = done + 1 + done % 7
        return len(self.asked) < 12


def training(seed: int) -> Iterator[Event]:
    """Two hundred pieces of a training: one optimizer or two, evaluations, saving, skipped and idle steps."""
    draw = random.Random(seed)
    rarer = draw.choice([0, 3])

    def took() -> float:
        return draw.randrange(1, 1000) / 1000

    for piece in range(200):
        yield took(), "enter", ("data",)
        yield took(), "fetched", (8,)
        if draw.random() < 0.1:
            yield took(), "forward", (False, 0)
            yield took(), "leave", ()
        yield took(), "forward", (True, 8)
        yield took(), "leave", ()
        yield took(), "backward", (float(piece),)
        yield took(), "leave", ()
        for _ in range(1 + (draw.random() < 0.1)):  # the second has nothing to do
            yield took(), "enter", ("optimizer",)
            yield took(), "leave", ()
            yield took(), "optimized", ("B" if rarer and piece % rarer == 2 else "A", 0.1, draw.random() < 0.1)
        if draw.random() < 0.1:
            yield took(), "enter", ("saving",)
            yield took(), "leave", ()


@pytest.mark.parametrize("until", [None, 5])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_for_later_makes_the_steps_that_it_makes_at_once(
    seed: int, until: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 1000 + now[0])
    seen = []
    for kind in (AtOnce, Observer):
        now[0] = 0.0
        folder = tmp_path / kind.__name__
        folder.mkdir()
        observer = kind(TORCH, str(folder))
        driver = observer.steps.goal = Driver(until)
        observer.watched, observer.checks.left, observer.look.due = True, False, False
        observer.steps.another = lambda: False
        kept = 0
        try:
            for driver.event, (took, what, args) in enumerate(training(seed)):
                now[0] += took
                if what == "optimized":
                    observer.after_step(observer.ended(now[0], what, *args))
                else:
                    observer.happened(what, *args)
                kept = max(kept, len(observer.events))
        except SystemExit:
            pass
        observer.finish()
        assert (kept > 0) == (kind is Observer)
        [[_, *lines, end]] = observe.read(folder)
        assert len(lines) == end["steps"] > 8
        memory = ("own_seconds", "peak_memory_bytes", "peak_memory_of")
        seen.append((lines, {name: value for name, value in end.items() if name not in memory}, driver.asked))
    assert seen[0] == seen[1]
    assert bool(seen[0][2]) == (until is not None)


MIXED = scripts.SCALER + scripts.EVALUATION + scripts.ACCUMULATION + scripts.SCALER
TIMES = {"ended", "seconds", "pause_seconds", "parts", "before_backward"}


@pytest.mark.slow
def test_lines_of_a_script_are_the_same_whenever_its_events_are_folded(run: Run) -> None:  # noqa: F811
    _, [[_, *at_once, _]] = run(f"hooks.Observer.plan = lambda self: None\n{MIXED}", 1, "once")
    _, [[_, *later, end]] = run(MIXED, 1, "later")
    assert end["steps"] == 22
    without = [[{name: line[name] for name in {*line} - TIMES} for line in each] for each in (at_once, later)]
    assert without[0] == without[1]
    assert [line["pause_seconds"] > 0.1 for line in later] == [index == 9 for index in range(22)]
    for line in later:
        assert line["seconds"] + line["pause_seconds"] == pytest.approx(sum(line["parts"].values()), abs=1e-5)
        assert 0 < line["before_backward"] < line["seconds"] - line["parts"]["backward"]


@pytest.mark.slow
def test_a_run_ends_at_its_step_when_events_are_kept(run: Run) -> None:  # noqa: F811
    _, [[_, *steps, end]] = run(scripts.PLAIN * 5, 1, "ended", steps=20)
    assert (len(steps), end["why"]) == (20, "ended by scaling-study after 20 steps")


COUNTED = """
import sys
calls, of_steps = [0], []
def count(frame, event, argument):
    calls[0] += event == "call" and f"scaling_study{os.sep}observe" in frame.f_code.co_filename
for epoch in range(6):
    if epoch == 3:
        sys.setprofile(count)
    for x, y in DataLoader(data, 16):
        step(x, y)
        of_steps.append(calls[0])
        calls[0] = 0
sys.setprofile(None)
print("calls", min(of_steps[-16:]))
"""
MOST_CALLS = 16  # 38 where a hook was several functions; 85 where events were folded as they came too


@pytest.mark.slow
def test_a_step_runs_few_functions_of_the_observer(run: Run) -> None:  # noqa: F811
    """Each costs microseconds where a training has emptied the caches of the processor."""
    done, _ = run(COUNTED, 1, "counted")
    calls = next(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("calls"))
    assert 10 < calls <= MOST_CALLS


@pytest.mark.parametrize("critics", [5, 20, 100])
@pytest.mark.parametrize("until", [None, 2, 25])
def test_a_critic_of_many_steps_before_its_generators_first_ends_no_step(critics: int, until: int | None) -> None:
    steps = Steps(goal=UpTo(until), another=lambda: "generator" not in steps.counts)
    names = [*["critic"] * critics, "generator"] + [*["critic"] * 5, "generator"] * 30
    for name in names:
        steps.forward(True, 8)
        steps.backward(None)
        if not steps.optimized(name, 0.1, False):
            break
    steps.finish()
    assert steps.anchor == "generator"
    assert [piece.backwards for piece in steps.lines[:3]] == [critics + 1, 6, 6][: steps.done]
    assert until is None or (steps.done, steps.counts.total()) == (until, critics + 1 + 6 * (until - 1))


@pytest.mark.parametrize(("waits", "settled"), [(False, SETTLED_ALONE), (True, PATIENCE)])
def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever(waits: bool, settled: int) -> None:
    looks = []

    def another() -> bool:
        looks.append(steps.counts.total())
        return waits

    steps = Steps(another=another)
    for _ in range(PATIENCE):
        steps.forward(True, 8)
        steps.optimized("SGD", 0.1, False)
        if steps.anchor:
            break
    assert (steps.counts.total(), steps.done) == (settled, settled)
    assert len(looks) <= 4, "each looks through all objects of the process"


def test_two_optimizers_are_told_apart_after_some_turns() -> None:
    steps = Steps()
    for turn in range(LEARNING):
        assert steps.anchor is None
        steps.forward(True, 8)
        steps.optimized("AB"[turn % 2], 0.1, False)
    assert (steps.anchor, steps.done) == ("B", LEARNING // 2)


def pairs(steps: Steps, count: int, rows: int = 8) -> bool:
    """So many training forward and backward passes. False: the run ends before the next."""
    for _ in range(count):
        steps.given(rows)
        if not steps.next_begins():
            return False
        steps.forward(True, rows)
        steps.leave()
        steps.backward(None)
        steps.leave()
    return True


@pytest.mark.parametrize("batches", [WITHOUT_OPTIMIZER, 33, 40, 64, MOST_ACCUMULATED])
@pytest.mark.parametrize("until", [None, 2])
def test_an_optimizer_that_exists_ends_a_step_after_however_many_batches_it_accumulates(
    batches: int, until: int | None
) -> None:
    steps = Steps(goal=UpTo(until), an_optimizer=lambda: True)
    for _ in range(3):
        assert pairs(steps, batches)
        if not steps.optimized("AdamW", 0.1, False):
            break
    steps.finish()
    assert steps.done == steps.counts["AdamW"] == (until or 3)
    assert [(piece.backwards, piece.loader_rows) for piece in steps.lines] == [(batches, 8 * batches)] * steps.done
    assert steps.samples()["samples_per_step"] == 8 * batches


def test_an_optimizer_that_never_steps_is_waited_for_through_a_thousand_batches() -> None:
    looks = []

    def an_optimizer() -> bool:
        looks.append(steps.backwards)
        return True

    steps = Steps(an_optimizer=an_optimizer)
    assert pairs(steps, MOST_ACCUMULATED) and not steps.counts
    assert pairs(steps, 21)
    assert (steps.anchor, steps.done, steps.samples()["samples_per_step"]) == ("", 20, 8)
    assert looks == [32, 64, 128, 256, 512], "each looks through all objects of the process"


@pytest.mark.parametrize("before", [33, 34, 45])
def test_an_optimizer_that_comes_late_leaves_nothing_of_what_was_taken_for_steps(
    before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first step has all that came before, and is the first of the record too."""
    monkeypatch.setattr("scaling_study.observe.steps.FLUSH_SECONDS", 0.0)
    observer = AtOnce(TORCH, str(tmp_path))
    observer.watched = True
    observer.steps.another = observer.steps.an_optimizer = lambda: False
    for batches in (before, 40, 40):
        for _ in range(batches):
            observer.after_step(observer.guarded(pairs, observer.steps, 1))
        observer.after_step(observer.ended(observer.clock(), "optimized", "AdamW", 0.1, False))
    look = observer.look
    observer.finish()
    [[_, *lines, end]] = observe.read(tmp_path)
    assert [(line["step"], line["optimizer"], line["backwards"]) for line in lines] == [
        (1, "AdamW", before),
        (2, "AdamW", 40),
        (3, "AdamW", 40),
    ]
    assert [line["forward_rows"] for line in lines] == [8 * before, 320, 320]
    assert (end["steps"], end["step_of"], end["optimizers"]) == (3, "AdamW", {"AdamW": 3})
    assert (end["samples_per_step"], end["backwards"], look.names) == (320, before + 80, {"AdamW"})


class Told(UpTo):
    """A driver to whom numbers were told."""

    def anew(self) -> None:
        raise RuntimeError("they were wrong")


def test_a_driver_that_was_told_wrong_steps_hears_that_they_were(tmp_path: Path) -> None:
    observer = AtOnce(TORCH, str(tmp_path))
    observer.watched, observer.steps.goal = True, Told(None)
    observer.steps.an_optimizer = lambda: False
    pairs(observer.steps, 45)
    observer.after_step(observer.ended(observer.clock(), "optimized", "AdamW", 0.1, False))
    assert observe.read(tmp_path)[0][-1] == {"kind": "not observed", "why": "RuntimeError: they were wrong"}


def held() -> tuple[Steps, Connection]:
    """Steps that are held by a driver, who has asked for two blocks, and its end of their connection."""
    ours, theirs = Pipe()

    class Connected(Held):
        def _call(self, **more: Any) -> None:
            self.driver = theirs

    for _ in range(2):
        ours.send_bytes(json.dumps({"do": "block", "steps": 4, "untimed": True}).encode())
    steps = Steps(goal=Connected("", dict, lambda: steps.seconds))
    return steps, ours


def test_a_block_in_which_an_optimizer_steps_first_is_of_its_steps() -> None:
    steps, driver = held()
    assert pairs(steps, 40) and (steps.done, steps.goal.until) == (7, 10), "it was held after the fifth"
    for _ in range(10):
        assert steps.optimized("AdamW", 0.1, False) and pairs(steps, 40)
    told = json.loads(driver.recv_bytes())
    assert told["steps"] == steps.done == 10
    assert told["step_seconds"] == steps.seconds[6:] and [each.backwards for each in steps.lines] == [40] * 10


def test_blocks_that_were_measured_before_an_optimizer_stepped_first_are_refused() -> None:
    steps, driver = held()
    assert pairs(steps, 45) and json.loads(driver.recv_bytes())["steps"] == 10
    with pytest.raises(RuntimeError, match="for the first time after a block was measured"):
        steps.optimized("AdamW", 0.1, False)


@pytest.mark.parametrize(
    ("rows", "samples"),
    [
        ([64] * 28 + [5] + [64] * 20, 64),  # the last batch of an epoch
        ([64, 6, 64, 6], 64),
        ([64, 6, 64, 6, 64], 64),
        ([16, 16, 16, 8, 8, 8], 16),
        ([10, 20, 30, 40], 25),  # no batch is a usual one
        ([32, 0, 32, 0], 16),  # a loader's batch is of several steps
    ],
)
@pytest.mark.parametrize("by", ["loader_rows", "forward_rows", "samples"])
def test_the_samples_of_a_step_are_those_of_most_steps(rows: list[int], samples: int, by: str) -> None:
    steps = Steps()
    for each in rows:
        steps.given(each if by == "loader_rows" else 0)
        steps.forward(True, each if by == "forward_rows" else 0)
        steps.leave()
        steps.backward(None)
        steps.leave()
        if by == "samples":
            steps.say(each)
        else:
            steps.optimized("SGD", 0.1, False)
    steps.finish()
    usual = samples in rows
    told = {"samples_per_step": samples, "samples_by": by * usual, "samples_unknown": ""}
    assert steps.samples() == told


def test_a_loader_that_is_a_batch_ahead_has_the_samples_of_forward_passes() -> None:
    steps = Steps()
    steps.given(64)
    for step in range(29):
        steps.given(64 if step < 27 else 5 if step == 27 else 0)
        steps.forward(True, 64 if step < 28 else 5)
        steps.backward(None)
        steps.optimized("SGD", 0.1, False)
    steps.finish()
    assert steps.samples() == {"samples_per_step": 64, "samples_by": "forward_rows", "samples_unknown": ""}
    assert sum(piece.forward_rows for piece in steps.lines) == 1797
