"""Class-activation maps on disk, beside the training that they are of: written by `scaling-study maps`.

    <trial>/maps/maps.json     what was computed, of which model, on which frames
                 scores.csv    a row for each scored frame and instrument in it: COLUMNS
                 panels.npz    a few of these rows as pictures: arrays of ARRAYS, a row each

The rows that are pictures are chosen by the data alone, so they are the same for every training on these data.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_study.records.store import UnreadableRecord, load, write_bytes, write_json

FOLDER, ABOUT, SCORES, PANELS = "maps", "maps.json", "scores.csv", "panels.npz"
SCHEMA = 1
OWN, HIDDEN = "own", "hidden"  # the instrument head's map of the class; a hidden channel of the least likely one (F12)
CAMS = ("grad_cam", "hires_cam", "eigen_cam")
CHANCE, CENTRE = "chance", "centre"
METHODS = (OWN, *CAMS, HIDDEN, CENTRE, CHANCE)
SCORED = ("mask", "tip", "energy")  # shares; empty where the data have no masks
COLUMNS = (
    "frame",
    "video",
    "instrument",
    "probability",  # numbers; the head's probability of that instrument
    *(f"{method}_{score}" for method in METHODS for score in SCORED),
)
ARRAYS = {
    "frame": "number of the frame",
    "video": "of its video",
    "instrument": "the one that the maps are of",
    "probability": "(6,) of each instrument",
    "present": "(6,) whether it is in the frame",
    "hits": "(methods,) whether each of METHODS points at it",
    "mask": "(height, width) 1 + class, 0: none",
    "tip": "(2,) x, y in pixels",
    "own": "(6, h, w) logits of the head's class maps",
    **dict.fromkeys((*CAMS, HIDDEN), "(h, w) from 0 to 1, or as the layer has it"),
}
PICTURE = "picture_{}"  # and of each row the frame, as the bytes of a JPEG file
RIGHT = {"channels": "class", "class": "most likely"}  # what maps that are shown are of; anything else is F12
Arrays = Mapping[str, NDArray[Any]]


def write(trial: Path, about: Mapping[str, Any], rows: Iterable[Iterable[float]], panels: Arrays) -> None:
    """Replace what is in a trial's folder; maps.json, which says that all of it is there, comes last."""
    folder = trial / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    lines = [",".join(COLUMNS), *(",".join("" if x != x else f"{x:.4g}" for x in row) for row in rows)]
    write_bytes(folder / SCORES, ("\n".join(lines) + "\n").encode())
    whole = io.BytesIO()
    np.savez_compressed(whole, allow_pickle=False, **dict(panels))
    write_bytes(folder / PANELS, whole.getvalue())
    write_json(folder / ABOUT, {**about, "schema": SCHEMA})


def read_about(trial: Path) -> dict[str, Any] | None:
    """None where a trial has no maps. Raises UnreadableRecord."""
    path = trial / FOLDER / ABOUT
    if not path.is_file():
        return None
    about = load(path)
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise UnreadableRecord(f"{path} is no description of maps of schema {SCHEMA}")
    return about


def read_scores(trial: Path) -> NDArray[np.float64]:
    """(rows, COLUMNS), nan where there is no value. Raises UnreadableRecord."""
    path = trial / FOLDER / SCORES
    try:
        heading, *lines = path.read_text(encoding="utf-8").splitlines()
        if tuple(heading.split(",")) != COLUMNS:
            raise ValueError("it has other columns")
        rows = [[float(value) if value else float("nan") for value in line.split(",")] for line in lines]
        return np.array(rows, np.float64).reshape(len(rows), len(COLUMNS))
    except (OSError, ValueError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error


def read_panels(trial: Path) -> dict[str, NDArray[Any]]:
    """ARRAYS and pictures. Raises UnreadableRecord; runs no code of the file."""
    path = trial / FOLDER / PANELS
    try:
        with np.load(path, allow_pickle=False) as arrays:
            panels = {name: arrays[name] for name in arrays.files}
        if missing := set(ARRAYS) - set(panels):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return panels
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error
