"""Requests to Slurm as text: a job's options, what one trial needs of its nodes, the batch script. Pure.

    partition=gpu,nodes=4,time=2:00:00  ->  parse_options  ->  #SBATCH --partition=gpu ...  ->  batch_script

An option's key is sbatch's own long option with _ for -. A batch script is read by a shell and its directives by Slurm,
so a value with a space or a quote in it is refused, never escaped. job.sh.jinja is the template: into it go directives
with checked values, words that are quoted for the shell, and the machine file's setup lines, which are shell already.

A login node seldom has the hardware of a cluster: jobs of one trial are planned for the nodes that sinfo lists, with
the libraries installed here, which the nodes share. What a job really gets is checked again inside it.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scaling_study.errors import StudyError, quoted
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.study.study import nearest
from scaling_study.trial import Trial

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = Path(__file__).with_name("job.sh.jinja")
UNSAFE_IN_DIRECTIVE = re.compile(r"[\x00-\x1f\x7f\"'\\%]")  # in a path: Slurm would interpret them
GPU_RESOURCE = re.compile(r"gpu:(?:([A-Za-z0-9_.-]+):)?(\d+)")  # of a node's generic resources: gpu:a100:4(S:0-1)


class OptionKind(NamedTuple):
    """The form of an option's value."""

    pattern: str
    example: str  # in words


