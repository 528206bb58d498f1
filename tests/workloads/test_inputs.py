"""The three inputs: the same samples in the same order, whoever makes the batches, and what each makes of them."""

from __future__ import annotations

import gc
import itertools
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_cifar import tiny_cifar

from scaling_study.machine import DALI, installed
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.workloads import cifar10, inputs, views
from scaling_study.workloads import images as image_tree
from scaling_study.workloads.feed import Drawn, DrawnAhead, Feed, batches_of_indices, steps_per_epoch
from scaling_study.workloads.views import DamagedFiles, Reading, Samples, augmented

SAMPLES, SIDE, BATCH = 61, 32, 6
CPU = torch.device("cpu")
needs_dali = pytest.mark.skipif(not any(map(installed, DALI)), reason="needs DALI: pip install '.[dali]'")
LIBRARIES = [pytest.param("dali", marks=needs_dali), "torchvision"]
OF_FILES = [*LIBRARIES, "memory"]


@pytest.fixture(autouse=True)
def no_pipeline_is_left() -> Iterator[None]:
    """A pipeline of DALI that a loader's process inherits as garbage keeps it for ever."""
    yield
    gc.collect()


# --- a library that draws ahead ---


def planted(drawn: Iterator[Drawn]) -> Generator[torch.Tensor, None, None]:
    """Draws three batches ahead, and makes of each its ids x 1,000 + its epoch."""
    ahead: list[Drawn] = []
    while True:
        ahead += itertools.islice(drawn, 4 - len(ahead))
        if not ahead:
            return
        batch = ahead.pop(0)
        yield batch.ids * 1000 + batch.epoch


@given(st.lists(st.sampled_from(["next", "skip", "peek"]), max_size=40))
def test_whatever_is_skipped_each_batch_is_made_of_its_own_ids(calls: list[str]) -> None:
    order = [torch.tensor([2 * number, 2 * number + 1]) for number in range(50)]
    made = DrawnAhead(iter(order), 3, planted)
    feed, number = Feed(made, lambda ids: (made.take(ids),)), 0
    for call in calls:
        expected = order[number] * 1000 + number // 3
        if call == "peek":
            assert feed.peek()[0].equal(expected)
            continue
        if call == "next":
            assert next(feed)[0].equal(expected)
        else:
            feed.skip()
        assert feed.ids.equal(order[number])
        number += 1
        assert feed.taken == number


