"""Before the first trial over hosts: every host is asked what it is, all at once, and held against the first.

    reachable by ssh?    same code, Python and libraries?    the network interface there?    clock?    cores and GPUs?

Each trouble is one line that names the host and what helps. Nothing is started while there is one: a trial that fails
on one host of eight says so after minutes, and seldom clearly.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling_study.errors import HostError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts import connection
from scaling_study.models import about as about_model
from scaling_study.settings import CHECKOUT, data_root
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial

MOST_OFFSET_SECONDS = 0.5  # between two hosts' clocks: which rank failed first is told by them
CLOCK_ASKED = 5  # times; the quickest answer says most
ANSWER_SECONDS = 60.0  # nothing runs yet that this could delay
MOST_FILES = 3  # that a message names


@dataclass(frozen=True)
class Host:
    """What one host said of itself (agent.py), and how far its clock is ahead of this one's."""

    name: str
    said: Mapping[str, Any]
    ahead_seconds: float = 0.0
    uncertain_seconds: float = 0.0  # half of what asking took


@dataclass(frozen=True)
class Needs:
    """What trials over hosts need of each."""

    libraries: frozenset[str] = frozenset()
    interface: str = ""
    cores: int = 0  # of one host
    gpus: int = 0
    data: tuple[str, ...] = ()  # folders that are read


def check(plan: Plan, trials: Sequence[Trial], results: Path) -> list[str]:
    """Ask every host of these trials. Raises HostError; what need not stop them is returned, in words."""
    over = max((plan.cluster.of(trial) for trial in trials), key=len)
    elsewhere = set(connection.others(host.name for host in over))
    if not elsewhere:
        return []
    with tempfile.NamedTemporaryFile(dir=results, prefix=".seen-") as seen, ThreadPoolExecutor(len(over)) as pool:
        needs, token = needed(plan, trials), str(Path(seen.name).resolve())
        request = {"ask": "about", "checkout": str(CHECKOUT), "paths": [token, *needs.data]}
        asked = {host.name: pool.submit(_asked, host.name, host.name in elsewhere, request) for host in over}
    failed = [str(error) for made in asked.values() if (error := made.exception())]
    if failed:
        raise HostError(*failed)
    answers = [made.result() for made in asked.values()]
    if wrong := list(troubles(answers, needs, results)):
        raise HostError(*wrong)
    return list(unlike(answers))


def needed(plan: Plan, trials: Sequence[Trial]) -> Needs:
    """What these trials need, taken together."""
    libraries: set[str] = set()
    interface, cores, gpus = "", 0, 0
    real = {trial.data for trial in trials} - {"synthetic", "auto"}
    for trial in trials:
        table = FRAMEWORKS[trial.framework]
        libraries |= {*table.needs, *table.launcher_needs.get(trial.launcher, ()), *about_model(trial.model).needs}
        interface = plan.cluster.interface(trial)
        if not trial.oversubscribe:
            workers = trial.workers // (trial.hosts or 1)
            cores = max(cores, workers * (trial.cores_per_worker or 1)) if trial.device == "cpu" else cores
            gpus = max(gpus, workers) if trial.device == "cuda" else gpus
    return Needs(frozenset(libraries), interface, cores, gpus, (os.path.abspath(data_root()),) if real else ())


def troubles(answers: Sequence[Host], needs: Needs, results: Path) -> Iterator[str]:
    """What stands in the way, host by host; the first is the one that others are held against."""
    first = answers[0]
    named: dict[str, str] = {}
    for host in answers:
        if (other := named.setdefault(host.said["name"], host.name)) != host.name:
            yield (
                f"{host.name}: calls itself {host.said['name']}, as {other} does: one host is given once, with all its "
                "slots; two need names of their own"
            )
        yield from _wherewithal(host, needs, results)
        yield from _clock(host)
        if host is not first:
            yield from _software(host, first, needs)


