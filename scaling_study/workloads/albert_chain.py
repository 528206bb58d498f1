"""ALBERT as a chain of layers, all of which read the mask of padding.                                  [torch]

    ids --> embeddings, mapping-in --> layer 0 --> layer 1 --> ... --> [CLS], pooler, classifier --> logits

All repeats are one layer with one set of weights (Lan et al., arXiv 1909.11942): stages that hold some of the repeats
each hold all its weights, and must train them as the one thing they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.workloads.chain import Chain


def chain(model: Any, label_smoothing: float = 0.0) -> Chain:
    """Embeddings, each repeat of the layer, head: what transformers' forward does, in the same order."""
    albert = model.albert
    (shared,) = albert.encoder.albert_layer_groups
    repeats = {f"layer.{number}": Repeat(shared) for number in range(model.config.num_hidden_layers)}
    return Chain(
        layers={
            "embeddings": Embeddings(albert.embeddings, albert.encoder.embedding_hidden_mapping_in),
            **repeats,
            "head": Head(albert.pooler, albert.pooler_activation, model.dropout, model.classifier),
        },
        inputs=lambda batch: batch[0],
        target=lambda batch: batch[2],
        loss=partial(F.cross_entropy, label_smoothing=label_smoothing),
        extras=lambda batch: {"mask": as_attention_takes_it(batch[1])},
    )


def as_attention_takes_it(mask: torch.Tensor) -> torch.Tensor:
    """(batch, width) 1 for a token, 0 for padding -> (batch, 1, 1, width) bool, over all heads and queries.

    transformers would look at a flat one on the host, to see whether there is anything to mask: a wait for the GPU in
    every step, and less work where there is not. Of this shape it is taken as it is.
    """
    return mask[:, None, None, :].bool()


class Embeddings(nn.Module):
    """(b, width) token ids -> (b, width, hidden)."""

    def __init__(self, embeddings: nn.Module, mapping_in: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.mapping_in = embeddings, mapping_in

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.mapping_in(self.embeddings(ids))  # type: ignore[no-any-return]


class Repeat(nn.Module):
    """(b, width, hidden) -> the same: one more pass through the layer that all repeats share."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.shared(x, mask)  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, width, hidden) -> (b, 2) logits, from the first token only."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x[:, 0])  # type: ignore[no-any-return]
