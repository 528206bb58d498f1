"""`python -m scaling_study.workloads.surgical_scenes DIR`: draw surgical scenes, with a progress bar."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from scaling_study.workloads.surgical_scenes import FOLDS, Scenes, write

LEAST = 32  # pixels to a side: of less no tip is seen


def size(text: str) -> tuple[int, int]:
    """`128x224` -> (128, 224)."""
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if not match or min(map(int, match.groups())) < LEAST or int(match[2]) < int(match[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no HEIGHTxWIDTH of at least {LEAST} pixels, as wide as high or wider: like 128x224"
        )
    return int(match[1]), int(match[2])


def main() -> None:
    default = Scenes()
    parser = argparse.ArgumentParser(
        prog="python -m scaling_study.workloads.surgical_scenes",
        description="Draw synthetic surgical scenes in the layout of CholecT45, with masks and tips of instruments.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="will hold data/, triplet/, masks/, ...")
    shape = (default.height, default.width)
    of_all = f"of all videos together (default: {default.frames:,})"
    parser.add_argument("--frames", type=int, default=default.frames, metavar="N", help=of_all)
    parser.add_argument("--videos", type=int, default=default.videos, metavar="N", help=f"default: {default.videos}")
    parser.add_argument(
        "--size", type=size, default=shape, metavar="HxW", help=f"pixels (default: {default.height}x{default.width})"
    )
    parser.add_argument("--seed", type=int, default=default.seed, metavar="N", help=f"default: {default.seed}")
    parser.add_argument("--processes", type=int, default=None, metavar="N", help="default: as many as there are cores")
    asked = parser.parse_args()
    for wrong, why in (
        (asked.videos < FOLDS, f"--videos {asked.videos}: each of the {FOLDS} folds needs one"),
        (asked.frames < asked.videos, f"--frames {asked.frames}: each of the {asked.videos} videos needs one"),
        (asked.seed < 0, f"--seed {asked.seed}: 0 or more is expected"),
        (asked.processes is not None and asked.processes < 1, f"--processes {asked.processes}: 1 or more are expected"),
    ):
        if wrong:
            parser.error(why)
    height, width = asked.size
    scenes = Scenes(asked.frames, asked.videos, height, width, asked.seed)
    write(asked.folder, scenes, asked.processes)
    print(f"{scenes.videos * scenes.frames_each:,} frames of {scenes.videos} videos: DATA_PATH={asked.folder}")


if __name__ == "__main__":
    main()
