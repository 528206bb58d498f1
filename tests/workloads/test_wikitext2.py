"""WikiText-2 is cut into the words of the published study, and read in its columns, window by window."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling_study import datasets, settings
from scaling_study.ranks import Ranks
from scaling_study.workloads import wikitext2

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
