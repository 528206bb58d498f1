"""CoLA as its authors published it, tokenised once: what comes out is what the file says, or one clear sentence."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import zipfile
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
NAME = "in_domain_train.tsv"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever machine this is: nothing can be reached, and Hugging Face's cache is empty."""
    from huggingface_hub import constants

    monkeypatch.setattr(cola, "ARCHIVE", "http://127.0.0.1:9/cola_public_1.1.zip")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def another_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root and an empty cache."""
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    return tmp_path


def lines(samples: int = cola.SAMPLES) -> list[str]:
    """A corpus of the right size whose sentences tell their number."""
    return [f"gj04\t{number % 2}\t\tSentence \"{number} isn't long." for number in range(samples)]


def put(root: Path, name: str = f"cola/{NAME}", text: str | None = None) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines()) + "\n" if text is None else text, encoding="utf-8")
    return path


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


@real_data
@pytest.mark.slow
def test_a_later_process_maps_it_without_a_tokeniser():
    cola.prepare()
    program = (
        "import sys\n"
        "from scaling_study.workloads import cola\n"
        "del cola._tokenised\n"
        "cola.prepare()\n"
        "assert not {'tokenizers', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
    )
    done = forked.alone([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr


# --- what is read, kept and cut ---


def test_quotes_and_order_survive(another_root):
    put(another_root)
    sentences = cola.sentences()
    assert sentences.labels[:4].tolist() == [0, 1, 0, 1]
    tokenizer = tokenizers.Tokenizer.from_file(str(datasets.packed_cola() / "tokenizer.json"))
    rows, lengths = cola.table(sentences, 64)
    words = [tokenizer.id_to_token(i).lstrip("▁") for i in rows[3, : lengths[3]].tolist()]
    assert "".join(words) == "[CLS]sentence\"3isn'tlong.[SEP]"


@pytest.mark.slow
@pytest.mark.parametrize("layout", datasets.COLA_FILES)
def test_every_layout_of_the_archive_is_found(another_root, layout):
    put(another_root, layout)
    assert len(cola.sentences().labels) == cola.SAMPLES


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


def test_a_changed_file_is_tokenised_anew(another_root):
    path = put(another_root)
    cola.prepare()
    before = datasets.packed_cola()
    assert before.is_dir() and not list(before.parent.glob("*.tmp"))
    os.utime(path, ns=(1, 1))
    assert datasets.packed_cola() != before


@pytest.mark.slow
def test_a_read_only_cache_costs_time_and_not_the_data(another_root, monkeypatch):
    put(another_root)
    (another_root / "cache").write_text("a file where the folder should be", encoding="utf-8")
    assert len(cola.sentences().labels) == cola.SAMPLES


@pytest.mark.slow
def test_the_record_says_which_tokeniser(another_root, monkeypatch):
    put(another_root)
    assert cola.sentences().note.startswith("tokenizer trained on CoLA's text (")
    pretrained = cola._trained([line.split("\t")[3] for line in lines(50)]).to_str()
    monkeypatch.setattr(cola, "_pretrained", lambda: pretrained)
    monkeypatch.setattr(datasets, "CACHE", another_root / "another")
    assert cola.sentences().note == "tokenizer of albert-base-v2"


@pytest.mark.parametrize("text", ["<html>log in first</html>", json.dumps({"version": "1.0"})])
def test_what_is_no_tokeniser_is_not_taken_for_one(another_root, monkeypatch, text):
    put(another_root)
    monkeypatch.setattr(cola, "_pretrained", lambda: text)
    assert cola.sentences().tokenizer == "trained"


# --- what is not there, or not right ---


def test_missing_data_says_how_to_get_it(another_root):
    with pytest.raises(cola.NoData, match=r"could not be downloaded .*: unpack http.* or set DATA_ROOT to"):
        cola.sentences()


@pytest.mark.slow
def test_the_archive_is_downloaded_and_unpacked(another_root, monkeypatch):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(f"cola_public/raw/{NAME}", "\n".join(lines()) + "\n")
        for name in ("in_domain_dev", "out_of_domain_dev"):
            archive.writestr(f"cola_public/raw/{name}.tsv", "\n".join(lines(9)) + "\n")
        archive.writestr(f"cola_public/tokenized/{NAME}", "another")
    (another_root / "site.zip").write_bytes(stream.getvalue())
    monkeypatch.setattr(cola, "ARCHIVE", (another_root / "site.zip").as_uri())
    assert len(cola.sentences().labels) == cola.SAMPLES
    names = {NAME, "in_domain_dev.tsv", "out_of_domain_dev.tsv"}
    assert {path.name for path in (another_root / "cola").iterdir()} == names
    assert not list(another_root.glob(".cola.*.tmp"))


def test_an_archive_without_the_sentences_is_no_data(another_root, monkeypatch):
    with zipfile.ZipFile(another_root / "site.zip", "w") as archive:
        archive.writestr("something/else.txt", "")
    monkeypatch.setattr(cola, "ARCHIVE", (another_root / "site.zip").as_uri())
    with pytest.raises(cola.NoData):
        cola.sentences()
    assert not (another_root / "cola").exists()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("\n".join(lines(8_000)), r"8,000 sentences, not 8,551"),
        ("\n".join([*lines(8_550), "gj04\t2\t\tTwo."]), r"line 8551 is not: source, 0 or 1, mark, sentence"),
        ("\n".join([*lines(8_550), "gj04\t1\t"]), r"line 8551 is not"),
        ("", r"line 1 is not"),
    ],
)
def test_damaged_data_is_named_and_never_replaced_by_synthetic(another_root, text, what):
    put(another_root, text=text)
    with pytest.raises(SystemExit, match=rf"^CoLA in .*{NAME} is damaged or incomplete \({what}"):
        cola.sentences()
    assert not datasets.packed_cola().exists()


def test_what_is_not_utf8_is_damaged(another_root):
    put(another_root).write_bytes(b"gj04\t1\t\t\xff\xfe\n" * cola.SAMPLES)
    with pytest.raises(SystemExit, match="not UTF-8"):
        cola.sentences()


def test_a_folder_without_the_sentences_is_incomplete_and_nothing_is_put_there(another_root):
    (another_root / "cola").mkdir()
    with pytest.raises(SystemExit, match=r"CoLA in .* is incomplete"):
        cola.sentences()
