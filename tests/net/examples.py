"""The shipped example studies as results folders, each unpacked once a test run. Nothing is ever written into them."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from scaling_study.records import pack
from scaling_study.settings import CHECKOUT

EXAMPLES = CHECKOUT / "examples" / "results"


def studies() -> list[str]:
    """Names of all shipped example studies."""
    return sorted(path.name.removesuffix(pack.SUFFIX) for path in EXAMPLES.glob(f"*{pack.SUFFIX}"))


@functools.cache
def example(study: str) -> Path:
    """The results folder of a shipped study, to be read only: its records and maps, no tables."""
    return pack.unpack(EXAMPLES / f"{study}{pack.SUFFIX}", _folder() / study)


@functools.cache
def _folder() -> Path:
    """Removed when this process ends; a fork of it that ends removes nothing."""
    folder, owner = tempfile.mkdtemp(prefix="scaling-study-examples-"), os.getpid()
    atexit.register(lambda: os.getpid() != owner or shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)


def outside(words: str) -> list[str]:
    """The lines of a page's Markdown that nobody has to unfold."""
    depth, lines = 0, list[str]()
    for line in words.splitlines():
        depth += line.startswith("<details>")
        lines += [] if depth else [line]
        depth -= line == "</details>"
    return lines
