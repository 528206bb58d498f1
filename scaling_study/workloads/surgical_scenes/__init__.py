"""Synthetic surgical scenes in the layout of CholecT45, with a mask and a tip of every instrument.

python -m scaling_study.workloads.surgical_scenes DIR [--frames N]        (writing.py, __main__.py)

triplets.py  what can be done to what     scene.py  one frame     tissue.py, instruments.py, actions.py, canvas.py
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from scaling_study.datasets import SCENES_MARK, scenes_folder
from scaling_study.workloads.surgical_scenes.writing import Scenes, write


def prepare() -> None:
    """Draw them, once for the checkout."""
    written()


def written() -> Path:
    """The folder of scenes, drawn now if nobody has yet. Raises SystemExit where it cannot be written."""
    folder = scenes_folder()
    if not (folder / SCENES_MARK).is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):  # ranks that start together wait for the first
                if not (folder / SCENES_MARK).is_file():
                    write(folder, Scenes())
        except OSError as error:
            raise SystemExit(f"surgical scenes cannot be written to {folder} ({error})") from error
    return folder
