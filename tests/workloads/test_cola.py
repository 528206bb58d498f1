"""CoLA as its authors published it: tokenised once, split without a sentence in two splits, and scored as published."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from scaling_study import datasets, settings
from scaling_study.datasets import NoData
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cola
from scaling_study.workloads.cola import Sentences, disjoint, trained_sentences
from scaling_study.workloads.feed import Data, Feed
from scaling_study.workloads.held_out import classification, score

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
    rows, lengths = cola.padded(cola.sentences(), 128)
    for number in (0, 1, 4_711, 8_550):
        assert tokenizer.encode(texts[number]).ids == rows[number, : lengths[number]].tolist()
    kept = cola.sentences().ids
    assert (kept == cola.UNKNOWN).sum() < len(kept) / 10_000, "hardly a character is unknown"


# --- what is read, kept and cut ---


def test_quotes_and_order_survive(sentences):
    read = cola.sentences()
    assert read.labels[:4].tolist() == [0, 1, 0, 1]
    tokenizer = tokenizers.Tokenizer.from_file(str(datasets.packed_cola() / "tokenizer.json"))
    rows, lengths = cola.padded(read, 64)
    words = [tokenizer.id_to_token(i).lstrip("▁") for i in rows[3, : lengths[3]].tolist()]
    assert "".join(words) == "[CLS]sentence\"3isn'tlong.[SEP]"


def test_a_cut_sentence_still_ends_with_sep():
    ids = np.array([2, 9, 8, 3, 2, 7, 6, 5, 4, 3], dtype=np.uint16)
    sentences = cola.Sentences(ids, np.array([4, 6]), np.array([0, 1]), "trained", 10)
    rows, lengths = cola.padded(sentences, 5)
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


LEFT_OUT = "of CoLA's training sentences are left out: they are validation or test sentences too"
development_data = pytest.mark.skipif(
    not datasets.cola_development(), reason=f"needs CoLA's development sentences in {ROOT}; set DATA_ROOT"
)


def of_numbers(first: int, count: int) -> Sentences:
    """[CLS] number [SEP]; a third of them acceptable."""
    ids = np.array([[cola.CLS, number, cola.SEP] for number in range(first, first + count)], dtype=np.uint16)
    return Sentences(ids.flatten(), np.full(count, 3), np.arange(count) % 3 // 2, "trained", 1000)


def trained(train: Sentences, test: Sentences, **keys: object) -> Data:
    def logits(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        output: torch.Tensor = model(batch[0][:, 1])
        return output

    trial = Trial(model="albert_tiny", batch_per_worker=10, train_epochs=1, **keys)
    return trained_sentences(train, test, 4, logits, trial, Ranks())


# --- splits ---


def test_splits_are_stratified_and_share_no_sentence() -> None:
    data = trained(of_numbers(100, 300), of_numbers(390, 60))  # ten of the training sentences are in the test data
    assert data.held_out.sizes == {"validation": 29, "test": 60} and data.notes == [f"10 {LEFT_OUT}"]
    assert data.held_out.published == {
        "train": {"train": 261}, "validation": {"train": 29}, "test": {"development": 60},
    }  # fmt: skip
    assert data.held_out.in_both == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    ids, mask, labels = data.held_out.fetch("validation", torch.arange(29))
    held_out = set(ids[:, 1].tolist())
    assert ids.shape == mask.shape == (29, 4) and len(held_out) == 29 and not held_out & set(range(390, 400))
    assert labels.sum() == 10 and ((ids[:, 1] - 100) % 3 // 2).equal(labels)
    assert data.held_out.fetch("test", torch.tensor([0, 59]))[0][:, 1].tolist() == [390, 449]
    read = {int(id) for _ in range(data.steps_per_epoch) for id in next(data.feed)[0][:, 1]}
    assert len(read) == 260 and not read & held_out and max(read) < 390, "the tail of 1 fills no batch"


def test_nothing_is_held_out_where_nothing_is_asked_for() -> None:
    data = trained(of_numbers(100, 300), of_numbers(500, 60), train_validation=0.0)
    assert data.held_out.sizes == {"test": 60} and data.notes == []


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=40), st.sets(st.integers(0, 9)))
def test_no_sentence_is_in_two_splits(published: list[tuple[int, int]], tested: set[int]) -> None:
    labels, marks = (torch.tensor([row[at] for row in published], dtype=torch.int64) for at in (0, 1))
    train, held_out = disjoint(labels, marks, torch.tensor(sorted(tested), dtype=torch.int64), 0.3)
    splits = [set(marks[ids].tolist()) for ids in (train, held_out)]
    assert not splits[0] & splits[1] and not (splits[0] | splits[1]) & tested
    assert splits[0] | splits[1] | tested >= set(marks.tolist())


# --- scores ---


@pytest.mark.parametrize(
    ("counts", "expected"),
    [  # no as no, no as yes, yes as no, yes as yes
        ((90, 10, 20, 80), 0.7035264706814485),  # 7000 / sqrt(90 x 100 x 100 x 110)
        ((0, 30, 0, 70), 0.0),
        ((30, 0, 70, 0), 0.0),
        ((0, 5, 5, 0), -1.0),
        ((5, 0, 0, 5), 1.0),
        ((0, 0, 0, 9), 0.0),
    ],
)
def test_matthews_correlation_is_that_of_the_formula_and_0_for_who_always_says_the_same(counts, expected) -> None:
    truth = torch.tensor([0, 0, 1, 1]).repeat_interleave(torch.tensor(counts))
    says = torch.tensor([0, 1, 0, 1]).repeat_interleave(torch.tensor(counts))
    metrics = classification(CPU, 2, matthews=True)
    for part in (slice(None, 3), slice(3, None)):
        score(metrics, 5.0 * F.one_hot(says[part], 2), truth[part])
    assert float(metrics["matthews"].compute()) == pytest.approx(expected, rel=1e-12)
    assert float(metrics["accuracy"].compute()) == pytest.approx((counts[0] + counts[3]) / sum(counts), rel=1e-12)


# --- the development sentences ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of five training sentences, in a world where that is all."""
    monkeypatch.setattr(cola, "ARCHIVE", "http://127.0.0.1:9/cola_public_1.1.zip")
    monkeypatch.setattr(cola, "_pretrained", lambda: None)
    monkeypatch.setattr(cola, "SAMPLES", 5)
    monkeypatch.setattr(cola, "DEVELOPMENT_SAMPLES", 3)
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    (tmp_path / "cola").mkdir()
    return put_sentences(tmp_path / "cola", "in_domain_train.tsv", "a b", "b c", "a c", "c b", "a b").parent


