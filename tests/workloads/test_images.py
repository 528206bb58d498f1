"""Trees of images: found, decoded and read as they are; what is wrong with one is said in a line."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from PIL import Image

from scaling_study import datasets, settings
from scaling_study.errors import HostError
from scaling_study.measure.training import coming_epochs
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, images, load
from scaling_study.workloads.feed import AHEAD, Begun, Drawn, DrawnAhead, Feed, read_ahead

ROOT = settings.data_root()
MINI = ROOT / "imagenet-mini"
real_tree = pytest.mark.skipif(not (MINI / "train").is_dir(), reason=f"needs imagenet-mini in {ROOT}; set DATA_ROOT")
real_cifar10 = pytest.mark.skipif(
    not (ROOT / datasets.CIFAR10_FOLDER).is_dir(), reason=f"needs CIFAR-10 in {ROOT}; set DATA_ROOT"
)


@pytest.fixture(autouse=True)
def no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA_PATH", raising=False)


@pytest.fixture
def a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes of 4, 5 and 6 images of unequal shapes, in all kinds of files, and what is no image."""
    numbers = np.random.default_rng(0)
    for label, (name, kinds) in enumerate([("ant", "png JPG jpeg PNG"), ("bee", "jpg " * 5), ("cat", "png " * 6)]):
        folder = tmp_path / "train" / name
        folder.mkdir(parents=True)
        for number, kind in enumerate(kinds.split()):
            pixels = numbers.integers(0, 256, (20 + 9 * label, 31 + number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.{kind}", "PNG" if kind.lower() == "png" else "JPEG")
        (folder / "readme.txt").write_text("no image")
        (folder / "._0.png").write_text("what some systems leave")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "list.txt").write_text("no class")
    monkeypatch.setenv("DATA_PATH", str(tmp_path))
    return tmp_path


def a_trial(**keys: object) -> Trial:
    return Trial(**{"model": "iformer_tiny", "data": "images", "batch_per_worker": 2, "image_size": 32, **keys})


# --- the tree ---


def test_classes_and_files_are_in_sorted_order(a_tree: Path) -> None:
    tree = images.listed(a_tree)
    assert tree.classes == ("ant", "bee", "cat")
    assert tree.files == [
        "ant/0.png", "ant/1.JPG", "ant/2.jpeg", "ant/3.PNG",
        *(f"bee/{n}.jpg" for n in range(5)), *(f"cat/{n}.png" for n in range(6)),
    ]  # fmt: skip
    assert tree.labels.tolist() == [0] * 4 + [1] * 5 + [2] * 6


def test_what_is_no_tree_is_one_line_that_names_the_folder(tmp_path: Path) -> None:
    def said() -> str:
        with pytest.raises(SystemExit) as stop:
            images.listed(tmp_path)
        assert "\n" not in str(stop.value) and "train/<class>/*.png" in str(stop.value)
        return str(stop.value)

    assert f"DATA_PATH={tmp_path} has no folder train/" in said()
    (tmp_path / "train" / "ant").mkdir(parents=True)
    assert f"{tmp_path}/train has 1 folder(s) of a class" in said()
    (tmp_path / "train" / "bee").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "ant" / "1.png")
    assert f"{tmp_path}/train/bee holds no images" in said()


# --- what is read ---


def test_every_image_comes_with_its_own_label_and_pixels(a_tree: Path) -> None:
    tree, side = images.listed(a_tree), 32
    source = images.enlarged_data(a_trial(), Ranks(), side)
    for _ in range(2 * 7):
        pixels, labels = next(source.feed)
        ids = source.feed.ids
        assert labels.equal(tree.labels[ids])
        for one, id in zip(pixels, ids.tolist(), strict=True):
            whole = Image.open(tree.folder / tree.files[id]).convert("RGB").resize((side, side), Image.BILINEAR)
            plain = torch.from_numpy(np.asarray(whole).copy()).permute(2, 0, 1) / 255
            expected = (plain - torch.tensor(cifar10.MEAN)[:, None, None]) / torch.tensor(cifar10.STD)[:, None, None]
            torch.testing.assert_close(one, expected, atol=2e-6, rtol=0)


def test_skipping_and_peeking_change_nothing_of_what_comes(a_tree: Path) -> None:
    plain, feed = (images.enlarged_data(a_trial(), Ranks(), 32).feed for _ in range(2))
    for what in "nn-n?n----n??n--?-n":  # next, skip, peek
        if what == "?":
            feed.peek()
            continue
        (pixels, labels), ids = next(plain), plain.ids
        if what == "-":
            assert feed.skip().equal(ids)
        else:
            got = next(feed)
            assert got[0].equal(pixels) and got[1].equal(labels)
        assert feed.ids.equal(ids) and feed.taken == plain.taken


def test_epochs_of_two_ranks_are_the_whole_tree_in_a_new_order(a_tree: Path) -> None:
    seen = []
    for rank in range(2):
        workload = load(a_trial(), Ranks(rank, 2))
        next(workload.batches)
        seen.append(coming_epochs(workload))
    assert workload.steps_per_epoch == 3
    first, second = (torch.cat([epochs[i] for epochs in seen]) for i in range(2))
    assert len(first.unique()) == len(second.unique()) == 12 and not first.equal(second)


def ahead(begin: Callable[[Drawn], Begun]) -> Feed:
    """Batches of one id each, 0, 1, 2, ..."""
    order = DrawnAhead((torch.tensor([i]) for i in itertools.count()), 1, read_ahead(begin))
    return Feed(order, lambda ids: (order.take(ids),))


