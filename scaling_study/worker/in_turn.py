"""Several trials in one launch: each rank imports torch once and forks a process for every trial.         [torch]

    torchrun --standalone --nproc-per-node 2 scaling_study/worker/in_turn.py TRIALS.json      (launch/attempts.py)

A trial's script runs as it is, as __main__ of a process of its own, and joins with what the launcher told this rank.
Nothing of one trial is left for the next. A trial whose ranks do not all end well says nothing here about the
framework: whoever asked, the doctor or a sweep for its gates, starts it again by itself.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import PrefixStore, Store

IMPORTS = ("torch._dynamo", "torchvision", "scaling_study.measure", "scaling_study.workloads.resnet_cifar10")
GRACE_SECONDS = 2.0  # for a rank whose peer has failed
POLL_SECONDS = 0.02


def main(trials: Path) -> int:
    """Run the trials of a file, `[{"argv": [script, ...], "folder": ..., "timeout_seconds": ...}]`; the exit code is 0.

    Each trial's output goes to `log.txt` in its folder, which all ranks share.
    """
    for name in IMPORTS:
        importlib.import_module(name)
    for index, trial in enumerate(json.loads(trials.read_text(encoding="utf-8"))):
        child = os.fork()
        if child == 0:
            _become(trial, index)
        _wait(child, Path(trial["folder"]), trial["timeout_seconds"])
    return 0


def _become(trial: Mapping[str, Any], index: int) -> NoReturn:
    """Be the interpreter that runs the trial's script."""
    log = os.open(Path(trial["folder"]) / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _with_own_keys(index)
    sys.argv = list(trial["argv"])
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _with_own_keys(index: int) -> None:
    """Let torch's ranks meet under keys of this trial: the launcher's store outlives them, and keeps the last one's."""
    module = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of that name
    known = module._rendezvous_handlers  # there is no public way to change one
    from_environment = known["env"]

    def handler(*arguments: Any, **options: Any) -> Iterator[tuple[Store, int, int]]:
        for store, rank, size in from_environment(*arguments, **options):
            yield PrefixStore(f"trial {index}", store), rank, size

    known["env"] = handler


def _wait(child: int, folder: Path, timeout_seconds: float) -> None:
    """Until the rank ends, `timeout_seconds` pass, or a peer has left the folder's `failed`."""
    deadline, failed = time.monotonic() + timeout_seconds, folder / "failed"
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if failed.exists():
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(POLL_SECONDS)
    if status:
        failed.touch()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
