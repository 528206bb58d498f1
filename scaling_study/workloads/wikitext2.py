"""WikiText-2: its words or byte pairs numbered once, read in columns, its published held-out texts.       [torch]

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

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scaling_study import datasets
from scaling_study.datasets import (
    WIKITEXT2_FILES,
    WIKITEXT2_FOLDER,
    NoData,
    fetch_archive,
    packed,
    packed_held_out,
    packed_wikitext2,
    packed_wikitext2_bpe,
    wikitext2_file,
)
from scaling_study.ranks import Ranks
from scaling_study.settings import data_root
from scaling_study.workloads.feed import Batch, Feed, sent

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


def prepare() -> None:
    """Read, number and keep it, once for the checkout. Raises NoData, SystemExit."""
    tokens()


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
    return wikitext2_file() or _download()


def _download() -> Path:
    """Fetch the texts into DATA_ROOT, one rank of a host at a time. Raises NoData with how to get it by hand."""
    folder = data_root() / WIKITEXT2_FOLDER
    if folder.is_dir() and wikitext2_file() is None:  # the user's copy: do not add files to it
        raise SystemExit(f"WikiText-2 in {folder} is incomplete (none of {', '.join(WIKITEXT2_FILES)})")
    return fetch_archive("WikiText-2", ARCHIVE, (MEMBER, *HELD_OUT), folder)


def _numbered(file: Path) -> tuple[np.ndarray, list[str]]:
    """(the text as numbers, the words they stand for). Raises SystemExit if it is another text."""
    try:
        text = words(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        text = []
    known = vocabulary(text)
    if (len(text), len(known)) != (TOKENS, VOCABULARY):
        raise SystemExit(
            f"WikiText-2 in {file} is damaged, incomplete or its raw variant ({len(text):,} words, {len(known):,} of "
            f"them different, not {TOKENS:,} and {VOCABULARY:,}): remove it and download it again, "
            "or point DATA_ROOT at a whole copy"
        )
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


PAIR_VOCABULARY = 50_257  # GPT-2's; the trained one may have fewer
END = "<|endoftext|>"  # GPT-2's one special token


def prepare_pairs() -> None:
    """Train, encode and keep it, once for the checkout. Raises NoData, SystemExit."""
    pair_tokens()


def pair_tokens() -> np.ndarray:
    """The training text as numbers of byte pairs, (about 2.2 million,) uint16; downloads it if it is not there.

    Raises NoData if it can neither be found nor downloaded, SystemExit if it is there but damaged.
    """
    file, folder = training_text(), packed_wikitext2_bpe()

    def write(half: Path, made: tuple[np.ndarray, Any]) -> None:
        np.save(half / TEXT, made[0])
        made[1].save(str(half / "tokenizer.json"))

    if not folder.is_dir():
        tokens()  # stops where the text is not whole
    made = packed(folder, lambda: encoded_pairs(file), write)
    return made[0] if made else mapped(folder / TEXT)


def encoded_pairs(file: Path) -> tuple[np.ndarray, Any]:
    """(the text as numbers, uint16; the tokenizer that was trained on it)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = file.read_text(encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PAIR_VOCABULARY,
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


def held_out_pairs() -> dict[str, np.ndarray]:
    """{"validation": ..., "test": ...} as numbers of byte pairs, (n,) uint16 each. Raises as `held_out_words`."""
    pair_tokens()
    return _texts(packed_wikitext2_bpe(), _by_pairs)


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
        return {split: np.array(encode(_read(file, split)), dtype=np.uint16) for split, file in files.items()}

    def write(half: Path, texts: Mapping[str, np.ndarray]) -> None:
        for split, ids in texts.items():
            np.save(half / f"{split}.npy", ids)

    return packed(folder, make, write) or {split: mapped(folder / f"{split}.npy") for split in files}


def _read(file: Path, split: str) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = ""
    if (count := len(words(text))) != WORDS[split]:
        raise SystemExit(
            f"WikiText-2's {split} text in {file} is damaged, incomplete or its raw variant ({count:,} words, not "
            f"{WORDS[split]:,}): remove it and download it again, or point DATA_ROOT at a whole copy"
        )
    return text


def _by_words(pack: Path) -> Encode:
    kept = pack / "vocabulary.txt"
    known = kept.read_text(encoding="utf-8").split("\n") if kept.is_file() else _numbered(training_text())[1]
    number = {word: index for index, word in enumerate(known)}
    unknown = number[UNKNOWN]
    return lambda text: [number.get(word, unknown) for word in words(text)]


def _by_pairs(pack: Path) -> Encode:
    from tokenizers import Tokenizer

    kept = pack / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(kept)) if kept.is_file() else encoded_pairs(training_text())[1]
    return lambda text: pairs(text, tokenizer)
