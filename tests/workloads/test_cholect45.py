"""CholecT45's layout: what is read of it, its splits, and what is wrong with one, by file and line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_operations import OFFICIAL, TINY, as_cholect45, tiny_scenes

from scaling_study.workloads.cholect45 import FOLDS, LABELS, PARTS, InstrumentMask, Surgery, masks_of, read, split
from scaling_study.workloads.surgical_scenes.triplets import TRIPLETS


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scenes(tmp_path_factory.mktemp("operations") / "scenes")


@pytest.fixture
def mine(scenes: Path, tmp_path: Path) -> Path:
    """A copy, to be spoilt."""
    return Path(shutil.copytree(scenes, tmp_path / "T45"))


def edit(path: Path, line: int, change: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join([*lines, ""]))


def test_labels_and_frames_are_read_video_by_video(scenes: Path) -> None:
    surgery = read(scenes)
    assert surgery.source == "surgical_scenes" and surgery.videos == (1, 2, 3, 4, 5)
    assert surgery.labels.shape == (15, LABELS) and surgery.files[4] == "data/VID02/000001.png"
    assert surgery.video.tolist() == [video for video in range(1, 6) for _ in range(3)]
    assert surgery.triplets.tolist() == [list(triplet) for triplet in TRIPLETS]
    assert surgery.about["frames"] == TINY.frames and surgery.folds[3] == (3,)
    for frame, row in enumerate(surgery.labels):
        shown = [one.triplet for one in surgery.masks(frame)]
        numbers = np.split(row, np.cumsum([count for _, count in PARTS])[:-1])
        for column, of_part in enumerate([*zip(*(TRIPLETS[number] for number in shown), strict=True), shown]):
            assert numbers[column].nonzero()[0].tolist() == sorted(set(of_part))


def test_without_the_mark_of_drawn_scenes_it_is_cholect45_by_its_official_folds(mine: Path) -> None:
    surgery = read(as_cholect45(mine))
    assert surgery.source == "cholect45" and surgery.videos == tuple(sorted(OFFICIAL))
    assert surgery.folds == {1: (79,), 2: (80,), 3: (31,), 4: (42,), 5: (78,)}
    with pytest.raises(SystemExit, match=r"T45 has no masks: those are of drawn scenes only"):
        surgery.masks(0)


def test_maps_may_lie_beside_the_labels_too(mine: Path) -> None:
    before = read(mine).triplets
    (mine / "dict" / "maps.txt").rename(mine / "maps.txt")
    assert (read(mine).triplets == before).all()


def test_the_official_folds_are_nine_videos_each() -> None:
    assert [len(videos) for videos in FOLDS.values()] == [9] * 5 and len({v for f in FOLDS.values() for v in f}) == 45


def test_masks_are_of_the_instruments_that_are_labelled(scenes: Path) -> None:
    surgery = read(scenes)
    for frame in range(len(surgery.files)):
        drawn = surgery.masks(frame)
        for height, width in ((48, 84), (96, 168)):
            masks = masks_of(drawn, height, width)
            assert sorted(masks) == surgery.labels[frame, :6].nonzero()[0].tolist()
            for one in drawn:
                (x, y), mask = one.tip_at(height, width), masks[one.instrument]
                assert 0 < x < width and 0 < y < height and mask.shape == (height, width)
                rows, columns = mask.nonzero()
                assert np.hypot(rows - y, columns - x).min() < height / 10, "the tip is where the mask is"


def test_what_lies_above_hides_what_is_below() -> None:
    square = [(0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0)]
    below = InstrumentMask(0, 17, (1.0, 1.0), (square,), 20, 20)
    above = InstrumentMask(2, 60, (1.0, 1.0), ([(x + 5, y) for x, y in square],), 20, 20)
    masks = masks_of([below, above], 20, 20)
    assert masks[0][3, 2] and not masks[0][3, 7] and masks[2][3, 7] and not (masks[0] & masks[2]).any()


# --- splits ---


def of_videos(count: int) -> Surgery:
    """Two frames of each."""
    video, folds = np.repeat(np.arange(1, count + 1), 2), {f: tuple(range(f, count + 1, 5)) for f in range(1, 6)}
    labels, triplets = np.zeros((2 * count, LABELS), np.uint8), np.zeros((100, 3), np.int64)
    return Surgery(
        Path(), "surgical_scenes", tuple(range(1, count + 1)), folds, [""] * 2 * count, labels, video, triplets
    )


def test_validation_is_the_last_video_of_each_other_fold_in_turn() -> None:
    parts = split(of_videos(20), 0.3)
    assert parts.videos["test"] == (1, 6, 11, 16) and parts.videos["validation"] == (12, 17, 18, 19, 20)
    assert len(parts.ids["train"]) == 22 and split(of_videos(20), 0).videos["validation"] == ()
    assert split(of_videos(20), 0.1, test_fold=4).videos["test"] == (4, 9, 14, 19)


@given(st.integers(5, 60), st.floats(0, 0.7), st.integers(1, 5))
def test_no_video_is_in_two_splits(count: int, share: float, fold: int) -> None:
    surgery = of_videos(count)
    parts = split(surgery, share, fold)
    each = [surgery.video[ids] for ids in parts.ids.values()]
    assert sorted(np.concatenate([np.unique(videos) for videos in each]).tolist()) == list(range(1, count + 1))
    assert sum(map(len, each)) == 2 * count and len(each[0]) and len(each[2]) and bool(share) == bool(len(each[1]))


def test_a_split_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"^validation=0.95 holds out all 4 videos of .*: none is left to train"):
        split(of_videos(5), 0.95)
    with pytest.raises(SystemExit, match=r"^fold 6: there are folds 1, 2, 3, 4, 5"):
        split(of_videos(5), 0.1, test_fold=6)


# --- what is wrong with a folder ---


def wrong_triplet(line: str) -> str:
    """Of VID02's first frame: triplet 82 (irrigator, aspirate, fluid) in the place of whatever it shows."""
    return ",".join(["0", *(str(int(place == 82)) for place in range(100))])


