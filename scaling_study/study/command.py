"""Commands of a user's own as trials of a study: placeholders, free axes, variables, the words that are started. Pure.

    - framework: command
      command: torchrun --nproc-per-node {workers} train.py --batch-size {batch_per_worker} {amp}
      env: {OMP_NUM_THREADS: 2, HF_TOKEN: "${HF_TOKEN}"}
      matrix: {workers: [1, 2], batch_per_worker: [32], amp: ["", "--amp"]}

    {workers}, {batch_per_worker}, ...   keys of the trial
    {amp}                                a free axis: an axis of the matrix that is no key of a trial
    {port}, {run_dir}                    a free port, and an empty folder, of each start
    {hosts}, {node}, ...                 the hosts of a trial that is spread over some (`placed`)
    ${HF_TOKEN}                          in `env`: the value that this variable has where the command is started

The command is split into words before values are filled in, so a value never becomes a second command. A word that is
nothing but a free axis becomes the words of its value: none for "".

      expect: {global_batch: "{workers} * {batch}"}     samples of a step, of all processes
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import product, takewhile
from pathlib import PurePath
from typing import Any

from scaling_study.errors import quoted
from scaling_study.frameworks import COMMAND, FRAMEWORKS
from scaling_study.hosts.hosts import Host
from scaling_study.models import SCRIPT
from scaling_study.trial import RENAMED, Trial
from scaling_study.variables import NAME, may_be_secret

PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z][a-z0-9_]*)\}")  # not ${name}, which other languages have
FROM_HERE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
OF_A_START = ("port", "run_dir")
OVER_HOSTS = ("hosts", "first_host", "nodes", "workers_per_host", "node", "hostfile")
NODE = "{node}"  # makes a command start on each of its hosts (hosts/on_each_host.py)
NO_PLACEHOLDERS = ("command", "arguments", "env")
OLDER_NAMES = {name: older for older, name in RENAMED.items() if older in FRAMEWORKS[COMMAND].axes}
CARRYING = ("mpirun", "mpiexec", "horovodrun", "srun")  # launchers that take the observer's variables to other hosts
INTERPRETED = re.compile(r".*\.(py|sh)$")
DEFAULT_NAME = "command"
# What a shell would read, outside quotes.
QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""")
FOR_A_SHELL = re.compile(r"\|\|?|&&|;|[<>]|`|\$[{(]?\w+|(?<=\s)&(?=\s|$)|^\w+=\S*")


# Options of a command (`--name value`, `group.name=value`) and variables that it sets, each with the first word of its
# value; quotes, as those of `sh -c`, are no part of it.
OPTION = re.compile(r"""(?<![\w.-])(--?[A-Za-z][\w-]*|[a-z][\w.]*(?==))(?=(?:=|\s+)["'\\]*([^\s"'\\]*))""")
ASSIGNED = re.compile(r"""(?<![\w.-])([A-Z_][A-Z0-9_]*=)(?=["'\\]*([^\s"'\\]*))""")
SECRET_OPTION = re.compile(  # --token, and not --unk-token
    r"-(api-?key|(wandb|access)-?key|secret(-key)?|passw(or)?d|passphrase)$|^--+token$|"
    r"-(api|auth|access|hub|hf|huggingface|github|bearer)-?token$"
)
OF_AN_ADDRESS = re.compile(r"\w://[^/\s:@]*:([^/\s@]+)@")
NO_SECRET = re.compile(r"[${-].*|\d*|true|false", re.IGNORECASE)  # what a shell fills in, another option, a switch


def placeholders(command: str) -> list[str]:
    """The names in braces, each once, in order."""
    return list(dict.fromkeys(PLACEHOLDER.findall(command)))


def joined(command: Any) -> Any:
    """A command of several lines that end in a backslash, as a shell joins them; what is no text as it is."""
    return re.sub(r"\\\r?\n", "", command) if isinstance(command, str) else command


def in_program_names(text: str) -> str:
    """A command or a variable with the program's name of each key in braces: `{gradients}` -> `{allreduce}`."""
    return PLACEHOLDER.sub(lambda found: f"{{{OLDER_NAMES.get(found[1], found[1])}}}", text)


def script_name(command: str) -> str:
    """The model of a command that names none: `script:train.py` of its first word that ends in .py or .sh."""
    try:
        words = shlex.split(command)
    except ValueError:  # `problems` says so
        words = []
    named = next((word for word in words if INTERPRETED.fullmatch(word)), words[0] if words else DEFAULT_NAME)
    return SCRIPT + re.sub(r"[^\w.+-]", "-", PurePath(named).name, flags=re.ASCII)[:80]


def starter(trial: Trial) -> str:
    """The program that a trial's command starts, without its folder: `mpirun`; empty for a trial of ours."""
    return PurePath(next(iter(shlex.split(trial.command or "")), "")).name


