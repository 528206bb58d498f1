"""Running text for language models: real where there is some, else seeded random, always by name.         [torch]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from scaling_study.datasets import NoData
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import wikitext2
from scaling_study.workloads.feed import Batch, Feed
from scaling_study.workloads.held_out import HeldOut, to_train_on
from scaling_study.workloads.trained_text import held_out_text


@dataclass(frozen=True)
class Text:
    """Batches of (tokens, the ones after them), (batch, length) int64 each."""

    batches: Feed
    source: str  # as recorded: "wikitext2", or "synthetic (why)"
    tokens: int  # of the whole text
    held_out: HeldOut | None = None  # of what is trained to a result


@dataclass(frozen=True)
class Corpus:
    """A published data set of running text as numbers of tokens, (n,) uint16."""

    name: str
    tokens: Callable[[], np.ndarray]  # of the training text; raises NoData
    held_out: Callable[[], Mapping[str, np.ndarray]]  # {"validation": ..., "test": ...}; raises NoData
    vocabulary: int  # the numbers are below


def text_feed(trial: Trial, ranks: Ranks, length: int, corpus: Corpus) -> Text:
    """This rank's share of a corpus, in windows of `length` tokens. Raises SystemExit.

    `data: auto` falls back to synthetic data by name, never silently; what is trained to a result has no such.
    """
    batch, name, why = trial.batch_per_worker, corpus.name, "asked for"
    if trial.trained:
        return _trained(trial, ranks, length, corpus)
    if trial.data != "synthetic":
        try:
            ids = corpus.tokens()
            return Text(wikitext2.feed(ids, ranks, batch, length), name, len(ids))
        except NoData as error:
            if trial.data == name:
                raise SystemExit(f"--data {name}: {error}") from error
            why = "WikiText-2 not found"
    drawn = Feed(wikitext2.in_order(ranks, batch, length), synthetic(trial, ranks, length, corpus.vocabulary))
    return Text(drawn, f"synthetic ({why})", wikitext2.TOKENS)


def _trained(trial: Trial, ranks: Ranks, length: int, corpus: Corpus) -> Text:
    ids, held_out = to_train_on(trial, lambda: (corpus.tokens(), corpus.held_out()))
    batches = wikitext2.feed(ids, ranks, trial.batch_per_worker, length)
    return Text(batches, corpus.name, len(ids), held_out_text(ids, held_out, length, trial, ranks))


def synthetic(trial: Trial, ranks: Ranks, length: int, vocabulary: int) -> Callable[[torch.Tensor], Batch]:
    """Seeded random tokens, each sample a text of its own.

    One batch, resident on the device and read again each step. Only where every sample must be distinct
    (parity) does each id have tokens of its own.
    """

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(vocabulary, (samples, length + 1), generator=generator).to(ranks.device)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def own(ids: torch.Tensor) -> Batch:
        tokens, targets = zip(*(drawn(trial.seed * 1_000_003 + int(id), 1) for id in ids), strict=True)
        return torch.cat(tokens), torch.cat(targets)

    if trial.find == "parity":
        return own
    resident = drawn(trial.seed * 1_000_003 + ranks.rank, trial.batch_per_worker)
    return lambda ids: resident


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Mean over all tokens: scores (batch, length, vocabulary), targets (batch, length)."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=label_smoothing)