def put_sentences(folder: Path, name: str, *sentences: str) -> Path:
    path = folder / name
    path.write_text("".join(f"gj04\t1\t\t{text}\n" for text in sentences), encoding="utf-8")
    return path


def texts(sentences: Sentences) -> list[str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(datasets.packed_cola() / "tokenizer.json"))
    rows = np.split(sentences.ids, sentences.lengths.cumsum()[:-1])
    return ["".join(tokenizer.id_to_token(int(id)).replace("▁", " ") for id in row[1:-1]).strip() for row in rows]


def test_both_domains_are_read_by_the_training_sentences_tokeniser(folder: Path) -> None:
    put_sentences(folder, "in_domain_dev.tsv", "c a", "b d")
    put_sentences(folder, "out_of_domain_dev.tsv", "a")
    put_sentences(folder, "dev.tsv", "b", "b", "b")
    read = cola.development_sentences()
    assert texts(read) == ["c a", "b <unk>", "a"] and read.labels.tolist() == [1, 1, 1]
    assert read.tokenizer == cola.sentences().tokenizer == "trained"


def test_glues_one_file_is_read_where_the_archives_two_are_not_there(folder: Path) -> None:
    put_sentences(folder, "in_domain_dev.tsv", "c a", "b d")
    put_sentences(folder, "dev.tsv", "b", "b a", "b c")
    assert texts(cola.development_sentences()) == ["b", "b a", "b c"]
    put_sentences(folder, "dev.tsv", "a", "a c", "c c c")
    assert texts(cola.development_sentences()) == ["a", "a c", "c c c"], "a changed file is read anew"


def test_development_sentences_that_are_not_there_or_too_few_are_named(folder: Path) -> None:
    names = r"\(in_domain_dev.tsv and out_of_domain_dev.tsv or dev.tsv\) beside .*in_domain_train.tsv"
    with pytest.raises(NoData, match=rf"^CoLA has no development sentences {names}, and what is trained .* there$"):
        cola.development_sentences()
    put_sentences(folder, "dev.tsv", "b", "b a")
    with pytest.raises(SystemExit, match=r"^CoLA in .*dev.tsv is damaged or incomplete \(2 sentences, not 3\)"):
        cola.development_sentences()


@development_data
def test_of_the_published_sentences_18_are_in_training_and_development_and_are_left_out() -> None:
    train, test = cola.sentences(), cola.development_sentences()
    data = trained(train, test)
    assert len(test.labels) == 1_043 and test.labels.sum() == 719
    assert not any(data.held_out.in_both.values())
    (note,) = data.notes
    assert 18 <= int(note.removesuffix(LEFT_OUT)) < 60
    assert data.held_out.sizes["validation"] == pytest.approx(0.1 * 8_551, abs=5)
