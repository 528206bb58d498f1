"""Before the first trial over hosts: every host describes itself, all at once, and is compared with the first.

    reachable by ssh?    same code, Python and libraries?    the network interface there?    clock?    cores and GPUs?

Each problem is one line that names the host and the remedy. Nothing is started while there is one: a trial that fails
on one host of eight reports it after minutes, and seldom clearly.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from scaling_study.errors import HostError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts import agent
from scaling_study.hosts.connections import AgentConnection, other_hosts, same_host
from scaling_study.models import FILE_NAME, file_named, model_named
from scaling_study.settings import CHECKOUT, data_root
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial

MOST_OFFSET_SECONDS = 0.5  # between two hosts' clocks, by which ranks' errors are ordered
CLOCK_READINGS = 5  # the quickest answer is the most exact
ANSWER_SECONDS = 60.0  # long, as no trial runs yet
MOST_FILES = 3  # that a message names


class HostReport(NamedTuple):
    """One host's description of itself (agent.py), and how far its clock is ahead of this one's."""

    name: str
    facts: Mapping[str, Any]
    ahead_seconds: float = 0.0
    uncertain_seconds: float = 0.0  # half of the request's round trip
    is_this: bool = False  # it was taken for another host, and is this one


class Requirements(NamedTuple):
    """The needs of trials over hosts, on each host."""

    libraries: frozenset[str] = frozenset()
    interface: str = ""
    cores: int = 0  # of one host
    gpus: int = 0
    data: tuple[str, ...] = ()  # folders that are read
    models: tuple[str, ...] = ()  # files that define them


def inspect_hosts(plan: Plan, trials: Sequence[Trial], results: Path) -> list[str]:
    """Inspect every host of these trials; notes on what need not stop them. Raises HostError for what must."""
    hosts = max((plan.cluster.hosts_of(trial) for trial in trials), key=len)
    elsewhere = set(other_hosts(host.name for host in hosts))
    here = [host.name for host in hosts if host.name not in elsewhere]
    if twice := here[1:]:  # as no trial can run on it, nobody else is asked
        raise HostError(
            *(f"{name}: is this host, as is {here[0]}: list a host once, with all its slots" for name in twice)
        )
    if not elsewhere:
        return []
    with tempfile.NamedTemporaryFile(dir=results, prefix=".seen-") as token, ThreadPoolExecutor(len(hosts)) as pool:
        needs = requirements(plan, trials)
        paths = [str(Path(token.name).resolve()), *needs.data, *needs.models]
        request = {"ask": "describe", "checkout": str(CHECKOUT), "paths": paths, "asker": agent.this_process()}
        pending = [pool.submit(_report, host.name, host.name in elsewhere, request) for host in hosts]
    if failures := [str(error) for future in pending if (error := future.exception())]:
        raise HostError(*failures)
    reports = [future.result() for future in pending]
    if blocking := list(problems(reports, needs, results)):
        raise HostError(*blocking)
    return list(hardware_differences(reports))


def requirements(plan: Plan, trials: Sequence[Trial]) -> Requirements:
    """The needs of all these trials together, on each host."""
    libraries: set[str] = set()
    interface, cores, gpus = "", 0, 0
    real = {trial.data for trial in trials} - {"synthetic", "auto"}
    for trial in trials:
        table = FRAMEWORKS[trial.framework]
        libraries |= {*table.needs, *table.launcher_needs.get(trial.launcher, ()), *model_named(trial.model).needs}
        interface = plan.cluster.interface(trial)
        if not trial.oversubscribe:
            workers = trial.workers // (trial.hosts or 1)
            cores = max(cores, workers * (trial.cores_per_worker or 1)) if trial.device == "cpu" else cores
            gpus = max(gpus, workers) if trial.device == "cuda" else gpus
    files = {file_named(trial.model, plan.study.folders) for trial in trials if FILE_NAME.fullmatch(trial.model)}
    models, data = tuple(sorted(str(file) for file in files if file)), (os.path.abspath(data_root()),) if real else ()
    return Requirements(frozenset(libraries), interface, cores, gpus, data, models)


def problems(reports: Sequence[HostReport], needs: Requirements, results: Path) -> Iterator[str]:
    """Problems that must be mended first, host by host; the others are compared with the first."""
    first = reports[0]
    by_hostname: dict[str, str] = {}
    for host in reports:
        if (other := by_hostname.setdefault(host.facts["name"], host.name)) != host.name:
            yield (
                f"{host.name}: its hostname is {host.facts['name']}, as is that of {other}: list a host once, with all "
                "its slots; different hosts need different hostnames"
            )
        elif host.is_this:
            yield same_host(host.name)
        yield from _resource_problems(host, needs, results)
        off = abs(host.ahead_seconds)
        if off - host.uncertain_seconds > MOST_OFFSET_SECONDS:
            way = "ahead of" if host.ahead_seconds > 0 else "behind"
            yield (
                f"{host.name}: its clock is {off:.1f} s {way} this host's, so that errors cannot be ordered: "
                "start chrony or ntpd there"
            )
        if host is not first:
            yield from _software_problems(host, first, needs)


def hardware_differences(reports: Sequence[HostReport]) -> Iterator[str]:
    """Hosts with other hardware than the first: allowed, but the slowest sets the pace of all."""
    first = reports[0]
    for host in reports[1:]:
        own, firsts = host.facts["machine"], first.facts["machine"]
        keys = [key for key in ("cpu", "cores", "gpus") if firsts[key] != own[key]]
        if differences := "; ".join(f"{key} {firsts[key]} and {own[key]}" for key in keys):
            yield f"{first.name} and {host.name} have different hardware ({differences}): the slower one sets the pace"


def _resource_problems(host: HostReport, needs: Requirements, results: Path) -> Iterator[str]:
    interfaces, machine = host.facts["interfaces"], host.facts["machine"]
    if needs.interface and needs.interface not in interfaces:
        others = ", ".join(sorted(set(interfaces) - {"lo"})) or "none that is up"
        yield f"{host.name}: no interface {needs.interface} with an address, only {others} (machine file: interface)"
    own = str(host.facts["own_address"])
    if not needs.interface and (not own or own.startswith("127.")):
        yield (
            f"{host.name}: its hostname resolves to {own or 'nothing'} there, so other ranks could not connect: "
            "name the network interface in a machine file (--machine), or correct /etc/hosts there"
        )
    must = dict.fromkeys(needs.data, "the data must be at the same DATA_ROOT on every host")
    must |= dict.fromkeys(needs.models, "the file of a model must be at the same path on every host")
    for path in host.facts["missing_paths"]:
        shared = f"{results}: --results must be a folder that all hosts share"
        yield f"{host.name}: has no {f'{path}: {must[path]}' if path in must else shared}"
    for what, need, have in (("cores", needs.cores, machine["cores"]), ("GPUs", needs.gpus, len(machine["gpus"]))):
        if have < need:
            yield f"{host.name}: has {have} {what}, but its workers need {need}: give it fewer slots"


def _software_problems(host: HostReport, first: HostReport, needs: Requirements) -> Iterator[str]:
    own, firsts = host.facts, first.facts
    if own["python"] != firsts["python"]:
        yield f"{host.name}: Python {own['python']}, {first.name} has {firsts['python']}: make setup with the same"
    have, wanted = own["machine"]["libraries"], firsts["machine"]["libraries"]
    for name in sorted(needs.libraries):
        if have.get(name) != wanted.get(name):
            there, here = have.get(name, "is missing"), wanted.get(name, "none")
            yield f"{host.name}: {name} {there}, {first.name} has {here}: make setup"
    if own["package"] != firsts["package"]:
        there, here = (str(Path(path).parent) if path else "nowhere" for path in (own["package"], firsts["package"]))
        yield f"{host.name}: imports scaling_study from {there}, {first.name} from {here}: make setup, or PYTHONPATH"
    code, firsts_code = own["code"], firsts["code"]
    if differ := sorted(file for file in {*code, *firsts_code} if code.get(file) != firsts_code.get(file)):
        more = f" and {len(differ) - MOST_FILES} more" if len(differ) > MOST_FILES else ""
        yield (
            f"{host.name}: its code differs from {first.name}'s: {', '.join(differ[:MOST_FILES])}{more} "
            f"({own['commit'] or 'no commit'}, {firsts['commit'] or 'no commit'}): update {CHECKOUT} to the same state"
        )


def _report(name: str, elsewhere: bool, request: Mapping[str, Any]) -> HostReport:
    """Raises ConnectionLost."""
    with contextlib.closing(AgentConnection(name, elsewhere)) as connection:
        connection.ask({"ask": "clock"}, ANSWER_SECONDS)
        ahead, uncertain = min((_clock_offset(connection) for _ in range(CLOCK_READINGS)), key=lambda offset: offset[1])
        facts = connection.ask(request, ANSWER_SECONDS)
        return HostReport(name, facts, ahead, uncertain, elsewhere and facts["is_this"])


def _clock_offset(connection: AgentConnection) -> tuple[float, float]:
    """(how far the clock there is ahead, half of the round trip), in seconds."""
    before, start = time.time(), time.monotonic()
    there = float(connection.ask({"ask": "clock"})["clock"])
    took = time.monotonic() - start
    return there - (before + took / 2), took / 2
