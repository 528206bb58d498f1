"""Trees of images that are trained on to a result: their splits, what is seen of an image, what is wrong with one."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_tree import CLASSES, tiny_tree

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, load
from scaling_study.workloads import images as image_tree
from scaling_study.workloads.images import listed
from scaling_study.workloads.views import MIDDLE, decoded
from scaling_study.workloads.workload import Workload

SIDE = 32


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def tree(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATA_PATH", str(whole))
    return whole


@pytest.fixture
def mine(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, to be spoilt."""
    monkeypatch.setenv("DATA_PATH", str(tmp_path / "tree"))
    return Path(shutil.copytree(whole, tmp_path / "tree"))


def trained(ranks: Ranks | None = None, **keys: object) -> Workload:
    asked = {"model": "resnet8", "data": "images", "batch_per_worker": 4, "image_size": SIDE, "train_epochs": 1, **keys}
    return load(Trial(**asked), ranks or Ranks())  # type: ignore[arg-type]


def timed(**keys: object) -> Workload:
    return trained(train_epochs=None, **keys)


def test_a_training_holds_out_a_share_of_each_class_and_is_tested_on_val(tree: Path) -> None:
    workload = trained(train_validation=0.2)
    held_out = workload.held_out
    assert held_out and held_out.sizes == {"validation": 12, "test": 18} and workload.steps_per_epoch == 48 // 4
    assert held_out.published == {"train": {"train": 48}, "validation": {"train": 12}, "test": {"test": 18}}
    assert held_out.in_both == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    read = torch.cat([workload.batches.skip() for _ in range(12)])
    parts = image_tree.splits(listed(tree), Trial(train_validation=0.2))
    assert read.sort().values.equal(parts.ids) and not torch.isin(parts.validation, parts.ids).any()
    assert parts.train.labels[parts.validation].bincount().tolist() == [2] * 6


@pytest.mark.parametrize("augmentation", ["none", "crop_flip", "resized_crop"])
def test_two_ranks_read_what_one_reads(tree: Path, augmentation: str) -> None:
    """In the second epoch too, which is read ahead of while the first is trained on."""
    alone = trained(train_augmentation=augmentation, batch_per_worker=8)
    ranks = [Ranks(rank, 2, cores=tuple(range(rank + 1))) for rank in range(2)]
    both = [trained(one, train_augmentation=augmentation) for one in ranks]
    epochs: list[dict[int, torch.Tensor]] = [{}, {}]
    for step in range(2 * alone.steps_per_epoch):
        pixels, labels = next(alone.batches)
        parts = [next(workload.batches) for workload in both]
        for rank, part in enumerate(parts):
            assert part[0].equal(pixels[rank::2]) and part[1].equal(labels[rank::2])
        epochs[step // alone.steps_per_epoch] |= dict(zip(alone.batches.ids.tolist(), pixels, strict=True))
    again = epochs[0].keys() & epochs[1].keys()
    assert again and all(epochs[0][id].equal(epochs[1][id]) == (augmentation == "none") for id in again)


def test_evaluation_sees_the_middle_and_its_own_label(tree: Path) -> None:
    workload, mean, std = trained(), torch.tensor(cifar10.MEAN), torch.tensor(cifar10.STD)
    assert workload.held_out
    for split, folder in (("test", "val"), ("validation", "train")):
        places = torch.tensor([5, 0, 3])
        pixels, labels = workload.held_out.fetch(split, places)
        parts = image_tree.splits(listed(tree), Trial())
        of, ids = parts.at(split, places)
        for one, label, file in zip(pixels, labels, of.paths(ids), strict=True):
            image = Image.open(file)
            assert file.parent.name == CLASSES[label] and file.parent.parent.name == folder
            side = 7 / 8 * min(image.size)
            corner = [(length - side) / 2 for length in image.size]
            seen = image.resize((SIDE, SIDE), Image.BILINEAR, (*corner, *(at + side for at in corner)))
            expected = (torch.from_numpy(np.asarray(seen).copy()) / 255 - mean) / std
            torch.testing.assert_close(one.permute(1, 2, 0), expected, atol=2e-6, rtol=0)


def test_a_mirrored_view_is_mirrored(tree: Path) -> None:
    file = tree / "train" / "ant" / "00.jpg"
    mirrored = decoded(file, SIDE, SIDE, type(MIDDLE)(MIDDLE.box, mirrored=True))
    assert (mirrored[:, ::-1] == decoded(file, SIDE, SIDE, MIDDLE)).all()


def test_a_timed_trial_reads_the_same_tree_and_needs_no_val(mine: Path) -> None:
    shutil.rmtree(mine / "val")
    workload = timed()
    assert workload.held_out is None and workload.data_source == "images" and workload.steps_per_epoch == 60 // 4
    assert workload.model.classifier.out_features == 6
    assert timed(find="parity", image_size=None).batches.peek()[0].shape == (4, 3, 32, 32)
    with pytest.raises(SystemExit) as stop:
        trained()
    assert str(stop.value) == (
        f"DATA_PATH={mine} has no folder val/: a training is tested on val/<class>/*, as in train/"
    )


def test_classes_that_one_folder_lacks_are_named(mine: Path) -> None:
    (mine / "val" / "bee").rename(mine / "val" / "wasp")
    with pytest.raises(SystemExit, match=rf"^class bee is in {mine}/train and not in {mine}/val: both need the same"):
        trained()
    shutil.copytree(mine / "val" / "wasp", mine / "val" / "bee")
    with pytest.raises(SystemExit, match=rf"^class wasp is in {mine}/val and not in {mine}/train: both need the same"):
        trained()


def test_classes_that_differ_only_in_how_unicode_writes_them_are_named(mine: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for split in ("train", "val"):
        (mine / split / "cat").rename(mine / split / composed)
    (mine / "val" / composed).rename(mine / "val" / decomposed)
    with pytest.raises(SystemExit, match=r"write one class as 'caf.*' and 'caf.*': rename one"):
        trained()
    shutil.copytree(mine / "train" / composed, mine / "train" / decomposed)
    with pytest.raises(SystemExit, match=r"train has two folders of one class, 'cafe\\u0301' and 'caf\\xe9': merge"):
        timed()


def test_a_truncated_file_is_named_in_training_and_in_evaluation(mine: Path) -> None:
    for file in (mine / "train" / "dog" / "07.jpg", mine / "val" / "dog" / "01.jpg"):
        file.write_bytes(file.read_bytes()[:-200])
    workload = trained(train_validation=0)
    with pytest.raises(SystemExit, match=rf"^{mine}/train/dog/07.jpg cannot be decoded \(.*truncated.*\): replace it"):
        list(itertools.islice(workload.batches, workload.steps_per_epoch))
    assert workload.held_out
    with pytest.raises(SystemExit, match=rf"^{mine}/val/dog/01.jpg cannot be decoded"):
        workload.held_out.fetch("test", torch.arange(18))


def test_files_that_two_splits_share_are_counted(mine: Path) -> None:
    for number in range(2):
        shutil.copy(mine / "train" / "elk" / f"0{number}.jpg", mine / "val" / "elk" / f"copy{number}.jpg")
    held_out = trained(train_validation=0).held_out
    assert held_out and held_out.in_both == {"train/validation": 0, "train/test": 2, "validation/test": 0}


def test_hosts_with_unlike_trees_are_refused(tree: Path) -> None:
    with pytest.raises(SystemExit, match=rf"^{tree}/train of rank 1 holds other files than that of rank 0"):
        trained(Ranks(1, 2, agree=lambda value: 0.0))
