"""Checkout, cache, data, time and commit."""

from __future__ import annotations

import datetime
import functools
import os
import subprocess
from pathlib import Path

from scaling_study.errors import HostError

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache"
PROFILE = "SCALING_STUDY_PROFILE"  # the folder for the traces of a trial that is profiled (profiling.py)


def setting(name: str, default: str) -> str:
    """An environment variable, else its value in `.env` (current folder, then the checkout), else `default`."""
    return _found(name)[0] or default


def _found(name: str) -> tuple[str, str]:
    """(the value of a variable, where it stands in words); both empty where it is set nowhere."""
    if value := os.environ.get(name):
        return value, "the environment"
    for folder in (Path.cwd(), CHECKOUT):
        path = folder / ".env"
        if path.is_file():
            from dotenv import dotenv_values  # here: few have such a file

            try:
                value = dotenv_values(path).get(name)
            except (OSError, UnicodeDecodeError) as error:
                raise HostError(f"{path} cannot be read: {error}; write it in UTF-8, or move it away") from error
            if value:
                return value, str(path)
    return "", ""


def data_root() -> Path:
    """The folder that holds the data sets: DATA_ROOT, by default `data/` in the checkout."""
    return Path(setting("DATA_ROOT", str(CHECKOUT / "data"))).expanduser()


def require_data_root() -> None:
    """Raises HostError where DATA_ROOT names a folder that is not there: a study must not fall back to other data."""
    named, where = _found("DATA_ROOT")
    if named and not Path(named).expanduser().is_dir():
        raise HostError(f"DATA_ROOT={named} ({where}): there is no such folder")


def data_path() -> Path | None:
    """The folder that holds a tree of images, train/<class>/*: DATA_PATH; there is no default."""
    path = setting("DATA_PATH", "")
    return Path(path).expanduser() if path else None


def utc_now() -> str:
    """ISO 8601, whole seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


NO_COMMIT = "unknown: "  # begins a commit that is not known, and says why


@functools.cache
def commit() -> str:
    """This checkout's commit, with "+changes" if its tree is not clean, or why it is unknown.

    Never that of another repository: this checkout may be a copy without .git in one, and GIT_DIR may name one.
    """
    if not (CHECKOUT / ".git").exists():
        return f"{NO_COMMIT}the program is no checkout of git"
    # Trusted, whoever owns it: its code is running.
    git = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT)]
    asked = ["describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run([*git, *asked], env=variables, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{NO_COMMIT}git: {error.strerror}"
    message = done.stderr.strip().splitlines()[-1:] or ["git gave none"]
    return done.stdout.strip() or f"{NO_COMMIT}{message[0]}"
