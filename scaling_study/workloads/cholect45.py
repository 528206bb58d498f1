"""CholecT45: frames of gall bladder operations, with what is done to what by which instrument, as it is published.

    data/VID01/000000.png                             a frame a second
    instrument|verb|target|triplet/VID01.txt          a row a frame: "0,1,0,0,0,0,0", its number, then 0 or 1 a class
    dict/maps.txt, or maps.txt                        a row a triplet: "1,0,2,0,2,0", its number, instrument, verb,
                                                      target (and two pairs that follow from these)
    masks/VID01/000000.json                           of drawn scenes (surgical_scenes/), which have the same layout

Research licence: users bring it (DATA_PATH). Splits are of whole videos, by the official five folds (Nwoye and Padoy,
arXiv 2204.05235): a frame looks like the one a second before it. A published loader trains on the five videos that it
validates on (F22's kind); here each split is taken out of what the others left.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from scaling_study.datasets import NO_SURGERY, SCENES, SCENES_MARK, NoData, surgery_folder

Point = tuple[float, float]  # x to the right, y down, in pixels of the frame
Polygon = Sequence[Point]
CHOLECT45 = "cholect45"
TEST_FOLD = 1
FOLDS: Mapping[int, tuple[int, ...]] = {
    1: (79, 2, 51, 6, 25, 14, 66, 23, 50),
    2: (80, 32, 5, 15, 40, 47, 26, 48, 70),
    3: (31, 57, 36, 18, 52, 68, 10, 8, 73),
    4: (42, 29, 60, 27, 65, 75, 22, 49, 12),
    5: (78, 43, 62, 35, 74, 1, 56, 4, 13),
}
PARTS = (("instrument", 6), ("verb", 10), ("target", 15), ("triplet", 100))
CLASSES = dict(PARTS)
LABELS = sum(CLASSES.values())  # columns of the labels, part by part
TRIPLETS = CLASSES["triplet"]
LAYOUT = "data/VIDnn/*.png, instrument|verb|target|triplet/VIDnn.txt and dict/maps.txt"
VIDEO = re.compile(r"VID(\d+)")
Bits = NDArray[np.uint8]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Surgery:
    """All frames of a folder, video by video; frame i is files[i]."""

    root: Path
    source: str  # CHOLECT45, or SCENES: drawn by us
    videos: tuple[int, ...]  # sorted
    folds: Mapping[int, tuple[int, ...]]  # videos of each that are there
    files: list[str]  # below root
    labels: Bits  # (n, 131), 0 or 1: columns as in PARTS
    video: Numbers  # (n,) the number of the frame's video
    triplets: Numbers  # (100, 3) instrument, verb, target of each triplet
    about: Mapping[str, object] = field(default_factory=dict)  # of drawn scenes: seed, size, ...

    def paths(self, ids: Sequence[int] | Numbers) -> list[Path]:
        return [self.root / self.files[int(id)] for id in ids]

    def masks(self, frame: int) -> list[InstrumentMask]:
        """The masks of a drawn frame, one an instrument. Raises SystemExit for CholecT45, which has none."""
        if self.source != SCENES:
            raise SystemExit(f"{self.root} has no masks: those are of drawn scenes only (data: {SCENES})")
        return read_masks((self.root / self.files[frame].replace("data/", "masks/", 1)).with_suffix(".json"))


def prepare() -> None:
    """Look whether DATA_PATH is one, and whether it is whole. Raises NoData, SystemExit."""
    if (folder := surgery_folder()) is None:
        raise NoData(NO_SURGERY)
    read(folder)


def read(root: Path) -> Surgery:
    """Labels and names of frames; none is decoded. Raises SystemExit that names the file, and the line, of whatever
    is not as LAYOUT says."""
    numbers = {int(match[1]): match[0] for name in _listed(root / "data") if (match := VIDEO.fullmatch(name))}
    if not numbers:
        raise SystemExit(f"{root / 'data'} has no folder VIDnn of a video: frames are expected as {LAYOUT}")
    mark = root / SCENES_MARK
    about = json.loads(mark.read_text(encoding="utf-8")) if mark.is_file() else {}
    folds = _folds(root, about.get("folds"), sorted(numbers))
    maps = next((path for path in (root / "dict" / "maps.txt", root / "maps.txt") if path.is_file()), None)
    if maps is None:
        raise SystemExit(
            f"{root} has neither dict/maps.txt nor maps.txt, which say what a triplet is made of: {LAYOUT}"
        )
    triplets = read_maps(maps)
    files: list[str] = []
    labels: list[Bits] = []
    video: list[int] = []
    for number, name in sorted(numbers.items()):
        bits, frames, lines = _of_video(root, name)
        _consistent(root, name, bits, lines, triplets)
        labels.append(bits)
        files += [f"data/{name}/{frame:06}.png" for frame in frames]
        video += [number] * len(frames)
    return Surgery(
        root=root,
        source=SCENES if about else CHOLECT45,
        videos=tuple(sorted(numbers)),
        folds=folds,
        files=files,
        labels=np.concatenate(labels),
        video=np.array(video, np.int64),
        triplets=triplets,
        about=about,
    )


def read_maps(path: Path) -> Numbers:
    """(100, 3) instrument, verb and target of each triplet. Raises SystemExit."""
    try:
        rows = np.loadtxt(path, np.int64, delimiter=",", usecols=range(4), ndmin=2)
    except ValueError as error:
        raise SystemExit(f"{path} is no table of whole numbers: triplet, instrument, verb, target ({error})") from error
    rows = rows[rows[:, 0] >= 0]  # -1 stands for "none"
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if rows[:, 0].tolist() != [*range(TRIPLETS)]:
        raise SystemExit(f"{path} needs the triplets 0 to {TRIPLETS - 1}, each once; it has {rows[:, 0].tolist()}")
    outside = (rows[:, 1:] < 0) | (rows[:, 1:] >= np.array([count for _, count in PARTS[:3]]))
    if len(wrong := np.flatnonzero(outside.any(1))):
        what = "needs an instrument below 6, a verb below 10 and a target below 15"
        raise SystemExit(f"{path}: triplet {wrong[0]} {what}")
    triplets: Numbers = rows[:, 1:]
    return triplets


def _folds(
    root: Path, drawn: Mapping[str, Sequence[int]] | None, videos: Sequence[int]
) -> Mapping[int, tuple[int, ...]]:
    """The videos of each fold that are there. Raises SystemExit for a fold without one, and a video of no fold."""
    all_of = FOLDS if drawn is None else {int(fold): tuple(numbers) for fold, numbers in drawn.items()}
    there = {fold: tuple(video for video in numbers if video in videos) for fold, numbers in all_of.items()}
    for fold, numbers in there.items():
        if not numbers:
            some = " ".join(map(str, all_of[fold]))
            raise SystemExit(f"{root / 'data'} has no video of fold {fold} ({some}): each of the five needs one")
    for video in videos:
        if not any(video in numbers for numbers in there.values()):
            raise SystemExit(f"{root / 'data'}: video {video} is in none of the five folds: take it out of the folder")
    return there


def _of_video(root: Path, name: str) -> tuple[Bits, list[int], list[int]]:
    """((n, 131) labels, the numbers of the n frames, the lines that they are on: the same in all four files)."""
    paths = [root / part / f"{name}.txt" for part, _ in PARTS]
    tables = [_rows(path, count) for path, (_, count) in zip(paths, PARTS, strict=True)]
    last, (frames, _, lines) = paths[-1], tables[-1]
    for path, (others, _, places) in zip(paths, tables, strict=True):
        for at, (frame, other) in enumerate(itertools.zip_longest(frames, others)):
            if frame != other:
                has = [f"has frame {one}" if one is not None else "has no more frames" for one in (other, frame)]
                where = f"{last}:{lines[min(at, len(lines) - 1)]}"
                _stop(path, places[min(at, len(places) - 1)], f"{has[0]}, where {where} {has[1]}")
    rows = {f"{frame:06}.png": line for frame, line in zip(frames, lines, strict=True)}
    images = {name for name in _listed(root / "data" / name) if name.endswith(".png") and not name.startswith(".")}
    if lacking := sorted(rows.keys() - images):
        _stop(last, rows[lacking[0]], f"its frame has no image {root / 'data' / name / lacking[0]}")
    if more := sorted(images - rows.keys()):
        _stop(last, lines[-1], f"the file ends without a row for {root / 'data' / name / more[0]}")
    return np.concatenate([bits for _, bits, _ in tables], axis=1), frames, lines


def _rows(path: Path, classes: int) -> tuple[list[int], Bits, list[int]]:
    """(frame numbers, (n, classes) of 0 and 1, lines) of a label file."""
    if not path.is_file():
        raise SystemExit(f"{path} is missing: each video has one for each of {', '.join(CLASSES)}")
    texts = path.read_text(encoding="utf-8").splitlines()
    kept = [(line, text) for line, text in enumerate(texts, start=1) if text.strip()]
    for line, text in kept or [(1, "")]:
        if (given := text.count(",")) != classes:
            _stop(path, line, f"{given} values after the frame's number: {path.parent.name} has {classes} classes")
    lines = [line for line, _ in kept]
    try:
        table = np.loadtxt([text for _, text in kept], np.int64, comments=None, delimiter=",", ndmin=2)
    except ValueError:
        row = re.compile(r"\s*\d{1,9}\s*(,\s*-?\d{1,9}\s*)*")
        line = next((line for line, text in kept if not row.fullmatch(text)), 1)
        _stop(path, line, "not a row of whole numbers with commas between them")
    frames, values = table[:, 0], table[:, 1:]
    if len(wrong := ((values != 0) & (values != 1)).any(1).nonzero()[0]):
        _stop(path, lines[wrong[0]], "a value that is neither 0 nor 1")
    if len(unsorted := (np.diff(frames) <= 0).nonzero()[0]):
        place = int(unsorted[0]) + 1
        _stop(path, lines[place], f"frame {frames[place]} comes after frame {frames[place - 1]}: each once, in order")
    return frames.tolist(), values.astype(np.uint8), lines


def _consistent(root: Path, name: str, bits: Bits, lines: Sequence[int], triplets: Numbers) -> None:
    """Raises SystemExit at the first triplet one of whose parts is not marked in its own file."""
    marked, start = bits[:, -TRIPLETS:], 0
    for column, (part, count) in enumerate(PARTS[:-1]):
        own = bits[:, start : start + count]
        start += count
        frames, without = (marked & (1 - own[:, triplets[:, column]])).nonzero()
        if len(frames):
            row, triplet = frames[0], int(without[0])
            has = f"triplet {triplet} has {part} {triplets[triplet, column]} (maps.txt)"
            zero = f"which is 0 in {root / part / name}.txt:{lines[row]}"
            _stop(root / "triplet" / f"{name}.txt", lines[row], f"{has}, {zero}")


def _listed(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder: frames are expected as {LAYOUT}")
    return os.listdir(folder)


def _stop(path: Path, line: int, what: str) -> NoReturn:
    raise SystemExit(f"{path}:{line}: {what}")


@dataclass(frozen=True)
class Splits:
    """Frames of each split, as places in Surgery.files."""

    ids: Mapping[str, Numbers]  # "train", "validation", "test" -> (n,)
    videos: Mapping[str, tuple[int, ...]]  # split -> its videos


def split(surgery: Surgery, validation: float, test_fold: int = TEST_FOLD) -> Splits:
    """Split whole videos. `validation`: share of the videos outside the test's fold, at least one unless it is 0.

    Raises SystemExit where none is left to train on, and for a fold that there is not.
    """
    if test_fold not in surgery.folds:
        raise SystemExit(f"fold {test_fold}: there are folds {', '.join(map(str, sorted(surgery.folds)))}")
    others = [list(videos) for fold, videos in sorted(surgery.folds.items()) if fold != test_fold]
    count = sum(map(len, others))
    wanted = max(1, round(validation * count)) if validation else 0
    if wanted >= count:
        raise SystemExit(
            f"validation={validation:g} holds out all {count} videos of {surgery.root}: none is left to train"
        )
    held_out: list[int] = []
    while len(held_out) < wanted:
        held_out += [videos.pop() for videos in others if videos][: wanted - len(held_out)]
    videos = {
        "train": tuple(sorted(set(surgery.videos) - set(held_out) - set(surgery.folds[test_fold]))),
        "validation": tuple(sorted(held_out)),
        "test": tuple(sorted(surgery.folds[test_fold])),
    }
    ids = {name: np.flatnonzero(np.isin(surgery.video, numbers)) for name, numbers in videos.items()}
    return Splits(ids, videos)


@dataclass(frozen=True)
class InstrumentMask:
    instrument: int
    triplet: int  # what is done with it
    tip: Sequence[float]  # x, y
    polygons: Sequence[Polygon]
    height: int  # of the frame, in pixels
    width: int

    def visible(self, height: int, width: int, above: Sequence[InstrumentMask] = ()) -> NDArray[np.bool_]:
        """(height, width): where it is seen in a frame of this size; `above` are those that lie over it."""
        mask = Image.new("1", (width, height))
        draw = ImageDraw.Draw(mask)
        for one, ink in ((self, 1), *((other, 0) for other in above)):
            for polygon in one.polygons:
                draw.polygon([(x * width / one.width, y * height / one.height) for x, y in polygon], fill=ink)
        return np.asarray(mask)

    def tip_at(self, height: int, width: int) -> Point:
        return self.tip[0] * width / self.width, self.tip[1] * height / self.height


def read_masks(path: Path) -> list[InstrumentMask]:
    """The masks of a frame, the lowest first. Raises SystemExit that names a file that is missing or damaged."""
    try:
        frame = json.loads(path.read_text(encoding="utf-8"))
        return [InstrumentMask(**one, height=frame["height"], width=frame["width"]) for one in frame["instruments"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SystemExit(f"{path} is no list of masks ({error}): write the scenes anew") from error


def masks_of(instruments: Sequence[InstrumentMask], height: int, width: int) -> dict[int, NDArray[np.bool_]]:
    """Class of instrument -> (height, width) where any of that class is seen."""
    seen: dict[int, NDArray[np.bool_]] = {}
    for place, one in enumerate(instruments):
        mask = one.visible(height, width, instruments[place + 1 :])
        seen[one.instrument] = seen[one.instrument] | mask if one.instrument in seen else mask
    return seen