WORDS = OptionKind(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(,[A-Za-z0-9_][A-Za-z0-9_.-]*)*", "a name, like gpu")
COUNT = OptionKind(r"[1-9]\d{0,5}", "a whole number above 0, like 4")
SIZE = OptionKind(r"(0|[1-9]\d{0,8})[KMGT]?", "a size with its unit, like 64G (0: all of a node's)")
TIME = OptionKind(
    r"[1-9]\d{0,6}|\d{1,6}:\d{2}|\d{1,5}:\d{2}:\d{2}|\d{1,4}-\d{1,2}(:\d{2}(:\d{2})?)?",
    "minutes, hours:minutes:seconds or days-hours, like 2:00:00",
)
HOSTS = OptionKind(r"[A-Za-z0-9_.-]+(\[[0-9,-]+\])?(,[A-Za-z0-9_.-]+(\[[0-9,-]+\])?)*", "hosts, like node[1-4]")
FEATURES = OptionKind(r"[A-Za-z0-9_.:-]([A-Za-z0-9_.:&|*()\[\],-]*)", "features, like a100 or a100|h100")
GPUS = OptionKind(r"([A-Za-z0-9_.-]+:)?[1-9]\d{0,3}", "a number, also with its kind, like 4 or a100:4")
RESOURCE = OptionKind(r"[a-z0-9_]+(:[A-Za-z0-9_.-]+)?(:[1-9]\d{0,3})?", "a resource, like gpu:a100:4")
YES = OptionKind(r"yes|no", "yes or no")

KEYS: Mapping[str, OptionKind] = {
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
BETWEEN = re.compile(r",(?=[^,=\[\]]+=)")  # a comma before the next key; those inside values stay
Options = Mapping[str, str]


def parse_options(text: str, defaults: Mapping[str, object] | None = None, file: str = "") -> dict[str, str]:
    """The options of --slurm, over the machine file's `defaults`, which come from `file`. Raises StudyError."""
    options: dict[str, str] = {}
    problems = []
    for part in filter(None, BETWEEN.split(text)):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            problems.append(f"--slurm {quoted(part)}: expected key=value, like partition=gpu")
        elif key in options:
            problems.append(f"--slurm {key}={value}: {key} is already set to {options[key]}")
        else:
            options[key] = value
    words = {True: "yes", False: "no"}
    usual = {key: words[value] if isinstance(value, bool) else str(value) for key, value in (defaults or {}).items()}
    problems += [f"--slurm {problem}" for problem in _problems(options)]
    problems += [f"{file}: slurm: {problem}" for problem in _problems(usual)]
    if problems:
        raise StudyError(problems)
    return {key: value for key, value in {**usual, **options}.items() if (KEYS[key], value) != (YES, "no")}


def _problems(options: Options) -> list[str]:
    problems = []
    for key, value in options.items():
        if key not in KEYS:
            hint = nearest(key, list(KEYS)) or f"; the options are {', '.join(KEYS)}"
            problems.append(f"{quoted(key)} is not a supported Slurm option{hint}")
        elif not re.fullmatch(KEYS[key].pattern, value):
            problems.append(f"{quoted(f'{key}={value}')}: expected {KEYS[key].example}")
    return problems


def directives(options: Options) -> list[str]:
    """`--partition=gpu`, one for each option, in the order of KEYS."""
    present = [(key, "" if KEYS[key] is YES else f"={options[key]}") for key in KEYS if key in options]
    return [f"--{key.replace('_', '-')}{value}" for key, value in present]


def requested_gpus(options: Options) -> int:
    """GPUs requested on each node."""
    resource = options.get("gres", "")
    request = options.get("gpus_per_node") or (resource if resource.startswith("gpu") else "")
    count = request.rpartition(":")[2]
    return int(count) if count.isdigit() else int(bool(request))


@dataclass(frozen=True, order=True)
class Node:
    """One node, as far as a plan depends on it."""

    cores: int
    gpus: tuple[str, ...]
    megabytes: int
    name: str

    def __str__(self) -> str:
        gpus = f" and {len(self.gpus)} x {self.gpus[0]}" if self.gpus else ""
        return f"{self.cores} core{'' if self.cores == 1 else 's'}{gpus}"


def parse_nodes(text: str, partition: str = "") -> list[Node]:
    """The nodes of a partition, by default of the default one, from controller.list_nodes."""
    nodes = []
    for line in text.splitlines():
        listed_in, name, cores, megabytes, resources = (line.split("|") + [""] * 5)[:5]
        selected = listed_in.rstrip("*") in partition.split(",") if partition else listed_in.endswith("*")
        if selected and cores.isdigit():
            gpus = [kind or "GPU" for kind, count in GPU_RESOURCE.findall(resources) for _ in range(int(count))]
            nodes.append(Node(int(cores), tuple(gpus), int(megabytes) if megabytes.isdigit() else 0, name))
    return nodes


def node_machine(nodes: Sequence[Node], options: Options, here: Machine) -> Machine:
    """The Machine that each of these nodes is. Raises StudyError where there are none, or they differ."""
    where = f"partition {options['partition']}" if "partition" in options else "the default partition"
    kinds = sorted({(node.cores, node.gpus): node for node in nodes}.values())
    if not kinds:
        raise StudyError([f"--slurm: sinfo lists no nodes of {where}"])
    if len(kinds) > 1:
        listing = "; ".join(map(str, kinds))
        raise StudyError([f"--slurm: nodes of {where} differ ({listing}); a study needs equal ones: use nodelist="])
    count = requested_gpus(options)
    gpus = kinds[0].gpus[:count] if count else ()  # a job sees no GPU that it did not request
    gpus += ("GPU",) * (count - len(gpus))
    memory = min(node.megabytes for node in nodes) << 20
    return Machine(kinds[0].cores, f"a node of {where}", memory, gpus, here.libraries)


def trial_options(trial: Trial, options: Options) -> dict[str, str]:
    """The options of a job for this trial alone: no more nodes, tasks, cores and GPUs than it can use."""
    cores, nodes = trial.cores_per_worker or 1, trial.hosts or 1
    workers = trial.workers // nodes  # on each node
    one_process = FRAMEWORKS[trial.framework].one_process
    needed = {
        "nodes": str(nodes),
        "ntasks_per_node": str(1 if one_process else workers),
        "cpus_per_task": str(cores * workers if one_process else cores),
    }
    if trial.device == "cuda" and "gpus_per_node" in options:
        kind, colon, _ = options["gpus_per_node"].rpartition(":")
        needed["gpus_per_node"] = f"{kind}{colon}{workers}"
    fixed = {key: value for key, value in options.items() if key in ("ntasks_per_node", "cpus_per_task")}
    return {**options, **needed, **fixed}


def batch_script(
    title: str, name: str, folder: Path, files: Path, command: Sequence[str], options: Options, setup: Sequence[str]
) -> str:
    """The whole script of the job that Slurm calls `name`: the lines of `setup`, then `command`, run in `folder`.

    `files`: the folder of the job's own files; both are absolute paths. `title`: for whoever reads the script.
    Raises StudyError for a path that Slurm would misread in a directive.
    """
    output = files / "output.txt"
    if UNSAFE_IN_DIRECTIVE.search(str(output)):
        raise StudyError([f"Slurm would misread the path {quoted(str(output))}: choose --results with plain letters"])
    own = [f"--job-name={name}", f'--output="{output}"', "--open-mode=append", "--no-requeue"]
    return _template().render(
        title=" ".join(title.split()),
        directives=[*own, *directives(options)],
        exit_file=shlex.quote(str(files / "exit.json")),
        folder=shlex.quote(str(folder)),
        setup=[line.rstrip() for line in setup],
        command=shlex.join(command),
    )


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    settings = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    return settings.from_string(TEMPLATE.read_text(encoding="utf-8"))