LABEL_FILES = {
    "a row too few": (
        lambda root: edit(root / "verb/VID02.txt", 2, lambda line: ""),
        r"/verb/VID02.txt:3: has frame 2, where .*/triplet/VID02.txt:2 has frame 1$",
    ),
    "rows that end early": (
        lambda root: edit(root / "target/VID02.txt", 3, lambda line: ""),
        r"/target/VID02.txt:2: has no more frames, where .*/triplet/VID02.txt:3 has frame 2$",
    ),
    "a class too few": (
        lambda root: edit(root / "verb/VID02.txt", 3, lambda line: line[:-2]),
        r"/verb/VID02.txt:3: 9 values after the frame's number: verb has 10 classes$",
    ),
    "neither 0 nor 1": (
        lambda root: edit(root / "instrument/VID01.txt", 2, lambda line: line[:-1] + "2"),
        r"/instrument/VID01.txt:2: a value that is neither 0 nor 1$",
    ),
    "no number": (
        lambda root: edit(root / "instrument/VID01.txt", 2, lambda line: line[:-1] + "x"),
        r"/instrument/VID01.txt:2: not a row of whole numbers with commas between them$",
    ),
    "a frame twice": (
        lambda root: edit(root / "instrument/VID01.txt", 2, lambda line: "0" + line[1:]),
        r"/instrument/VID01.txt:2: frame 0 comes after frame 0: each once, in order$",
    ),
    "no file": (
        lambda root: (root / "verb/VID03.txt").unlink(),
        r"/verb/VID03.txt is missing: each video has one for each of instrument, verb, target, triplet$",
    ),
    "a triplet without its parts": (
        lambda root: edit(root / "triplet/VID02.txt", 1, wrong_triplet),
        r"/triplet/VID02.txt:1: triplet 82 has instrument 5 \(maps.txt\), "
        r"which is 0 in .*/instrument/VID02.txt:1$",
    ),
    "a frame without an image": (
        lambda root: (root / "data/VID02/000001.png").unlink(),
        r"/triplet/VID02.txt:2: its frame has no image .*/data/VID02/000001.png$",
    ),
    "an image without a row": (
        lambda root: shutil.copy(root / "data/VID02/000001.png", root / "data/VID02/000003.png"),
        r"/triplet/VID02.txt:3: the file ends without a row for .*/data/VID02/000003.png$",
    ),
    "no video of a fold": (
        lambda root: shutil.rmtree(root / "data/VID04"),
        r"/data has no video of fold 4 \(4\): each of the five needs one$",
    ),
    "no maps": (
        lambda root: (root / "dict/maps.txt").unlink(),
        r"T45 has neither dict/maps.txt nor maps.txt, which say what a triplet is made of",
    ),
    "maps with a triplet twice": (
        lambda root: edit(root / "dict/maps.txt", 9, lambda line: "6,0,0,0,0,0"),
        r"/dict/maps.txt needs the triplets 0 to 99, each once",
    ),
    "maps with an instrument that there is not": (
        lambda root: edit(root / "dict/maps.txt", 9, lambda line: "7,6,0,0,60,90"),
        r"/dict/maps.txt: triplet 7 needs an instrument below 6",
    ),
    "maps of words": (
        lambda root: edit(root / "dict/maps.txt", 2, lambda line: "a,b,c"),
        r"/dict/maps.txt is no table of whole numbers: triplet, instrument, verb, target",
    ),
    "maps without the last": (
        lambda root: edit(root / "dict/maps.txt", 101, lambda line: ""),
        r"/dict/maps.txt needs the triplets 0 to 99, each once",
    ),
}


@pytest.mark.parametrize("case", LABEL_FILES)
def test_what_is_wrong_is_named_by_file_and_line(mine: Path, case: str) -> None:
    spoil, message = LABEL_FILES[case]
    spoil(mine)
    with pytest.raises(SystemExit, match=rf"^{mine}{message}" if message.startswith("/") else message):
        read(mine)


def test_a_video_of_none_of_the_official_folds_is_refused(mine: Path) -> None:
    as_cholect45(mine)
    (mine / "data/VID07").mkdir()
    with pytest.raises(SystemExit, match=rf"^{mine}/data: video 7 is in none of the five folds"):
        read(mine)


def test_masks_that_are_damaged_are_named(mine: Path) -> None:
    (mine / "masks/VID01/000000.json").write_text("{")
    with pytest.raises(SystemExit, match=rf"^{mine}/masks/VID01/000000.json is no list of masks \(.*\): write the"):
        read(mine).masks(0)
