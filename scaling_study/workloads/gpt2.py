"""GPT-2 on WikiText-2: which token comes next? The language model that people compare by.                 [torch]

    (batch, 1024) tokens --embed, + positions--> (batch, 1024, 768) --12 x block--> norm --embedding's rows--> scores

    model        layers  heads  width  parameters    of the multiplications, at 1,024 tokens
    gpt2           12      12     768  124,439,808   27 % scores, 6.1 % each block
    gpt2_tiny       2       2      64    3,382,080   for tests

transformers' own GPT2Model from its configuration, with random weights (Radford et al., 2019). Scores are products with
the rows of the embedding: one tensor, which a model cut into stages has on its first and its last. AdamW (betas 0.9 and
0.95, weight decay 0.1) at 6e-4: the settings of the reproductions that people compare by.

Three keys change kernels and bytes, and nothing of what is computed:

    gelu: tanh             one kernel in place of transformers' formula, written out operation by operation
    vocabulary: 50304      rows of zeros after the tokens': a multiple of 128 of them in all. Their scores are -inf, so
                           that none is ever likely, and their gradients are zero
    cross_entropy: chunked scores of a few tokens at a time, never of a whole batch
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.models import PAIR_VOCABULARY
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.wikitext2 import cross_entropy, text_data
from scaling_study.workloads.workload import Workload, autocast, classifier_chain, classifier_loss

POSITIONS = 1024  # a sequence can be no longer: each place has a learned vector
SIZES: dict[str, dict[str, int]] = {
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt2_tiny": {"n_layer": 2, "n_head": 2, "n_embd": 64},
}
SEQUENCE_LENGTH = {"gpt2": POSITIONS, "gpt2_tiny": 64}
LEARNING_RATE = 6e-4
DROPOUT = 0.1
GELU = {"new": "gelu_new", "tanh": "gelu_pytorch_tanh"}  # names of transformers


def load(trial: Trial, ranks: Ranks) -> Workload:
    length = trial.sequence_length or SEQUENCE_LENGTH[trial.model]
    if length > POSITIONS:
        raise SystemExit(f"--sequence-length {length}: GPT-2 has {POSITIONS} positions")
    data = text_data(trial, ranks, length, byte_pairs=PAIR_VOCABULARY)
    asked = DROPOUT if trial.dropout is None else trial.dropout
    dropout = 0.0 if trial.find == "parity" else asked  # nothing random in what is compared
    model = GPT2(trial.model, dropout, trial.gelu or "new")
    rows = trial.vocabulary or PAIR_VOCABULARY
    padding = model.pad(rows)
    if trial.compile:
        model.chunked = torch.compiler.disable(model.chunked)  # or its loop over chunks would be unrolled

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with autocast(ranks.device, trial.precision):
            return model(*batch)  # type: ignore[no-any-return]

    return Workload.of(
        trial,
        data,
        model=model.to(ranks.device),
        loss=loss if trial.cross_entropy == "chunked" else classifier_loss(trial, ranks, cross_entropy),
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=trial.learning_rate or LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
        ),
        sample="sequence",
        tokens=lambda batch: batch[1].numel(),
        blocks=(type(model.transformer.h[0]),),
        chain=classifier_chain(trial, layers_of, cross_entropy=cross_entropy),
        reshuffles=False,
        scales_rate=False,
        padding=padding,
        notes=[f"{padding:,} zeros pad the embedding to {rows:,} rows, and are not counted"] if padding else [],
    )


class GPT2(nn.Module):
    """(b, length) tokens -> (b, length, rows of the embedding) scores of the token after each.

    With targets, (b, length): their mean cross-entropy, by chunks of tokens. GPT2LMHeadModel without its second name
    for the embedding: a list of weights by name would have it twice.
    """

    def __init__(self, size: str, dropout: float, gelu: str) -> None:
        from transformers.models.gpt2.configuration_gpt2 import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2Model

        super().__init__()
        shape: dict[str, Any] = {
            **SIZES[size],
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout),
            "n_positions": POSITIONS,
            "vocab_size": PAIR_VOCABULARY,
            "activation_function": GELU[gelu],
            "use_cache": False,
            "attn_implementation": "sdpa",
        }
        self.transformer = GPT2Model(GPT2Config(**shape))
        self.chunked: Callable[..., torch.Tensor] = chunked_cross_entropy

    def pad(self, rows: int) -> int:
        """Give the embedding so many rows, those beyond its own of zeros; the number of zeros. Drawn weights stay."""
        words = self.transformer.wte
        own, width = words.weight.shape
        if rows == own:
            return 0
        words.weight, words.num_embeddings = nn.Parameter(F.pad(words.weight.detach(), (0, 0, 0, rows - own))), rows
        beyond = torch.zeros(rows)
        beyond[own:] = -math.inf  # to be added to scores, which the kernel that makes them does in passing
        words.register_buffer("beyond", beyond, persistent=False)
        return int((rows - own) * width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        (hidden, *_) = self.transformer(tokens, return_dict=False)
        words = self.transformer.wte
        if targets is None:
            return scores(hidden, words)
        if not torch.is_grad_enabled():  # forward alone, whose FLOPs are counted
            return cross_entropy(scores(hidden, words), targets)
        return self.chunked(hidden.flatten(0, 1), words, targets.flatten())


def scores(hidden: torch.Tensor, embedding: nn.Embedding) -> torch.Tensor:
    """(b, length, width) -> (b, length, rows): how alike each place is to each token's vector; -inf beyond tokens."""
    return F.linear(hidden, embedding.weight, getattr(embedding, "beyond", None))


