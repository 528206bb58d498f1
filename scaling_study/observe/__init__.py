"""Observes training scripts that were not written for this project, without edits to them.

    environment(os.environ, folder)     the variables that have a command observed
    read(folder)                        what its processes wrote, once they ended or meanwhile
    step(samples)                       the one line that a script without an optimiser may add
    code()                              digests of the files of the program that runs here

The observer runs in the environment of its user, where the rest of scaling_study need not be installed: this folder
needs the standard library, and is written for Python 3.9. It observes torch 2.1 or newer; a script that trains without
torch (JAX) says its steps.

    site/sitecustomize.py   Python runs it at every start, since its folder is on PYTHONPATH. It waits for torch
    hooks.py                once torch is imported: optimisers, modules, backward, DataLoaders, scalers, saving
    objects.py              what the objects of a script say: rows of batches, values of losses
    steps.py                what these see, folded into steps and written as JSON lines
    inside.py               looks into one warm-up step: FLOPs, bytes of collectives; and peak memory
    held.py                 waits for a driver between two steps, where commands take turns
    checks.py               do the ranks train one model, on data of their own?
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from scaling_study.observe.steps import line as line_of

FOLDER = "SCALING_STUDY_OBSERVE"  # environment: where each process writes its record; without it nothing is observed
STEPS = "SCALING_STUDY_OBSERVE_STEPS"  # environment: how many steps end the run; none: it runs as it is
DRIVER = "SCALING_STUDY_OBSERVE_DRIVER"  # environment: a file that says how to call the driver that holds the run
LOST = "not-observed"  # in that folder: a file made by a process that trains on and cannot be observed any more
SITE = str(Path(__file__).resolve().parent / "site")
IMPORTED_AT = time.perf_counter()


def environment(
    variables: Mapping[str, str], folder: Path, steps: int | None = None, driver: Path | None = None
) -> dict[str, str]:
    """The variables to add to `variables` to have the Python processes of a command observed, and ended after so many
    steps.

    PYTHONPATH is that of `variables`, extended in front. Records go to `folder`, which must exist on every host.
    `driver`: the file of one that tells the processes, block by block, how far they may go (held.py).
    """
    path = os.pathsep.join([SITE, *filter(None, [variables.get("PYTHONPATH")])])
    told = {STEPS: steps, DRIVER: driver}
    more = {name: str(value) for name, value in told.items() if value is not None}
    return {"PYTHONPATH": path, FOLDER: str(folder.absolute()), **more}


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """The lines of each process that trained, or says why it was not observed, by rank; a line cut short is left out.

    The first line of each has `kind` `process`; `step`, `not observed` and `end` follow (steps.py).
    """
    processes = [_lines(path) for path in sorted(folder.glob("*.jsonl")) if path.is_file()]
    return sorted(filter(None, processes), key=lambda lines: (lines[0].get("rank") is None, lines[0].get("rank")))


def _lines(path: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]  # the last was cut short, or is empty
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            if line["kind"] == "anew":
                lines = lines[:1]
                continue
            rows = line["rows"] if line["kind"] == "steps" else None
            lines += [{"kind": line["kind"], **line}] if rows is None else map(line_of, count(line["first"]), rows)
        except (ValueError, TypeError, LookupError, RecursionError):
            return [*lines, {"kind": "not observed", "why": f"line {number} of {path.name} is none of ours"}]
    return lines


LIBRARIES = (  # what of a file's path says that it is of one, or of ours
    "site-packages",
    "dist-packages",
    os.path.dirname(getattr(os, "__file__", "")),
    os.path.dirname(os.path.abspath(__file__)),
)


def code() -> dict[str, str]:
    """Digests of the program that this process runs, by file: its script, and the modules that it has imported from the
    script's folder or the current one. Libraries are left out, and what no import has loaded."""
    try:
        return digests(_files_of_the_program())
    except Exception:  # the current folder is gone, or something stands in sys.modules that is none
        return {}


def _files_of_the_program() -> set[str]:
    script = str(vars(sys.modules["__main__"]).get("__file__") or "")
    places = tuple(os.path.join(place, "") for place in (os.getcwd(), os.path.abspath(os.path.dirname(script))))
    found = set()
    for name, module in list(sys.modules.items()):
        about = vars(module) if isinstance(module, ModuleType) else {}  # asking one may import it: six.moves
        file = about.get("__file__")
        if not isinstance(file, str) or not file.endswith(".py") or any(library in file for library in LIBRARIES):
            continue  # most modules: their paths are not resolved
        path = os.path.abspath(file)
        is_ours = path.startswith(places) and not any(library in path for library in LIBRARIES)
        if is_ours and (about.get("__spec__") or name == "__main__"):
            found.add(path)
    return found


def digests(files: Iterable[str]) -> dict[str, str]:
    """A digest of each file's contents, by its path; empty where it cannot be read."""
    found = {}
    for path in sorted(files):
        try:
            with open(path, "rb") as stream:
                found[path] = hashlib.sha256(stream.read()).hexdigest()[:16]
        except OSError:
            found[path] = ""
    return found


def step(samples: int | None = None, loss: Any = None) -> None:
    """Say that a training step has ended, with so many samples of this process (None: unknown) and this loss.

    From the first call on, only these calls are steps. The script need not use torch. A step whose results come later
    than its call returns (JAX, a GPU) must be waited for first: jax.block_until_ready(...). Does nothing where the
    script is not observed.
    """
    if not os.environ.get(FOLDER):
        return
    try:
        hooks = importlib.import_module("scaling_study.observe.hooks")
        if not hooks.FOUND:  # torch was not imported, or where PYTHONPATH did not have the observer
            hooks.attach(sys.modules.get("torch"), os.environ[FOLDER])
    except Exception as error:  # a fault of ours must not be one of the training
        print(f"scaling-study: not observed: {error!r}", file=sys.stderr)
        return
    hooks.explicit_step(samples, loss)
