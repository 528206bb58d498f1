"""Running text for language models, timed or trained on to a result.                                      [torch]

    a published text in windows of 4 tokens     0 1 2 3 | 4 5 6 7 | 8 9        read without overlap
    what each is to say                         1 2 3 4 | 5 6 7 8 | 9 .  .     every token but the first, once

A training validates and tests on the published texts; nothing of the training text is held out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import wikitext2
from scaling_study.workloads.feed import Batch, Data, Feed, HeldOut, Metrics, found, random_batches, sent, to_train_on
from scaling_study.workloads.workload import Chain, autocast


@dataclass(frozen=True)
class Corpus:
    """A published data set of running text as numbers of tokens, (n,) uint16."""

    name: str
    tokens: Callable[[], np.ndarray]  # of the training text; raises NoData
    held_out: Callable[[], Mapping[str, np.ndarray]]  # {"validation": ..., "test": ...}; raises NoData
    vocabulary: int  # the numbers are below


def text_data(trial: Trial, ranks: Ranks, length: int, corpus: Corpus) -> Data:
    """This rank's share of a corpus: batches of (tokens, the ones after them), (batch, length) int64 each.

    `data: auto` falls back to synthetic data by name, never silently; a training to a result has no such. Raises
    SystemExit.
    """
    batch, held_out = trial.batch_per_worker, None
    ids: np.ndarray | None
    if trial.trained:
        ids, texts = to_train_on(trial, lambda: (corpus.tokens(), corpus.held_out()))
        source, held_out = corpus.name, held_out_text(ids, texts, length, trial, ranks)
    else:
        ids, source = found(trial, corpus.name, corpus.tokens, "WikiText-2 not found")
    if ids is None:
        feed = Feed(wikitext2.in_order(ranks, batch, length), synthetic(trial, ranks, length, corpus.vocabulary))
    else:
        feed = wikitext2.feed(ids, ranks, batch, length)
    count = wikitext2.TOKENS if ids is None else len(ids)
    return Data(feed, source, wikitext2.windows_per_epoch(ranks.world_size * batch, length, count), held_out)


def synthetic(trial: Trial, ranks: Ranks, length: int, vocabulary: int) -> Callable[[torch.Tensor], Batch]:
    """Seeded random tokens, each sample a text of its own."""

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(vocabulary, (samples, length + 1), generator=generator).to(ranks.device)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return random_batches(trial, ranks, drawn)


def language_loss(trial: Trial, ranks: Ranks) -> Callable[[nn.Module, Batch], torch.Tensor]:
    """Mean cross-entropy of a model's scores for (tokens, targets), in the trial's precision and label smoothing."""
    smoothing = trial.train_label_smoothing or 0.0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, targets = batch  # (batch_per_worker, length) int64 twice
        with autocast(ranks.device, trial.precision):
            return cross_entropy(model(tokens), targets, smoothing)

    return loss


def language_chain(trial: Trial, layers: Callable[[Any], Mapping[str, nn.Module]]) -> Callable[[nn.Module], Chain]:
    """`Workload.chain` of a model with language_loss(). `layers`: its own, by name."""
    loss = partial(cross_entropy, label_smoothing=trial.train_label_smoothing or 0.0)
    return lambda model: Chain(layers(model), loss=loss)


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Mean over all tokens: scores (batch, length, vocabulary), targets (batch, length)."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=label_smoothing)


IGNORED = -100  # in the place of a token that is not to be said; cross_entropy's own
EVALUATED_TOKENS = 2_048  # at once: 28,782 to 50,257 scores each are some 0.4 GB in fp32
# Shorter passages are in two texts by chance, or since two articles have a sentence in common: 193 of 30,233 windows
# of 8 words of WikiText-2's test text are somewhere in the training text. The longest passage there has 54 words.
PASSAGE = 64


def held_out_text(
    train: np.ndarray, held_out: Mapping[str, np.ndarray], length: int, trial: Trial, ranks: Ranks
) -> HeldOut:
    """`train`, and `held_out` by split: numbers of tokens, (n,) each; `length`: tokens of a window."""
    texts = {split: torch.from_numpy(ids.astype(np.int64)).to(ranks.device) for split, ids in held_out.items()}
    sizes = {split: windows(len(text), length) for split, text in texts.items()}
    places = torch.arange(length + 1, device=ranks.device)

    def fetch(split: str, chosen: torch.Tensor) -> Batch:
        text = texts[split]
        at = sent(chosen * length, ranks.device)[:, None] + places
        tokens = text[at.clamp(max=len(text) - 1)]
        return tokens[:, :-1], tokens.masked_fill(at >= len(text), IGNORED)[:, 1:]

    return HeldOut(
        sizes=sizes,
        fetch=fetch,
        metrics=lambda: language(ranks.device),
        update=lambda metrics, model, batch, real: score(metrics, model, batch, real, ranks, trial),
        batch=max(1, EVALUATED_TOKENS // length),
        published={split: {split: size} for split, size in {"train": windows(len(train), length), **sizes}.items()},
        in_both=in_both({"train": train, **held_out}, length),
    )


def windows(tokens: int, length: int) -> int:
    """Windows of `length` that say every token of a text but the first; the last may have fewer."""
    return -(-(tokens - 1) // length)


def language(device: torch.device) -> Metrics:
    """Mean cross-entropy over tokens and e to it, of sums in fp64."""
    from scaling_study.workloads.metrics import Mean, Perplexity

    return {"loss": Mean(device), "perplexity": Perplexity(device)}


def score(metrics: Metrics, model: nn.Module, batch: Batch, real: torch.Tensor, ranks: Ranks, trial: Trial) -> None:
    """Add the loss of each token of those windows that `real`, (b,) bool, names."""
    tokens, targets = batch  # (b, length) int64 twice
    with autocast(ranks.device, trial.precision):
        scores = model(tokens).flatten(0, 1)  # (b x length, vocabulary)
    targets = targets.masked_fill(~real[:, None], IGNORED).flatten()
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    losses = F.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORED)
    for metric in metrics.values():
        metric.update(losses[targets != IGNORED].double())


def in_both(texts: Mapping[str, np.ndarray], length: int) -> dict[str, int]:
    """`{"train/validation": 6, ...}`: how many windows of the latter text are anywhere in the former.

    A window of fewer than PASSAGE tokens counts with the tokens that follow it.
    """
    passage = max(length, PASSAGE)
    marks = {split: passages(text, passage) for split, text in texts.items()}
    return {f"{a}/{b}": _shared(marks[a], marks[b][::length]) for a, b in itertools.combinations(texts, 2)}


def passages(text: np.ndarray, length: int) -> np.ndarray:
    """(n - length + 1,) uint64 of (n,) numbers below 65,536: equal where the `length` tokens from there on are.

    Polynomials modulo 2^64 in random numbers that stand for the tokens; of a long text 30 ms.
    """
    if len(text) < length:
        return np.zeros(0, np.uint64)
    base = 6_364_136_223_846_793_005  # odd, so that it has an inverse
    code = np.random.default_rng(0).integers(2**64, size=2**16, dtype=np.uint64)
    sums = np.zeros(len(text) + 1, np.uint64)
    sums[1:] = np.cumsum(code[text] * _powers(base, len(text)))  # wraps, as it should
    marks: np.ndarray = (sums[length:] - sums[:-length]) * _powers(pow(base, -1, 2**64), len(text) - length + 1)
    return marks


def _powers(base: int, count: int) -> np.ndarray:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)


def _shared(text: np.ndarray, windows: np.ndarray) -> int:
    """How many of a few marks are among many."""
    known = np.unique(windows)
    if not len(known):
        return 0
    at = np.searchsorted(known, text).clip(max=len(known) - 1)
    return int(np.isin(windows, known[at[known[at] == text]]).sum())