def chunked_cross_entropy(hidden: torch.Tensor, embedding: nn.Embedding, targets: torch.Tensor) -> torch.Tensor:
    """(n, width), (n,) int64 -> mean cross-entropy in fp32 or fp64; products are in the dtype of autocast, if any."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    beyond = getattr(embedding, "beyond", None)
    total: torch.Tensor = ChunkedCrossEntropy.apply(hidden, embedding.weight, beyond, targets, dtype)
    return total / len(targets)


ROWS = 256  # tokens of a chunk: as many as torch's own linear_cross_entropy takes of 16,384 at this width


class ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy of `F.linear(hidden, weight, bias)`, summed over tokens, ROWS of them at a time.

    hidden (n, width), weight (rows, width), bias (rows,) or None, targets (n,) int64, dtype of the products -> scalar.
    Forward makes both gradients as it goes, so that backward needs no scores (Hsu et al., arXiv 2410.10989). Loss and
    the weight's gradient add up in fp32 or fp64; torch 2.15's linear_cross_entropy adds them up in bf16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        exact, table = torch.promote_types(weight.dtype, torch.float32), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        parts = zip(hidden.to(dtype).split(ROWS), targets[:, None].split(ROWS), of_hidden.split(ROWS), strict=True)
        for rows, chosen, gradient in parts:
            found = F.linear(rows, table, bias).to(exact)
            likely = found.logsumexp(-1, keepdim=True)
            total += (likely - found.gather(-1, chosen)).sum()
            found.sub_(likely).exp_().scatter_add_(-1, chosen, torch.full_like(chosen, -1, dtype=exact))
            slope = found.to(dtype)
            gradient.copy_(slope @ table)
            of_weight += slope.T @ rows
        ctx.save_for_backward(of_hidden, of_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * above[0], of_weight * above[0], None, None, None


def layers_of(model: Any) -> dict[str, nn.Module]:
    """Embeddings, each block, norm and scores: what transformers' forward does, in the same order."""
    gpt2 = model.transformer
    blocks = {f"h.{number}": block for number, block in enumerate(gpt2.h)}
    return {"embeddings": Embeddings(gpt2.wte, gpt2.wpe, gpt2.drop), **blocks, "head": Head(gpt2.ln_f, gpt2.wte)}


class Embeddings(nn.Module):
    """(b, length) tokens -> (b, length, width)."""

    def __init__(self, words: nn.Embedding, positions: nn.Embedding, dropout: nn.Module) -> None:
        super().__init__()
        self.words, self.positions, self.dropout = words, positions, dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.words(tokens) + self.positions(places))  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, length, width) -> (b, length, vocabulary) scores."""

    def __init__(self, norm: nn.Module, embedding: nn.Embedding) -> None:
        super().__init__()
        self.norm, self.embedding = norm, embedding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scores(self.norm(x), self.embedding)
