"""Commands of a user's own as trials of a study: placeholders, free axes, and the words that are started. Pure.

    - framework: command
      command: torchrun --nproc-per-node {workers} train.py --batch-size {batch_per_worker} {amp}
      matrix: {workers: [1, 2], batch_per_worker: [32], amp: ["", "--amp"]}

    {workers}, {batch_per_worker}, ...   keys of the trial
    {amp}                                a free axis: an axis of the matrix that is no key of a trial
    {port}, {run_dir}                    a free port, and an empty folder, of each start

The command is split into words before values are filled in, so a value never becomes a second command. A word that is
nothing but a free axis becomes the words of its value: none for "".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import PurePath
from typing import Any

from scaling_study.models import SCRIPT
from scaling_study.trial import Trial

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
OF_A_START = ("port", "run_dir")
INTERPRETED = re.compile(r".*\.(py|sh)$")
DEFAULT_NAME = "command"


def placeholders(command: str) -> list[str]:
    """The names in braces, each once, in order."""
    return list(dict.fromkeys(PLACEHOLDER.findall(command)))


def script_name(command: str) -> str:
    """The model of a command that names none: `script:train.py` of its first word that ends in .py or .sh."""
    try:
        words = shlex.split(command)
    except ValueError:  # `problems` says so
        words = []
    named = next((word for word in words if INTERPRETED.fullmatch(word)), words[0] if words else DEFAULT_NAME)
    return SCRIPT + re.sub(r"[^\w.+-]", "-", PurePath(named).name, flags=re.ASCII)[:80]


def free_axes(command: str, matrix: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """The axes of a matrix that only the command's placeholders name."""
    return [name for name in matrix if name not in known and name in placeholders(command)]


def combined(matrix: Mapping[str, Sequence[str]]) -> list[str]:
    """All combinations of free axes, each as one value of the key `arguments`: `amp=--amp level=2`."""
    return [written(dict(zip(matrix, values, strict=True))) for values in product(*matrix.values())]


def written(arguments: Mapping[str, str]) -> str:
    """Values of free axes as the key `arguments`."""
    return shlex.join(f"{name}={value}" for name, value in arguments.items())


def read(arguments: str | None) -> dict[str, str]:
    """Values of free axes from the key `arguments`. Raises ValueError for a word without `=`."""
    found = {}
    for word in shlex.split(arguments or ""):
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is no name=value")
        found[name] = value
    return found


def problems(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, message) of what is wrong about a command on every machine."""
    command = keys.get("command")
    if not command:
        yield "command", "framework command needs a command, like `torchrun --nproc-per-node {workers} train.py`"
        return
    try:
        words = shlex.split(command)
    except ValueError as error:
        yield "command", f"command {command!r}: {error}"
        return
    if not words:
        yield "command", "command is empty"
    trial = Trial().to_dict()
    for name in placeholders(command):
        if name not in (*trial, *OF_A_START, *read(keys.get("arguments"))):
            yield "command", f"command has {{{name}}}, which is neither a key of this sweep nor an axis of its matrix"
        elif name in trial and name not in keys and name not in ("workers", "seed", "global_batch", "batch_per_worker"):
            yield "command", f"command has {{{name}}}: give {name} in this sweep"
    if not {"batch_per_worker", "global_batch"} & set(keys):
        yield (
            "command",
            "framework command needs batch_per_worker or global_batch: the samples that the command takes in a step, "
            "which are held against those that are seen",
        )


def words(trial: Trial, port: str, run_dir: str) -> list[str]:
    """The words of a trial's command, with `port` and `run_dir` of this start."""
    values = {**trial.to_dict(), "port": port, "run_dir": run_dir}
    return filled(trial.command or "", values, read(trial.arguments))


def filled(command: str, values: Mapping[str, Any], free: Mapping[str, str]) -> list[str]:
    """The words of a command with values in place of braces; what has no value stays as it is."""
    result: list[str] = []
    for word in shlex.split(command):
        whole = PLACEHOLDER.fullmatch(word)
        if whole and whole[1] in free:
            result += shlex.split(free[whole[1]])
        else:
            result.append(substituted(word, {**values, **free}))
    return result


def substituted(text: str, values: Mapping[str, Any]) -> str:
    """Text with values in place of braces; other braces, such as those of JSON, stay as they are."""
    return PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), text)
