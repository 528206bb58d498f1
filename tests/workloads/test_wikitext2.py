"""WikiText-2 is cut into the words of the published study, read in its columns, and evaluated to the last word."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling_study import datasets, settings
from scaling_study.datasets import NoData
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load, wikitext2
from scaling_study.workloads.feed import HeldOut
from scaling_study.workloads.wikitext2 import IGNORED, held_out_text, in_both, passages, windows

ROOT = settings.data_root()
REAL = next((ROOT / name for name in datasets.WIKITEXT2_FILES if (ROOT / name).is_file()), None)
real_data = pytest.mark.skipif(REAL is None, reason=f"needs WikiText-2 in {ROOT}; set DATA_ROOT")
CORPUS = ' \n = The <unk> = \n \n The cat said : " I \'m a <unk> ; no . " \n'
SAYS = ["=", "the", "<unk>", "=", "the", "cat", "said", "i", "'", "m", "a", "<unk>", "no", "."]


# --- the real corpus ---


@real_data
def test_it_has_2049990_words_28782_of_them_different():
    ids = wikitext2.tokens()
    assert ids.shape == (2_049_990,) and ids.dtype == np.uint16
    assert len(np.unique(ids)) == ids.max() + 1 == 28_782


@real_data
def test_the_ids_say_what_the_file_says():
    """Read back by the vocabulary that is kept beside them; the most frequent words have the smallest numbers."""
    ids = wikitext2.tokens()
    known = (datasets.packed_wikitext2() / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
    assert len(known) == 28_782 and known[:6] == ["<unk>", "the", ",", ".", "of", "and"]
    start = "= valkyria chronicles iii = senjō no valkyria 3 <unk> chronicles ( japanese 戦場のヴァルキュリア3 , lit ."
    assert " ".join(known[id] for id in ids[:20]).startswith(start)
    counts = np.bincount(ids)
    assert (np.diff(counts[1:]) <= 0).all()


# --- words and their numbers ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CORPUS, " ".join(SAYS)),
        ("It's (not) so, is it? No!", "it ' s ( not ) so , is it ? no !"),
        ('say"ing; a:b\tc', "saying a b c"),
        ("1 @,@ 000 @-@ year<br />old", "1 @ , @ 000 @-@ year old"),
        (" \n \n", ""),
    ],
)
def test_words_are_those_of_basic_english(text, expected):
    assert wikitext2.words(text) == expected.split()


@given(st.text("aB.'\";<br /> \n\u0130", max_size=20), st.text("aB.'\";<br /> \n", max_size=20))
def test_lines_can_be_read_as_one_text(first, second):
    """Published was line by line: no word reaches over the end of one."""
    assert wikitext2.words(f"{first}\n{second}") == wikitext2.words(first) + wikitext2.words(second)


def test_the_vocabulary_is_ordered_as_torchtext_orders_it():
    assert wikitext2.vocabulary(["b", "c", "a", "b", "<unk>", "<unk>", "<unk>", "c"]) == ["<unk>", "b", "c", "a"]


# --- columns and windows ---


def test_columns_and_windows_are_those_of_the_drawing(monkeypatch):
    monkeypatch.setattr(wikitext2, "TOKENS", 28)
    feed = wikitext2.feed(np.arange(28, dtype=np.uint16), Ranks(), batch=3, length=4)
    words, targets = next(feed)
    assert words.tolist() == [[0, 1, 2, 3], [9, 10, 11, 12], [18, 19, 20, 21]]
    assert targets.equal(words + 1) and words.dtype == targets.dtype == torch.int64
    assert feed.ids.tolist() == [0, 1, 2]
    assert next(feed)[0].tolist() == [[4, 5, 6, 7], [13, 14, 15, 16], [22, 23, 24, 25]]
    assert feed.ids.tolist() == [3, 4, 5]
    assert next(feed)[0].equal(words), "and again, in the same order"


def test_every_step_reads_what_the_published_loop_reads(monkeypatch):
    text = np.random.default_rng(0).integers(0, 28_782, 1_063).astype(np.uint16)
    monkeypatch.setattr(wikitext2, "TOKENS", len(text))
    rows = len(text) // 20
    columns = text[: rows * 20].reshape(20, rows).T  # (rows, 20): published tensors have time first
    feed = wikitext2.feed(text, Ranks(), batch=20, length=7)
    windows = wikitext2.windows_per_epoch(20, 7)
    assert windows == len(range(0, rows - 1, 7)) - 1
    for start, (words, targets) in zip(range(0, windows * 7, 7), feed, strict=False):
        assert words.T.tolist() == columns[start : start + 7].tolist()
        assert targets.T.tolist() == columns[start + 1 : start + 8].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_read_together_what_one_with_their_batches_reads(world_size, monkeypatch):
    monkeypatch.setattr(wikitext2, "TOKENS", 500)
    text = np.arange(500, dtype=np.uint16)
    feeds = [wikitext2.feed(text, Ranks(rank, world_size), 8 // world_size, 5) for rank in range(world_size)]
    whole = wikitext2.feed(text, Ranks(), 8, 5)
    for _ in range(2 * wikitext2.windows_per_epoch(8, 5)):
        parts = [next(feed) for feed in feeds]
        assert all(torch.cat(both).equal(one) for both, one in zip(zip(*parts, strict=True), next(whole), strict=True))
        assert torch.cat([feed.ids for feed in feeds]).equal(whole.ids)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 40))
def test_an_epoch_reads_every_sample_once(world_size, batch, length):
    columns = world_size * batch
    windows = wikitext2.windows_per_epoch(columns, length)
    steps = min(windows, 5)
    orders = [wikitext2.in_order(Ranks(rank, world_size), batch, length) for rank in range(world_size)]
    read = [id for order in orders for ids in itertools.islice(order, steps) for id in ids.tolist()]
    assert sorted(read) == list(range(steps * columns))
    assert windows * length < 2_049_990 // columns <= (windows + 1) * length, "nothing but a last part is left out"


def test_more_columns_than_there_is_text_for_are_refused(monkeypatch):
    monkeypatch.setattr(wikitext2, "TOKENS", 100)
    with pytest.raises(SystemExit, match=r"^10 columns of 10 words have no window of 10: lower --batch-per-worker"):
        next(wikitext2.in_order(Ranks(0, 2), 5, 10))


def held_out(text: np.ndarray, length: int) -> HeldOut:
    return held_out_text(np.arange(60), {"validation": text, "test": text[:5]}, length, Trial(), Ranks())


def test_windows_are_those_of_the_drawing() -> None:
    ten = held_out(np.arange(10, dtype=np.uint16), 4)
    assert ten.sizes == {"validation": 3, "test": 1} and ten.published["train"] == {"train": 15}
    tokens, targets = ten.fetch("validation", torch.arange(3))
    assert tokens.tolist()[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]] and tokens.tolist()[2][:2] == [8, 9]
    assert targets.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, IGNORED, IGNORED, IGNORED]]
    assert ten.fetch("test", torch.tensor([0]))[1].tolist() == [[1, 2, 3, 4]]


@given(st.integers(2, 50), st.integers(1, 60))
def test_every_token_but_the_first_is_said_once(tokens: int, length: int) -> None:
    split = held_out(np.arange(tokens, dtype=np.uint16), length)
    read, said = split.fetch("validation", torch.arange(windows(tokens, length)))
    assert said[said != IGNORED].tolist() == list(range(1, tokens))
    assert (said[said != IGNORED] == read[said != IGNORED] + 1).all()


# --- what is in two texts ---


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 6))
def test_passages_are_told_apart_by_their_tokens(text: list[int], length: int) -> None:
    marks = passages(np.array(text, dtype=np.uint16), length).tolist()
    truth = [tuple(text[at : at + length]) for at in range(len(text) - length + 1)]
    assert len(marks) == len(truth) and len(set(zip(marks, truth, strict=True))) == len(set(truth)) == len(set(marks))


def test_windows_that_are_anywhere_in_an_earlier_text_are_counted() -> None:
    random = np.random.default_rng(0)
    train, other = random.integers(0, 2**16, (2, 800)).astype(np.uint16)
    test = np.concatenate([other[:160], train[111:271], other[320:]])  # windows 2 and 3 of 80
    assert in_both({"train": train, "test": test}, 80) == {"train/test": 2}
    assert in_both({"train": train, "validation": other, "test": test}, 80)["validation/test"] == 8


def test_a_short_window_counts_with_the_tokens_that_follow_it() -> None:
    train = np.arange(400) % 100
    test = np.concatenate([train[100:160], [1000, 1001, 1002, 1003], train[200:270]])  # 60 in common, and 70
    assert in_both({"train": train, "test": test}, 8) == {"train/test": 1}
    assert wikitext2.PASSAGE == 64


three_texts = pytest.mark.skipif(
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


def test_fewer_byte_pairs_say_the_same_text_by_more_tokens(texts: Path) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer

    many, few = wikitext2.pair_tokens(), wikitext2.pair_tokens(260)
    assert len(few) > len(many) and few.max() < 260 <= many.max()
    said = Tokenizer.from_file(str(datasets.packed_wikitext2_bpe(260) / "tokenizer.json"))
    assert said.get_vocab_size() == 260 and said.decode(few.tolist()) == TEXTS["wiki.train.tokens"]
    held_out = wikitext2.held_out_pairs(260)
    assert [said.decode(ids.tolist()) for ids in held_out.values()] == list(TEXTS.values())[1:]


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


@three_texts
def test_the_published_texts_are_read_to_the_last_word() -> None:
    assert [len(ids) for ids in wikitext2.held_out_words().values()] == [214_417, 241_859]


@pytest.mark.slow
@three_texts
def test_the_longest_passage_of_test_and_training_text_has_54_words(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"train": wikitext2.tokens(), **wikitext2.held_out_words()}
    shared = {"train/validation": 2, "train/test": 0, "validation/test": 0}
    assert in_both(texts, 35) == shared and windows(len(texts["validation"]), 35) == 6_127
    del texts["validation"]

    def in_training(length: int, passage: int) -> int:
        monkeypatch.setattr(wikitext2, "PASSAGE", passage)
        return in_both(texts, length)["train/test"]

    assert (in_training(1, 54), in_training(1, 55)) == (1, 0)
    assert in_training(8, 8) == 193 and windows(len(texts["test"]), 8) == 30_233
