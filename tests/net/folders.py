"""Results folders that earlier programs left, frozen in folders.tar.xz. They are never made anew.

    separate/   two configurations in launches of their own, two repeats. The driver and all of its processes were
                killed after two trials, as the third had left its ranks/rank-0.json and no record.
    shared/     two parity gates, and three configurations in blocks of one launch, three repeats. All processes were
                killed in the second launch: the first has records, the second has begun/ and some blocks of each trial.
    older/      a record of each form that the git history of examples/results holds: fifteen sets of keys.
    studies/    a study.json of each form, likewise.

The first two were measured by commit 19c5de4 as if on MACHINE. Paths in them begin with /checkout.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from scaling_study.machine import Machine

ARCHIVE = Path(__file__).with_name("folders.tar.xz")
MACHINE = Machine(2, "Xeon", 8 << 30, (), {"torch": "1", "torchvision": "1", "torchmetrics": "1"})


def unpacked(name: str, into: Path) -> Path:
    """The frozen folder of this name, below the folder `into`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, [each for each in archive if each.name.startswith(f"{name}/")], filter="data")
    return into / name
