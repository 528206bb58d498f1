"""What is seen of an image depends on seed, epoch and sample, and on nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from scaling_study.workloads import views
from scaling_study.workloads.views import PAD, augmented, opened, uniform

IDS = torch.arange(4000)


@pytest.mark.parametrize("kind", ["crop_flip", "resized_crop"])
def test_a_sample_is_augmented_alike_in_any_batch_of_any_rank(kind: str) -> None:
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ids = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    whole = augmented(kind, images, 42, 3, torch.arange(64))
    torch.rand(5)  # no generator decides
    shuffled = augmented(kind, images[ids], 42, 3, ids)
    assert torch.equal(whole[ids], shuffled) and whole.dtype == torch.uint8 and whole.shape == images.shape
    assert not torch.equal(whole, augmented(kind, images, 42, 4, torch.arange(64)))
    assert not torch.equal(whole, augmented(kind, images, 43, 3, torch.arange(64)))


def test_a_crop_is_a_window_of_the_padded_image_or_of_its_mirror() -> None:
    image = torch.arange(1, 1 + 3 * 32 * 32).view(1, 3, 32, 32)
    padded = torch.nn.functional.pad(image, (PAD,) * 4)[0]
    windows = {tuple(padded[:, y : y + 32, x : x + 32].flatten().tolist()) for y in range(9) for x in range(9)}
    seen = set()
    for epoch in range(40):
        crop = augmented("crop_flip", image, 1, epoch, torch.tensor([7]))[0]
        plain, mirrored = (tuple(part.flatten().tolist()) in windows for part in (crop, crop.flip(-1)))
        assert plain or mirrored
        seen.add((plain, mirrored))
    assert (True, False) in seen and (False, True) in seen


def test_numbers_are_uniform_and_those_of_seeds_epochs_and_places_are_unrelated() -> None:
    first = uniform(1, 0, IDS, 0)
    assert first.min() >= 0 and first.max() < 1 and stats.kstest(first.numpy(), "uniform").pvalue > 1e-3
    others = [uniform(2, 0, IDS, 0), uniform(1, 1, IDS, 0), uniform(1, 0, IDS, 1), uniform(1, 0, IDS + 1, 0)]
    assert all(abs(stats.pearsonr(first.numpy(), other.numpy()).statistic) < 0.06 for other in others)


def test_none_leaves_images_as_they_are() -> None:
    images = torch.rand(2, 3, 8, 8)
    assert augmented("none", images, 1, 0, torch.arange(2)) is images


EPOCHS = 200


def test_the_whole_and_the_middle() -> None:
    assert views.WHOLE.box(300, 200) == (0, 0, 300, 200) and not views.WHOLE.mirrored
    assert views.MIDDLE.box(256, 256) == (16, 16, 240, 240) and not views.MIDDLE.mirrored
    assert views.MIDDLE.box(300, 200) == (62.5, 12.5, 237.5, 187.5), "7/8 of the shorter side"


def drawn(kind: str, epoch: int, ids: list[int], seed: int = 3) -> list[views.ImageView]:
    reading = views.Reading(32, seed=seed, cores=1, device=torch.device("cpu"), augmentation=kind)
    return list(views.views_of(reading, epoch, torch.tensor(ids)))


def seen(view: views.ImageView) -> tuple[object, ...]:
    return (*view.box(400, 300), view.mirrored)


def test_a_view_depends_on_seed_epoch_and_sample_alone() -> None:
    together = drawn("resized_crop", 1, [7, 8, 9])
    assert [seen(view) for view in together] == [seen(drawn("resized_crop", 1, [id])[0]) for id in (7, 8, 9)]
    others = [drawn("resized_crop", 1, [8]), drawn("resized_crop", 0, [7]), drawn("resized_crop", 1, [7], seed=4)]
    assert seen(together[0]) not in [seen(other[0]) for other in others]


@pytest.mark.parametrize(("width", "height"), [(400, 300), (90, 400), (224, 224)])
@pytest.mark.parametrize("kind", ["crop_flip", "resized_crop"])
def test_a_view_lies_in_the_image_and_half_are_mirrored(kind: str, width: int, height: int) -> None:
    made = list(itertools.chain(*(drawn(kind, epoch, [1, 2, 3, 4, 5]) for epoch in range(EPOCHS))))
    boxes = torch.tensor([view.box(width, height) for view in made])
    left, upper, right, lower = boxes.T
    assert (left >= 0).all() and (upper >= 0).all() and (right <= width).all() and (lower <= height).all()
    assert 0.45 < sum(view.mirrored for view in made) / len(made) < 0.55
    across, down = right - left, lower - upper
    if kind == "crop_flip":
        side = 7 / 8 * min(width, height)
        assert torch.allclose(across, torch.tensor(side)) and torch.allclose(down, torch.tensor(side))
        assert left.min() < 0.05 * width and right.max() > 0.95 * width, "anywhere in the image"
        return
    share, cut = across * down / (width * height), (across > width - 1e-3) | (down > height - 1e-3)
    ratio = (across / down)[~cut]
    assert ratio.min() > 0.749 and ratio.max() < 1.334 and share[~cut].min() > 0.0799
    if width == height:
        assert share.min() < 0.1 and share.max() > 0.9 and ratio.min() < 0.77 and ratio.max() > 1.3


GREY = np.linspace(0, 255, 64).round().astype(np.uint8).reshape(8, 8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_is_seen_as_the_same_grey(mode: str, tmp_path: Path) -> None:
    """Of 16 bits too: Pillow's own conversion makes all but the darkest pixels white."""
    grey = GREY.copy() if mode != "1" else np.where(GREY > 127, 255, 0).astype(np.uint8)
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    file = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    image.save(file, **({"quality": 100} if mode == "CMYK" else {}))
    with Image.open(file) as saved:
        assert saved.mode == mode
    seen = np.asarray(opened(file)).astype(int)
    assert seen.shape == (8, 8, 3)
    assert abs(seen - grey[:, :, None]).max() <= (3 if mode == "CMYK" else 0)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_without_a_range_are_refused_by_the_files_name(mode: str, tmp_path: Path) -> None:
    Image.new(mode, (8, 8), 300).save(tmp_path / "a.tiff")
    (tmp_path / "a.tiff").rename(tmp_path / "a.png")
    with pytest.raises(SystemExit, match=r"a\.png cannot be decoded \(its pixels are numbers without a known range"):
        opened(tmp_path / "a.png")