def unlike(answers: Sequence[Host]) -> Iterator[str]:
    """Hosts of other hardware than the first: allowed, but the slowest sets the pace of all."""
    for host in answers[1:]:
        mine, firsts = host.said["machine"], answers[0].said["machine"]
        keys = [key for key in ("cpu", "cores", "gpus") if firsts[key] != mine[key]]
        if differ := "; ".join(f"{key} {firsts[key]} and {mine[key]}" for key in keys):
            yield f"{answers[0].name} and {host.name} are unlike ({differ}): the slower sets the pace of both"


# --- one host


def _wherewithal(host: Host, needs: Needs, results: Path) -> Iterator[str]:
    interfaces, machine = host.said["interfaces"], host.said["machine"]
    if needs.interface and needs.interface not in interfaces:
        others = ", ".join(sorted(set(interfaces) - {"lo"})) or "none that is up"
        yield f"{host.name}: no interface {needs.interface} with an address, only {others} (machine file: interface)"
    own = str(host.said["own_address"])
    if not needs.interface and (not own or own.startswith("127.")):
        yield (
            f"{host.name}: its own name means {own or 'nothing'} there, which ranks would tell others to connect to: "
            "name the network interface in a machine file (--machine), or correct /etc/hosts there"
        )
    for path in host.said["unseen"]:
        if path in needs.data:
            yield f"{host.name}: does not see {path}: the data must be at the same DATA_ROOT on every host"
        else:
            yield f"{host.name}: does not see {results}: --results must be a folder that all hosts share"
    for what, need, have in (("cores", needs.cores, machine["cores"]), ("GPUs", needs.gpus, len(machine["gpus"]))):
        if have < need:
            yield f"{host.name}: has {have} {what}, its workers need {need}: give it fewer slots"


def _clock(host: Host) -> Iterator[str]:
    off = abs(host.ahead_seconds)
    if off - host.uncertain_seconds > MOST_OFFSET_SECONDS:
        way = "ahead of" if host.ahead_seconds > 0 else "behind"
        yield (
            f"{host.name}: its clock is {off:.1f} s {way} this host's: which rank failed first could not be told; "
            "start chrony or ntpd there"
        )


def _software(host: Host, first: Host, needs: Needs) -> Iterator[str]:
    mine, firsts = host.said, first.said
    if mine["python"] != firsts["python"]:
        yield f"{host.name}: Python {mine['python']}, {first.name} has {firsts['python']}: make setup with the same"
    have, wanted = mine["machine"]["libraries"], firsts["machine"]["libraries"]
    for name in sorted(needs.libraries):
        if have.get(name) != wanted.get(name):
            there, here = have.get(name, "is missing"), wanted.get(name, "none")
            yield f"{host.name}: {name} {there}, {first.name} has {here}: make setup"
    if mine["found"] != firsts["found"]:
        there, here = (str(Path(one).parent) if one else "nowhere" for one in (mine["found"], firsts["found"]))
        yield f"{host.name}: imports scaling_study from {there}, {first.name} from {here}: make setup, or PYTHONPATH"
    code, codes = mine["code"], firsts["code"]
    if differ := sorted(file for file in {*code, *codes} if code.get(file) != codes.get(file)):
        more = f" and {len(differ) - MOST_FILES} more" if len(differ) > MOST_FILES else ""
        yield (
            f"{host.name}: other code than on {first.name}: {', '.join(differ[:MOST_FILES])}{more} "
            f"({mine['commit'] or 'no commit'}, {firsts['commit'] or 'no commit'}): bring {CHECKOUT} to the same state"
        )


def _asked(name: str, elsewhere: bool, request: Mapping[str, Any]) -> Host:
    """Raises line.Lost."""
    asked = connection.Line(name, elsewhere)
    try:
        asked.ask({"ask": "clock"}, ANSWER_SECONDS)
        ahead, uncertain = min((_offset(asked) for _ in range(CLOCK_ASKED)), key=lambda one: one[1])
        return Host(name, asked.ask(request, ANSWER_SECONDS), ahead, uncertain)
    finally:
        asked.close()


def _offset(asked: connection.Line) -> tuple[float, float]:
    """(how far the clock there is ahead, half of what asking took), in seconds."""
    before, start = time.time(), time.monotonic()
    there = float(asked.ask({"ask": "clock"})["clock"])
    took = time.monotonic() - start
    return there - (before + took / 2), took / 2
