"""Every sample of a split counts once, whatever the number of ranks."""

from __future__ import annotations

import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.train.loop import evaluate
from scaling_study.trial import Trial
from scaling_study.workloads.feed import HeldOut
from scaling_study.workloads.held_out import classification, score
from scaling_study.workloads.metrics import figures, held_out, losses
from scaling_study.workloads.wikitext2 import held_out_text

SAMPLES = 10_000
Operations = namedtuple("Operations", "labels video triplets")


class Group:
    """Ranks that are threads, and add up as processes do."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.parts = size, threading.Barrier(size), dict[int, list[float]]()

    def ranks(self, rank: int) -> Ranks:
        def total(values: list[float]) -> list[float]:
            self.parts[rank] = list(values)
            self.barrier.wait()
            result = [sum(column) for column in zip(*self.parts.values(), strict=True)]
            self.barrier.wait()
            return result

        return Ranks(rank, self.size, total=total)


class WorkloadOf:
    def __init__(self, model: nn.Module) -> None:
        self.model = model


def evaluated(held_out: HeldOut, model: nn.Module, size: int) -> list[dict[str, float]]:
    """What each of so many ranks has of the test split."""
    group, copies = Group(size), [deepcopy(model) for _ in range(size)]

    def of_rank(rank: int) -> dict[str, float]:
        return evaluate(held_out, "test", WorkloadOf(copies[rank]), None, group.ranks(rank))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(of_rank, range(size)))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_ten_thousand_samples_over_any_number_of_ranks(size: int) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(SAMPLES, 4, dtype=torch.float64), torch.randint(3, (SAMPLES,))
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    model[1].running_mean.fill_(0.3)
    seen = []

    def update(metrics, model, batch, real) -> None:
        outputs = model(batch[0])[real]
        seen.extend(batch[2][real].tolist())
        metrics["accuracy"].update((outputs.argmax(1) == batch[1][real]).double())
        metrics["loss"].update(nn.functional.cross_entropy(outputs, batch[1][real], reduction="none"))

    held_out = HeldOut(
        {"test": SAMPLES}, lambda split, places: (inputs[places], labels[places], places),
        lambda: classification(torch.device("cpu"), 3), update,
    )  # fmt: skip
    answers = evaluated(held_out, model, size)
    model.eval()
    outputs = model(inputs)
    assert sorted(seen) == list(range(SAMPLES))
    for answer in answers:
        assert answer["samples"] == SAMPLES
        assert answer["accuracy"] == pytest.approx((outputs.argmax(1) == labels).double().mean().item(), abs=1e-12)
        assert answer["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item(), rel=1e-12)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_tokens_of_a_text_over_any_number_of_ranks(size: int) -> None:
    """1,000 tokens are 42 windows of 24, the last of which says 15: 50 ranks have one each, or none."""
    torch.manual_seed(0)
    text = np.random.default_rng(0).integers(0, 9, 1_000).astype(np.uint16)
    model = nn.Embedding(9, 9).double()  # scores of the next token, by the last
    held_out = held_out_text(text, {"test": text}, 24, Trial(), Ranks())
    ids = torch.from_numpy(text.astype(np.int64))
    loss = nn.functional.cross_entropy(model(ids[:-1]), ids[1:]).item()
    for answer in evaluated(held_out, model, size):
        assert answer["samples"] == 42 and answer["loss"] == pytest.approx(loss, rel=1e-12)
        assert answer["perplexity"] == pytest.approx(np.exp(loss), rel=1e-12)


def test_correlation_over_three_ranks_is_that_of_all_samples_and_no_mean() -> None:
    truth, says = torch.arange(300) % 3 // 2, torch.arange(300) % 5 // 4
    held_out = HeldOut(
        {"test": 300}, lambda split, places: (5.0 * nn.functional.one_hot(says[places], 2), truth[places]),
        lambda: classification(torch.device("cpu"), 2, matthews=True),
        lambda metrics, model, batch, real: score(metrics, model(batch[0])[real], batch[1][real]),
    )  # fmt: skip
    expected = np.corrcoef(truth, says)[0, 1]
    for size in (1, 3):
        for answer in evaluated(held_out, nn.Identity(), size):
            assert answer["matthews"] == pytest.approx(expected, abs=1e-12)
            assert answer["accuracy"] == (truth == says).double().mean().item()


@pytest.mark.parametrize("size", [1, 3, 7])
def test_average_precision_is_that_of_all_scores_and_not_a_mean_of_the_ranks(size: int) -> None:
    """61 frames of three videos, by threads that add up as ranks do; no number of them divides 61."""
    random = np.random.default_rng(0)
    parts = [random.integers(0, most, 100) for most in (6, 10, 15)]
    surgery = Operations((random.random((90, 131)) < 0.1).astype(np.uint8), np.arange(90) // 30, np.stack(parts, 1))
    ids = torch.from_numpy(np.sort(random.permutation(90)[:61]))
    inputs, model = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)), nn.Linear(4, 131)
    splits = {"validation": torch.from_numpy(np.setdiff1d(np.arange(90), ids)), "test": ids}
    held = held_out(surgery, splits, lambda at: (inputs[at],), Trial(), Ranks(), batch=16)
    with torch.no_grad():
        logits = model(inputs[ids]).double()
    whole = figures(logits.numpy(), ids.numpy(), surgery)
    loss = losses(logits, torch.from_numpy(surgery.labels[ids.numpy()]).double()).sum(1).mean()
    for answer in evaluated(held, model, size):
        assert answer == pytest.approx({**whole, "loss": float(loss), "samples": 61}, rel=1e-9)
