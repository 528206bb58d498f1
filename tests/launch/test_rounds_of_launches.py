"""The order of rounds, how long blocks are, and whose turn it is, with groups that only write down what is asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scaling_study.launch import rounds
from scaling_study.launch.rounds import Built
from scaling_study.trial import Trial, Window

WINDOW = Window(min_steps=1, min_seconds=0.0, rounds=8, block_seconds=0.5)
STEP_SECONDS = {"single": (0.1, 1.0), "torch_ddp": (0.05, 0.2)}  # of a framework's two configurations


class Told:
    """A group whose steps take a known time. `log` is shared, so that turns of several can be told apart."""

    def __init__(self, name: str, log: list[tuple[Any, ...]]) -> None:
        self.name, self.log, self.running = name, log, False
        self.trials = [Trial(framework=name, batch_per_worker=batch, window=WINDOW) for batch in (1, 2)]

    def build(self, index: int) -> list[dict[str, float]]:
        assert self.running
        self.log.append(("build", self.name, index))
        return [{"step_seconds": STEP_SECONDS[self.name][index], "resident_bytes": 100}] * 2

    def block(self, index: int, round: int, steps: int, untimed: bool) -> list[list[float]]:
        assert self.running
        self.log.append(("block", self.name, index, round, steps, untimed))
        return [[STEP_SECONDS[self.name][index]] * steps] * 2

    def report(self, index: int) -> None:
        assert self.running
        self.log.append(("report", self.name, index))

    @contextmanager
    def turn(self) -> Iterator[None]:
        assert not any(group.running for group in self.others)
        self.running = True
        yield
        self.running = False

    others: tuple[Told, ...] = ()


class Watching:
    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log

    def building(self, trial: Trial) -> None:
        self.log.append(("building", trial.framework, trial.batch_per_worker - 1))

    def round_begins(self, launch: int, round: int, of: int) -> None:
        self.log.append(("round", launch, round, of))

    def block_timed(self, trial: Trial, step_seconds: float) -> None:
        self.log.append(("timed", trial.framework, trial.batch_per_worker - 1, step_seconds))


def told(seed: str) -> list[tuple[Any, ...]]:
    """All that is asked of two groups."""
    calls: list[tuple[Any, ...]] = []
    groups = Told("single", calls), Told("torch_ddp", calls)
    groups[0].others, groups[1].others = (groups[1],), (groups[0],)
    watch = Watching(calls)
    rounds.run([Built.of(group, watch) for group in groups], seed, watch)
    return calls


@pytest.fixture(scope="module")
def log() -> list[tuple[Any, ...]]:
    return told("a seed")


def test_a_group_knows_its_slowest_ranks_steps_and_all_its_memory() -> None:
    built = Built.of(Told("single", []), rounds.Unwatched())
    assert (built.step_seconds, built.resident_bytes) == ([0.1, 1.0], 200)


def test_every_configuration_has_a_block_in_every_round(log: list[tuple[Any, ...]]) -> None:
    blocks = [call for call in log if call[0] == "block"]
    assert Counter(call[3] for call in blocks) == dict.fromkeys(range(8), 4)
    assert len({call[1:4] for call in blocks}) == 8 * 4


def test_all_are_built_before_and_report_after_the_rounds(log: list[tuple[Any, ...]]) -> None:
    kinds = [call[0] for call in log if call[0] in ("build", "block", "report")]
    assert kinds == ["build"] * 4 + ["block"] * 32 + ["report"] * 4


def test_whoever_watches_hears_of_each_in_time(log: list[tuple[Any, ...]]) -> None:
    for at, call in enumerate(log):
        if call[0] == "build":
            assert log[at - 1] == ("building", *call[1:])
        if call[0] == "block":
            assert log[at + 1] == ("timed", *call[1:3], pytest.approx(STEP_SECONDS[call[1]][call[2]]))
    assert [call for call in log if call[0] == "round"] == [("round", 1, round, 8) for round in range(1, 9)]
    first = [call[0] for call in log].index("round")
    assert "build" not in [call[0] for call in log[first:]] and "block" not in [call[0] for call in log[:first]]


def test_the_order_is_drawn_anew_and_is_the_same_for_a_seed(log: list[tuple[Any, ...]]) -> None:
    orders = {tuple(call[1:3] for call in log if call[0] == "block" and call[3] == round) for round in range(8)}
    assert len(orders) > 4
    assert told("a seed") == log != told("another")


def test_blocks_last_as_long_as_was_asked(log: list[tuple[Any, ...]]) -> None:
    steps = {call[1:3]: call[4] for call in log if call[0] == "block"}
    assert steps == {("single", 0): 5, ("single", 1): 1, ("torch_ddp", 0): 10, ("torch_ddp", 1): 2}


def test_a_step_that_is_longer_than_a_block_is_left_out_once(log: list[tuple[Any, ...]]) -> None:
    untimed = {(call[1], call[2], call[3] == 0): call[5] for call in log if call[0] == "block"}
    assert untimed["single", 1, True] and not untimed["single", 1, False]
    assert untimed["single", 0, True] and untimed["single", 0, False]


@pytest.mark.parametrize(("step_seconds", "steps"), [(math.inf, 1), (0.5, 1), (0.3, 2), (4.0, 1), (1e-4, 5000)])
def test_steps_in_a_block(step_seconds: float, steps: int) -> None:
    assert rounds.steps_in_block(WINDOW, step_seconds) == steps


def test_all_rounds_together_reach_the_minima() -> None:
    assert rounds.steps_in_block(Window(min_steps=20, min_seconds=0.0, rounds=8, block_seconds=0.5), 1.0) == 3
    assert rounds.steps_in_block(Window(min_steps=1, min_seconds=16.0, rounds=8, block_seconds=0.5), 0.1) == 20
