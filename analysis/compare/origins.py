"""What a record says of where and with what it was measured: facts, each a name with a value as text.

    Origins = configuration -> fact -> every value that its trials have

Most studies have one value of each. Where a sweep went on after an upgrade there are two, and both are told. Of a
configuration of which no trial is ok it is what the others hold: without the words of its processes, which left none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling_study.quoting import printable, shortened
from scaling_study.records import store
from scaling_study.records.store import Record, UnreadableRecord

Fact = tuple[str, str]  # its kind, one of KINDS, and its name
Origins = Mapping[str, Mapping[Fact, frozenset[str]]]
MACHINE, DRIVER, VERSIONS, COMMIT = "machine", "driver", "versions", "commit"
ENVIRONMENT, WINDOW, BACKEND, HOSTS = "environment", "window", "backend", "hosts"
KINDS = (MACHINE, DRIVER, VERSIONS, COMMIT, ENVIRONMENT, WINDOW, BACKEND, HOSTS)
UNDER_A_GPU = ("nvidia_driver", "cuda", "cudnn", "nccl")
MEASURED_BY = "scaling_study"  # our own version; the commit says more
LONGEST = 120


def read(folder: Path, wanted: Iterable[str]) -> Origins:
    """Of the configurations `wanted` (ids): of their trials that are ok, or of all where none is.

    What cannot be read was told of already.
    """
    keep = set(wanted)
    measured: dict[str, dict[Fact, set[str]]] = {}
    failed: dict[str, dict[Fact, set[str]]] = {}
    for path in sorted((folder / "trials").glob("*/record.json")):
        try:
            record = store.read_trial(path.parent)
        except UnreadableRecord:
            continue
        name = printable(record.configuration)
        if name in keep:
            ours = (measured if record.status == "ok" else failed).setdefault(name, {})
            for kind, fact, value in facts(record):
                ours.setdefault((kind, fact), set()).add(shortened(printable(value), LONGEST))
    return {
        name: {fact: frozenset(values) for fact, values in ours.items()} for name, ours in (failed | measured).items()
    }


def facts(record: Record) -> Iterator[tuple[str, str, str]]:
    """(kind, name, value) of everything that is known; a name appears once, or once a rank."""
    yield from ((MACHINE, name, value) for name, value in machine(record.machine))
    if record.commit:
        yield COMMIT, "commit", record.commit
    yield from ((ENVIRONMENT, name, str(value)) for name, value in record.environment.items())
    yield from ((WINDOW, name, str(value)) for name, value in record.window.items())
    for rank in record.ranks:
        yield MACHINE, "device", rank.device_name
        yield MACHINE, "threads of a rank", str(rank.threads)
        yield HOSTS, "host", rank.host
    for rank in record.ranks[:1]:  # the same on all: ranks that differ are a failed trial, or other hosts
        for name, value in rank.versions.items():
            if name != MEASURED_BY:
                yield DRIVER if name in UNDER_A_GPU else VERSIONS, name, str(value)
        yield from ((BACKEND, name, str(rank.backend[name])) for name in ("controller", "operations", "backend")
                    if rank.backend.get(name))  # fmt: skip


def machine(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What decides speed of the machine that a trial was planned for."""
    listed, memory = about.get("gpus"), about.get("memory_bytes")
    gpus = [str(name) for name in listed] if isinstance(listed, list) else []
    yield "GPUs", ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)) or "none"
    for name, value in (("cores", about.get("cores")), ("CPU", about.get("cpu"))):
        if value:
            yield name, " ".join(str(value).split())
    if isinstance(memory, int | float):
        yield "memory", f"{memory / 2**30:.0f} GiB"
