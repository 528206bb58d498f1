"""Runs commands in forks of one fresh interpreter: what they have in common is imported once.

    python tests/forked_commands.py '{"modules": ["scaling_study.cli"], "absent": ["torch"], "commands": [["a.py"]]}'

First `modules` are imported, as if `absent` were not installed; then each command runs as `python ...` would. Prints
{"asked": which of `absent` the modules tried to import, "commands": [{"code", "stdout", "stderr", "loaded"}]}, where
`loaded` names every top-level package of the command's process.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import interpreter


class Absent(MetaPathFinder):
    """Packages that are not installed, whatever is."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages, self.asked = frozenset(packages), list[str]()

    def find_spec(self, name: str, *_: Any) -> None:
        if name.split(".")[0] in self.packages:
            self.asked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def tell_loaded(file: Path) -> None:
    file.write_text(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))


def forked(command: Sequence[str]) -> dict[str, Any]:
    folder = tempfile.mkdtemp()  # a TemporaryDirectory would be removed by the fork as it ends
    if (child := os.fork()) == 0:
        for number, name in enumerate(("stdout", "stderr"), start=1):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
        atexit.register(tell_loaded, Path(folder, "loaded"))
        interpreter.become(command)
    _, status = os.waitpid(child, 0)
    said = {name: Path(folder, name).read_text() for name in ("stdout", "stderr", "loaded")}
    shutil.rmtree(folder)
    return {**said, "code": os.waitstatus_to_exitcode(status), "loaded": json.loads(said["loaded"])}


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
