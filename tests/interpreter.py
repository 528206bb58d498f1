"""What `python SCRIPT`, `python -m MODULE` and `python -c TEXT` do, in a fork of a process with much loaded."""

from __future__ import annotations

import ast
import atexit
import gc
import importlib
import multiprocessing
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

BIN = Path(sys.executable).parent
START_AT_ONCE = ("mpi4py",)  # more than an import, when they are imported
GUARD = re.compile(r"""^if __name__ == ['"]__main__['"]:$""", re.MULTILINE)


def needed(program: Sequence[str], cwd: Path, checkout: Path) -> tuple[str, ...]:
    """What to load for a program, one after the other: scripts of the checkout and modules.

    A script that another one runs comes first (`dies.py steps:10 single.py --flags`). Of a script that a test wrote, or
    that does not wait until it is called __main__, the modules that it imports.
    """
    if program[0] == "-c":
        return ()
    others = [str(cwd / word) for word in program[1:] if word.endswith(".py") and waits(cwd / word, checkout)]
    if program[0] == "-m":
        return (*others, program[1])
    script = cwd / program[0]
    if waits(script, checkout):
        return (*others, str(script))
    tree = ast.parse(script.read_text(encoding="utf-8"))
    imports = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    return tuple(name for name in imports if find_spec(top := name.split(".")[0]) and top not in START_AT_ONCE)


def waits(script: Path, checkout: Path) -> bool:
    """Whether it is one of the checkout's or the environment's that does nothing until it is called __main__."""
    if not script.is_file() or not (script.resolve().is_relative_to(checkout) or script.parent == BIN):
        return False
    return bool(GUARD.search(script.read_text(encoding="utf-8", errors="replace")))


def load(what: str) -> None:
    """Import a module, or what a script imports."""
    if os.sep not in what:
        importlib.import_module(what)
        return
    sys.path.insert(0, str(Path(what).parent))
    runpy.run_path(what, run_name="loaded")
    del sys.path[0]


def prepare_to_fork() -> None:
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads, of which a fork would have one"
    gc.freeze()  # no collection touches, and so copies, what all share


def become(program: Sequence[str]) -> NoReturn:
    """Be the interpreter that runs a program; streams, environment and folder are the process's own already."""
    renew_locks()
    code = 0
    try:
        _execute(*program)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    leave(code)


def renew_locks() -> None:
    """Hivemind makes locks as it is imported, which all forks would share: one that is killed may never let go."""
    if "hivemind" in sys.modules:
        from hivemind.utils.mpfuture import MPFuture, SharedBytes

        SharedBytes._lock = multiprocessing.Lock()
        MPFuture._initialization_lock, MPFuture._update_lock = multiprocessing.Lock(), multiprocessing.Lock()


def _execute(what: str, *arguments: str) -> None:
    if what == "-m":
        sys.argv = list(arguments)
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [what, *arguments]
        sys.path.insert(0, str(Path(what).parent))
        runpy.run_path(what, run_name="__main__")


def leave(code: int) -> NoReturn:
    """End as an interpreter does, short of taking apart what other processes still use."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if "mpi4py.MPI" in sys.modules:
        finalize()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def finalize() -> None:
    """What mpi4py asks of the C library to do after all of Python."""
    import mpi4py
    from mpi4py import MPI

    if mpi4py.rc.finalize is not False and MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()
