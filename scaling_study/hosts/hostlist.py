"""Slurm's short form of many hosts, written out: `gpu[01-03,7],login` -> gpu01, gpu02, gpu03, gpu7, login (pure).

`scontrol show hostnames` says the same, where there is a Slurm; a laptop that reads results has none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MOST_HOSTS = 100_000
NAME = re.compile(r"[A-Za-z0-9._-]*")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma that stands in no brackets


def expand(text: str) -> list[str]:
    """Every host of a host list, in its order. Raises ValueError for anything else, and for more than MOST_HOSTS."""
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
