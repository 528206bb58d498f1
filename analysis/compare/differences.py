"""In what two results differ beside their numbers, and which of it forbids reading a ratio as one of the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.compare.verdicts import MatchedPair, Row
from analysis.frames.configurations import known
from scaling_study.errors import printable, shortened
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import FOLDERS, MODELS
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.records.store import UnreadableRecord

# Facts of a record about the place and the means of its measurement: each a name with a value as text.
#
#     Origins = configuration -> fact -> every value that its trials have
#
# Most studies have one value of each. Where a sweep went on after an upgrade there are two, and both are told. Of a
# configuration of which no trial is ok it is what the others hold: without the words of its processes, which left
# none.

Fact = tuple[str, str]  # its kind, one of KINDS, and its name
Origins = Mapping[str, Mapping[Fact, frozenset[str]]]
MACHINE, DRIVER, VERSIONS, COMMIT = "machine", "driver", "versions", "commit"
ENVIRONMENT, WINDOW, BACKEND, HOSTS = "environment", "window", "backend", "hosts"
KINDS = (MACHINE, DRIVER, VERSIONS, COMMIT, ENVIRONMENT, WINDOW, BACKEND, HOSTS)
UNDER_A_GPU = ("nvidia_driver", "cuda", "cudnn", "nccl")
MEASURED_BY = "scaling_study"  # our own version; the commit says more
LONGEST = 120


def origins(folder: Path, wanted: Iterable[str]) -> Origins:
    """The facts of the configurations `wanted` (ids), from their trials that are ok, or from all where none is.

    Records that cannot be read are skipped: reading the results has warned of them.
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
    if record.model_code:
        yield COMMIT, f"code of {record.trial.model}", record.model_code
    yield from ((ENVIRONMENT, name, str(value)) for name, value in record.environment.items() if name != FOLDERS)
    yield from ((WINDOW, name, str(value)) for name, value in vars(record.trial.window).items())
    for rank in record.ranks:
        yield MACHINE, "device", rank.device_name
        yield MACHINE, "threads of a rank", str(rank.threads)
        yield HOSTS, "host", rank.host
    for rank in record.ranks[:1]:  # the same on all: ranks that differ are a failed trial, or other hosts
        for name, value in rank.versions.items():
            if name != MEASURED_BY:
                yield DRIVER if name in UNDER_A_GPU else VERSIONS, name, str(value)
        yield from (
            (BACKEND, name, str(rank.backend[name]))
            for name in ("controller", "operations", "backend")
            if rank.backend.get(name)
        )


