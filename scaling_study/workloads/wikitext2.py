"""WikiText-2: its words or byte pairs numbered once, read in columns; timed, or trained on to a result.     [torch]

    the text in 3 columns, read 4 words at a time: sample id = window x 3 + column

      column 0    0  1  2  3 |  4  5  6  7 |  8         targets are one word further on:
      column 1    9 10 11 12 | 13 14 15 16 | 17         sample 0 reads 0 1 2 3 and is to say 1 2 3 4
      column 2   18 19 20 21 | 22 23 24 25 | 26
                   window 0      window 1

Good articles of Wikipedia, whose rare words are <unk> (Merity et al., arXiv 1609.07843), cut into words by the rules of
torchtext's basic_english. The text is read as it runs, in the same order every epoch, each rank its own columns.

GPT-2's own vocabulary of byte pairs is a download; one of its kind is trained on the text itself (Radford et al., 2019;
Sennrich et al., arXiv 1508.07909), the same on every machine, and smaller than 50,257 where the text has no more pairs
that occur twice. Nothing that a model is judged by has a part in how it reads.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from scaling_study import datasets
from scaling_study.datasets import (
    NoData,
    fetch_archive,
    packed,
    packed_held_out,
    packed_wikitext2,
    packed_wikitext2_bpe,
    wikitext2_file,
)
from scaling_study.models import PAIR_VOCABULARY
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, Data, Feed, HeldOut, Metrics, found, random_batches, sent, to_train_on
from scaling_study.workloads.workload import autocast

# Exact for the training text with rare words as <unk> (not the "raw" one), with nothing put in for the ends of lines,
# and <unk>, which the text itself has, counted once.
TOKENS, VOCABULARY = 2_049_990, 28_782
UNKNOWN = "<unk>"
TEXT = "tokens.npy"  # of a pack

ARCHIVE, MEMBER = "https://wikitext.smerity.com/wikitext-2-v1.zip", "wikitext-2/wiki.train.tokens"
HELD_OUT = ("wikitext-2/wiki.valid.tokens", "wikitext-2/wiki.test.tokens")  # members too, needed to train to a result

# What basic_english does to characters: these are words of their own, and those part words and are gone.
_APART = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | dict.fromkeys(";:", " "))


def words(text: str) -> list[str]:
    """Lower-cased words and punctuation marks, by the rules of torchtext's basic_english.

    A double quote is dropped and parts nothing: `say"ing` is one word.
    """
    return text.lower().replace('"', "").replace("<br />", " ").translate(_APART).split()


def vocabulary(text: list[str]) -> list[str]:
    """Every word once, as torchtext numbers them: <unk> is 0, then the most frequent first, equals by alphabet."""
    counts = Counter(text)
    counts.pop(UNKNOWN, None)
    return [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))]


def tokens() -> np.ndarray:
    """The training text as numbers of words, (2049990,) uint16; downloads it if it is not there.

    Raises NoData if it can neither be found nor downloaded, SystemExit if it is there but damaged.
    """
    file = training_text()

    def write(half: Path, made: tuple[np.ndarray, list[str]]) -> None:
        np.save(half / TEXT, made[0])
        (half / "vocabulary.txt").write_text("\n".join(made[1]), encoding="utf-8")

    made = packed(packed_wikitext2(), lambda: _numbered(file), write)
    return made[0] if made else mapped(packed_wikitext2() / TEXT)


def mapped(file: Path) -> np.ndarray:
    """The numbers that a file of a pack holds, (n,) uint16."""
    kept: np.ndarray = np.load(file, mmap_mode="r")
    return kept


def training_text() -> Path:
    """The file of the training text, downloaded if it is not there. Raises NoData, SystemExit."""
    return wikitext2_file() or fetch_archive("wikitext2", "WikiText-2", ARCHIVE, (MEMBER, *HELD_OUT))


def _numbered(file: Path) -> tuple[np.ndarray, list[str]]:
    """(the text as numbers, the words they stand for). Raises SystemExit if it is another text."""
    text = words(_read(file))
    known = vocabulary(text)
    if (len(text), len(known)) != (TOKENS, VOCABULARY):
        said = f"{len(text):,} words, {len(known):,} of them different, not {TOKENS:,} and {VOCABULARY:,}"
        raise _damaged(f"WikiText-2 in {file}", said)
    number = {word: index for index, word in enumerate(known)}
    return np.fromiter((number[word] for word in text), dtype=np.uint16, count=len(text)), known


def windows_per_epoch(columns: int, length: int, text: int | None = None) -> int:
    """Whole windows of `length` words that the columns have, a word to predict after each included.

    `text`: how many words it has; without it, WikiText-2's.

    At 20 columns and 35 words: 2,928. Published was 2,929, with a last one of 18 words: half a step is left out, so
    that all steps are alike.
    """
    return ((text or TOKENS) // columns - 1) // length


def in_order(ranks: Ranks, batch: int, length: int, text: int | None = None) -> Iterator[torch.Tensor]:
    """Endless batches of sample ids, (batch,): window by window, this rank's columns. Raises SystemExit.

    `text`: how many words it has; without it, WikiText-2's.
    """
    columns = ranks.world_size * batch
    windows = windows_per_epoch(columns, length, text)
    if windows < 1:
        height = (text or TOKENS) // columns
        raise SystemExit(
            f"{columns} columns of {height} words have no window of {length}: lower --batch-per-worker "
            f"({batch}), the number of workers ({ranks.world_size}) or --sequence-length"
        )
    own = torch.arange(ranks.rank * batch, (ranks.rank + 1) * batch)
    while True:
        for window in range(windows):
            yield window * columns + own


def feed(ids: np.ndarray, ranks: Ranks, batch: int, length: int) -> Feed:
    """For each (batch,) of sample ids: words and the ones after them, (batch, length) int64 each."""
    text = torch.from_numpy(ids.astype(np.int64)).to(ranks.device)  # 16 MB once, and no copy in the step
    columns = ranks.world_size * batch
    height = len(text) // columns
    places = torch.arange(length, device=ranks.device)

    def fetch(samples: torch.Tensor) -> Batch:
        window, column = samples // columns, samples % columns
        chosen = sent(column * height + window * length, ranks.device)[:, None] + places
        return text[chosen], text[chosen + 1]

    return Feed(in_order(ranks, batch, length, len(text)), fetch)


END = "<|endoftext|>"  # GPT-2's one special token


def pair_tokens(vocabulary: int = PAIR_VOCABULARY) -> np.ndarray:
    """The training text as numbers of byte pairs, (n,) uint16; downloads it if it is not there.

    Some 2.2 million by GPT-2's number of pairs, more by fewer.

    Raises NoData if it can neither be found nor downloaded, SystemExit if it is there but damaged.
    """
    file, folder = training_text(), packed_wikitext2_bpe(vocabulary)

    def write(half: Path, made: tuple[np.ndarray, Any]) -> None:
        np.save(half / TEXT, made[0])
        made[1].save(str(half / "tokenizer.json"))

    if not folder.is_dir():
        tokens()  # stops where the text is not whole
    made = packed(folder, lambda: encoded_pairs(file, vocabulary), write)
    return made[0] if made else mapped(folder / TEXT)


def encoded_pairs(file: Path, vocabulary: int = PAIR_VOCABULARY) -> tuple[np.ndarray, Any]:
    """(the text as numbers, uint16; the tokenizer that was trained on it)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = file.read_text(encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return np.array(pairs(text, tokenizer), dtype=np.uint16), tokenizer


def pairs(text: str, tokenizer: Any) -> list[int]:
    """A text as numbers of byte pairs, line by line."""
    return [id for encoding in tokenizer.encode_batch(text.splitlines(keepends=True)) for id in encoding.ids]


WORDS = {"validation": 214_417, "test": 241_859}  # exact, as TOKENS is
Encode = Callable[[str], Sequence[int]]


def held_out_words() -> dict[str, np.ndarray]:
    """{"validation": numbers of words, "test": numbers of words}, (n,) uint16 each.

    Raises NoData if one of them is not there, SystemExit if it is damaged.
    """
    tokens()  # so that its pack is there, if it can be
    return _texts(packed_wikitext2(), _by_words)


def held_out_pairs(vocabulary: int = PAIR_VOCABULARY) -> dict[str, np.ndarray]:
    """{"validation": ..., "test": ...} as numbers of byte pairs, (n,) uint16 each. Raises as `held_out_words`."""
    pair_tokens(vocabulary)
    return _texts(packed_wikitext2_bpe(vocabulary), partial(_by_pairs, vocabulary=vocabulary))


def _texts(pack: Path, encoder: Callable[[Path], Encode]) -> dict[str, np.ndarray]:
    files = datasets.wikitext2_held_out()
    for split, names in datasets.WIKITEXT2_HELD_OUT.items():
        if split not in files:
            raise NoData(
                f"WikiText-2 has no {split} text ({' or '.join(names)}) beside {datasets.wikitext2_file()}, and what "
                f"is trained to a result is evaluated on it: unpack {ARCHIVE} there"
            )
    folder = packed_held_out(pack, list(files.values()))

    def make() -> dict[str, np.ndarray]:
        encode = encoder(pack)
        return {split: np.array(encode(_held_out(file, split)), dtype=np.uint16) for split, file in files.items()}

    def write(half: Path, texts: Mapping[str, np.ndarray]) -> None:
        for split, ids in texts.items():
            np.save(half / f"{split}.npy", ids)

    return packed(folder, make, write) or {split: mapped(folder / f"{split}.npy") for split in files}


def _held_out(file: Path, split: str) -> str:
    text = _read(file)
    if (count := len(words(text))) != WORDS[split]:
        raise _damaged(f"WikiText-2's {split} text in {file}", f"{count:,} words, not {WORDS[split]:,}")
    return text


def _read(file: Path) -> str:
    """The text of a file; empty where that is none."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _damaged(what: str, why: str) -> SystemExit:
    return SystemExit(
        f"{what} is damaged, incomplete or its raw variant ({why}): remove it and download it again, or point "
        "DATA_ROOT at a whole copy"
    )


def _by_words(pack: Path) -> Encode:
    kept = pack / "vocabulary.txt"
    known = kept.read_text(encoding="utf-8").split("\n") if kept.is_file() else _numbered(training_text())[1]
    number = {word: index for index, word in enumerate(known)}
    unknown = number[UNKNOWN]
    return lambda text: [number.get(word, unknown) for word in words(text)]


def _by_pairs(pack: Path, vocabulary: int) -> Encode:
    from tokenizers import Tokenizer

    kept = pack / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(kept)) if kept.is_file() else encoded_pairs(training_text(), vocabulary)[1]
    return lambda text: pairs(text, tokenizer)


def text_data(trial: Trial, ranks: Ranks, length: int, byte_pairs: int = 0) -> Data:
    """This rank's share of the text: batches of (tokens, the ones after them), (batch, length) int64 each.

    Tokens are words, or byte pairs of `byte_pairs` kinds. `data: auto` falls back to synthetic data by name, never
    silently; a training to a result has no such. Raises SystemExit.
    """
    name, vocabulary = ("wikitext2_bpe", byte_pairs) if byte_pairs else ("wikitext2", VOCABULARY)
    read: Callable[[], np.ndarray] = tokens
    read_held_out: Callable[[], dict[str, np.ndarray]] = held_out_words
    if byte_pairs:
        read, read_held_out = partial(pair_tokens, byte_pairs), partial(held_out_pairs, byte_pairs)
    batch, held_out = trial.batch_per_worker, None
    ids: np.ndarray | None
    if trial.trained:
        ids, texts = to_train_on(trial, lambda: (read(), read_held_out()))
        source, held_out = name, held_out_text(ids, texts, length, trial, ranks)
    else:
        ids, source = found(trial, name, read, "WikiText-2 not found")
    if ids is None:
        batches = Feed(in_order(ranks, batch, length), synthetic(trial, ranks, length, vocabulary))
    else:
        batches = feed(ids, ranks, batch, length)
    count = TOKENS if ids is None else len(ids)
    return Data(batches, source, windows_per_epoch(ranks.world_size * batch, length, count), held_out)


def synthetic(trial: Trial, ranks: Ranks, length: int, vocabulary: int) -> Callable[[torch.Tensor], Batch]:
    """Seeded random tokens, each sample a text of its own."""

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(vocabulary, (samples, length + 1), generator=generator).to(ranks.device)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return random_batches(trial, ranks, drawn)


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Mean over all tokens: scores (batch, length, vocabulary), targets (batch, length)."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=label_smoothing)


IGNORED = -100  # in the place of a token that is not to be said; cross_entropy's own
EVALUATED_TOKENS = 2_048  # at once: 28,782 to 128,256 scores each are up to 1 GB in fp32
# Shorter passages are in two texts by chance, or since two articles have a sentence in common: 193 of 30,233 windows
# of 8 words of WikiText-2's test text are somewhere in the training text. The longest passage there has 54 words.
PASSAGE = 64


def held_out_text(
    train: np.ndarray, held_out: Mapping[str, np.ndarray], length: int, trial: Trial, ranks: Ranks
) -> HeldOut:
    """The published texts, each token of which but the first is to be said once, in windows without overlap.

    `train`, and `held_out` by split: numbers of tokens, (n,) each; `length`: tokens of a window."""
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
