"""Steps that workers take together every so many of their own; two workers have gates in test_conformance.py."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scaling_study import train
from scaling_study.measure import Phase
from scaling_study.parity.reference import Apart
from scaling_study.ranks import Ranks
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

EVERY, STEPS, RATE = 3, 10, 0.1
SCRIPT = runpy.run_path(str(CHECKOUT / "data_parallel/diloco.py"), run_name="script")


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    layers[2].bias.requires_grad_(False)
    return layers


def batches() -> torch.Tensor:
    return torch.randn(STEPS, 8, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Alone:
    """One worker that meets nobody, but takes outer steps as it would with others."""

    def __init__(self, outer: str, stale: bool = False) -> None:
        self.model, self.stale = model(), stale
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        asked = Trial(framework="diloco", sync_every=EVERY, outer=outer)
        self.meetings = SCRIPT["Meetings"](self.model, asked, Ranks())

    def train(self, data: torch.Tensor) -> torch.Tensor:
        for batch in data:
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            before = [value.clone() for value in self.meetings.last]
            self.meetings.after_step(Phase(torch.device("cpu")))
            if self.stale:
                SCRIPT["put"](before, self.meetings.last)
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def state(self) -> Any:
        return train.PerRank.of(model=self.model, optimizer=self.optimizer, meetings=self.meetings)


def right(outer: str) -> torch.Tensor:
    update = Apart([model()], RATE, EVERY, outer)
    for step, batch in enumerate(batches(), 1):
        update.models[0](batch).square().mean().backward()
        update.after_backward(0)
        with torch.no_grad():
            update.after_all(step)
    return nn.utils.parameters_to_vector(update.models[0].parameters()).detach()


@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_a_worker_alone_follows_the_reference(outer: str) -> None:
    ours = Alone(outer)
    assert torch.allclose(ours.train(batches()), right(outer), rtol=1e-13, atol=0)
    assert (right("average") - right("nesterov")).abs().max() > 1e-3
    held = sum(value.numel() for value in ours.meetings.held()["outer"])
    assert held == (2 * (4 * 5 + 4 + 3 * 4) if outer == "nesterov" else 0), "of what is trained, twice"


def test_an_outer_step_on_stale_weights_is_not_what_the_reference_takes() -> None:
    assert (Alone("nesterov", stale=True).train(batches()) - right("nesterov")).abs().max() > 1e-3


@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_a_checkpoint_between_two_meetings_goes_on_to_the_next(tmp_path: Path, outer: str) -> None:
    first, data = Alone(outer), batches()
    first.train(data[:4])
    first.state().save(tmp_path, Ranks())
    again = Alone(outer)
    again.state().load(tmp_path, Ranks())
    assert again.meetings.taken == 4 and not first.state().portable
    assert again.train(data[4:]).equal(first.train(data[4:]))
