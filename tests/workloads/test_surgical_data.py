"""Operations as batches: the same for any number of ranks, decoded once, and never in two splits."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_operations import TINY, as_cholect45, tiny_scenes

from scaling_study import datasets
from scaling_study.datasets import NO_SURGERY, DataSource
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import surgical_data, views
from scaling_study.workloads.cholect45 import read
from scaling_study.workloads.feed import AHEAD
from scaling_study.workloads.surgical_data import Frames, SurgicalData
from scaling_study.workloads.views import Reading

HEIGHT, WIDTH = 24, 42


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scenes(tmp_path_factory.mktemp("operations") / "scenes")


@pytest.fixture
def scenes(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATA_PATH", str(whole))
    return whole


@pytest.fixture
def mine(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, to be spoilt."""
    monkeypatch.setenv("DATA_PATH", str(tmp_path / "T45"))
    return Path(shutil.copytree(whole, tmp_path / "T45"))


def data(ranks: Ranks | None = None, **keys: object) -> SurgicalData:
    asked = {"data": "surgical_scenes", "batch_per_worker": 2, "train_epochs": 1, **keys}
    trial = Trial(**asked)  # type: ignore[arg-type]
    return surgical_data.surgical_data(trial, ranks or Ranks(), HEIGHT, WIDTH, lambda pixels: pixels.float() / 255)


def test_a_batch_is_frames_labels_and_videos(scenes: Path) -> None:
    found = data(batch_per_worker=3)
    frames, labels, video = next(found.feed)
    surgery, ids = read(scenes), found.feed.ids
    assert frames.shape == (3, 3, HEIGHT, WIDTH) and labels.shape == (3, 131) and labels.dtype == torch.float32
    assert labels.numpy().tolist() == surgery.labels[ids].tolist() and video.tolist() == surgery.video[ids].tolist()
    for one, file in zip(frames, surgery.paths(ids.numpy()), strict=True):
        image = Image.open(file).convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        assert (one * 255).round().byte().permute(1, 2, 0).numpy().tolist() == np.asarray(image).tolist()
    assert found.source == "surgical_scenes (synthetic scenes)" and found.steps_per_epoch == 3
    assert found.notes[0].startswith("15 frames, of 24 x 42 pixels, decoded by ")
    assert found.notes[1] == "train: videos 3 4 5; validation: videos 2; test: videos 1"


def test_splits_are_whole_videos_and_share_no_frame(scenes: Path) -> None:
    found = data(train_validation=0.5)
    assert found.sizes == {"train": 6, "validation": 6, "test": 3}
    assert found.in_both == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    assert found.read and found.splits
    read_by = {
        split: set(found.read(torch.from_numpy(found.splits.ids[split]))[2].tolist())
        for split in ("validation", "test")
    }
    trained_on = set(torch.cat([next(found.feed)[2] for _ in range(found.steps_per_epoch)]).tolist())
    assert read_by == {"validation": {2, 3}, "test": {1}} and trained_on == {4, 5}


def test_frames_of_another_split_that_are_copied_into_a_video_are_counted_but_black_ones_are_not(mine: Path) -> None:
    """What F22's kind would show: the record counts, and does not trust the list of videos."""
    shutil.copy(mine / "data/VID03/000001.png", mine / "data/VID02/000000.png")
    for file in ("VID01/000000.png", "VID02/000001.png", "VID04/000001.png"):
        Image.new("RGB", (84, 48)).save(mine / "data" / file)
    assert data().in_both == {"train/validation": 1, "train/test": 0, "validation/test": 0}


@pytest.mark.parametrize("augmentation", ["none", "crop_flip", "resized_crop"])
def test_two_ranks_read_what_one_reads(scenes: Path, augmentation: str) -> None:
    alone = data(batch_per_worker=4, train_augmentation=augmentation).feed
    both = [data(Ranks(rank, 2), train_augmentation=augmentation).feed for rank in range(2)]
    seen = []
    for _ in range(4):
        whole, parts = next(alone), [next(feed) for feed in both]
        seen.append(whole[0])
        for rank, part in enumerate(parts):
            assert all(mine.equal(tensor[rank::2]) for mine, tensor in zip(part, whole, strict=True))
    assert len({frames.numpy().tobytes() for frames in seen}) == 4


