"""Several command lines of a script, one after the other, in the ranks of one launch that costs one join.

    subprocess.run(["mpirun", "-np", "2", *in_turn.program(folder, [script, "--flags"], [script, "--other-flags"])])

Horovod and MPI join once in a process's life, so every case finds them as the case before has left them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from scaling_study.ranks import started_by


def program(folder: Path, *cases: Sequence[str | Path]) -> list[str]:
    """What a launcher is to start: every rank runs all `cases`, each a script and its flags."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cases.json"
    file.write_text(json.dumps([[str(word) for word in case] for case in cases]), encoding="utf-8")
    scripts = dict.fromkeys(str(case[0]) for case in cases)  # named, so that forks have them loaded (template.py)
    return [sys.executable, __file__, str(file), *scripts]


def run(cases: Sequence[Sequence[str]]) -> None:
    cores = os.sched_getaffinity(0)  # a case takes its share of them
    for case in cases:
        os.sched_setaffinity(0, cores)
        sys.argv = list(case)
        runpy.run_path(case[0], run_name="__main__")


def run_in_mpi(cases: Sequence[Sequence[str]]) -> None:
    """Every case begins and ends MPI; it begins before the first and ends after the last."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    init, finalize = MPI.Init, MPI.Finalize
    MPI.Init, MPI.Finalize = lambda: MPI.Is_initialized() or init(), lambda: None
    run(cases)
    finalize()  # not after an error: it would wait for ranks that wait for us


def run_in_horovod(cases: Sequence[Sequence[str]]) -> None:
    """Every case shuts Horovod down; it ends after the last. A second join could find the addresses of the first."""
    import horovod.torch as hvd

    shutdown, hvd.shutdown = hvd.shutdown, lambda: None
    run(cases)
    shutdown()


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    {"mpirun": run_in_mpi, "horovodrun": run_in_horovod}[started_by()](asked)
