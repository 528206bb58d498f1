"""Every token of a published text is to be said once, and a passage in two texts is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import text as trained_text
from scaling_study.workloads.feed import HeldOut
from scaling_study.workloads.text import IGNORED, held_out_text, in_both, passages, windows


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


def test_perplexity_is_that_of_all_tokens_and_not_a_mean_of_windows() -> None:
    torch.manual_seed(0)
    text = np.random.default_rng(0).integers(0, 7, 30).astype(np.uint16)
    split, model = held_out(text, 8), nn.Embedding(7, 7).double()  # scores of the next token, by the last
    metrics = split.metrics()
    for place in range(4):
        split.update(metrics, model, split.fetch("validation", torch.tensor([place, 0])), torch.tensor([True, False]))
    ids = torch.from_numpy(text.astype(np.int64))
    loss = F.cross_entropy(model(ids[:-1]), ids[1:]).item()
    assert metrics["loss"].compute().item() == pytest.approx(loss, rel=1e-12)
    assert metrics["perplexity"].compute().item() == pytest.approx(np.exp(loss), rel=1e-12)


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
    assert trained_text.PASSAGE == 64
