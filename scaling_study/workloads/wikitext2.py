"""WikiText-2, its words numbered once, and read as one long text in columns.                           [torch]

    wiki.train.tokens --read--> 2,049,990 words --number--> ids            once, kept in .cache/

    the text in 3 columns, read 4 words at a time: sample id = window x 3 + column

      column 0    0  1  2  3 |  4  5  6  7 |  8         targets are one word further on:
      column 1    9 10 11 12 | 13 14 15 16 | 17         sample 0 reads 0 1 2 3 and is to say 1 2 3 4
      column 2   18 19 20 21 | 22 23 24 25 | 26
                   window 0      window 1

Good articles of Wikipedia, whose rare words are <unk> (Merity et al., arXiv 1609.07843), cut into words by the rules of
torchtext's basic_english. A global batch has a column for each of its samples, and a step reads one window of it: the
text is read as it runs, in the same order every epoch, each rank its own columns.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import torch
from filelock import FileLock

from scaling_study.datasets import WIKITEXT2_FILES, WIKITEXT2_FOLDER, NoData, packed_wikitext2, wikitext2_file
from scaling_study.ranks import Ranks
from scaling_study.settings import data_root
from scaling_study.workloads.feed import Batch, Feed, sent

# Exact for the training text with rare words as <unk> (not the "raw" one), with nothing put in for the ends of lines,
# and <unk>, which the text itself has, counted once.
TOKENS, VOCABULARY = 2_049_990, 28_782
UNKNOWN = "<unk>"

ARCHIVE, MEMBER = "https://wikitext.smerity.com/wikitext-2-v1.zip", "wikitext-2/wiki.train.tokens"
HELD_OUT = ("wikitext-2/wiki.valid.tokens", "wikitext-2/wiki.test.tokens")  # members too, needed to train to a result
CONNECT_SECONDS = 20.0

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
    folder = packed_wikitext2()
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):  # ranks that start together wait for the first
                if not folder.is_dir():
                    _keep(folder, *_numbered(file))
        except OSError:  # a read-only checkout: slower starts, the same data
            return _numbered(file)[0]
    kept: np.ndarray = np.load(folder / "tokens.npy", mmap_mode="r")
    return kept


def training_text() -> Path:
    """The file of the training text, downloaded if it is not there. Raises NoData, SystemExit."""
    return wikitext2_file() or _download()


def vocabulary_of_training() -> list[str]:
    """The words that the numbers stand for, by their number; read anew."""
    return _numbered(training_text())[1]


def _download() -> Path:
    """Fetch the texts into DATA_ROOT, one rank of a host at a time. Raises NoData with how to get it by hand."""
    root = data_root()
    folder, name = root / WIKITEXT2_FOLDER, Path(MEMBER).name
    if folder.is_dir() and wikitext2_file() is None:  # the user's copy: do not add files to it
        raise SystemExit(f"WikiText-2 in {folder} is incomplete (none of {', '.join(WIKITEXT2_FILES)})")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(str(root / ".wikitext2.lock")):
            if not folder.is_dir():
                # Of its author's own site, which turns away what calls itself Python-urllib; the first address, on
                # Amazon's S3, is gone.
                request = Request(ARCHIVE, headers={"User-Agent": "scaling-study"})
                with urlopen(request, timeout=CONNECT_SECONDS) as answer:
                    archive = zipfile.ZipFile(io.BytesIO(answer.read()))
                texts = {member: archive.read(member) for member in (MEMBER, *HELD_OUT)}
                half = root / f".wikitext2.{os.getpid()}.tmp"
                half.mkdir()
                for member, text in texts.items():
                    (half / Path(member).name).write_bytes(text)
                half.replace(folder)
    except (OSError, HTTPException, zipfile.BadZipFile, KeyError) as error:
        raise NoData(
            f"WikiText-2 is not in {root} and could not be downloaded ({error}): unpack {ARCHIVE} there, "
            f"or set DATA_ROOT to a folder that holds {WIKITEXT2_FOLDER}/{name}"
        ) from error
    return folder / name


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


def _keep(folder: Path, ids: np.ndarray, known: list[str]) -> None:
    """Write the pack's folder beside its place, then move it there whole."""
    half = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    np.save(half / "tokens.npy", ids)
    (half / "vocabulary.txt").write_text("\n".join(known), encoding="utf-8")
    half.replace(folder)


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
