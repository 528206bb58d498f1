"""Llama on WikiText-2: the decoder that people train now, by its published shapes, with random weights.    [torch]

    (batch, length) tokens --embed--> (batch, length, width) --layers x block--> norm --output--> scores

    block    x + attention(norm(x))      rotary positions; `kv_heads` heads of keys and values, each for several queries
             x + w2(silu(w1(norm(x))) * w3(norm(x)))

    model           layers  heads  kv  width  feed-forward     parameters    scores by
    llama_tiny           2      4   2     64           192        164,160    a matrix of their own; for tests
    smollm2_135m        30      9   3    576         1,536    134,515,008    the embedding's rows
    llama_3_2_1b        16     32   8  2,048         8,192  1,235,814,400    the embedding's rows
    llama_3_1_8b        32     32   8  4,096        14,336  8,030,261,248    a matrix of their own

Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783; Allal et al., arXiv 2502.02737. It computes what
transformers' LlamaForCausalLM does, on plain torch: projections are nn.Linear, which tensor parallelism can cut.
Shapes and the formulas of parameters and FLOPs are in models.py. AdamW as in the first paper.

The text is cut into byte pairs by a tokenizer trained on it, with as many entries as the model has tokens, 50,257 at
most: Meta's own and SmolLM2's are downloads. Losses can be compared between models of equal vocabularies only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.models import MODELS, PAIR_VOCABULARY, Decoder
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.wikitext2 import cross_entropy, text_data
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss

LEARNING_RATE = 3e-4
EPSILON = 1e-5  # of the norms


def load(trial: Trial, ranks: Ranks) -> Workload:
    shape = MODELS[trial.model].decoder
    assert shape, "models.py gives each of these models its shape"
    length = trial.sequence_length or shape.length
    if length > shape.positions:
        raise SystemExit(f"--sequence-length {length}: {trial.model} has {shape.positions} positions")
    known = min(shape.vocabulary, PAIR_VOCABULARY)
    beyond = f"the text has no more than {known:,} of the model's {shape.vocabulary:,} tokens"
    return Workload.of(
        trial,
        text_data(trial, ranks, length, byte_pairs=known),
        model=Llama(shape).to(ranks.device),
        loss=classifier_loss(trial, ranks, cross_entropy),
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=trial.learning_rate or LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
        ),
        sample="sequence",
        tokens=lambda batch: batch[1].numel(),
        blocks=(Block,),
        chain=classifier_chain(trial, layers_of, cross_entropy=cross_entropy),
        reshuffles=False,
        scales_rate=False,
        notes=[beyond] if known < shape.vocabulary else [],
    )


class Rotary:
    """Where tokens stand, as angles by which pairs of numbers are turned (Su et al., arXiv 2104.09864). No buffers.

    One for all blocks of a model: its `positions`, (length,), are set where a rank has a part of each sequence; None
    stands for 0, 1, ..., length - 1. A `rope_factor` stretches slow turns as Llama 3.1 does, to read more than the
    8,192 tokens of its first training: of waves that these hold four times or more nothing, of those that they do not
    hold once all, and linearly between (transformers' rope_type "llama3").
    """

    TRAINED_ON, SLOW, FAST = 8192, 1.0, 4.0

    def __init__(self, shape: Decoder) -> None:
        self.half, self.theta, self.factor = shape.head_dim // 2, shape.rope_theta, shape.rope_factor
        self.positions: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, heads, length, head_dim) -> cosine and sine of its angles, (length, head_dim / 2), in fp32 or fp64.

        Made on the device in each call: constants of the host would be waited for.
        """
        exponents = torch.arange(self.half, device=x.device, dtype=torch.float64) / -self.half
        turns = self.theta**exponents  # radians from one token to the next
        if self.factor > 1:
            waves = self.TRAINED_ON / (2 * math.pi) * turns
            stays = ((waves - self.SLOW) / (self.FAST - self.SLOW)).clamp(0, 1)
            turns = turns * (stays + (1 - stays) / self.factor)
        exact = torch.promote_types(x.dtype, torch.float32)
        places = torch.arange(x.shape[2], device=x.device) if self.positions is None else self.positions
        angles = torch.outer(places.to(exact), turns.to(exact))
        return angles.cos(), angles.sin()


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """(b, heads, length, head_dim) -> the same, number i turned with number i + head_dim / 2; exact until the end."""
    first, second = x.to(cosine.dtype).chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


class Attention(nn.Module):
    """(b, length, width) -> the same: each token looks at itself and those before it, by grouped queries.

    `wq` has width x heads x head_dim weights, `wk` and `wv` width x kv_heads x head_dim. Of each, a rank may hold the
    columns of some heads only: as many as there are numbers.
    """

    def __init__(self, shape: Decoder, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.wq = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.wk = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.wv = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)
        self.rotary = rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (self.wq(x), self.wk(x), self.wv(x)))
        angles = self.rotary(q)
        attended = self.attend(turned(q, *angles), turned(k, *angles), v)
        return self.wo(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q (b, heads, length, head_dim), k and v (b, kv_heads, length, head_dim) -> as q.

        Where torch has no flash kernel that groups queries (CPUs, fp32), keys and values are repeated for each.
        """
        grouped = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
        if not grouped:
            k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], dim=1) for y in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


class FeedForward(nn.Module):
    """(b, length, width) -> the same, through a gated layer (SwiGLU: Shazeer, arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)  # the gate
        self.w2 = nn.Linear(hidden, width, bias=False)  # down
        self.w3 = nn.Linear(width, hidden, bias=False)  # up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """(b, length, width) -> the same."""

    def __init__(self, shape: Decoder, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, EPSILON)
        self.attention = Attention(shape, rotary)
        self.ffn_norm = nn.RMSNorm(shape.width, EPSILON)
        self.feed_forward = FeedForward(shape.width, shape.feed_forward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


OUTPUT, EMBEDDING = "output.weight", "tok_embeddings.weight"


class Llama(nn.Module):
    """(b, length) tokens -> (b, length, vocabulary) scores of the token after each.

    Where scores are products with the embedding's rows, `output` and `tok_embeddings` share one parameter, which a
    state_dict has once, under the embedding's name.
    """

    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        self.rotary = Rotary(shape)
        self.tok_embeddings = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape, self.rotary) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, EPSILON)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.output.weight = self.tok_embeddings.weight
            self.register_state_dict_post_hook(_leave_out)
            self.register_load_state_dict_pre_hook(_fill_in)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=shape.spread)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))  # type: ignore[no-any-return]


def _leave_out(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state.pop(prefix + OUTPUT, None)


def _fill_in(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    if prefix + EMBEDDING in state:
        state.setdefault(prefix + OUTPUT, state[prefix + EMBEDDING])


def layers_of(model: Any) -> dict[str, nn.Module]:
    """Embedding, each block, and norm with scores."""
    blocks = {f"layers.{number}": block for number, block in enumerate(model.layers)}
    return {"tok_embeddings": model.tok_embeddings, **blocks, "head": nn.Sequential(model.norm, model.output)}
