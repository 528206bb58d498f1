"""A few surgical scenes, small enough to be drawn in a third of a second, and the same as if they were CholecT45's."""

from __future__ import annotations

from pathlib import Path

from scaling_study.datasets import SCENES_MARK
from scaling_study.workloads.surgical_scenes import Scenes, write

TINY = Scenes(frames=15, videos=5, height=48, width=84)
OFFICIAL = (79, 80, 31, 42, 78)  # one of each of CholecT45's folds


def tiny_scenes(folder: Path) -> Path:
    """Five videos of three frames, each video a fold."""
    write(folder, TINY, processes=1)
    return folder


def as_cholect45(folder: Path) -> Path:
    """The same folder under the numbers of real videos, and without what tells that it was drawn."""
    (folder / SCENES_MARK).unlink()
    for number, official in enumerate(OFFICIAL, start=1):
        (folder / "data" / f"VID{number:02}").rename(folder / "data" / f"VID{official}")
        for part in ("instrument", "verb", "target", "triplet"):
            (folder / part / f"VID{number:02}.txt").rename(folder / part / f"VID{official}.txt")
    return folder
