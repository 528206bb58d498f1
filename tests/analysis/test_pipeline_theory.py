"""Closed forms against the papers' numbers, against replays of simple orders, and against torch's own orders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_pipelines import Order, events, gpipe, looped, one_f_one_b, split

from analysis.statistics import bubble as theory
from analysis.statistics.bubble import Event, equal, replay_bubble

PUBLISHED = (0.24, 0.21, 0.48, 0.065)  # the shares of iFormer's four stages (F16)


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "bubble"),
    [
        ("gpipe", 4, 4, 1, 3 / 7),
        ("gpipe", 1, 4, 1, 0.0),
        ("1f1b", 4, 8, 1, 3 / 11),
        ("interleaved_1f1b", 4, 8, 2, 3 / 19),
        ("looped_bfs", 4, 8, 2, 3 / 19),
        ("looped_bfs", 4, 2, 2, 5 / 9),
        ("interleaved_zero_bubble", 4, 8, 1, 3 / 27),
        ("interleaved_zero_bubble", 4, 8, 2, 3 / 51),
        ("zbv_zero_bubble", 4, 8, 2, 3 / 51),
        ("dualpipev", 4, 8, 2, 3 / 27),
        ("naive", 4, 1, 1, 3 / 4),
    ],
)
def test_bubbles(schedule: str, p: int, m: int, v: int, bubble: float) -> None:
    found = theory.bubble(schedule, p, m, v)
    assert found.bubble == pytest.approx(bubble)
    assert "arXiv" in found.formula or schedule == "naive"


@pytest.mark.parametrize(
    ("schedule", "m", "why"),
    [
        ("interleaved_zero_bubble", 3, "it needs m >= p: 3 is below 4"),
        ("zbv_zero_bubble", 7, "it needs m >= 2 p to be without a break: 7 is below 8"),
        ("dualpipev", 7, "it needs m >= 2 p: 7 is below 8"),
        ("of_my_own", 8, "no closed form is known here for of_my_own"),
    ],
)
def test_what_cannot_be_justified_is_not_claimed(schedule: str, m: int, why: str) -> None:
    found = theory.bubble(schedule, 4, m, 2)
    assert (found.bubble, found.why) == (None, why)


@given(st.integers(1, 6), st.integers(1, 12))
def test_gpipe_and_1f1b_replayed_are_the_closed_form(p: int, m: int) -> None:
    for name, order in (("gpipe", gpipe(p, m)), ("1f1b", one_f_one_b(p, m))):
        assert replayed(order) == pytest.approx(theory.bubble(name, p, m).bubble), name


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 3))
def test_loops_replayed_are_the_closed_form(p: int, m: int, v: int) -> None:
    assert replayed(looped(p, m, v)) == pytest.approx(theory.bubble("looped_bfs", p, m, v).bubble)


@given(st.integers(2, 5), st.integers(1, 8))
def test_halved_backwards_wait_less_than_whole_ones(p: int, m: int) -> None:
    assert replayed(split(gpipe(p, m))) < replayed(gpipe(p, m))


def replayed(order: Order) -> float:
    return replay_bubble(events(order), equal)


TORCHS = {  # schedule -> (class, stages a worker, and the m for p workers from which its form holds)
    "gpipe": ("ScheduleGPipe", (1,), lambda p: 1),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", (2, 3), lambda p: 1),
    "looped_bfs": ("ScheduleLoopedBFS", (2, 3), lambda p: 1),
    "interleaved_zero_bubble": ("ScheduleInterleavedZeroBubble", (1, 2, 3), lambda p: p),
    "zbv_zero_bubble": ("ScheduleZBVZeroBubble", (2,), lambda p: 2 * p),
    "dualpipev": ("ScheduleDualPipeV", (2,), lambda p: 2 * p),
}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCHS)
def test_torchs_own_orders_replayed_are_the_closed_form(schedule: str) -> None:
    name, virtual, least = TORCHS[schedule]
    compared = 0
    for v in virtual:
        for p in (2, 3, 4, 8):
            for m in range(least(p), 3 * p + 1):
                if (blocks := torchs(name, p, m, v)) is None:
                    continue
                whole = schedule == "dualpipev"  # a pair's results go out together
                found = in_blocks(blocks) if whole else replay_bubble(flat(blocks), equal)
                assert found == pytest.approx(theory.bubble(schedule, p, m, v).bubble), (p, m, v)
                compared += 1
    assert compared >= 20


Blocks = dict[int, list[list[Event]]]  # worker -> what it runs as one piece


def torchs(name: str, p: int, m: int, v: int) -> Blocks | None:
    """What torch would run, from the function that plans it; None where torch refuses these numbers."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    kind = getattr(schedules, name)
    plan = kind.__new__(kind)  # planning asks for numbers only, building one for stages and processes
    rounds = max(1, m // p)
    if "Interleaved" in name and m % rounds:
        return None
    plan.pp_group_size, plan._n_microbatches, plan.n_local_stages, plan._stages = p, m, v, [None] * v
    plan.num_stages = plan._num_stages = p * v
    plan.number_of_rounds, plan.microbatches_per_round = rounds, m // rounds

    def parts(action: Any) -> list[Event]:
        if action.sub_actions:
            return [event for part in action.sub_actions for event in parts(part)]
        of = kinds.get(action.computation_type.value)
        return [Event(of, action.stage_index, action.microbatch_index)] if of else []

    actions = plan._get_pipeline_order() if v == 1 and name == "ScheduleGPipe" else {
        rank: plan._calculate_single_rank_operations(rank) for rank in range(p)
    }  # fmt: skip
    return {rank: [block for action in ours if action and (block := parts(action))] for rank, ours in actions.items()}


def flat(blocks: Blocks) -> dict[int, list[Event]]:
    return {worker: [event for block in ours for event in block] for worker, ours in blocks.items()}


def in_blocks(blocks: Blocks) -> float:
    """The bubble where all that a block gives is there when the whole block is done."""
    last = max(event.stage for ours in flat(blocks).values() for event in ours)
    waiting = {worker: list(ours) for worker, ours in blocks.items()}
    free, there, busy = dict.fromkeys(blocks, 0.0), dict[Event, float](), 0.0
    while any(waiting.values()):
        for worker, ours in waiting.items():
            while ours:
                gives = {event._replace(kind=theory.GIVES[event.kind]) for event in ours[0]}
                needed = {need for event in ours[0] for need in theory.needs(event, last)} - gives
                if not needed <= set(there):
                    break
                seconds = sum(equal(event.kind, event.stage) for event in ours.pop(0))
                end = max([free[worker], *(there[need] for need in needed)]) + seconds
                free[worker], busy = end, busy + seconds
                there |= dict.fromkeys(gives, end)
    return 1 - busy / (len(blocks) * max(free.values()))


def test_the_published_cut_caps_the_speedup() -> None:
    assert theory.most_speedup(PUBLISHED) == pytest.approx(2.08, abs=0.005)
    assert theory.cap("gpipe", PUBLISHED, 7) == pytest.approx(1.8, abs=0.01)
    assert theory.cap("1f1b", PUBLISHED, 7) == pytest.approx(7 / (7 * 0.48 + 0.45))
    assert theory.cap("zbv_zero_bubble", PUBLISHED, 7) == theory.most_speedup(PUBLISHED)
    assert theory.cap("naive", PUBLISHED, 1) == 1.0


@given(st.integers(1, 8), st.integers(1, 32))
def test_an_even_cut_caps_it_where_the_bubble_does(p: int, m: int) -> None:
    even = [1 / p] * p
    for schedule in ("gpipe", "1f1b"):
        bubble = theory.bubble(schedule, p, m).bubble
        assert bubble is not None
        assert theory.cap(schedule, even, m) == pytest.approx(p * (1 - bubble))


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5), st.integers(1, 8))
def test_no_order_beats_its_cap(sizes: list[float], m: int) -> None:
    """Speed-up = work / makespan, and work is what one process would take."""
    shares = [size / sum(sizes) for size in sizes]
    p = len(shares)
    for schedule, order in (("gpipe", gpipe(p, m)), ("1f1b", one_f_one_b(p, m))):
        ran = theory.run(events(order), lambda kind, stage: equal(kind, stage) * shares[stage])
        gain = 3 * m / max(one.end for one in ran)
        assert gain <= theory.cap(schedule, shares, m) * (1 + 1e-9)
        assert theory.cap(schedule, shares, m) <= theory.most_speedup(shares) * (1 + 1e-9)
        if schedule == "gpipe":
            assert gain == pytest.approx(theory.cap(schedule, shares, m)), "and GPipe reaches it"
