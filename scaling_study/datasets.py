"""Which data this machine has, told without torch: the driver asks before it plans.

`data: auto` is resolved once for a whole study, so that no repeat trains on something else than another.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scaling_study.errors import Trouble
from scaling_study.settings import CACHE, data_root

CIFAR10_FOLDER = "cifar-10-batches-py"


@dataclass(frozen=True)
class Data:
    """What `data: auto` means here, and why."""

    name: str  # cifar10 or synthetic
    why: str


def packed_cifar10() -> Path:
    """Where the packed images lie; the name changes when a file of the archive does, so no stale pack is read."""
    root = data_root().resolve()
    files = sorted((root / CIFAR10_FOLDER).glob("data_batch_*"))
    facts = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return CACHE / f"cifar10-{hashlib.sha256(repr((str(root), facts)).encode()).hexdigest()[:12]}.npy"


def found() -> Data | None:
    """What auto would mean, without downloading or checking anything; None: it takes a download to know."""
    return Data("cifar10", f"in {data_root()}") if (data_root() / CIFAR10_FOLDER).is_dir() else None


def prepare() -> Data:
    """Make the data ready before any clock runs: verify and pack it once, download it if it is not there.

    Raises Trouble. A subprocess does it, so that the driver never imports torch.
    """
    if packed_cifar10().exists():
        return Data("cifar10", f"in {data_root()}")
    done = subprocess.run(
        [sys.executable, "-m", "scaling_study.workloads.prepare"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Trouble(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "preparing CIFAR-10 failed")
    said = json.loads(done.stdout.splitlines()[-1])
    return Data(said["data"], said.get("why", f"in {data_root()}"))
