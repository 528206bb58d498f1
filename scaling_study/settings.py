"""Where things are: the checkout, its cache, the data. The environment may say otherwise, also through `.env`."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache"
PROFILE = "SCALING_STUDY_PROFILE"  # the folder for the traces of a trial that is profiled (profiling.py)


def setting(name: str, default: str) -> str:
    """An environment variable, else its line in `.env` (current folder, then the checkout), else `default`."""
    if value := os.environ.get(name):
        return value
    for folder in (Path.cwd(), CHECKOUT):
        path = folder / ".env"
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, equals, value = line.partition("=")
                if equals and key.strip().removeprefix("export ").strip() == name:
                    return value.strip().strip("\"'")
    return default


def data_root() -> Path:
    """The folder that holds the data sets: DATA_ROOT, by default `data/` in the checkout."""
    return Path(setting("DATA_ROOT", str(CHECKOUT / "data"))).expanduser()


def data_path() -> Path | None:
    """The folder that holds a tree of images, train/<class>/*: DATA_PATH; there is no default."""
    path = setting("DATA_PATH", "")
    return Path(path).expanduser() if path else None