def test_the_next_batches_are_begun_before_they_are_asked_for() -> None:
    begun: list[int] = []

    def begin(batch: Drawn) -> Begun:
        begun.append(int(batch.ids))
        return Begun(batch.ids * 10)

    feed = ahead(begin)
    assert [int(feed.skip()) for _ in range(3)] == [0, 1, 2] and not begun, "passing over begins nothing"
    assert [int(next(feed)[0]) for _ in range(2)] == [30, 40]
    assert begun == list(range(3, 5 + AHEAD)), "each once"
    assert [int(feed.skip()), int(next(feed)[0])] == [5, 60]


def test_a_batch_that_is_passed_over_is_called_off() -> None:
    begun, goes_on, done = Event(), Event(), []

    def job(id: int) -> None:
        if id == 1:  # the only thread stands in this batch: those after it wait to be begun
            begun.set()
            goes_on.wait(300)
        done.append(id)

    with ThreadPoolExecutor(1) as pool:
        feed = ahead(lambda batch: Begun(batch.ids, [pool.submit(job, int(batch.ids))]))
        next(feed)
        assert begun.wait(300)
        assert [int(feed.skip()) for _ in range(3)] == [1, 2, 3]
        goes_on.set()
    assert done == [0, 1]


@real_tree
def test_a_real_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_PATH", str(MINI))
    workload = load(a_trial(batch_per_worker=8, image_size=64), Ranks())
    pixels, labels = next(workload.batches)
    assert workload.data_source == "images" and workload.steps_per_epoch == 500 // 8
    assert "500 images of 10 classes, decoded by" in workload.notes[0]
    assert pixels.shape == (8, 3, 64, 64) and pixels.dtype == torch.float32 and pixels.is_contiguous()
    assert labels.dtype == torch.int64 and labels.max() < 10
    assert 0.5 < pixels.std() < 2
    assert workload.loss(workload.model, (pixels, labels)).isfinite()


# --- which data ---


def test_auto_is_the_tree_else_cifar10_else_synthetic(a_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert images.enlarged_data(a_trial(data="auto"), Ranks(), 32).source == "images"
    monkeypatch.delenv("DATA_PATH")

    def nowhere() -> None:
        raise datasets.NoData("CIFAR-10 is not there")

    monkeypatch.setattr(cifar10, "images_and_labels", nowhere)
    source = images.enlarged_data(a_trial(data="auto"), Ranks(), 32)
    assert source.source == "synthetic (no DATA_PATH is set, and CIFAR-10 not found)"
    assert next(source.feed)[0].shape == (2, 3, 32, 32)
    with pytest.raises(SystemExit, match="--data images: no DATA_PATH is set; set it to a folder that holds train/"):
        images.enlarged_data(a_trial(), Ranks(), 32)
    with pytest.raises(SystemExit, match="--data cifar10: CIFAR-10 is not there"):
        images.enlarged_data(a_trial(data="cifar10"), Ranks(), 32)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_what_a_plan_is_told(a_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert datasets.available()["images"] == datasets.DataSource("images", f"in {a_tree}")
    assert datasets.tree_images() == 15
    assert datasets.prepare(["images"]) == {"images": datasets.DataSource("images", f"in {a_tree}")}
    for file in (a_tree / "train" / "bee").glob("*.jpg"):
        file.unlink()
    with pytest.raises(HostError, match=f"^{a_tree}/train/bee holds no images"):
        datasets.prepare(["images"])


# --- CIFAR-10 as published ---


@real_cifar10
@pytest.mark.parametrize("side", [224, 64])
def test_cifar10_in_memory_is_what_the_published_files_hold(side: int) -> None:
    """PIL rounds to whole numbers between rows and columns, torch at the end: one or two of 255 apart."""
    pixels, _ = cifar10.images_and_labels()
    chosen = pixels[[0, 7, 4711]]
    for one, enlarged in zip(chosen, images.enlarged(chosen, side), strict=True):
        file = Image.fromarray(one.permute(1, 2, 0).numpy()).resize((128, 128), Image.BILINEAR)
        expected = torch.from_numpy(np.asarray(file.resize((side, side), Image.BILINEAR)).copy()).permute(2, 0, 1)
        difference = (enlarged - expected).abs()
        assert difference.max() <= 2 and difference.mean() < 0.5


@real_cifar10
def test_the_written_tree_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["images", "--cifar10-tree", str(tmp_path), "--images", "3"])
    images.main()
    assert capsys.readouterr().out == f"30 images of 10 classes: DATA_PATH={tmp_path}\n"
    monkeypatch.setenv("DATA_PATH", str(tmp_path))
    tree = images.listed(tmp_path)
    pixels, labels = cifar10.images_and_labels()
    assert tree.classes == images.CIFAR10_CLASSES and tree.labels.bincount().tolist() == [3] * 10
    assert [name for name in os.listdir(tmp_path) if name != "train"] == [], "nothing half written is left"
    for name, label in zip(tree.files, tree.labels, strict=True):
        number = int(Path(name).stem)
        assert labels[number] == label
        small = Image.open(tree.folder / name).resize((32, 32), Image.BOX)
        assert (torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).float() - pixels[number]).abs().mean() < 8
    source = images.enlarged_data(a_trial(), Ranks(), 32)
    assert next(source.feed)[0].shape == (2, 3, 32, 32)
    with pytest.raises(SystemExit, match=f"{tmp_path}/train is there already: choose another folder"):
        images.write_cifar10(tmp_path, each=3)
