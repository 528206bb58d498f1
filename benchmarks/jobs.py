"""Starting jobs, as the driver does: the same launchers, the same care that nothing is left running."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.options import Unavailable
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import attempts
from scaling_study.launch.launchers import LAUNCHERS, USUAL_PORT, Command
from scaling_study.machine import installed
from scaling_study.processes import process
from scaling_study.records import outcome
from scaling_study.records.store import load
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial


def environment(**more: str) -> dict[str, str]:
    """This one's, in which programs of this interpreter and modules of this checkout are found first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT), **more}


def results_of(launches: int, framework: str, module: str, steps: int, turns: int, *flags: str) -> list[dict[str, Any]]:
    """What a module that times blocks of so many steps in turn leaves, of each of so many launches."""
    program = ["-m", f"benchmarks.{module}", *flags, "--steps", str(steps), "--turns", str(turns)]
    with tempfile.TemporaryDirectory(prefix="launches-") as made:
        out, results = Path(made) / "out.json", []
        for _ in range(launches):
            launched(framework, [*program, "--out", str(out)])
            results.append(load(out))
            out.unlink()
    return results


def in_blocks(results: Sequence[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Evidence of launches: `samples_per_second` of all, and the facts of the first."""
    taken = [launch["samples_per_second"] for launch in results]
    return {**results[0], "samples_per_second": taken, "steps_a_block": steps}


def in_fresh_processes(count: int, function: Callable[..., Any], *arguments: object) -> list[Any]:
    """What a function of a module returns in each of so many processes, one started after the other."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        return [pool.submit(function, *arguments).result() for _ in range(count)]


def launched(
    framework: str, program: Sequence[str], workers: int = 2, timeout_seconds: float = 1200,
    env: Mapping[str, str] | None = None,
) -> float:  # fmt: skip
    """Run `python <program>` with so many ranks to its end, by the launcher of a framework; one process where it has no
    more. Its seconds, launch to exit. Raises Unavailable."""
    table = FRAMEWORKS[framework]
    if missing := [name for name in table.needs if not installed(name)]:
        raise Unavailable(f"{missing[0]} is not installed")
    workers = 1 if table.axes["workers"] == (1,) else workers
    controller = "mpi" if "controller" in table.axes else None
    launcher = "torchrun" if "torchrun" in table.launchers else table.launchers[0]  # DeepSpeed's own runs no modules
    trial = Trial(framework=framework, workers=workers, controller=controller, launcher=launcher)
    bin = Path(sys.executable).parent
    launch = LAUNCHERS[trial.launcher](trial, [sys.executable, *program], bin, USUAL_PORT)
    command = Command(launch.argv, {**launch.env, **(env or {})})
    with tempfile.TemporaryDirectory(prefix="job-") as made, process.Interruption() as interruption:
        log = Path(made) / "log.txt"
        ended = process.run(command.argv, attempts.launch_environment(command), log, timeout_seconds, interruption)
        if ended.interrupted:
            raise KeyboardInterrupt
        if ended.code != 0 or ended.timed_out:
            how = f"not finished after {timeout_seconds:.0f} s" if ended.timed_out else f"exit code {ended.code}"
            raise Unavailable(f"a {framework} job failed ({how})", ended.error or outcome.tail(log))
    return ended.seconds
