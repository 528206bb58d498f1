"""Hosts that a study may use, and how each is reached: slots, Slurm's lists, ssh. Pure but for reading."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scaling_study.errors import StudyError, quoted
from scaling_study.machine import job_runs

# Slurm's short form of many hosts, written out: `gpu[01-03,7],login` -> gpu01, gpu02, gpu03, gpu7, login (pure).
#
# `scontrol show hostnames` says the same, where there is a Slurm; a laptop that reads results has none.

MOST_HOSTS = 100_000
NAME = re.compile(r"[A-Za-z0-9._-]*")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma that stands in no brackets


def expand(text: str) -> list[str]:
    """The hosts of a host list, in its order. Raises ValueError for anything else, and for more than MOST_HOSTS."""
    parts = PART.findall(text)
    if not text or ",".join(parts) != text:
        raise ValueError(f"{text!r} is not a host list; expected one like node[1-4],login")
    hosts = list(itertools.islice((host for part in parts for host in _expand_part(part)), MOST_HOSTS + 1))
    if len(hosts) > MOST_HOSTS:
        raise ValueError(f"{text!r} names more than {MOST_HOSTS:,} hosts")
    return hosts


def _expand_part(part: str) -> Iterator[str]:
    """The hosts of one part: `rack[1-2]node[01-10]` has two groups of brackets, whose product they are."""
    pieces = re.split(r"\[(.*?)\]", part)
    names, groups = pieces[::2], pieces[1::2]
    if not all(NAME.fullmatch(name) for name in names):
        raise ValueError(f"{part!r} is not a host name or a range of them")
    for numbers in itertools.product(*(list(_numbers(group)) for group in groups)):
        yield "".join(itertools.chain.from_iterable(itertools.zip_longest(names, numbers, fillvalue="")))


def _numbers(group: str) -> Iterator[str]:
    """`01-03,7` -> 01, 02, 03, 7: as many digits as the first of a range has."""
    for range_ in group.split(","):
        match = RANGE.fullmatch(range_)
        if not match:
            raise ValueError(f"[{group}]: expected numbers and ranges of them, like [1-4,7]")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= MOST_HOSTS:
            raise ValueError(f"[{group}] names more than {MOST_HOSTS:,} hosts")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


# The hosts that a study may use: names with their slots, from a study, an option or a hostfile.
#
#     hosts: [h1:2, h2:2]      --hosts h1:2,h2:2      --hostfile FILE:   h1 slots=2      as for mpirun and DeepSpeed
#                                                                        h2:2            as for Horovod
#
# A slot is room for one worker. A trial takes the first hosts of the list, and as many slots on each.

MOST_NAMED_HOSTS, MOST_SLOTS = 10_000, 1_024
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"  # RFC 1123, and _ as in names of containers
HOST_NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*")
NUMBERS = re.compile(r"[0-9.]+")
OCTET = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
ADDRESS = re.compile(rf"{OCTET}(?:\.{OCTET}){{3}}")
LINE = re.compile(r"(?P<name>[^\s:]+)(?::(?P<colon>\S+))?(?P<rest>(?:\s+\S+)*)")
KEY = re.compile(r"(?P<key>slots|max[_-]slots)=(?P<value>\S+)")
EXPECTED = "expected a name or IPv4 address with its slots, like h1:2"


@dataclass(frozen=True)
class Host:
    """A host, by the name that ssh knows it by, and how many workers it has room for."""

    name: str
    slots: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(words: Iterable[tuple[str, str]]) -> tuple[Host, ...]:
    """Hosts from (where it stands, `h1:2`). Raises StudyError, each with its place; `h1` alone has one slot."""
    return _distinct([(where, *_parse_host(word, *word.partition(":")[::2])) for where, word in words])


def parse_option(text: str) -> tuple[Host, ...]:
    """The hosts of `--hosts h1:2,h2:2`. Raises StudyError."""
    return parse_hosts(("--hosts", word.strip()) for word in text.split(","))


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a hostfile. Raises StudyError with file and line."""
    try:
        return parse_hostfile(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise StudyError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise StudyError([f"{path}: not UTF-8 text (byte {error.start})"]) from error


def parse_hostfile(text: str, path: str) -> tuple[Host, ...]:
    """The hosts in the text of a hostfile, `h1 slots=2` or `h1:2` a line; `#` begins a comment. Raises StudyError."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if line := line.partition("#")[0].strip():
            entries.append((f"{path}:{number}", *_parse_line(line)))
    if not entries:
        raise StudyError([f"{path}: lists no hosts; expected a line like `h1 slots=2` for each"])
    return _distinct(entries)


def capacity_problem(hosts: Sequence[Host], count: int, workers: int) -> str:
    """Why these hosts have no room for so many workers on `count` of them; empty if they have."""
    if not hosts:
        return f"hosts={count}, but no hosts are listed (--hosts, --hostfile, or `hosts:` in the study)"
    if count > len(hosts):
        return f"hosts={count}, but {len(hosts)} are listed ({', '.join(map(str, hosts[:4]))})"
    each = workers // count
    small = next((host for host in hosts[:count] if host.slots < each), None)
    return f"hosts={count} needs {each} slots on each, but {small.name} has slots={small.slots}" if small else ""


def _parse_line(line: str) -> tuple[Host | None, str]:
    """A line of a hostfile: the host, or else what is wrong with it."""
    match = LINE.fullmatch(line)
    if not match:  # it begins with a colon
        return None, f"{quoted(line)} names no host; {EXPECTED}"
    slots, rest = match["colon"] or "", match["rest"].split()
    for word in rest:
        key = KEY.fullmatch(word)
        if not key or (slots and key["key"] == "slots"):
            return None, f"{quoted(word)} is not understood; expected `h1 slots=2` or `h1:2`"
        slots = key["value"] if key["key"] == "slots" else slots
    return _parse_host(line, match["name"], slots)


def _parse_host(word: str, name: str, slots: str) -> tuple[Host | None, str]:
    """A host from its name and slots as written, or else what is wrong."""
    if "@" in name:
        return None, f"{quoted(word)}: set the user in ~/.ssh/config (Host, User); {EXPECTED}"
    if not name or len(name) > 253 or not (ADDRESS if NUMBERS.fullmatch(name) else HOST_NAME).fullmatch(name):
        return None, f"{quoted(name)} is not a host name; {EXPECTED}"
    if word.endswith(":") or not re.fullmatch(r"[0-9]{0,6}", slots):
        return None, f"{quoted(word)}: {quoted(slots)} is not a number of slots; {EXPECTED}"
    if not 1 <= int(slots or 1) <= MOST_SLOTS:
        return None, f"{quoted(word)}: slots={slots}; the range is 1 to {MOST_SLOTS:,}"
    return Host(name, int(slots or 1)), ""


def _distinct(entries: Sequence[tuple[str, Host | None, str]]) -> tuple[Host, ...]:
    """The hosts, if all are right and none is named twice. Raises StudyError."""
    problems = [f"{where}: {wrong}" for where, _, wrong in entries if wrong]
    first: dict[str, str] = {}
    for where, host, _ in entries:
        if host and host.name.lower() in first:
            before = first[host.name.lower()]
            twice = "twice" if before == where else f"twice (first {before})"
            problems.append(f"{where}: host {host.name} is listed {twice}; list it once, with all its slots")
        elif host:
            first[host.name.lower()] = where
    if len(entries) > MOST_NAMED_HOSTS:
        problems.append(f"{entries[-1][0]}: {len(entries):,} hosts; the limit is {MOST_NAMED_HOSTS:,}")
    if problems:
        raise StudyError(problems)
    return tuple(host for _, host, _ in entries if host)


COUNTS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")  # each part of `2,1(x3)`


@dataclass(frozen=True)
class Allocation:
    """The resources of a job, as far as a record or a launcher needs them."""

    job: str  # Slurm's number of it; of a cluster that forgets, not for ever the same job
    name: str
    cluster: str
    partition: str
    hosts: tuple[str, ...]
    cores: tuple[int, ...]  # on each host

    def to_dict(self) -> dict[str, Any]:
        """For the record of a trial: all but the cores."""
        return {name: value for name, value in (asdict(self) | {"hosts": list(self.hosts)}).items() if name != "cores"}


def current(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """The job around this process; None outside of any, and where variables are left of one that is over.

    `environment`: of a job that is known to run.
    """
    variables = os.environ if environment is None else environment
    if not (job := variables.get("SLURM_JOB_ID", "")) or (environment is None and not job_runs(job)):
        return None
    try:
        hosts = expand(variables.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        hosts = []
    return Allocation(
        job,
        variables.get("SLURM_JOB_NAME", ""),
        variables.get("SLURM_CLUSTER_NAME", ""),
        variables.get("SLURM_JOB_PARTITION", ""),
        tuple(hosts),
        tuple(_counts(variables.get("SLURM_JOB_CPUS_PER_NODE", ""))[: len(hosts)]),
    )


def _counts(text: str) -> list[int]:
    """`2,1(x3)` -> 2, 1, 1, 1."""
    matches = filter(None, (COUNTS.fullmatch(part) for part in text.split(",")))
    return [int(match[1]) for match in matches for _ in range(min(int(match[2] or 1), MOST_HOSTS))]


# The command line of ssh to another host, and what its failures mean, each with a remedy. Pure.
#
# ssh never prompts (BatchMode), and a host's key is checked: an unknown host is not trusted. User, port, key and jump
# host belong into ~/.ssh/config, where every launcher finds them too.

CONNECT_SECONDS = 5
ALIVE_SECONDS, ALIVE_TIMES = 2, 4  # the connection counts as lost after so long without an answer, so many times
OWN_CODE = 255  # ssh's own failures; any other code is that of the command
SETTINGS = {
    "BatchMode": "yes",
    "ConnectTimeout": CONNECT_SECONDS,
    "ServerAliveInterval": ALIVE_SECONDS,
    "ServerAliveCountMax": ALIVE_TIMES,
    "LogLevel": "ERROR",
}
OPTIONS = ("-x", "-T", *(word for key, value in SETTINGS.items() for word in ("-o", f"{key}={value}")))
REMEDIES = (  # messages of OpenSSH 9.2, and the remedy
    ("Host key verification failed", "known_hosts has no key for it, or another one: check it, then `ssh {host}` once"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "if it was reinstalled: ssh-keygen -R {host}, then `ssh {host}` once"),
    ("Permission denied", "it does not accept this user's key: ssh-copy-id {host}"),
    ("Could not resolve hostname", "its name does not resolve here: check /etc/hosts or DNS"),
    ("Connection refused", "no sshd is listening there: start it"),
    ("Connection timed out", "check that it is up and that this is its address: ping {host}"),
    ("No route to host", "check that it is up and that this is its address: ping {host}"),
    ("not responding", "the host, or the network to it, has failed"),
)


def ssh_command(host: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` there; the shell there ends with it."""
    return ["ssh", *OPTIONS, host, f"exec {shlex.join(argv)}"]


def ssh_failure(host: str, code: int | None, stderr: str) -> str:
    """The failure of ssh in one clause with its remedy, from its exit code and stderr."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if code in (126, 127):
        message = lines[-1] if lines else "a command was not found"
        return f"{message}: every host needs the same environment in the same place"
    for words, remedy in REMEDIES:
        if words in stderr:
            line = next(line for line in lines if words in line)
            return f"ssh: {line.removeprefix('ssh: ').rstrip('.')}: {remedy.format(host=host)}"
    if code == OWN_CODE or code is None:
        return f"ssh: {lines[-1] if lines else 'the connection was lost'}: try `ssh {host} true` by hand"
    return lines[-1] if lines else f"ended with exit code {code}"


# How another host is reached: by srun where it belongs to the surrounding Slurm job, else by ssh. Pure but for its
# look at the environment.
#
# Many clusters do not allow ssh to their nodes, or only with more setup; srun needs neither a key nor a name that
# resolves, and what it starts is part of the job: it ends with it.

# Beside the driver and other such steps, on the same cores and memory; ranks choose their cores themselves.
STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mem=0", "--unbuffered", "--quiet")


def command(host: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """The command line that runs `argv` there, its input and output here."""
    if _in_job(host, environment):
        return ["srun", *STEP, f"--nodelist={host}", *argv]
    return ssh_command(host, argv)


def failure(host: str, code: int | None, stderr: str, environment: Mapping[str, str] | None = None) -> str:
    """The failure of a command there in one clause, from its exit code and stderr."""
    if not _in_job(host, environment):
        return ssh_failure(host, code, stderr)
    own = [line.partition("error: ")[2] for line in stderr.splitlines() if line.startswith("srun: error: ")]
    last = [line.strip() for line in stderr.splitlines() if line.strip()][-1:]
    return f"srun: {own[0]}" if own else "".join(last) or f"ended with exit code {code}"


def _in_job(host: str, environment: Mapping[str, str] | None) -> bool:
    job = current(environment)
    return job is not None and host in job.hosts
