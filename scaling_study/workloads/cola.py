"""CoLA, the Corpus of Linguistic Acceptability, tokenised once; trained on and scored.                    [torch]

    published training sentences --stratified--> train | validation     published development sentences: test

Sentences that linguists wrote, and whether each is acceptable English (Warstadt et al., arXiv 1805.12471). A study must
not measure its loader (F6): a step costs one gather, and no later process imports a tokeniser. The tokeniser is that of
albert-base-v2 where it can be had, else one trained on CoLA's own text, the same on every machine. A sentence that is
in the test data too is left out of training and validation, and one of validation out of training.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch

from scaling_study.datasets import (
    COLA_DEVELOPMENT,
    NoData,
    cola_development,
    cola_file,
    fetch_archive,
    packed,
    packed_cola,
    packed_held_out,
)
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, Data, Feed, Order, sent
from scaling_study.workloads.held_out import (
    Logits,
    classification,
    held_out_classes,
    in_both,
    row_digests,
    stratified,
    validation_share,
)

SAMPLES, CLASSES = 8_551, 2
VOCABULARY = 30_000  # ALBERT's; a tokeniser may use less of it
SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ALBERT's, whose ids are their places
PAD, UNKNOWN, CLS, SEP = range(4)

ARCHIVE, MEMBER = "https://nyu-mll.github.io/CoLA/cola_public_1.1.zip", "cola_public/raw/in_domain_train.tsv"
DEVELOPMENT = ("cola_public/raw/in_domain_dev.tsv", "cola_public/raw/out_of_domain_dev.tsv")  # members too
PRETRAINED = ("albert/albert-base-v2", "albert-base-v2")  # its name on the Hugging Face hub, and its old one
ITS_OWN = "tokenizer of albert-base-v2"  # as recorded
TOKENIZER_SECONDS = 5.0  # to connect: there is a substitute


@dataclass(frozen=True)
class Sentences:
    """Sentences as token ids, one after the other, each from [CLS] to [SEP]; of the training set 8,551."""

    ids: np.ndarray  # (all tokens,) uint16
    lengths: np.ndarray  # (sentences,) int64
    labels: np.ndarray  # (sentences,) int64: 1 acceptable, 0 not
    tokenizer: str  # "pretrained", or "trained"
    vocabulary: int

    @property
    def note(self) -> str:
        if self.tokenizer == "pretrained":
            return ITS_OWN
        return f"tokenizer trained on CoLA's text ({self.vocabulary:,} tokens)"


def sentences() -> Sentences:
    """The training sentences; downloads them if they are not there.

    Raises NoData if they can neither be found nor downloaded, SystemExit if they are there but damaged.
    """
    file = _training_file()
    return _kept(packed_cola(), [file], lambda: _tokenised(file))


def _training_file() -> Path:
    return cola_file() or fetch_archive("cola", "CoLA", ARCHIVE, (MEMBER, *DEVELOPMENT))


def _kept(folder: Path, files: Sequence[Path], make: Callable[[], tuple[Sentences, Any]]) -> Sentences:
    """The sentences of a pack's folder; made of `files`, with their tokeniser, where there is none yet."""

    def write(half: Path, made: tuple[Sentences, Any]) -> None:
        sentences, tokenizer = made
        for name in ("ids", "lengths", "labels"):
            np.save(half / f"{name}.npy", getattr(sentences, name))
        tokenizer.save(str(half / "tokenizer.json"))
        source = " ".join(map(str, files))
        about = {"tokenizer": sentences.tokenizer, "vocabulary": sentences.vocabulary, "source": source}
        (half / "about.json").write_text(json.dumps(about), encoding="utf-8")

    if made := packed(folder, make, write):
        return made[0]
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    ids = np.load(folder / "ids.npy", mmap_mode="r")
    lengths, labels = (np.load(folder / f"{name}.npy") for name in ("lengths", "labels"))
    return Sentences(ids, lengths, labels, about["tokenizer"], about["vocabulary"])


