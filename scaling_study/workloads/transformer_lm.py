"""A language model on WikiText-2: which word comes next? As the published pipeline study trained it.   [torch]

    (batch, 35) words --embed x sqrt(width), + positions--> (batch, 35, width) --n x layer--> --decode--> 28,782 scores

    model                     layers  width  heads  feed-forward   parameters      of the multiplications
    transformer_lm               2     200      2        200       12,025,582    92 % decoder, 4 % each layer
    transformer_lm_deep         12     384      6       1536       43,426,926    34 % decoder, 5.5 % each layer
    transformer_lm_unmasked      as transformer_lm, but every word sees the ones it is to predict (F10)

transformer_lm is the published model: torch's own encoder layers (Vaswani et al., arXiv 1706.03762). Its decoder is
nine tenths of the work: no cut into stages is faster than 1 / 0.92 = 1.09 x one worker; over 10 x was published (F9).
The deep one, made here, has something to cut. Published: 20 columns of 35 words, SGD at 5.0 x workers under gradients
clipped at a norm of 0.5. Its decay by 0.95 an epoch is left out: it changes nothing before the second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import wikitext2
from scaling_study.workloads.wikitext2 import cross_entropy, text_data
from scaling_study.workloads.workload import ClippedSGD, Workload, classifier_chain, classifier_loss

SEQUENCE_LENGTH = 35  # published, as bptt
DROPOUT = 0.2
CLIP = 0.5  # published, and needed: at this rate without it the loss is no number after eight steps
WEIGHTS = 0.1  # embedding and decoder start uniform in +- this
UNMASKED = "NO CAUSAL MASK, as published (F10): every word sees the ones it is to predict. Its losses mean nothing"


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    feed_forward: int
    causal: bool = True
    learning_rate: float = 5.0  # x workers; published for transformer_lm


SIZES = {
    "transformer_lm": Size(layers=2, width=200, heads=2, feed_forward=200),
    "transformer_lm_deep": Size(layers=12, width=384, heads=6, feed_forward=1536, learning_rate=0.5),
    "transformer_lm_unmasked": Size(layers=2, width=200, heads=2, feed_forward=200, causal=False),
}


def load(trial: Trial, ranks: Ranks) -> Workload:
    size, length = SIZES[trial.model], trial.sequence_length or SEQUENCE_LENGTH
    rate = trial.learning_rate or size.learning_rate * ranks.world_size
    dropout = 0.0 if trial.find == "parity" else DROPOUT  # nothing random in what is compared
    data = text_data(trial, ranks, length)
    return Workload.of(
        trial,
        data,
        model=TransformerLM(size, length, dropout).to(ranks.device),
        loss=classifier_loss(trial, ranks, cross_entropy),
        optimizer=lambda parameters: ClippedSGD(parameters, rate, CLIP),
        sample="sequence",
        tokens=lambda batch: batch[1].numel(),
        blocks=(Layer,),
        chain=classifier_chain(trial, layers_of, cross_entropy=cross_entropy),
        reshuffles=False,
        notes=[] if size.causal else [UNMASKED],
    )


class TransformerLM(nn.Module):
    """(b, length) words -> (b, length, 28782) scores of the word after each."""

    def __init__(self, size: Size, length: int, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(size.width, length, dropout)
        self.layers = nn.ModuleList(Layer(size, dropout) for _ in range(size.layers))
        self.decoder = nn.Linear(size.width, wikitext2.VOCABULARY)
        nn.init.uniform_(self.decoder.weight, -WEIGHTS, WEIGHTS)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.decoder(x)  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """(b, length) words -> (b, length, width): what each is and where it stands."""

    positions: torch.Tensor

    def __init__(self, width: int, length: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(wikitext2.VOCABULARY, width)
        nn.init.uniform_(self.words.weight, -WEIGHTS, WEIGHTS)
        angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
        sines = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (length, width): sine, cosine, sine, ...
        self.register_buffer("positions", sines, persistent=False)
        self.scale = math.sqrt(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.words(words) * self.scale + self.positions[: words.shape[1]])  # type: ignore[no-any-return]


class Layer(nn.TransformerEncoderLayer):
    """torch's encoder layer, (b, length, width) -> the same, with a causal mask if the size has one."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__(size.width, size.heads, size.feed_forward, dropout, batch_first=True)
        self.causal = size.causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if not self.causal:
            return super().forward(x)
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)  # cast to x's dtype by torch
        return super().forward(x, src_mask=later, is_causal=True)


def layers_of(model: Any) -> dict[str, nn.Module]:
    """Embedding, each layer, decoder."""
    layers = {f"layers.{number}": layer for number, layer in enumerate(model.layers)}
    return {"embedding": model.embedding, **layers, "decoder": model.decoder}
