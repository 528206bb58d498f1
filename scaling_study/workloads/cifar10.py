"""CIFAR-10 as torchvision has it, held in memory as bytes.                                             [torch]

A 32x32 study must not measure its loader (F6). All 50,000 images are 154 MB: they stay in memory, uint8, shared between
the ranks of a host by the page cache. A batch is a gather, a cast and a normalisation: some tens of microseconds.

The archive is opened once through torchvision, which verifies its checksums, and packed into one array in .cache/.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from scaling_study.datasets import CIFAR10_ARCHIVE, CIFAR10_FOLDER, NoData, filled, packed_cifar10, refuse_misplaced
from scaling_study.settings import data_root, require_data_root
from scaling_study.workloads.feed import Batch, sent

SAMPLES, CLASSES, SIDE = 50_000, 10, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as the published study had it

CONNECT_SECONDS = 20.0


def images_and_labels(train: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """(50000, 3, 32, 32) uint8 images and (50000,) int64 labels; downloads them if they are not there.

    Not `train`: the published test set, 10,000 of both. Raises NoData if they can neither be found nor downloaded,
    SystemExit if they are there but damaged.
    """
    packed = packed_cifar10() if train else packed_cifar10().with_suffix(".test.npy")
    if not packed.exists():
        images, labels = _open_archive(train)
        try:
            _pack(packed, images, labels)
        except OSError:  # a read-only checkout: slower starts, the same data
            return torch.from_numpy(images), torch.from_numpy(labels)
    rows = np.load(packed, mmap_mode="c")  # torch wants a writable buffer; the file stays as it is
    return torch.from_numpy(rows[:, 1:]).view(-1, 3, SIDE, SIDE), torch.from_numpy(rows[:, 0].astype(np.int64))


def _open_archive(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read the archive through torchvision, which verifies its checksums."""
    from torchvision.datasets import CIFAR10  # only here: it costs a second to import

    root = data_root()
    folder = root / CIFAR10_FOLDER
    if not folder.is_dir():
        refuse_misplaced("cifar10")
        root = _unpack_or_download(root)
    try:
        dataset = CIFAR10(str(root), train=train)
    except RuntimeError as error:  # torchvision: "Dataset not found or corrupted"
        raise SystemExit(
            f"CIFAR-10 in {folder} is damaged or incomplete (its checksums do not match): "
            "remove that folder and download it again, or point DATA_ROOT at a whole copy"
        ) from error
    return dataset.data.transpose(0, 3, 1, 2).copy(), np.array(dataset.targets, dtype=np.int64)


def _unpack_or_download(root: Path) -> Path:
    """Unpack the archive, fetched into `root` if it is not there, one rank of a host at a time; the folder with the
    images: `root`, or in the cache where that cannot be written. Raises NoData with how to get it by hand."""
    from torchvision.datasets import CIFAR10

    require_data_root()
    if (archive := root / CIFAR10_ARCHIVE).is_file() and not os.access(root, os.W_OK):
        unpacked = packed_cifar10().with_suffix(".unpacked")
        with filled(unpacked) as half:
            if half:
                shutil.unpack_archive(archive, half, filter="data")
        return unpacked
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(CONNECT_SECONDS)  # torchvision sets none: behind a firewall it would wait for ever
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(str(root / ".cifar10.lock")):
            if not (root / CIFAR10_FOLDER).is_dir():
                CIFAR10(str(root), train=True, download=True)
    except (OSError, RuntimeError) as error:
        raise NoData(
            f"CIFAR-10 is not in {root} and could not be downloaded ({error}): "
            f"set DATA_ROOT to a folder that holds {CIFAR10_FOLDER}/"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    return root


def _pack(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """One row an image: its label, then 3,072 bytes. Ranks that start together wait for the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(path) + ".lock"):
        if not path.exists():
            rows = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], axis=1)
            half = path.with_suffix(f".{os.getpid()}.tmp")
            with half.open("wb") as stream:
                np.save(stream, rows)
            half.replace(path)


def fetching(
    images: torch.Tensor,
    labels: torch.Tensor,
    device: torch.device,
    shaped: Callable[[torch.Tensor], torch.Tensor] = lambda pixels: pixels,
) -> Callable[[torch.Tensor], Batch]:
    """Ids (b,) -> images (b, 3, side, side) float32, `shaped` from bytes and normalised, and labels (b,) int64."""
    images, labels = images.to(device), labels.to(device)  # to a GPU 154 MB once, and no copy in the step
    normalised = normalising(device)

    def fetch(ids: torch.Tensor) -> Batch:
        chosen = sent(ids, device)
        return normalised(shaped(images[chosen])), labels[chosen]

    return fetch


def normalising(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """(b, 3, side, side) bytes -> float32, (x / 255 - mean) / std as one multiply-add."""
    scale = (1 / (255 * torch.tensor(STD))).view(1, 3, 1, 1).to(device)
    shift = (-torch.tensor(MEAN) / torch.tensor(STD)).view(1, 3, 1, 1).to(device)
    return lambda pixels: torch.addcmul(shift, pixels.float(), scale)
