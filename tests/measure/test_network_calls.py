"""A probe of the network: how many calls a size gets, what of them is timed, and that no wrong result passes."""

from __future__ import annotations

import math
import time

import pytest
import torch

from scaling_study.measure.network import FEWEST_CALLS, Budget, Calls, Payload, cores_busy, missing, pattern
from scaling_study.ranks import Ranks
from scaling_study.stats.network import COLLECTIVES
from scaling_study.trial import Window

CPU = torch.device("cpu")


def calls(
    window: Window, seconds: float = 0.0, wrong_at: int | None = None, barrier_seconds: float = 0.0
) -> tuple[Calls, list[str]]:
    """An allreduce over one rank, which has nothing to do, and is made to take so long."""
    happened: list[str] = []

    def call(name: str, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        happened.append(name)
        if wrong_at == happened.count("allreduce"):
            result[0] += 1
        return result

    def barrier() -> None:
        time.sleep(barrier_seconds)
        happened.append("barrier")

    payload = Payload("allreduce", 1024, 0, 1, pattern(256, CPU))
    return Calls(call, barrier, payload, Ranks()).run(window), happened


def test_every_call_waits_for_all_ranks_first() -> None:
    made, happened = calls(Window(warmup_steps=2, min_steps=3, min_seconds=0.0, max_steps=3))
    around = ["barrier"]  # the bytes that left in the timed calls are read after one, and without its own
    assert happened == ["barrier", "allreduce"] * 2 + around + ["barrier", "allreduce"] * 3 + around
    assert (len(made.warmup_seconds), len(made.seconds), made.wrong) == (2, 3, 0)


def test_the_barrier_is_not_timed() -> None:
    made, _ = calls(Window(0, 5, 0.0, None, 5), seconds=0.002, barrier_seconds=0.25)
    assert 0.002 <= min(made.seconds) < 0.25, "the fastest: any call may be held up by the machine"


@pytest.mark.parametrize("at", [1, 3, 7])
def test_one_wrong_result_is_known_in_warm_up_and_later(at: int) -> None:
    made, _ = calls(Window(warmup_steps=2, min_steps=5, min_seconds=0.0, max_steps=5), wrong_at=at)
    assert made.wrong == 1 and made.transfer("allreduce", False).correct is False
    assert made.of_all_ranks() == (made.seconds, 1)


def test_a_time_bound_holds_but_for_the_fewest_calls() -> None:
    made, _ = calls(Window(warmup_steps=500, min_steps=1000, min_seconds=0.0, max_seconds=0.2), seconds=0.02)
    assert FEWEST_CALLS <= len(made.seconds) <= 10
    assert len(made.warmup_seconds) < 10, "warming up ends early too"
    slow, _ = calls(Window(warmup_steps=0, min_steps=10, min_seconds=0.0, max_seconds=0.001), seconds=0.02)
    assert len(slow.seconds) >= FEWEST_CALLS


def test_missing_calls_are_as_many_as_the_spread_asks_for() -> None:
    """(2 x 0.684 / 0.05)^2 = 749 calls bring a mean of 3 with a standard deviation of 2.05 to +-5 %."""
    assert missing([1.0, 1.1] * 10, 1000, math.inf) == 0
    assert missing([1.0, 5.0] * 10, 1000, math.inf) == 749 - 20
    assert missing([1.0, 50.0] * 10, 1000, math.inf) == 1000 - 20, "at most so many in all"
    assert missing([1.0, 50.0] * 10, 1000, 7.9) == 7, "and no more than can be afforded"
    assert missing([1.0, 50.0] * 10, 20, math.inf) == 0


def test_time_that_is_left_over_goes_to_what_is_still_to_come() -> None:
    budget = Budget.within(1000.0)
    first = budget.share(4)
    assert first is not None and 200 < first <= 250
    second = budget.share(2)
    assert second is not None and 400 < second <= 500
    assert Budget.within(None).share(3) is None
    assert Budget.within(-1.0).share(3) == 1e-3, "a window needs some time"


def test_busy_cores_compute_until_the_end_and_no_longer() -> None:
    with cores_busy(True):
        before = time.process_time()
        time.sleep(0.3)
        busy = time.process_time() - before
    before = time.process_time()
    time.sleep(0.3)
    idle = time.process_time() - before
    assert busy > 5 * idle and busy > 0.03
    with cores_busy(False):
        pass


def payloads(collective: str, ranks: int, bytes: int = 4096) -> list[Payload]:
    """Of every rank, filled."""
    made = [Payload(collective, bytes, rank, ranks, pattern(2 * bytes, CPU)) for rank in range(ranks)]
    for payload in made:
        payload.fill()
    return made


def carried(collective: str, made: list[Payload]) -> list[torch.Tensor]:
    """The results on every rank, by the definition of the collective."""
    given = [payload.sent.clone() for payload in made]
    match collective:
        case "allreduce":
            return [torch.stack(given).sum(0) for _ in made]
        case "broadcast":
            return [given[0].clone() for _ in made]
        case "reduce_scatter":
            return [part.clone() for part in torch.stack(given).sum(0).chunk(len(made))]
    return [torch.cat(given) for _ in made]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_right_result_is_right_on_every_rank_and_one_wrong_number_is_not(collective: str, ranks: int) -> None:
    made = payloads(collective, ranks)
    for payload, result in zip(made, carried(collective, made), strict=True):
        assert payload.is_correct(result)
        assert payload.received.shape == result.shape
        assert payload.bytes == 4 * max(result.numel(), payload.sent.numel())
        for place in (0, 1, -1):
            payload.fill()
            wrong = carried(collective, payloads(collective, ranks))[payload.rank]
            wrong[place] += 1
            assert not payload.is_correct(wrong)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_was_not_carried_at_all_is_wrong(collective: str) -> None:
    """As it was before the call; only the root of a broadcast has its result from the start."""
    for rank, payload in enumerate(payloads(collective, 3)):
        assert payload.is_correct(payload.received) == (collective == "broadcast" and rank == 0)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_parts_in_the_wrong_order_are_wrong(collective: str) -> None:
    made = payloads(collective, 3)
    results = carried(collective, made)
    if collective == "reduce_scatter":
        results = results[1:] + results[:1]
    else:
        results = [torch.cat(result.chunk(3)[::-1]) for result in results]
    assert not any(payload.is_correct(result) for payload, result in zip(made, results, strict=True))