# --- images in memory ---


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Smooth ones: what is interpolated in unlike ways is still alike."""
    numbers = torch.rand(SAMPLES, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return (255 * torch.nn.functional.interpolate(numbers, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)).byte()


def feed_of(
    library: str, images: torch.Tensor, kind: str = "none", rank: int = 0, ranks: int = 1, side: int = SIDE
) -> Feed:
    samples = Samples.in_memory(images, torch.arange(SAMPLES) % 10)
    reading = Reading(side, seed=7, cores=1, device=CPU, augmentation=kind)
    batch = BATCH // ranks
    order = batches_of_indices(SAMPLES, 7, rank, ranks, batch)
    return inputs.feed(library, samples, order, steps_per_epoch(SAMPLES, ranks, batch), reading)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_not_augmented_is_what_lies_in_memory(library: str, images: torch.Tensor) -> None:
    feed, normalised = feed_of(library, images), cifar10.normalising(CPU)
    read: list[int] = []
    for _ in range(2 * (SAMPLES // BATCH)):
        pixels, labels = next(feed)
        torch.testing.assert_close(pixels, normalised(images[feed.ids]), atol=3e-6, rtol=0)
        assert labels.equal(feed.ids % 10)
        read += feed.ids.tolist()
    first, second = read[: len(read) // 2], read[len(read) // 2 :]
    assert set(Counter(first).values()) == set(Counter(second).values()) == {1} and first != second
    feed.order.stop()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_sample_is_augmented_alike_on_any_rank_and_after_a_stop(library: str, images: torch.Tensor) -> None:
    def by_sample(feed: Feed, batches: int) -> dict[tuple[int, int], torch.Tensor]:
        steps = SAMPLES // BATCH
        made = {}
        for number in range(feed.taken, batches):
            pixels, _ = next(feed)
            made |= {(number // steps, int(id)): one for id, one in zip(feed.ids, pixels, strict=True)}
        feed.order.stop()
        return made

    whole = by_sample(feed_of(library, images, "near_square_crop"), 13)
    halves = [by_sample(feed_of(library, images, "near_square_crop", rank, 2), 13) for rank in range(2)]
    assert halves[0].keys() | halves[1].keys() == whole.keys() and not halves[0].keys() & halves[1].keys()
    assert all(one.equal(whole[name]) for half in halves for name, one in half.items())
    stopped = feed_of(library, images, "near_square_crop")
    next(stopped)
    for _ in range(8):
        stopped.skip()
    rest = by_sample(stopped, 13)
    assert len(rest) == 4 * BATCH and all(one.equal(whole[name]) for name, one in rest.items())
    again = {id for epoch, id in whole if epoch == 1} & {id for epoch, id in whole if epoch == 0}
    assert again and not any(whole[0, id].equal(whole[1, id]) for id in again), "each epoch has numbers of its own"


@needs_dali
@pytest.mark.parametrize(("kind", "far"), [("crop_flip", 3e-6), ("resized_crop", 0.05), ("near_square_crop", 0.05)])
def test_dali_sees_the_rectangles_that_memory_does(kind: str, far: float, images: torch.Tensor) -> None:
    feed, normalised = feed_of("dali", images, kind), cifar10.normalising(CPU)
    for _ in range(4):
        pixels, _ = next(feed)
        ours = normalised(augmented(kind, images[feed.ids], 7, 0, feed.ids))
        assert (pixels - ours).abs().mean() < far
        assert (pixels - normalised(images[feed.ids])).abs().mean() > 4 * far


@pytest.mark.parametrize("library", LIBRARIES)
def test_images_are_made_as_large_as_they_are_wanted(library: str, images: torch.Tensor) -> None:
    feed = feed_of(library, images, "near_square_crop", side=48)
    assert next(feed)[0].shape == (BATCH, 3, 48, 48)
    feed.order.stop()


# --- files ---


@pytest.fixture
def tree(tmp_path: Path) -> image_tree.Tree:
    """Six smooth images of 60 x 40 pixels, as PNG and as JPEG."""
    for number in range(6):
        folder = tmp_path / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((60, 40), Image.Resampling.BICUBIC).save(
            folder / f"{number}.{['png', 'jpg'][number // 3]}"
        )
    return image_tree.listed(tmp_path)


def of_files(library: str, tree: image_tree.Tree, **how: object) -> Feed:
    samples = Samples(tree.labels, folder=tree.folder, files=tree.files)
    reading = Reading(28, seed=7, cores=1, device=CPU, **how)
    return inputs.feed(library, samples, batches_of_indices(6, 7, 0, 1, 3), 2, reading)


@pytest.mark.parametrize("library", OF_FILES)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "middle"])
def test_files_are_seen_as_pil_decodes_them(library: str, whole: bool, tree: image_tree.Tree) -> None:
    feed, normalised = of_files(library, tree, whole=whole), cifar10.normalising(CPU)
    box = None if whole else (12.5, 2.5, 47.5, 37.5)  # a square of 7/8 of the shorter side
    for _ in range(2):
        pixels, labels = next(feed)
        assert labels.equal(tree.labels[feed.ids])
        for one, id in zip(pixels, feed.ids.tolist(), strict=True):
            seen = Image.open(tree.folder / tree.files[id]).resize((28, 28), Image.Resampling.BILINEAR, box)
            expected = normalised(torch.from_numpy(np.asarray(seen).copy()).permute(2, 0, 1)[None])[0]
            assert (one - expected).abs().mean() < 0.05
    feed.order.stop()


@pytest.mark.parametrize("library", OF_FILES)
@pytest.mark.parametrize(
    "damage", [lambda whole: b"", lambda whole: whole[: len(whole) // 2]], ids=["empty", "truncated"]
)
def test_a_damaged_file_stops_the_run_or_is_black_counted_and_named(
    library: str, damage, tree: image_tree.Tree
) -> None:
    bad = [tree.folder / tree.files[id] for id in (1, 4)]
    for file in bad:
        file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(SystemExit, match=rf"^{tree.folder}/\S+ cannot be decoded \(.*damaged_images: replace"):
        list(itertools.islice(of_files(library, tree, whole=True), 2))
    feed = of_files(library, tree, whole=True, damaged=DamagedFiles(replace=True))
    black = cifar10.normalising(CPU)(torch.zeros(1, 3, 28, 28))[0]
    for _ in range(4):  # two epochs: each file is named once
        pixels, _ = next(feed)
        for one, id in zip(pixels, feed.ids.tolist(), strict=True):
            assert torch.allclose(one, black, atol=3e-6) == (tree.folder / tree.files[id] in bad)
    note = feed.notes()[-1]
    assert note == f"2 damaged image(s), in whose places are black ones: {bad[0]}, {bad[1]}"
    feed.order.stop()


@needs_dali
@pytest.mark.parametrize("kind", ["crop_flip", "resized_crop", "near_square_crop"])
def test_of_files_too_dali_sees_the_rectangles_that_memory_does(kind: str, tree: image_tree.Tree) -> None:
    feed, normalised = of_files("dali", tree, augmentation=kind), cifar10.normalising(CPU)
    reading = Reading(28, seed=7, cores=1, device=CPU, augmentation=kind)
    decoder = inputs.ImageDecoder(reading)
    for step in range(8):  # four epochs
        pixels, _ = next(feed)
        ours = decoder.begin(tree.paths(feed.ids), views.views_of(reading, step // 2, feed.ids)).whole()
        assert (pixels - normalised(ours.permute(0, 3, 1, 2))).abs().mean() < 0.05


# --- whole trials ---

SCRIPT = ["--model", "resnet8", "--device", "cpu", "--cores-per-worker", "1", "--batch-per-worker", "45"]


@pytest.mark.slow
@needs_dali
def test_two_ranks_train_by_dali(tmp_path: Path) -> None:
    script = ["torchrun", "--standalone", "--nproc-per-node", "2", str(CHECKOUT / "data_parallel/torch_ddp.py")]
    train = ["--input", "dali", "--train-epochs", "2", "--train-augmentation", "near_square_crop"]
    with tiny_cifar(tmp_path / "data") as data:
        done = forked.run([*script, *SCRIPT, *train, "--record", str(tmp_path)], env={"DATA_ROOT": str(data)})
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in store.read_ranks(tmp_path, 2):
        assert rank.training.steps == 8 and len(set(rank.training.orders)) == 2
        assert "input dali: batches are made by 1 thread(s) of each rank" in rank.notes


@pytest.mark.slow
def test_a_trial_is_timed_while_torchvisions_processes_read(tmp_path: Path) -> None:
    script = [sys.executable, str(CHECKOUT / "data_parallel/single.py"), *SCRIPT, "--input", "torchvision"]
    done = forked.run([*script, "--data", "synthetic", "--steps", "4", "--record", str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    (rank,) = store.read_ranks(tmp_path, 1)
    assert rank.samples_seen == 4 * 45 and rank.phases.data_seconds is not None
    note = "input torchvision: batches are made by 1 process(es) of each rank, whose memory is not counted"
    assert note in rank.notes


def test_batches_that_have_no_room_in_shared_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inputs, "SHARED_MEMORY", tmp_path)
    inputs.require_shared_memory(1)
    with pytest.raises(SystemExit, match=r"MiB free, batches in it take 1048576 MiB: give the container more"):
        inputs.require_shared_memory(1 << 40)
