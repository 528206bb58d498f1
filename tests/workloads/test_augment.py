"""Augmentation depends on seed, epoch and sample, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from scaling_study.workloads.views import PAD, augmented, uniform

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