def machine(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts that decide the speed of the machine that a trial was planned for."""
    listed, memory = about.get("gpus"), about.get("memory_bytes")
    gpus = [str(name) for name in listed] if isinstance(listed, list) else []
    yield "GPUs", ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)) or "none"
    for name, value in (("cores", about.get("cores")), ("CPU", about.get("cpu"))):
        if value:
            yield name, " ".join(str(value).split())
    if isinstance(memory, int | float):
        yield "memory", f"{memory / 2**30:.0f} GiB"


# machine, driver, versions, commit, environment, timed window, who carries the gradients, what the data is: each
# decides speed, so any of them that differs between two paired configurations is a reason to refuse. It may be what the
# comparison is about (another commit, another driver): then the person says that it is expected, and everything else
# must still agree. Other names of hosts are told, and matter to nobody.

DATA = "data"
EXPECTABLE = (*(kind for kind in KINDS if kind != HOSTS), DATA)
OF_EVERYBODY = ("python", "torch", "torchvision", "numpy")
UNKNOWN = "not recorded"
ABSENT: Mapping[str, str] = {ENVIRONMENT: "not set", VERSIONS: "not installed"}
KIND_OF_KEY = {"data": DATA, "device": MACHINE, "cores_per_worker": MACHINE}
CHANGED = "+changes"  # how a commit ends whose tree was not clean


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same on both sides. `pairs` counts those that it concerns, `among` all there are."""

    kind: str
    name: str
    a: str
    b: str
    pairs: int
    among: int
    matters: bool

    def __str__(self) -> str:
        """`torch: 2.4.1 in A, 2.5.0 in B (8 of 16 pairs)`."""
        some = f" ({self.pairs} of {self.among} pairs)" if self.pairs < self.among else ""
        return f"{self.name}: {self.a} in A, {self.b} in B{some}"


def differences(pairs: Sequence[MatchedPair], a: Origins, b: Origins) -> list[Difference]:
    """Every difference once, kind by kind. A fact that one side did not record does not matter: it may be the same."""
    seen: dict[tuple[Fact, str, str], int] = {}
    for pair in pairs:
        for key, left, right in _of_pair(pair, a, b):
            seen[key, left, right] = seen.get((key, left, right), 0) + 1
    kinds = (*KINDS, DATA)
    ordered = sorted(seen.items(), key=lambda item: (kinds.index(item[0][0][0]), item[0][0][1]))
    return [
        Difference(kind, name, left, right, count, len(pairs), kind != HOSTS and UNKNOWN not in (left, right))
        for ((kind, name), left, right), count in ordered
    ]


def expected_by(difference: Difference, words: Iterable[str]) -> bool:
    """True where one of these words is its kind or its name."""
    return any(word.lower() in (difference.kind, difference.name.lower()) for word in words)


def doubts(pairs: Sequence[MatchedPair], a: Origins, b: Origins) -> Iterator[str]:
    """Differences that records cannot show: one sentence each."""
    for side, known_facts, rows in (("A", a, [p.a for p in pairs]), ("B", b, [p.b for p in pairs])):
        commits = {value for row in rows for value in _facts(known_facts, row).get((COMMIT, "commit"), ())}
        if any(commit.endswith(CHANGED) for commit in commits):
            yield f"{side} was measured from a tree with uncommitted changes."


def _of_pair(pair: MatchedPair, a: Origins, b: Origins) -> Iterator[tuple[Fact, str, str]]:
    left, right = _facts(a, pair.a), _facts(b, pair.b)
    for fact in sorted({*left, *right}):
        kind, name = fact
        if kind == VERSIONS and name not in _used(pair.a):
            continue
        values = [_text(side, fact) for side in (left, right)]
        if values[0] != values[1] and not _left_by_a_failure(pair, values):
            yield fact, values[0], values[1]
    for key in pair.differing:
        a_value, b_value = (str(row[key]) if known(row[key]) else "none" for row in (pair.a, pair.b))
        yield (KIND_OF_KEY.get(key, WINDOW), key), a_value, b_value
    sources = [_source(row) for row in (pair.a, pair.b)]
    if sources[0] != sources[1] and "data" not in pair.differing and not _left_by_a_failure(pair, sources):
        yield (DATA, "data"), sources[0], sources[1]


def _left_by_a_failure(pair: MatchedPair, values: Sequence[str]) -> bool:
    """True where one side lacks a value because none of its runs ended well: no difference of origin."""
    return any(value == UNKNOWN and not row["n"] for value, row in zip(values, (pair.a, pair.b), strict=True))


def _facts(known_facts: Origins, row: Row) -> Mapping[Fact, frozenset[str]]:
    return known_facts.get(str(row["configuration"]), {})


def _text(side: Mapping[Fact, frozenset[str]], fact: Fact) -> str:
    """`2.4.1`; `2.4.1 and 2.5.0`. Of a side that has nothing of this kind, it is not known."""
    if fact in side:
        return " and ".join(sorted(side[fact]))
    kinds = {kind for kind, _ in side}
    looked = fact[0] in kinds or (fact[0] == ENVIRONMENT and kinds)  # often none of it is set
    return ABSENT.get(fact[0], UNKNOWN) if looked else UNKNOWN


def _used(row: Row) -> set[str]:
    """The libraries that decide how fast this configuration is; all, of a framework or model that we do not know."""
    framework, model = FRAMEWORKS.get(str(row["framework"])), MODELS.get(str(row["model"]))
    if framework is None or model is None:
        return {name for table in FRAMEWORKS.values() for name in table.needs} | set(OF_EVERYBODY)
    launched = framework.launcher_needs.get(str(row["launcher"]), ())
    return {*OF_EVERYBODY, *framework.needs, *launched, *model.needs}


def _source(row: Row) -> str:
    """`cifar10`: what it was trained on, without the folder that it came from."""
    source: Any = row["data_source"]
    return str(source).split()[0].rstrip(":;,") if known(source) and source else UNKNOWN
