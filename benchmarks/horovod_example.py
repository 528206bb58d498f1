"""Horovod's own synthetic benchmark, as it was released: fetched once, verified, kept in the cache, never copied.

The source archive in the package registry leaves Horovod's examples out (its MANIFEST says so), hence the file
comes from the release's tag in Horovod's repository. On a machine that cannot reach it, put the file there by hand,
or name another place with HOROVOD_SYNTHETIC_BENCHMARK.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from pathlib import Path

from benchmarks.options import Unavailable
from environment.horovod_wheel import VERSION
from scaling_study.settings import CACHE

NAME = "pytorch_synthetic_benchmark.py"
URL = f"https://raw.githubusercontent.com/horovod/horovod/v{VERSION}/examples/pytorch/{NAME}"
# Computed from stored copies of the file (a fork's and a pull request's, alike but for one known line each), since
# the machine on which this was written could not reach the tag itself.
SHA256 = "020759fa7293888607afa14c39be08aecac5ee9bd07ac63c4fc497b975d6ae88"
HERE = CACHE / "sources" / NAME


def path() -> Path:
    """The file, downloaded if it is not there. Raises Unavailable."""
    if elsewhere := os.environ.get("HOROVOD_SYNTHETIC_BENCHMARK"):
        return Path(elsewhere)
    if not HERE.exists():
        try:
            with urllib.request.urlopen(URL, timeout=30) as answer:
                text = answer.read()
        except OSError as error:
            raise Unavailable(f"{URL} cannot be fetched ({error}); put it at {HERE} by hand") from error
        HERE.parent.mkdir(parents=True, exist_ok=True)
        half = HERE.with_suffix(".half")
        half.write_bytes(text)
        half.replace(HERE)
    if not is_the_release(HERE):
        raise Unavailable(f"{HERE} is not the file that was released with Horovod {VERSION} (its SHA-256 differs)")
    return HERE


def is_the_release(file: Path) -> bool:
    return hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
