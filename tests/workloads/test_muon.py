"""Muon of hidden matrices and AdamW of everything else: torch's own two, side by side."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from old_torch import skip_if_too_old_for
from torch import nn

from scaling_study.trial import Trial
from scaling_study.workloads.workload import MuonAndAdamW, by_kind, outer_layers, recipe

MUON = Trial(train_steps=3, train_optimizer="muon", learning_rate=0.01, train_weight_decay=0.1)


class Tokens(nn.Module):
    """(b,) tokens -> (b, 7) scores."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.norm, self.scores = (
            nn.Embedding(7, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 7),
        )  # fmt: skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(self.hidden(self.words(tokens))))  # type: ignore[no-any-return]


def made(model: nn.Module, trial: Trial = MUON) -> torch.optim.Optimizer:
    skip_if_too_old_for(trial)
    return recipe(trial, lambda parameters: torch.optim.SGD(parameters, lr=1.0), 1, model)(model.parameters())


def stepped(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[torch.Tensor]:
    model(torch.arange(7)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.fixture
def models() -> tuple[Tokens, Tokens]:
    torch.manual_seed(0)
    model = Tokens().double()
    return model, copy.deepcopy(model)


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, ours, theirs))


def test_it_steps_as_torchs_two_do(models: tuple[Tokens, Tokens]) -> None:
    ours, theirs = models
    optimizer = made(ours)
    rest = [parameter for name, parameter in theirs.named_parameters() if name != "hidden.weight"]
    settings: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    both = (
        torch.optim.Muon([theirs.hidden.weight], adjust_lr_fn="match_rms_adamw", **settings),
        torch.optim.AdamW(rest, **settings),
    )
    assert [(group["name"], len(group["params"])) for group in optimizer.param_groups] == [("muon", 1), ("adamw", 6)]
    for _ in range(3):
        assert same(stepped(ours, optimizer), stepped(theirs, *both))


def test_it_goes_on_from_its_state_and_from_its_groups(models: tuple[Tokens, Tokens]) -> None:
    """A checkpoint has the one, Horovod makes its optimiser of the other."""
    whole, resumed = models
    first = made(whole)
    assert same(stepped(whole, first), stepped(resumed, MuonAndAdamW(made(resumed).param_groups)))
    again = made(resumed)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    assert same(stepped(whole, first), stepped(resumed, again))


def test_the_last_linear_layer_and_embeddings_are_no_hidden_ones() -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 3, bias=False))
    (hidden, rest) = by_kind(model.parameters(), outer_layers(model))
    assert hidden["params"] == [model[1].weight]
    assert [p.ndim for p in rest["params"]] == [2, 1, 3, 1, 2]


def test_a_model_without_hidden_matrices_is_told_so() -> None:
    with pytest.raises(SystemExit, match="resnet18 has no hidden matrices: adamw would step all of it"):
        made(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2)))