def test_after_the_first_epoch_no_file_is_read(mine: Path) -> None:
    feed = data(batch_per_worker=3).feed
    first: dict[int, torch.Tensor] = {}
    for _ in range(3 + AHEAD):  # the next ones were begun while the last of the epoch were still decoded
        frames = next(feed)[0]
        first |= dict(zip(feed.ids.tolist(), frames, strict=True))
    shutil.rmtree(mine / "data")
    for _ in range(6):
        frames = next(feed)[0]
        assert all(frame.equal(first[id]) for id, frame in zip(feed.ids.tolist(), frames, strict=True))


def test_frames_beyond_the_memory_there_is_are_decoded_again(scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Path] = []
    opened = views.opened
    monkeypatch.setattr(views, "opened", lambda file: decoded.append(file) or opened(file))
    most = 4 * HEIGHT * WIDTH * 3 + 5
    reading = Reading(HEIGHT, seed=0, cores=2, device=torch.device("cpu"))
    frames = Frames(read(scenes), reading, HEIGHT, WIDTH, most_bytes=most)
    ids = torch.arange(8)
    first = frames.begin_frames(ids).whole()
    assert len(decoded) == 8 and frames.begin_frames(ids).whole().equal(first) and len(decoded) == 12
    assert "; 4 of them stay in its memory (0 MB) once decoded; the others are decoded whenever" in frames.note()


def test_a_truncated_frame_is_named_or_black(mine: Path) -> None:
    file = mine / "data/VID04/000002.png"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(SystemExit, match=rf"^{file} cannot be decoded \(.*\): replace it"):
        list(itertools.islice(data().feed, 4))
    found = data(damaged_images="replace")
    black = [frame for _ in range(4) for frame in next(found.feed)[0] if not frame.any()]
    assert black and found.feed.notes()[0].startswith(f"1 damaged image(s), in whose places are black ones: {file}")


def test_another_host_with_other_frames_is_refused(scenes: Path) -> None:
    with pytest.raises(SystemExit, match=rf"^{scenes} of rank 1 holds other frames than that of rank 0: copy one"):
        data(Ranks(1, 2, agree=lambda value: 0.0))


# --- which data there is ---


def test_auto_is_cholect45_where_there_is_one_and_else_our_scenes(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data(data="auto").source == "surgical_scenes (synthetic scenes)"
    assert datasets.available()["cholect45"] == DataSource("surgical_scenes", NO_SURGERY)
    assert datasets.prepare(["cholect45"]) == {"cholect45": DataSource("surgical_scenes", NO_SURGERY)}
    assert datasets.prepare(["surgical_scenes"]) == {"surgical_scenes": DataSource("surgical_scenes", f"in {mine}")}
    with pytest.raises(SystemExit, match=r"^--data cholect45: no DATA_PATH holds CholecT45 \(data/VIDnn/, triplet/"):
        data(data="cholect45")
    as_cholect45(mine)
    assert data(data="auto").source == data(data="cholect45").source == "cholect45"
    assert datasets.available()["cholect45"] == DataSource("cholect45", f"in {mine}")
    assert datasets.scenes_folder() != mine


def test_scenes_that_nobody_has_drawn_yet_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA_PATH", raising=False)
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(surgical_data.surgical_scenes, "USUAL", replace(TINY, frames=5))
    folder = surgical_data.surgical_scenes.written()
    assert folder == tmp_path / "cache/surgical_scenes-1" and len(read(folder).files) == 5
    monkeypatch.setattr(surgical_data.surgical_scenes, "write", lambda *_: pytest.fail("drawn twice"))
    assert surgical_data.surgical_scenes.written() == folder
    (tmp_path / "root").mkdir()
    folder.rename(tmp_path / "root" / "surgical_scenes")
    assert surgical_data.surgical_scenes.written() == tmp_path / "root" / "surgical_scenes"


@pytest.mark.parametrize("find", [None, "parity"])
def test_random_frames_can_be_timed_and_not_trained_on(find: str | None) -> None:
    found = data(data="synthetic", train_epochs=None, find=find)
    frames, labels, video = next(found.feed)
    assert frames.shape == (2, 3, HEIGHT, WIDTH) and set(labels.unique().tolist()) == {0.0, 1.0} and video.shape == (2,)
    assert found.source == "synthetic (asked for)" and found.read is None
    assert next(found.feed)[0].equal(frames) == (find is None)
