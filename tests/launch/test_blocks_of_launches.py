"""The order and length of blocks, whose turn it is and what a failure costs, with groups that only write down what is
asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from scaling_study.launch import shared_launch
from scaling_study.launch.launch_folders import GroupRecord, whole_blocks
from scaling_study.launch.shared_launch import Built
from scaling_study.launch.warm_group import GroupFailed
from scaling_study.trial import Trial, Window

WINDOW = Window(min_steps=1, min_seconds=0.0, rounds=8, block_seconds=0.5)
STEP_SECONDS = {"single": (0.1, 1.0), "torch_ddp": (0.05, 0.2)}  # of a framework's two configurations


class Told:
    """A group whose steps take a known time. `log` is shared, so that turns of several can be told apart."""

    def __init__(self, name: str, log: list[tuple[Any, ...]]) -> None:
        self.name, self.log, self.running = name, log, False
        self.trials = [Trial(framework=name, batch_per_worker=batch, window=WINDOW) for batch in (1, 2)]

    def build(self, index: int, inspect: bool) -> list[dict[str, float]]:
        assert self.running
        self.log.append(("build", self.name, index))
        slowest = STEP_SECONDS[self.name][index]
        return [{"step_seconds": seconds, "resident_bytes": 100} for seconds in (slowest / 2, slowest)]

    def block(self, index: int, block: int, steps: int, untimed: bool) -> list[list[float]]:
        assert self.running
        self.log.append(("block", self.name, index, block, steps, untimed))
        slowest = STEP_SECONDS[self.name][index]
        return [[seconds] * steps for seconds in (slowest / 2, slowest)]

    @contextmanager
    def turn(self) -> Iterator[None]:
        assert not any(group.running for group in self.others)
        self.running = True
        yield
        self.running = False

    others: tuple[Told, ...] = ()


class Watching(shared_launch.Watch):
    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log

    def building(self, trial: Trial) -> None:
        self.log.append(("building", trial.framework, trial.batch_per_worker - 1))

    def alone(self, trial: Trial) -> None:
        self.log.append(("alone", trial.framework))

    def block_begins(self, launch: int, block: int, of: int) -> None:
        self.log.append(("blocks", launch, block, of))

    def block_timed(self, trial: Trial, step_seconds: float) -> None:
        self.log.append(("timed", trial.framework, trial.batch_per_worker - 1, step_seconds))


def two(log: list[tuple[Any, ...]]) -> tuple[Told, Told]:
    groups = Told("single", log), Told("torch_ddp", log)
    groups[0].others, groups[1].others = (groups[1],), (groups[0],)
    return groups


def built_of(group: Any, watch: shared_launch.Watch | None = None, **room: float) -> Built:
    return Built.of(group, GroupRecord(0, group.name, []), watch or shared_launch.Watch(), **room)


def never(ended: Built, begin_anew: bool) -> None:
    raise AssertionError(ended)


def told(seed: str) -> list[tuple[Any, ...]]:
    """All that is asked of two groups."""
    calls: list[tuple[Any, ...]] = []
    watch = Watching(calls)
    shared_launch.take_turns([built_of(group, watch) for group in two(calls)], seed, watch, never)
    return calls


@pytest.fixture(scope="module")
def log() -> list[tuple[Any, ...]]:
    return told("a seed")


def test_a_group_that_has_no_room_for_all_is_built_in_part() -> None:
    log: list[tuple[Any, ...]] = []
    built = built_of(Told("single", log), shared_launch.Watch(), room_bytes=199)
    assert log == [("build", "single", 0)] and built.trials == built.group.trials[:1]
    shared_launch.take_turns([built], "a seed", shared_launch.Watch(), never)
    assert {call[2] for call in log} == {0} and built.blocks == [8]


def test_whoever_watches_hears_of_each_in_time(log: list[tuple[Any, ...]]) -> None:
    for at, call in enumerate(log):
        if call[0] == "build":
            assert log[at - 1] == ("building", *call[1:])
        if call[0] == "block":
            assert log[at + 1] == ("timed", *call[1:3], pytest.approx(STEP_SECONDS[call[1]][call[2]]))
    assert [call for call in log if call[0] == "blocks"] == [("blocks", 1, block, 8) for block in range(1, 9)]
    first = [call[0] for call in log].index("blocks")
    assert "build" not in [call[0] for call in log[first:]] and "block" not in [call[0] for call in log[:first]]


def test_the_order_is_drawn_anew_and_is_the_same_for_a_seed(log: list[tuple[Any, ...]]) -> None:
    orders = {tuple(call[1:3] for call in log if call[0] == "block" and call[3] == block) for block in range(8)}
    assert len(orders) > 4
    assert told("a seed") == log != told("another")


@pytest.mark.parametrize(("sentinels", "sentinel"), [((), ("torch_ddp", 0)), (("single",), ("single", 0))])
def test_the_sentinel_is_first_and_last(sentinels: tuple[str, ...], sentinel: tuple[str, int]) -> None:
    """The one with the shortest steps, of those named where some of these are there."""
    log: list[tuple[Any, ...]] = []
    built = [built_of(group) for group in two(log)]
    names = {trial.configuration for each in built for trial in each.trials if trial.framework in sentinels}
    shared_launch.take_turns(built, "a seed", shared_launch.Watch(), never, names)
    blocks = [call[1:3] for call in log if call[0] == "block"]
    assert blocks[0] == blocks[-1] == sentinel and len(blocks) == 32
    assert len({at % 4 for at, who in enumerate(blocks) if who == sentinel}) > 1, "between them, its turn is drawn"


@pytest.mark.parametrize(("blocks_of_sentinel", "others"), [(1, 1), (3, 8), (8, 3)])
def test_a_sentinel_with_other_rounds_is_last_in_its_own(blocks_of_sentinel: int, others: int) -> None:
    log: list[tuple[Any, ...]] = []
    groups = two(log)
    for group, count in zip(groups, (others, blocks_of_sentinel), strict=True):
        group.trials = [replace(trial, window=replace(WINDOW, rounds=count)) for trial in group.trials]
    shared_launch.take_turns([built_of(group) for group in groups], "a seed", shared_launch.Watch(), never)
    orders = {block: [call[1:3] for call in log if call[0] == "block" and call[3] == block] for block in range(8)}
    assert orders[0][0] == ("torch_ddp", 0) and len(orders[0]) == 4
    assert blocks_of_sentinel == 1 or orders[blocks_of_sentinel - 1][-1] == ("torch_ddp", 0)


def test_the_launch_is_called_by_what_is_due_in_it() -> None:
    """And not by what is measured once more beside it, under a repeat that nobody asked for."""
    log: list[tuple[Any, ...]] = []
    groups = two(log)
    for group, repeat in zip(groups, (7, 2), strict=True):
        group.trials = [replace(trial, repeat=repeat) for trial in group.trials]
    shared_launch.take_turns([built_of(group) for group in groups], "a seed", Watching(log), never)
    assert {call[1] for call in log if call[0] == "blocks"} == {2}


def test_blocks_last_as_long_as_was_asked(log: list[tuple[Any, ...]]) -> None:
    steps = {call[1:3]: call[4] for call in log if call[0] == "block"}
    assert steps == {("single", 0): 5, ("single", 1): 1, ("torch_ddp", 0): 10, ("torch_ddp", 1): 2}


def test_a_block_is_as_long_as_the_one_before_it_says() -> None:
    """Its steps become slower; what was decided of them stays."""
    log: list[tuple[Any, ...]] = []
    built = built_of(Slower("torch_ddp", log))
    shared_launch.take_turns([built], "a seed", shared_launch.Watch(), never)
    blocks = [call[4:] for call in log if call[:3] == ("block", "torch_ddp", 1)]
    assert blocks[:3] == [(2, True), (1, True), (1, True)] and not built.trials[1].window.is_long(0.2)
    assert built.trials[1].window.is_long(built.step_seconds[1])


def test_what_has_fewer_rounds_to_go_through_does_not_cut_the_others() -> None:
    """Of a launch that ended after six of eight."""
    few, many = (Trial(window=replace(WINDOW, rounds=rounds)) for rounds in (2, 8))
    assert whole_blocks([(2, few), (6, many), (7, many)]) == 6
    assert whole_blocks([(1, few), (6, many)]) == 1, "it had not all"
    assert whole_blocks([(2, few), (8, many)]) == 8
    assert whole_blocks([]) == 0


class Slower(Told):
    """One whose steps take three times as long once they are timed."""

    def block(self, index: int, block: int, steps: int, untimed: bool) -> list[list[float]]:
        return [[3 * each for each in seconds] for seconds in super().block(index, block, steps, untimed)]


@dataclass
class Failing(Told):
    """One whose second configuration fails in a round."""

    in_block: int
    log: list[tuple[Any, ...]]
    name: str = "torch_ddp"
    ended: list[GroupFailed] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.name, self.log)

    def block(self, index: int, block: int, steps: int, untimed: bool) -> list[list[float]]:
        if (index, block) == (1, self.in_block):
            self.running = False
            raise GroupFailed("a rank ended", [self.trials[1]])
        return super().block(index, block, steps, untimed)


def with_a_failure(in_block: int) -> tuple[list[Built], list[tuple[Any, ...]], list[tuple[bool, int]]]:
    """Two groups, of which one fails in this round; another without what failed takes its place where asked for. And
    what was told of each failure: whether rounds begin anew, and of how many configurations."""
    log: list[tuple[Any, ...]] = []
    single, failing = Told("single", log), Failing(in_block, log)
    single.others, failing.others = (failing,), (single,)
    told: list[tuple[bool, int]] = []

    def after_failure(ended: Built, begin_anew: bool) -> Built | None:
        assert ended.failure
        told.append((begin_anew, len(ended.trials)))
        if not begin_anew:
            return None
        another = Told("torch_ddp", log)
        another.trials, another.others, single.others = another.trials[:1], (single,), (another,)
        return built_of(another)

    built: list[Built] = [
        built_of(single),
        built_of(failing),
    ]
    built[1].ending.callback(log.append, ("ended",))
    shared_launch.take_turns(built, "a seed", shared_launch.Watch(), after_failure)
    return built, log, told


@pytest.mark.parametrize("in_block", [2, 5, 7])
def test_a_failure_ends_its_own_group_which_keeps_its_rounds(in_block: int) -> None:
    built, log, told = with_a_failure(in_block)
    assert told == [(False, 2)] and str(built[1].failure) == "a rank ended"
    assert built[0].blocks == [8, 8] and built[0].failure is None
    assert built[1].blocks[1] == in_block and built[1].blocks[0] in (in_block, in_block + 1)
    after = log[log.index(("ended",)) :]
    assert not [call for call in after[1:] if call[1] == "torch_ddp"], "it uses no time any more"


@pytest.mark.parametrize("in_block", [0, 1])
def test_a_failure_in_the_first_rounds_begins_them_anew_for_all(in_block: int) -> None:
    """So that what is compared was measured in the same rounds; no other group is started again."""
    built, log, told = with_a_failure(in_block)
    assert told == [(True, 2)]
    assert built[0].blocks == [8, 8] and built[1].blocks == [8] and built[1].failure is None
    after = [call for call in log[log.index(("ended",)) :] if call[0] == "block"]
    assert Counter(call[3] for call in after) == dict.fromkeys(range(8), 3)
    first = next(call for call in after if call[1] == "torch_ddp")
    assert first[3] == 0
    assert [call[0] for call in log].count("build") == 2 + 2 + 1