def free_axes(text: str, matrix: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """The axes of a matrix that only the placeholders in `text` name: a command and its variables."""
    return [name for name in matrix if name not in known and name in placeholders(text)]


def combined(matrix: Mapping[str, Sequence[str]]) -> list[str]:
    """All combinations of free axes, each as one value of the key `arguments`: `amp=--amp level=2`."""
    return [written(dict(zip(matrix, values, strict=True))) for values in product(*matrix.values())]


def written(arguments: Mapping[str, str]) -> str:
    """Values of free axes as the key `arguments`, or variables as the key `env`."""
    return shlex.join(f"{name}={value}" for name, value in arguments.items())


def read(arguments: str | None) -> dict[str, str]:
    """Values of free axes from `arguments`, or variables from `env`. Raises ValueError for a word without `=`."""
    found = {}
    for word in shlex.split(arguments or ""):
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is no name=value")
        found[name] = value
    return found


def variables_text(given: Any) -> str:
    """A mapping `env` of a study file as a trial's key: `A=1 B=2`, in the order of the names.

    Raises ValueError with what is wrong, and never with the value of a possible secret.
    """
    if isinstance(given, str):  # as a trial has it
        given = read(given)
    if not isinstance(given, dict):
        raise ValueError("expected variables and their values, like {OMP_NUM_THREADS: 2}")
    for name, value in given.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{quoted(name)} is not a variable name: letters, digits and _, no leading digit")
        if name == "TMPDIR" or name.startswith("SCALING_STUDY_"):
            raise ValueError(f"{name} is set for each start of a command; a study cannot set it")
        if type(value) not in (str, int, float):
            raise ValueError(f"{name}: expected text or a number; true, no and the like need quotes")
        if may_be_secret(name) and not FROM_HERE.fullmatch(str(value)):
            raise ValueError(
                f"{name} may be a secret, and records would hold it: write {name}: ${{{name}}}, which takes "
                "it from the environment when the command is started, and writes it nowhere"
            )
        if not str(value).isprintable():
            raise ValueError(f"{name}: must not contain line breaks or control characters")
    return written({name: str(value) for name, value in sorted(given.items())})


def merged(shared: str | None, own: str | None) -> str:
    """The variables of a study with those of a sweep, which win."""
    return variables_text({**read(shared), **read(own)})


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
    if secret := secret_in(substituted(command, read(keys.get("arguments")))):
        yield "command", f"command has {secret}, {HIDDEN}"
        return
    if why := starts_one(words, int(keys.get("workers", 1))):
        yield "command", why
    if word := for_a_shell(command):
        instead = "name it in `env`" if "=" in word else "quote it, or write sh -c '...' around it all"
        yield "command", f"command has {word}, which only a shell reads, and no shell runs it: {instead}"
    known = [name for name in (*FRAMEWORKS[COMMAND].axes, "global_batch") if name not in NO_PLACEHOLDERS]
    from_start, always = (*OF_A_START, *OVER_HOSTS), ("workers", "seed", "global_batch", "batch_per_worker")
    texts = {key: placeholders(keys.get(key) or "") for key in ("command", "env")}
    for key, name in ((key, name) for key, names in texts.items() for name in names):
        if name not in (*known, *from_start, *read(keys.get("arguments"))):
            yield key, f"{key} has {{{name}}}, which is neither a key of this sweep nor an axis of its matrix"
        elif name in known and name not in (*keys, *from_start, *always):
            yield key, f"{key} has {{{name}}}: give {name}=... in this sweep"
    if keys.get("hosts", 1) > 1 and not {*texts["command"], *texts["env"]} & {*OVER_HOSTS}:
        yield (
            "hosts",
            f"hosts={keys['hosts']}, but the command names no hosts and would stay on this machine: give its launcher "
            f"{{hosts}}, or {NODE} to have it started on each host",
        )
    if not {"batch_per_worker", "global_batch"} & set(keys):
        yield (
            "command",
            "framework command needs batch_per_worker or global_batch: the samples of a step, which are compared with "
            "those that are seen",
        )


SILENTLY_ONE = (
    "accelerate launch --cpu starts one process, whatever --num_processes says: `accelerate launch --multi_gpu "
    "--num_processes {workers} --main_process_port {port}` starts as many, without GPUs too"
)


def secret_in(command: str) -> str:
    """The option, the variable or the address of a command whose value may be a secret, without that value; empty where
    there is none. `$NAME`, which a shell fills in, is none."""
    dashed = str.maketrans("._", "--")
    given = [each for each in OPTION.findall(command) if SECRET_OPTION.search(f"-{each[0].lower().translate(dashed)}")]
    given += [each for each in ASSIGNED.findall(command) if may_be_secret(each[0].removesuffix("="))]
    given += [("an address with a password", value) for value in OF_AN_ADDRESS.findall(command)]
    return next((name for name, value in given if not NO_SECRET.fullmatch(value)), "")


HIDDEN = (
    "whose value may be a secret, and records would hold it: export it as a variable, which the command inherits; a "
    'script that needs the option gets it from a shell, like --api-key "$API_KEY"'
)


def starts_one(words: Sequence[str], workers: int) -> str:
    """What to write in place of a command that starts one process where several are asked for; empty for any other.

    `--cpu` of Accelerate 1.15 passes its launcher of several processes by, and says nothing. By MPI there are several.
    """
    own = " ".join(PurePath(word).name for word in takewhile(lambda word: not INTERPRETED.fullmatch(word), words))
    if not re.search(r"\baccelerate( |-|\.commands\.)launch\b.* --cpu\b", own) or re.search("--mpirun.hostfile", own):
        return ""
    asked = re.search(r"--num.processes[= ](\d+)", own)
    return SILENTLY_ONE if workers > 1 or (asked and int(asked[1]) > 1) else ""


def no_start(trial: Trial, over_hosts: bool, in_job: bool, defined: Container[str] | None) -> str:
    """Why a trial's command cannot be started or observed where it is to run; empty if it can.

    `in_job`: of Slurm. `defined`: the variables of the environment, by name; None: not known.
    """
    program, own = starter(trial), read(trial.env)
    if program == "srun" and not in_job:
        return "srun needs a Slurm job: --slurm submits one"
    for name in FROM_HERE.findall(trial.env or ""):
        if defined is not None and name not in defined:
            return f"env takes {name} from the environment, where it is not set"
    if not over_hosts or NODE in f"{trial.command} {trial.env}":
        return ""
    if program not in CARRYING:
        return (
            f"{program} may not take the observer to other hosts: use {', '.join(CARRYING)}, or {NODE}, which starts "
            "a command on each host"
        )
    if program == "horovodrun" and (secret := next(filter(may_be_secret, own), "")):
        return f"horovodrun would write {secret} on the command line of ssh, where each user of both hosts can read it"
    return ""


def for_a_shell(command: str) -> str:
    """The first word of a command that only a shell would read; empty where there is none."""
    found = FOR_A_SHELL.search(QUOTED.sub("_", command).strip())
    return found[0] if found else ""


def words(trial: Trial, port: str, run_dir: str) -> list[str]:
    """The words of a trial's command, with `port` and `run_dir` of a start; those about hosts are left (`placed`)."""
    return filled(trial.command or "", {**_keys(trial), "port": port, "run_dir": run_dir}, read(trial.arguments))


def variables(trial: Trial) -> dict[str, str]:
    """The trial's own variables, with its keys filled in; what only a start knows is left (`placed`, `started`)."""
    values = {**_keys(trial), **read(trial.arguments)}
    return {name: substituted(text, values) for name, text in read(trial.env).items()}


def _keys(trial: Trial) -> dict[str, Any]:
    return {name: value for name, value in trial.to_dict().items() if name not in OVER_HOSTS}


def placed(workers: int, hosts: Sequence[Host]) -> dict[str, str]:
    """Placeholder -> value, of those about hosts. Without `hosts` they name this machine.

    {node} and {hostfile} differ from host to host: on_each_host fills them in.
    """
    if not hosts:
        own = {"hosts": f"localhost:{workers}", "first_host": "127.0.0.1", "nodes": "1"}
        return {**own, "workers_per_host": str(workers), "node": "0", "hostfile": "/dev/null"}
    own = {"hosts": ",".join(map(str, hosts)), "first_host": hosts[0].name, "nodes": str(len(hosts))}
    return {**own, "workers_per_host": str(hosts[0].slots)}


def started(trial: Trial, given: Mapping[str, str], here: Mapping[str, str], run_dir: str) -> dict[str, str]:
    """`given`, the variables of one start, with {run_dir} and ${NAME} filled in where they are the trial's own.

    `here`: the environment that ${NAME} is taken from. The result may hold secrets, and is written nowhere.
    """
    own = read(trial.env)

    def whole(text: str) -> str:
        return FROM_HERE.sub(lambda found: here.get(found[1], ""), substituted(text, {"run_dir": run_dir}))

    return {name: whole(text) if name in own else text for name, text in given.items()}


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


# --- what a command is expected to do, as arithmetic of its values ---

OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
MOST = 2**31 - 1


def expected(text: str, keys: Mapping[str, Any]) -> int:
    """The number of samples that `{workers} * {batch}` gives with the keys of a combination.

    Whole numbers, values in braces, + - * // and parentheses. Raises ValueError for anything else.
    """
    values = {"workers": 1, **keys, **read(keys.get("arguments"))}
    for name in placeholders(text):
        if name not in values:
            raise ValueError(f"{text!r} has {{{name}}}, which is neither a key of this sweep nor an axis of its matrix")
        if not str(values[name]).isdecimal():
            raise ValueError(f"{text!r} needs whole numbers, and {name} is {values[name]!r}")
    try:
        numbers = PLACEHOLDER.sub(lambda found: f"({values[found[1]]})", text).strip()
        result = _evaluated(ast.parse(numbers, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        known = "whole numbers, keys and axes in braces, + - * // and parentheses"
        raise ValueError(f"{text!r} is no arithmetic of {known}, like '{{workers}} * {{batch}}'") from error
    if not 1 <= result <= MOST:
        raise ValueError(f"{text!r} gives {result}, which is no number of samples")
    return result


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    raise SyntaxError(ast.dump(node))
