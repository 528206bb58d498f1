"""`partition=gpu,nodes=4,time=2:00:00` -> what stands behind #SBATCH. Pure; nothing unknown or unquoted gets through.

A key is sbatch's own long option with _ for -. Each value must look like what that option takes: a batch script is
read by a shell, and its directives by Slurm, so a value with a space or a quote in it is refused, never escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from scaling_study.errors import StudyError
from scaling_study.quoting import quoted
from scaling_study.study.study import nearest


@dataclass(frozen=True)
class Kind:
    """What a value may look like."""

    pattern: re.Pattern[str]
    like: str  # an example, in words

    def fits(self, value: str) -> bool:
        return bool(self.pattern.fullmatch(value))


WORDS = Kind(re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(,[A-Za-z0-9_][A-Za-z0-9_.-]*)*"), "a name, like gpu")
COUNT = Kind(re.compile(r"[1-9]\d{0,5}"), "a whole number above 0, like 4")
SIZE = Kind(re.compile(r"(0|[1-9]\d{0,8})[KMGT]?"), "a size with its unit, like 64G (0: all of a node's)")
TIME = Kind(
    re.compile(r"[1-9]\d{0,6}|\d{1,6}:\d{2}|\d{1,5}:\d{2}:\d{2}|\d{1,4}-\d{1,2}(:\d{2}(:\d{2})?)?"),
    "minutes, hours:minutes:seconds or days-hours, like 2:00:00",
)
HOSTS = Kind(re.compile(r"[A-Za-z0-9_.-]+(\[[0-9,-]+\])?(,[A-Za-z0-9_.-]+(\[[0-9,-]+\])?)*"), "hosts, like node[1-4]")
FEATURES = Kind(re.compile(r"[A-Za-z0-9_.:-]([A-Za-z0-9_.:&|*()\[\],-]*)"), "features, like a100 or a100|h100")
GPUS = Kind(re.compile(r"([A-Za-z0-9_.-]+:)?[1-9]\d{0,3}"), "a number, also with its kind, like 4 or a100:4")
RESOURCE = Kind(re.compile(r"[a-z0-9_]+(:[A-Za-z0-9_.-]+)?(:[1-9]\d{0,3})?"), "a resource, like gpu:a100:4")
YES = Kind(re.compile(r"yes|no"), "yes or no")

KEYS: Mapping[str, Kind] = {
    "partition": WORDS,
    "account": WORDS,
    "qos": WORDS,
    "reservation": WORDS,
    "constraint": FEATURES,
    "nodelist": HOSTS,
    "exclude": HOSTS,
    "nodes": COUNT,
    "ntasks_per_node": COUNT,
    "cpus_per_task": COUNT,
    "gpus_per_node": GPUS,
    "gres": RESOURCE,
    "mem": SIZE,
    "mem_per_cpu": SIZE,
    "mem_per_gpu": SIZE,
    "time": TIME,
    "exclusive": YES,
}
BETWEEN = re.compile(r",(?=[^,=\[\]]+=)")  # a comma before the next key; those inside of values stay
Options = Mapping[str, str]


def parse(text: str, defaults: Mapping[str, object] | None = None, file: str = "") -> dict[str, str]:
    """What --slurm asks for, over the machine file's `defaults`, which come from `file`. Raises StudyError."""
    given: dict[str, str] = {}
    problems = []
    for part in filter(None, BETWEEN.split(text)):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            problems.append(f"--slurm {quoted(part)}: expected key=value, like partition=gpu")
        elif key in given:
            problems.append(f"--slurm {key}={value}: {key} is given already, as {given[key]}")
        else:
            given[key] = value
    usual = {key: _written(value) for key, value in (defaults or {}).items()}
    problems += [f"--slurm {wrong}" for wrong in _wrong(given)] + [f"{file}: slurm: {wrong}" for wrong in _wrong(usual)]
    if problems:
        raise StudyError(problems)
    return {key: value for key, value in {**usual, **given}.items() if (KEYS[key], value) != (YES, "no")}


def _wrong(given: Options) -> list[str]:
    problems = []
    for key, value in given.items():
        if key not in KEYS:
            hint = nearest(key, list(KEYS)) or f"; there are {', '.join(KEYS)}"
            problems.append(f"{quoted(key)} is no option of Slurm that can be given here{hint}")
        elif not KEYS[key].fits(value):
            problems.append(f"{quoted(f'{key}={value}')}: expected {KEYS[key].like}")
    return problems


def _written(value: object) -> str:
    """A value of YAML as one would write it on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def directives(options: Options) -> list[str]:
    """`--partition=gpu`, one for each option, in the order of KEYS."""
    asked = [(key, "" if KEYS[key] is YES else f"={options[key]}") for key in KEYS if key in options]
    return [f"--{key.replace('_', '-')}{value}" for key, value in asked]


def gpus(options: Options) -> int:
    """GPUs that each node is asked for."""
    resource = options.get("gres", "")
    asked = options.get("gpus_per_node") or (resource if resource.startswith("gpu") else "")
    last = asked.rpartition(":")[2]
    return int(last) if last.isdigit() else int(bool(asked))
