"""Runs commands in forks of one fresh interpreter: what they have in common is imported once.

    python tests/forked_commands.py '{"modules": ["scaling_study.cli"], "absent": ["torch"], "commands": [["a.py"]]}'

First `modules` are imported, as if `absent` were not installed; then each command runs as `python ...` would. Prints
{"asked": which of `absent` the modules tried to import, "commands": [{"code", "stdout", "stderr", "loaded"}]}, where
`loaded` names every top-level package of the command's process.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any


class Absent(MetaPathFinder):
    """Packages that are not installed, whatever is."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages, self.asked = frozenset(packages), list[str]()

    def find_spec(self, name: str, *_: Any) -> None:
        if name.split(".")[0] in self.packages:
            self.asked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(command: Sequence[str]) -> object:
    """What `python COMMAND` would do, in this process; returns or raises what the command exits with."""
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = list(command), str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")
    return None


def forked(command: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr, \
            tempfile.TemporaryFile("w+") as loaded:  # fmt: skip
        if (child := os.fork()) == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            try:
                code = run(command)
            except SystemExit as end:
                code = end.code
                if isinstance(code, str):
                    print(code, file=sys.stderr)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            json.dump(sorted({name.split(".")[0] for name in sys.modules}), loaded)
            loaded.flush()
            os._exit(code if isinstance(code, int) else int(code is not None))
        _, status = os.waitpid(child, 0)
        for file in (stdout, stderr, loaded):
            file.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status), "stdout": stdout.read(), "stderr": stderr.read(),
            "loaded": json.loads(loaded.read() or "[]"),
        }  # fmt: skip


def main() -> None:
    request = json.loads(sys.argv[1])
    sys.path[0] = os.getcwd()
    absent = Absent(request.get("absent", []))
    sys.meta_path.insert(0, absent)
    for name in request.get("modules", []):
        importlib.import_module(name)
    sys.meta_path.remove(absent)
    answers = [forked(command) for command in request.get("commands", [])]
    print(json.dumps({"asked": absent.asked, "commands": answers}))


if __name__ == "__main__":
    main()
