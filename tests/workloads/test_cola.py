"""CoLA as its authors published it, tokenised once: what comes out is what the file says, or one clear sentence."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import torch

from scaling_study import datasets, settings
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cola, load
from scaling_study.workloads.feed import Feed

tokenizers = pytest.importorskip("tokenizers")

ROOT = settings.data_root()
REAL = next((ROOT / name for name in datasets.COLA_FILES if (ROOT / name).is_file()), None)
real_data = pytest.mark.skipif(REAL is None, reason=f"needs CoLA in {ROOT}; set DATA_ROOT")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever machine this is: nothing can be reached, and Hugging Face's cache is empty."""
    from huggingface_hub import constants

    monkeypatch.setattr(cola, "ARCHIVE", "http://127.0.0.1:9/cola_public_1.1.zip")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All of CoLA, in a world where that is a hundred sentences that tell their number, and the cache is empty."""
    texts = [f"Sentence \"{number} isn't long." for number in range(100)]
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(cola, "SAMPLES", len(texts))
    (tmp_path / "cola").mkdir()
    rows = [f"gj04\t{number % 2}\t\t{text}" for number, text in enumerate(texts)]
    (tmp_path / "cola/in_domain_train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return texts


# --- the real corpus ---


@real_data
def test_all_8551_sentences_are_there_and_6023_are_acceptable():
    sentences = cola.sentences()
    assert sentences.labels.shape == (8_551,) and sentences.labels.sum() == 6_023
    assert sentences.lengths.sum() == len(sentences.ids) and sentences.ids.max() < cola.VOCABULARY


@real_data
def test_the_ids_say_what_the_file_says():
    """Read back by the tokeniser that is kept beside them."""
    texts = [line.split("\t")[3] for line in REAL.read_text(encoding="utf-8").splitlines()]
    tokenizer = tokenizers.Tokenizer.from_file(str(datasets.packed_cola() / "tokenizer.json"))
    rows, lengths = cola.table(cola.sentences(), 128)
    for number in (0, 1, 4_711, 8_550):
        assert tokenizer.encode(texts[number]).ids == rows[number, : lengths[number]].tolist()
    kept = cola.sentences().ids
    assert (kept == cola.UNKNOWN).sum() < len(kept) / 10_000, "hardly a character is unknown"


@real_data
def test_an_epoch_of_two_ranks_reads_every_sentence_once():
    """From the workload itself, not from the sampler."""
    pytest.importorskip("transformers")
    seen: list[set[int]] = []
    for rank in range(2):
        workload = load(Trial(model="albert_tiny", batch_per_worker=475, data="cola"), Ranks(rank, 2))
        assert workload.steps_per_epoch == 9
        numbers: set[int] = set()
        for _ in itertools.islice(workload.batches, 9):
            numbers |= set(workload.batches.ids.tolist())
        seen.append(numbers)
    assert len(seen[0] | seen[1]) == 8_550 and not seen[0] & seen[1]


# --- what is read, kept and cut ---


def test_quotes_and_order_survive(sentences):
    read = cola.sentences()
    assert read.labels[:4].tolist() == [0, 1, 0, 1]
    tokenizer = tokenizers.Tokenizer.from_file(str(datasets.packed_cola() / "tokenizer.json"))
    rows, lengths = cola.table(read, 64)
    words = [tokenizer.id_to_token(i).lstrip("▁") for i in rows[3, : lengths[3]].tolist()]
    assert "".join(words) == "[CLS]sentence\"3isn'tlong.[SEP]"


def test_a_cut_sentence_still_ends_with_sep():
    ids = np.array([2, 9, 8, 3, 2, 7, 6, 5, 4, 3], dtype=np.uint16)
    sentences = cola.Sentences(ids, np.array([4, 6]), np.array([0, 1]), "trained", 10)
    rows, lengths = cola.table(sentences, 5)
    assert rows.tolist() == [[2, 9, 8, 3, 0], [2, 7, 6, 5, 3]]
    assert lengths.tolist() == [4, 5]


@pytest.mark.parametrize(("padding", "width"), [("fixed", 7), ("dynamic", 6)])
def test_padding_is_masked_and_dynamic_ends_at_the_longest(padding, width):
    ids = np.array([2, 9, 8, 3, 2, 7, 6, 5, 4, 3], dtype=np.uint16)
    sentences = cola.Sentences(ids, np.array([4, 6]), np.array([0, 1]), "trained", 10)
    feed = Feed(iter([torch.tensor([1, 0])]), cola.gathered(sentences, CPU, 7, padding))
    got, mask, labels = next(feed)
    assert got.shape == mask.shape == (2, width) and labels.tolist() == [1, 0]
    assert mask.sum(dim=1).tolist() == [6, 4] and not got[mask == 0].any()
    assert feed.ids.tolist() == [1, 0]


@pytest.mark.slow
def test_the_same_text_gives_the_same_tokeniser_whatever_the_threads():
    program = (
        "from scaling_study.workloads import cola\n"
        "texts = [f'A {n % 97} and {n % 89}ing sentences are {n}.' for n in range(3000)]\n"
        "import hashlib; print(hashlib.sha256(cola._trained(texts).to_str().encode()).hexdigest())\n"
    )
    said = {
        forked.run([sys.executable, "-c", program], env={"RAYON_NUM_THREADS": threads}).stdout for threads in ("1", "4")
    }
    (digest,) = said
    assert len(digest.strip()) == 64


@pytest.mark.slow
def test_the_record_says_which_tokeniser(sentences, tmp_path, monkeypatch):
    assert cola.sentences().note.startswith("tokenizer trained on CoLA's text (")
    pretrained = cola._trained(sentences).to_str()
    monkeypatch.setattr(cola, "_pretrained", lambda: pretrained)
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "another")
    assert cola.sentences().note == "tokenizer of albert-base-v2"


@pytest.mark.parametrize("text", ["<html>log in first</html>", json.dumps({"version": "1.0"})])
def test_what_is_no_tokeniser_is_not_taken_for_one(sentences, monkeypatch, text):
    monkeypatch.setattr(cola, "_pretrained", lambda: text)
    assert cola.sentences().tokenizer == "trained"