def read(files: Sequence[Path], samples: int) -> tuple[list[str], list[int]]:
    """Sentences and labels, from lines of: source, label, the author's own mark, sentence. Raises SystemExit."""
    rows: list[list[str]] = []
    for file in files:
        try:  # no quoting: a quote is part of a sentence
            of_file = [line.split("\t") for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n")]
        except UnicodeDecodeError as error:
            raise _damaged(file, "not UTF-8") from error
        for number, row in enumerate(of_file, start=1):
            if len(row) != 4 or row[1] not in ("0", "1") or not row[3].strip():
                raise _damaged(file, f"line {number} is not: source, 0 or 1, mark, sentence")
        rows += of_file
    if len(rows) != samples:
        raise _damaged(files[0], f"{len(rows):,} sentences, not {samples:,}")
    return [row[3] for row in rows], [int(row[1]) for row in rows]


def _damaged(file: Path, what: str) -> SystemExit:
    return SystemExit(
        f"CoLA in {file} is damaged or incomplete ({what}): "
        "remove it and download it again, or point DATA_ROOT at a whole copy"
    )


def _tokenised(file: Path) -> tuple[Sentences, Any]:
    texts, labels = read([file], SAMPLES)
    tokenizer, kind = _tokenizer(texts)
    return encoded_sentences(texts, labels, tokenizer, kind), tokenizer


def encoded_sentences(texts: Sequence[str], labels: Sequence[int], tokenizer: Any, kind: str) -> Sentences:
    """Sentences by a tokeniser, which is "pretrained" or "trained"."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    ids = np.fromiter((id for row in rows for id in row), dtype=np.uint16)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return Sentences(ids, lengths, np.array(labels, dtype=np.int64), kind, tokenizer.get_vocab_size())


def _tokenizer(texts: Sequence[str]) -> tuple[Any, str]:
    """(a tokeniser that puts [CLS] and [SEP] around a sentence, "pretrained" or "trained")."""
    from tokenizers import Tokenizer

    with contextlib.suppress(Exception):  # the library raises nothing narrower; a proxy's error page is no tokeniser
        if text := _pretrained():
            tokenizer = Tokenizer.from_str(text)
            in_place = [tokenizer.token_to_id(token) for token in SPECIAL] == [*range(len(SPECIAL))]
            if in_place and tokenizer.get_vocab_size() <= VOCABULARY:
                return tokenizer, "pretrained"
    return _trained(texts), "trained"


def _pretrained() -> str | None:
    """albert-base-v2's tokenizer.json from Hugging Face's cache, else from its site; None where neither has it."""
    from huggingface_hub import constants, try_to_load_from_cache

    for name in PRETRAINED:
        if isinstance(path := try_to_load_from_cache(name, "tokenizer.json"), str):
            return Path(path).read_text(encoding="utf-8")
    if constants.HF_HUB_OFFLINE:
        return None
    try:
        address = f"{constants.ENDPOINT}/{PRETRAINED[0]}/resolve/main/tokenizer.json"
        with urlopen(address, timeout=TOKENIZER_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))
    except (OSError, HTTPException, ValueError):
        return None


def _trained(texts: Sequence[str]) -> Any:
    """Byte-pair encoding of lower-cased words (Sennrich et al., arXiv 1508.07909); what occurs once is spelled out.

    ALBERT's own kind, a unigram model, is trained by sums of floats in parallel, which is not repeatable; this is.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]  # as ALBERT's
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=2, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return tokenizer


def padded(sentences: Sentences, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every sentence in a row of `width` tokens: ids (sentences, width) int64 and real lengths (sentences,) int64.

    A longer sentence is cut, and ends with [SEP] all the same.
    """
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    places = np.arange(width)
    lengths = np.minimum(sentences.lengths, width)
    rows = sentences.ids[np.minimum(starts[:, None] + places, len(sentences.ids) - 1)].astype(np.int64)
    rows[places >= lengths[:, None]] = PAD
    rows[sentences.lengths > width, -1] = SEP
    return torch.from_numpy(rows), torch.from_numpy(lengths)


def gathered(sentences: Sentences, device: torch.device, width: int, padding: str) -> Callable[[torch.Tensor], Batch]:
    """For each (batch,) of sample ids: token ids and mask, (batch, width) int64 each, and labels (batch,) int64.

    With `padding` dynamic, width is that of the batch's longest sentence.
    """
    rows, lengths = padded(sentences, width)  # 9 MB at 128 tokens: on the device once, and no copy in the step
    there, real = rows.to(device), lengths.to(device)
    labels, places = torch.from_numpy(sentences.labels).to(device), torch.arange(width, device=device)

    def fetch(ids: torch.Tensor) -> Batch:
        longest = int(lengths[ids].max()) if padding == "dynamic" else width  # known on the host: no wait for the GPU
        chosen = sent(ids, device)
        mask = (places[:longest] < real[chosen, None]).long()
        return there[chosen, :longest], mask, labels[chosen]

    return fetch


DEVELOPMENT_SAMPLES = 1_043


def development_sentences() -> Sentences:
    """The development sentences. Raises NoData if they do not lie beside the training sentences, SystemExit if they are
    damaged."""
    train, files = sentences(), cola_development()
    if not files:
        names = " or ".join(" and ".join(names) for names in COLA_DEVELOPMENT)
        raise NoData(
            f"CoLA has no development sentences ({names}) beside {cola_file()}, and what is trained to a result is "
            f"tested on them: unpack {ARCHIVE} there"
        )

    def make() -> tuple[Sentences, Any]:
        tokenizer = tokenizer_of_training()
        return encoded_sentences(*read(files, DEVELOPMENT_SAMPLES), tokenizer, train.tokenizer), tokenizer

    return _kept(packed_held_out(packed_cola(), files), files, make)


def tokenizer_of_training() -> Any:
    """The tokeniser that the training sentences are read by, so that none is made for what a model is judged by."""
    from tokenizers import Tokenizer

    kept = packed_cola() / "tokenizer.json"
    return Tokenizer.from_file(str(kept)) if kept.is_file() else _tokenised(_training_file())[1]


def trained_sentences(
    train: Sentences, test: Sentences, width: int, logits: Logits, trial: Trial, ranks: Ranks
) -> Data:
    """Batches of the training split, and what is held out; a note names published sentences that are in no split.

    `width`: tokens that a sentence is cut or padded to; `logits`: of a model and a batch (ids, mask, labels).
    """
    padding = trial.padding or "fixed"
    marks, tested = row_digests(whole(train, test)), row_digests(whole(test, train))
    ids, held_out = disjoint(torch.from_numpy(train.labels), marks, tested, validation_share(trial))
    order = Order(ids, trial, ranks)
    of_train, of_test = (gathered(data, ranks.device, width, padding) for data in (train, test))

    def of_split(split: str, places: torch.Tensor) -> Batch:
        return of_train(held_out[places]) if split == "validation" else of_test(places)

    sizes = {"train": len(ids), "validation": len(held_out), "test": len(test.labels)}
    shared = in_both({"train": marks[ids], "validation": marks[held_out], "test": tested})
    metrics = partial(classification, ranks.device, CLASSES, matthews=True)  # as CoLA is scored: arXiv 1805.12471
    held = held_out_classes(sizes, of_split, logits, metrics, shared, "development")
    left_out = len(marks) - len(ids) - len(held_out)
    note = f"{left_out} of CoLA's training sentences are left out: they are validation or test sentences too"
    return Data(Feed(order, of_train), "cola", order.steps, held, notes=[note] if left_out else [])


def whole(sentences: Sentences, others: Sentences) -> torch.Tensor:
    """Every sentence in a row, uncut, (n, tokens of the longest of both) int64: equal where a model sees no difference.

    What a tokeniser drops, as capital letters, tells no two sentences apart."""
    longest = max(int(data.lengths.max()) for data in (sentences, others))
    return padded(sentences, longest)[0]


def disjoint(
    labels: torch.Tensor, marks: torch.Tensor, tested: torch.Tensor, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(training ids, validation ids): `share` of each class is held out, and no sentence is in two splits.

    `labels`, `marks`: (n,) of the published training sentences; `tested`: marks of the test's; alike: the same one.
    """
    free = (~torch.isin(marks, tested)).nonzero().flatten()
    train, held_out = (free[places] for places in stratified(labels[free], share))
    return train[~torch.isin(marks[train], marks[held_out])], held_out
