"""The hosts that a study may use: names with their slots, from a study, an option or a hostfile (pure but for reading).

    hosts: [h1:2, h2:2]      --hosts h1:2,h2:2      --hostfile FILE:   h1 slots=2      as for mpirun and DeepSpeed
                                                                       h2:2            as for Horovod

A slot is room for one worker. A trial takes the first hosts of the list, and as many slots on each.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling_study.errors import StudyError
from scaling_study.quoting import quoted

MOST_HOSTS, MOST_SLOTS, MOST_BYTES = 10_000, 1_024, 1_000_000
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"  # RFC 1123; none begins like an option of ssh
NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*")
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
        if not stat.S_ISREG(path.stat().st_mode):
            raise StudyError([f"{path}: not a file; a hostfile has a line `h1 slots=2` for each host"])
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise StudyError([f"{path}: larger than {MOST_BYTES:,} bytes; a hostfile has one line for each host"])
        return parse_hostfile(data.decode(), str(path))
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


def with_equal_slots(hosts: Sequence[Host], count: int, workers: int) -> tuple[Host, ...]:
    """The first `count` hosts, each with its equal share of the workers as its slots."""
    return tuple(Host(host.name, workers // count) for host in hosts[:count])


def capacity_problem(hosts: Sequence[Host], count: int, workers: int) -> str:
    """Why these hosts have no room for so many workers on `count` of them; empty if they have."""
    if not hosts:
        return f"hosts={count}, but no hosts are listed (--hosts, --hostfile, or `hosts:` in the study)"
    if count > len(hosts):
        return f"hosts={count}, but {len(hosts)} are listed ({', '.join(map(str, hosts[:4]))})"
    each = workers // count
    small = next((host for host in hosts[:count] if host.slots < each), None)
    return f"hosts={count} needs {each} slots on each, but {small.name} has slots={small.slots}" if small else ""


# --- one word, one line


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
    if not name or len(name) > 253 or not (ADDRESS if NUMBERS.fullmatch(name) else NAME).fullmatch(name):
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
    if len(entries) > MOST_HOSTS:
        problems.append(f"{entries[-1][0]}: {len(entries):,} hosts; the limit is {MOST_HOSTS:,}")
    if problems:
        raise StudyError(problems)
    return tuple(host for _, host, _ in entries if host)
