"""WikiText-2 as byte pairs, for models of GPT-2's kind; read in columns as wikitext2.py reads its words.   [torch]

    wiki.train.tokens --train--> a vocabulary --encode--> ids            once, kept in .cache/

GPT-2's own vocabulary is a download; one of its kind and size is trained on the text itself (byte-level pair encoding:
Radford et al., 2019; Sennrich et al., arXiv 1508.07909). It is the same on every machine, and smaller than 50,257 where
the text has no more pairs that occur twice: a model keeps its published shape, and some of its rows are never read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from scaling_study.datasets import packed_wikitext2_bpe
from scaling_study.workloads import wikitext2

VOCABULARY = 50_257  # GPT-2's; the trained one may have fewer
END = "<|endoftext|>"  # GPT-2's one special token


def prepare() -> None:
    """Train, encode and keep it, once for the checkout. Raises NoData, SystemExit."""
    tokens()


def tokens() -> np.ndarray:
    """The training text as numbers of byte pairs, (about 2.2 million,) uint16; downloads it if it is not there.

    Raises NoData if it can neither be found nor downloaded, SystemExit if it is there but damaged.
    """
    file = wikitext2.training_text()
    folder = packed_wikitext2_bpe()
    if not folder.is_dir():
        wikitext2.tokens()  # whether the text is whole
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):  # ranks that start together wait for the first
                if not folder.is_dir():
                    _keep(folder, *encoded(file))
        except OSError:  # a read-only checkout: slower starts, the same data
            return encoded(file)[0]
    kept: np.ndarray = np.load(folder / "tokens.npy", mmap_mode="r")
    return kept


def encoded(file: Path) -> tuple[np.ndarray, Any]:
    """(the text as numbers, uint16; the tokenizer that was trained on it)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = file.read_text(encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=2, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(lines(text), trainer)
    return np.array(pairs(text, tokenizer), dtype=np.uint16), tokenizer


def pairs(text: str, tokenizer: Any) -> list[int]:
    """A text as numbers of byte pairs, line by line."""
    return [id for encoding in tokenizer.encode_batch(lines(text)) for id in encoding.ids]


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def tokenizer_of_training() -> Any:
    """The tokenizer that the training text gives, trained anew."""
    return encoded(wikitext2.training_text())[1]


def _keep(folder: Path, ids: np.ndarray, tokenizer: Any) -> None:
    """Write the pack's folder beside its place, then move it there whole."""
    half = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    np.save(half / "tokens.npy", ids)
    tokenizer.save(str(half / "tokenizer.json"))
    half.replace(folder)
