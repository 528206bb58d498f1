"""The last line of every script: join, build, measure or train on this rank, and record an error if it fails. [torch]

A rank that fails writes what happened into `<record>/ranks/error-<rank>.json`, with the time: the first to
fail is the culprit, the others only lost their peer. A launcher's own "first process to fail" often names
an innocent one, and logs are for people.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure import allocator, measure
from scaling_study.ranks import Ranks, as_launched, leave_torch
from scaling_study.records import store
from scaling_study.study.versions import too_old
from scaling_study.train import train
from scaling_study.trial import Trial
from scaling_study.worker import rendezvous

RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")


def run(
    framework: str,
    join: Callable[[Trial], Ranks],
    build: Callable[[Trial, Ranks], Any],
    measure: Callable[[Any, Trial, Ranks, str | None], object] = measure,
) -> None:
    """Parse the command line, join, build, measure or train what was built; the process exits with 1 if that raises.

    `build` may be called again after one `join`, with another trial: it changes nothing of the process as a whole.
    """
    argv, joining = sys.argv[1:], dict[str, str]()
    if "torchrun" in FRAMEWORKS[framework].launchers:
        argv, joining = rendezvous.taken(argv, os.environ)
    os.environ.update(joining)
    trial, record = Trial.from_argv(framework, argv)
    with joined(join, trial, Path(record) if record else None) as ranks:
        trial = as_launched(trial, ranks)
        (train if trial.trained else measure)(build(trial, ranks), trial, ranks, record)


@contextmanager
def joined(join: Callable[[Trial], Ranks], trial: Trial, record: Path | None) -> Iterator[Ranks]:
    """This process among its peers, which it leaves at the end. What fails in here is written into `record`, unless
    that was done before."""
    ranks: Ranks | None = None
    try:
        if why := too_old(trial, {"torch": torch.__version__}):
            raise SystemExit(why)
        if trial.allocator == "fixed":
            allocator.fix_thresholds()
        ranks = join(trial)
        yield ranks
        ranks.leave()
        leave_torch()
    except (Exception, SystemExit) as error:
        if record and not getattr(error, "written", False):
            write_error(record, error)
        if ranks:
            ranks.abandon()
        raise


def in_clock(frame: FrameType) -> bool:
    """Whether a frame is one of the shared clock's: whatever fails below it has nothing to do with joining."""
    return str(frame.f_globals.get("__name__", "")).startswith("scaling_study.measure.")


def write_error(record: Path, error: BaseException) -> None:
    """Write this rank's error. `oom`: it ran out of memory, on the host or on the device; `stepping`: it
    failed once the clock had begun, and not on the way there."""
    rank = next((int(os.environ[name]) for name in RANK if os.environ.get(name, "").isdigit()), 0)
    message = str(error) or type(error).__name__
    oom = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in message for sign in OUT_OF_MEMORY)
    entry = {
        "rank": rank,
        "at": time.time(),
        "type": type(error).__name__,
        "message": message[:2000],
        "traceback": "".join(traceback.format_exception(error))[-4000:],
        "oom": oom,
        "stepping": any(in_clock(frame) for frame, _ in traceback.walk_tb(error.__traceback__)),
    }
    store.write_json(record / "ranks" / f"error-{rank}.json", entry)
