"""What is seen of an image: literal rectangles, and what a training draws."""

from __future__ import annotations

import itertools

import pytest
import torch

from scaling_study.workloads import views

EPOCHS = 200


def test_the_whole_and_the_middle() -> None:
    assert views.WHOLE.box(300, 200) == (0, 0, 300, 200) and not views.WHOLE.mirrored
    assert views.MIDDLE.box(256, 256) == (16, 16, 240, 240) and not views.MIDDLE.mirrored
    assert views.MIDDLE.box(300, 200) == (62.5, 12.5, 237.5, 187.5), "7/8 of the shorter side"


def drawn(kind: str, epoch: int, ids: list[int], seed: int = 3) -> list[views.View]:
    reading = views.Reading(32, seed=seed, cores=1, device=torch.device("cpu"), augmentation=kind)
    return list(views.views_of(reading, epoch, torch.tensor(ids)))


def seen(view: views.View) -> tuple[object, ...]:
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
