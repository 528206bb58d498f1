"""The in-memory path against torchvision's own transforms, on the real images."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from torchvision.datasets import CIFAR10

from scaling_study import datasets, settings
from scaling_study.errors import HostError
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, load

ROOT = settings.data_root()
real_data = pytest.mark.skipif(
    not (ROOT / datasets.CIFAR10_FOLDER).is_dir(), reason=f"needs CIFAR-10 in {ROOT}; set DATA_ROOT"
)


@pytest.fixture
def another_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root and an empty cache."""
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    return tmp_path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine this is: the archive's host cannot be reached."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar.tar.gz")


@pytest.mark.slow
@real_data
def test_batches_equal_torchvision_transforms():
    from torchvision import datasets as tv
    from torchvision import transforms

    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(cifar10.MEAN, cifar10.STD)])
    reference = tv.CIFAR10(str(ROOT), train=True, transform=transform)
    images, labels = cifar10.images_and_labels()
    chosen = torch.tensor([0, 49_999, 7, 7, 31_415])
    got_images, got_labels = cifar10.fetching(images, labels, torch.device("cpu"))(chosen)
    expected = [reference[int(i)] for i in chosen]
    torch.testing.assert_close(got_images, torch.stack([image for image, _ in expected]), atol=2e-6, rtol=0)
    assert got_labels.tolist() == [label for _, label in expected]


def test_missing_data_says_how_to_get_it(another_root, no_network):
    said = r"could not be downloaded .*: set DATA_ROOT to a folder that holds cifar"
    with pytest.raises(datasets.NoData, match=said):
        cifar10.images_and_labels()


@pytest.mark.slow
@real_data
def test_truncated_data_is_named_and_never_replaced_by_synthetic(another_root):
    shutil.copytree(ROOT / datasets.CIFAR10_FOLDER, another_root / datasets.CIFAR10_FOLDER)
    damaged = another_root / datasets.CIFAR10_FOLDER / "data_batch_3"
    damaged.chmod(0o644)
    with damaged.open("r+b") as stream:
        stream.truncate(1_000_000)
    with pytest.raises(SystemExit, match="is damaged or incomplete"):
        load(Trial(model="resnet8"), Ranks())


@pytest.mark.slow
@real_data
def test_a_changed_archive_is_packed_anew(another_root):
    shutil.copytree(ROOT / datasets.CIFAR10_FOLDER, another_root / datasets.CIFAR10_FOLDER)
    cifar10.images_and_labels()
    before = datasets.packed_cifar10()
    assert before.exists()
    (another_root / datasets.CIFAR10_FOLDER / "data_batch_1").touch()
    assert datasets.packed_cifar10() != before


def plant(folder: Path) -> None:
    """Files of the right names: what they hold is looked at later."""
    (folder / datasets.CIFAR10_FOLDER).mkdir(parents=True)
    (folder / datasets.CIFAR10_FOLDER / "data_batch_1").write_bytes(b"")


@pytest.mark.parametrize("set_to", ["inside", "above"])
def test_data_one_folder_off_are_found_and_neither_downloaded_nor_replaced(
    set_to: str, another_root: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(home := another_root / "sets" / "images")
    monkeypatch.setenv("DATA_ROOT", str(home / datasets.CIFAR10_FOLDER if set_to == "inside" else home.parent))
    with pytest.raises(HostError, match=f"cifar10 is in {home}, and not in .*: set DATA_ROOT={home}$"):
        cifar10.images_and_labels()
    with pytest.raises(HostError, match=f"set DATA_ROOT={home}$"):
        datasets.prepare(["cifar10"])


def test_a_data_root_that_is_not_there_is_an_error_and_no_reason_for_synthetic_data(
    another_root: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_ROOT", str(another_root / "gone"))
    for ready in (cifar10.images_and_labels, lambda: datasets.prepare(["cifar10"])):
        with pytest.raises(HostError, match=r"gone \(the environment\): there is no such folder"):
            ready()
    assert not (another_root / "gone").exists()


@pytest.mark.slow
@real_data
@pytest.mark.parametrize("writable", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_archive_alone_is_unpacked_without_a_network(
    writable: bool, another_root: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = another_root / "root"
    root.mkdir()
    (root / "cache").mkdir()
    archive = root / datasets.CIFAR10_ARCHIVE
    with tarfile.open(archive, "w:gz", compresslevel=0) as made:
        made.add(ROOT / datasets.CIFAR10_FOLDER, datasets.CIFAR10_FOLDER)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setenv("DATA_ROOT", str(root))
    assert datasets.available()["cifar10"].name == "cifar10"
    if not writable:
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and Path(path) != root)
    images, labels = cifar10.images_and_labels(train=False)
    assert len(images) == len(labels) == 10_000
    assert (root / datasets.CIFAR10_FOLDER).is_dir() == writable
