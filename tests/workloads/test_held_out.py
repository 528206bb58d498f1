"""What is held out is a share of each class, and never trained on; files are told apart; outputs are scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scaling_study.workloads import held_out
from scaling_study.workloads.held_out import classification, score, stratified

LABELS = torch.arange(1003) % 10


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_splits_are_disjoint_and_whole_and_hold_each_class_alike(share: float) -> None:
    train, validation = stratified(LABELS, share)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(1003))
    assert all(abs(int((LABELS[validation] == label).sum()) - share * 100) <= 1 for label in range(10))
    torch.manual_seed(5)
    assert torch.equal(stratified(LABELS, share)[1], validation), "always the same"


def test_files_are_alike_where_all_their_bytes_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = b"e" * held_out.END
    contents = [b"a", b"b", b"a", b"", b"longer", b"x" + end, b"y" + end, b"x" + end, b"z" + end[:-1] + b"f"]
    files = [tmp_path / str(number) for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    whole, read_whole = held_out._whole, []
    monkeypatch.setattr(held_out, "_whole", lambda file: read_whole.append(file.name) or whole(file))
    numbers = held_out.file_digests(files).tolist()
    assert [numbers.index(number) for number in numbers] == [contents.index(content) for content in contents]
    assert read_whole == ["0", "2", "5", "6", "7"], "only those of one size and one end"


def test_accuracy_is_of_the_likeliest_class_and_of_the_five_likeliest() -> None:
    """Three samples of seven classes whose right one is the 1st, 5th and 6th likeliest."""
    metrics = classification(torch.device("cpu"), 7)
    score(metrics, torch.arange(7.0, 0.0, -1.0).repeat(3, 1), torch.tensor([0, 4, 5]))
    assert [float(metrics[name].compute()) for name in ("accuracy", "accuracy_top5")] == [1 / 3, 2 / 3]
