"""What goes into a collective, and that nothing but the right result passes for it."""

from __future__ import annotations

import pytest
import torch

from scaling_study.measure.network import Payload, pattern, weight
from scaling_study.stats.network import COLLECTIVES

CPU = torch.device("cpu")


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


def test_sums_are_exact_however_many_ranks_there_are() -> None:
    most = pattern(1000, CPU).max() * sum(weight(rank) for rank in range(10_000))
    assert most < 2**24, "fp32 holds every whole number up to here"
    assert pattern(1000, CPU).min() == 1, "no zero: what is left out always shows"
