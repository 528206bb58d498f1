"""Every sample of a split counts once, whatever the number of ranks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.train.evaluate import evaluate
from scaling_study.workloads.held_out import HeldOut
from scaling_study.workloads.trained_images import classification

SAMPLES = 10_000


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
    group, copies = Group(size), [deepcopy(model) for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        answers = list(
            pool.map(
                lambda rank: evaluate(held_out, "test", WorkloadOf(copies[rank]), None, group.ranks(rank)), range(size)
            )
        )
    model.eval()
    outputs = model(inputs)
    assert sorted(seen) == list(range(SAMPLES))
    for answer in answers:
        assert answer["samples"] == SAMPLES
        assert answer["accuracy"] == pytest.approx((outputs.argmax(1) == labels).double().mean().item(), abs=1e-12)
        assert answer["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item(), rel=1e-12)
