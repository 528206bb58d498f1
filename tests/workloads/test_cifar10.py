"""The in-memory path against torchvision's own transforms, on the real images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from scaling_study import datasets, settings
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
