"""Synthetic surgical scenes in the layout of CholecT45, with a mask and a tip of every instrument.

    python -m scaling_study.workloads.surgical_scenes DIR [--frames N]

    triplets.py  what can be done to what     scene.py  one frame     canvas.py, targets.py, instruments.py  painters

Several processes draw; the folder is there whole, or not at all. Frame k of video v is the same for any number of
frames, videos and processes, of one seed and size.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scaling_study.datasets import SCENES_MARK, SCENES_VERSION, scenes_folder
from scaling_study.machine import usable_cores
from scaling_study.workloads.surgical_scenes import triplets
from scaling_study.workloads.surgical_scenes.canvas import Point
from scaling_study.workloads.surgical_scenes.scene import draw

FOLDS = 5
PIECE = 8  # frames that a process draws at once
PARTS = {
    "instrument": triplets.INSTRUMENTS,
    "verb": triplets.VERBS,
    "target": triplets.TARGETS,
    "triplet": tuple(map(triplets.named, range(len(triplets.TRIPLETS)))),
}


@dataclass(frozen=True)
class Scenes:
    """How many scenes are drawn, and their size in pixels."""

    frames: int = 3200  # of all videos together
    videos: int = 40
    height: int = 128
    width: int = 224
    seed: int = 0

    @property
    def frames_each(self) -> int:
        return -(-self.frames // self.videos)

    def folds(self) -> dict[int, list[int]]:
        """Every fifth video is of one fold."""
        return {fold: list(range(fold, self.videos + 1, FOLDS)) for fold in range(1, FOLDS + 1)}


def write(folder: Path, scenes: Scenes, processes: int | None = None) -> None:
    """Draw them into `folder`, which must not be there, or be empty. Raises OSError, SystemExit."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is there already and not empty: choose another folder")
    half = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        _write(half, scenes, processes or usable_cores())
        if folder.exists():
            folder.rmdir()
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _write(folder: Path, scenes: Scenes, processes: int) -> None:
    videos, frames = range(1, scenes.videos + 1), range(scenes.frames_each)
    for number in videos:
        for kind in ("data", "masks"):
            (folder / kind / _name(number)).mkdir(parents=True)
    pieces = [(number, frames[first : first + PIECE]) for number in videos for first in frames[::PIECE]]
    drawn: dict[int, list[list[int]]] = {number: [] for number in videos}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("surgical scenes", total=scenes.videos * scenes.frames_each)
        for (number, piece), shown in zip(pieces, _mapped(folder, scenes, pieces, processes), strict=True):
            drawn[number] += shown
            bar.advance(task, len(piece))
    (folder / "dict").mkdir()
    (folder / "dict" / "maps.txt").write_text(triplets.maps(), encoding="utf-8")
    for column, (part, classes) in enumerate(PARTS.items()):
        lines = [f"{number}:{name}" for number, name in enumerate(classes)]
        (folder / "dict" / f"{part}.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
        (folder / part).mkdir()
        for number, rows in drawn.items():
            lines = [_labels(frame, numbers, column, len(classes)) for frame, numbers in enumerate(rows)]
            (folder / part / f"{_name(number)}.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    about = {**asdict(scenes), "version": SCENES_VERSION, "folds": scenes.folds()}
    (folder / SCENES_MARK).write_text(json.dumps(about, indent=1), encoding="utf-8")


def _labels(frame: int, numbers: Sequence[int], column: int, classes: int) -> str:
    """A row of a label file: the frame, then 0 or 1 for each class of the part in this column of a triplet."""
    there = {(*triplets.TRIPLETS[number], number)[column] for number in numbers}
    return ",".join(map(str, [frame, *(int(place in there) for place in range(classes))]))


def _mapped(
    folder: Path, scenes: Scenes, pieces: Sequence[tuple[int, range]], processes: int
) -> Iterator[list[list[int]]]:
    """The triplets of the frames of each piece, in order."""
    task = partial(_draw_piece, folder, scenes)
    if processes == 1:
        yield from map(task, pieces)
        return
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:  # to spawn one would import torch
        yield from pool.map(task, pieces)


def _draw_piece(folder: Path, scenes: Scenes, piece: tuple[int, range]) -> list[list[int]]:
    number, frames = piece
    shown = []
    for frame in frames:
        image, instruments = draw(scenes.seed, number, frame, scenes.height, scenes.width)
        image.save(folder / "data" / _name(number) / f"{frame:06}.png", compress_level=4)
        masks = [
            {
                "instrument": triplets.TRIPLETS[one.triplet][0],
                "triplet": one.triplet,
                "tip": _pixels(one.tip, scenes.height),
                "polygons": [[_pixels(point, scenes.height) for point in outline] for outline in one.outlines],
            }
            for one in instruments
        ]
        about = {"height": scenes.height, "width": scenes.width, "instruments": masks}
        (folder / "masks" / _name(number) / f"{frame:06}.json").write_text(json.dumps(about), encoding="utf-8")
        shown.append([one.triplet for one in instruments])
    return shown


def _pixels(point: Point, height: int) -> list[float]:
    return [round(value * height, 1) for value in point]


def _name(video: int) -> str:
    return f"VID{video:02}"


USUAL = Scenes()  # those that a trial draws where there are none yet


def written() -> Path:
    """The folder of scenes, drawn now if nobody has yet. Raises SystemExit where it cannot be written."""
    folder = scenes_folder()
    if not (folder / SCENES_MARK).is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):  # ranks that start together wait for the first
                if not (folder / SCENES_MARK).is_file():
                    write(folder, USUAL)
        except OSError as error:
            raise SystemExit(f"surgical scenes cannot be written to {folder} ({error})") from error
    return folder
