"""WikiText-2's published validation and test texts, numbered as the training text was.                  [torch]

    wiki.valid.tokens, wiki.test.tokens --the training text's words, or its byte pairs--> ids    once, kept in .cache/

Nothing that a model is judged by has a part in how it reads: a word that training never saw is <unk>, and byte pairs
are those of the tokenizer that was trained on the training text.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock

from scaling_study import datasets
from scaling_study.datasets import NoData, packed_held_out, packed_wikitext2, packed_wikitext2_bpe
from scaling_study.workloads import wikitext2, wikitext2_bpe

WORDS = {"validation": 214_417, "test": 241_859}  # exact, as wikitext2.TOKENS is
Encode = Callable[[str], Sequence[int]]


def words() -> dict[str, np.ndarray]:
    """{"validation": numbers of words, "test": numbers of words}, (n,) uint16 each.

    Raises NoData if one of them is not there, SystemExit if it is damaged.
    """
    wikitext2.tokens()  # so that its pack is there, if it can be
    return _texts(packed_wikitext2(), _by_words)


def byte_pairs() -> dict[str, np.ndarray]:
    """As words(), in byte pairs."""
    wikitext2_bpe.tokens()
    return _texts(packed_wikitext2_bpe(), _by_pairs)


def _texts(pack: Path, encoder: Callable[[Path], Encode]) -> dict[str, np.ndarray]:
    files = datasets.wikitext2_held_out()
    for split, names in datasets.WIKITEXT2_HELD_OUT.items():
        if split not in files:
            raise NoData(
                f"WikiText-2 has no {split} text ({' or '.join(names)}) beside {datasets.wikitext2_file()}, and what "
                f"is trained to a result is evaluated on it: unpack {wikitext2.ARCHIVE} there"
            )
    folder = packed_held_out(pack, list(files.values()))
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):  # ranks that start together wait for the first
                if not folder.is_dir():
                    _keep(folder, _encoded(files, encoder(pack)))
        except OSError:  # a read-only checkout: slower starts, the same data
            return _encoded(files, encoder(pack))
    return {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in files}


def _encoded(files: Mapping[str, Path], encode: Encode) -> dict[str, np.ndarray]:
    """Each text as numbers. Raises SystemExit if it is another text."""
    return {split: np.array(encode(_read(file, split)), dtype=np.uint16) for split, file in files.items()}


def _read(file: Path, split: str) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = ""
    if (count := len(wikitext2.words(text))) != WORDS[split]:
        raise SystemExit(
            f"WikiText-2's {split} text in {file} is damaged, incomplete or its raw variant ({count:,} words, not "
            f"{WORDS[split]:,}): remove it and download it again, or point DATA_ROOT at a whole copy"
        )
    return text


def _by_words(pack: Path) -> Encode:
    kept = pack / "vocabulary.txt"
    known = kept.read_text(encoding="utf-8").split("\n") if kept.is_file() else wikitext2.vocabulary_of_training()
    number = {word: index for index, word in enumerate(known)}
    unknown = number[wikitext2.UNKNOWN]
    return lambda text: [number.get(word, unknown) for word in wikitext2.words(text)]


def _by_pairs(pack: Path) -> Encode:
    from tokenizers import Tokenizer

    kept = pack / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(kept)) if kept.is_file() else wikitext2_bpe.tokenizer_of_training()
    return lambda text: wikitext2_bpe.pairs(text, tokenizer)


def _keep(folder: Path, texts: Mapping[str, np.ndarray]) -> None:
    """Write the pack's folder beside its place, then move it there whole."""
    half = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    for split, ids in texts.items():
        np.save(half / f"{split}.npy", ids)
    half.replace(folder)
