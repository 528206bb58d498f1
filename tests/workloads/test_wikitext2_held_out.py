"""The published validation and test texts are read as the training text is, or one sentence says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaling_study import datasets, settings
from scaling_study.datasets import NoData
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load, wikitext2
from scaling_study.workloads import text as trained_text
from scaling_study.workloads.text import in_both, windows

ROOT = settings.data_root()
real_data = pytest.mark.skipif(
    len(datasets.wikitext2_held_out()) < 2, reason=f"needs WikiText-2's three texts in {ROOT}; set DATA_ROOT"
)
TEXTS = {
    "wiki.train.tokens": " \n the cat said the <unk> cat sat . \n" * 2,
    "wiki.valid.tokens": " \n The dog said . \n",
    "wiki.test.tokens": " \n A <unk> sat , the cat . \n",
}
KNOWN = ["<unk>", "cat", "the", ".", "said", "sat"]  # the most frequent first, equals by alphabet


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the three texts, in a world where they are a few words long."""
    monkeypatch.setattr(wikitext2, "ARCHIVE", "http://127.0.0.1:9/wikitext-2-v1.zip")
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(wikitext2, "TOKENS", 16)
    monkeypatch.setattr(wikitext2, "VOCABULARY", len(KNOWN))
    monkeypatch.setattr(wikitext2, "WORDS", {"validation": 4, "test": 7})
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_word_that_training_never_saw_is_unknown(texts: Path) -> None:
    read = {split: " ".join(KNOWN[id] for id in ids) for split, ids in wikitext2.held_out_words().items()}
    assert read == {"validation": "the <unk> said .", "test": "<unk> <unk> sat <unk> the cat ."}
    assert all(isinstance(ids, np.memmap) and ids.dtype == np.uint16 for ids in wikitext2.held_out_words().values())


def test_byte_pairs_are_those_of_the_training_text(texts: Path) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer

    read = wikitext2.held_out_pairs()
    tokenizer = Tokenizer.from_file(str(datasets.packed_wikitext2_bpe() / "tokenizer.json"))
    assert [tokenizer.decode(ids.tolist()) for ids in read.values()] == list(TEXTS.values())[1:]
    assert "Ġcat" in tokenizer.get_vocab() and "Ġdog" not in tokenizer.get_vocab()
    assert wikitext2.encoded_pairs(wikitext2.training_text())[1].get_vocab() == tokenizer.get_vocab()


def test_a_text_that_is_not_there_is_named_and_timing_does_without(texts: Path) -> None:
    (texts / "wiki.test.tokens").unlink()
    why = (
        r"WikiText-2 has no test text \(wiki.test.tokens or test.txt\) beside .*wiki.train.tokens, and what is trained"
    )
    with pytest.raises(NoData, match=rf"^{why} to a result is evaluated on it: unpack http.* there$"):
        wikitext2.held_out_words()
    keys = {"model": "transformer_lm", "batch_per_worker": 1, "sequence_length": 8}
    with pytest.raises(SystemExit, match=f"^--data auto: {why}"):
        load(Trial(**keys, train_steps=1), Ranks())
    assert load(Trial(**keys), Ranks()).data_source == "wikitext2"


@real_data
def test_the_published_texts_are_read_to_the_last_word() -> None:
    assert [len(ids) for ids in wikitext2.held_out_words().values()] == [214_417, 241_859]


@pytest.mark.slow
@real_data
def test_the_longest_passage_of_test_and_training_text_has_54_words(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"train": wikitext2.tokens(), **wikitext2.held_out_words()}
    shared = {"train/validation": 2, "train/test": 0, "validation/test": 0}
    assert in_both(texts, 35) == shared and windows(len(texts["validation"]), 35) == 6_127
    del texts["validation"]

    def in_training(length: int, passage: int) -> int:
        monkeypatch.setattr(trained_text, "PASSAGE", passage)
        return in_both(texts, length)["train/test"]

    assert (in_training(1, 54), in_training(1, 55)) == (1, 0)
    assert in_training(8, 8) == 193 and windows(len(texts["test"]), 8) == 30_233
