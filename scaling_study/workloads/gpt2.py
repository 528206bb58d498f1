"""GPT-2 on WikiText-2: which token comes next? The language model that people compare by.                 [torch]

    (batch, 1024) tokens --embed, + positions--> (batch, 1024, 768) --12 x block--> norm --embedding's rows--> scores

    model        layers  heads  width  parameters    of the multiplications, at 1,024 tokens
    gpt2           12      12     768  124,439,808   27 % scores, 6.1 % each block
    gpt2_tiny       2       2      64    3,382,080   for tests

transformers' own GPT2Model from its configuration, with random weights (Radford et al., 2019). Scores are products with
the rows of the embedding: one tensor, which a model cut into stages has on its first and its last. AdamW (betas 0.9 and
0.95, weight decay 0.1) at 6e-4: the settings of the reproductions that people compare by.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import wikitext2
from scaling_study.workloads.wikitext2 import cross_entropy, text_data
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss

POSITIONS = 1024  # a sequence can be no longer: each place has a learned vector
SIZES: dict[str, dict[str, int]] = {
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt2_tiny": {"n_layer": 2, "n_head": 2, "n_embd": 64},
}
SEQUENCE_LENGTH = {"gpt2": POSITIONS, "gpt2_tiny": 64}
LEARNING_RATE = 6e-4


def load(trial: Trial, ranks: Ranks) -> Workload:
    length = trial.sequence_length or SEQUENCE_LENGTH[trial.model]
    if length > POSITIONS:
        raise SystemExit(f"--sequence-length {length}: GPT-2 has {POSITIONS} positions")
    data = text_data(trial, ranks, length, byte_pairs=True)
    model = GPT2(trial.model, dropout=trial.find != "parity")  # nothing random in what is compared

    return Workload.of(
        trial,
        data,
        model=model.to(ranks.device),
        loss=classifier_loss(trial, ranks, cross_entropy),
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=trial.learning_rate or LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
        ),
        sample="sequence",
        tokens=lambda batch: batch[1].numel(),
        blocks=(type(model.transformer.h[0]),),
        chain=classifier_chain(trial, layers_of, cross_entropy=cross_entropy),
        reshuffles=False,
        scales_rate=False,
    )


class GPT2(nn.Module):
    """(b, length) tokens -> (b, length, 50257) scores of the token after each.

    GPT2LMHeadModel without its second name for the embedding: a weight that has two names is two weights to whoever
    lists them.
    """

    def __init__(self, size: str, dropout: bool) -> None:
        from transformers.models.gpt2.configuration_gpt2 import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2Model

        super().__init__()
        off: dict[str, Any] = {} if dropout else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        shape: dict[str, Any] = {
            **SIZES[size],
            "n_positions": POSITIONS,
            "vocab_size": wikitext2.PAIR_VOCABULARY,
            "use_cache": False,
            "attn_implementation": "sdpa",
        }
        self.transformer = GPT2Model(GPT2Config(**shape, **off))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        (hidden, *_) = self.transformer(tokens, return_dict=False)
        return scores(hidden, self.transformer.wte)


def scores(hidden: torch.Tensor, embedding: nn.Embedding) -> torch.Tensor:
    """(b, length, width) -> (b, length, vocabulary): how alike each place is to each token's vector."""
    return F.linear(hidden, embedding.weight)


def layers_of(model: Any) -> dict[str, nn.Module]:
    """Embeddings, each block, norm and scores: what transformers' forward does, in the same order."""
    gpt2 = model.transformer
    blocks = {f"h.{number}": Block(block) for number, block in enumerate(gpt2.h)}
    return {"embeddings": Embeddings(gpt2.wte, gpt2.wpe, gpt2.drop), **blocks, "head": Head(gpt2.ln_f, gpt2.wte)}


class Embeddings(nn.Module):
    """(b, length) tokens -> (b, length, width)."""

    def __init__(self, words: nn.Embedding, positions: nn.Embedding, dropout: nn.Module) -> None:
        super().__init__()
        self.words, self.positions, self.dropout = words, positions, dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.words(tokens) + self.positions(places))  # type: ignore[no-any-return]


class Block(nn.Module):
    """(b, length, width) -> the same: one block, without the arguments of a model that writes text."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, length, width) -> (b, length, vocabulary) scores."""

    def __init__(self, norm: nn.Module, embedding: nn.Embedding) -> None:
        super().__init__()
        self.norm, self.embedding = norm, embedding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scores(self.norm(x), self.embedding)
