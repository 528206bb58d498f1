"""What the options of a command mean: the trials they select, the hosts they name, and the plan of the study."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from scaling_study import datasets, missing, sweep
from scaling_study.errors import HostError, StudyError
from scaling_study.hosts import allocation, exported
from scaling_study.hosts import hosts as host_names
from scaling_study.machine import Machine, this_machine
from scaling_study.records import store
from scaling_study.study import machine_file, plan, study
from scaling_study.study.cluster import ALONE, Cluster, allocated
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.plan import Plan, Planned
from scaling_study.trial import Trial


@dataclass(frozen=True)
class Selection:
    """A study, and which of its trials a command runs into which folder."""

    study_file: Path
    small: bool = False
    where: str = ""
    retry: str = ""
    results: Path = Path("results")
    max_trials: int | None = None

    def select(self, planned: Plan, prune: bool) -> tuple[sweep.Run, list[tuple[Trial, Planned]]]:
        """(the run of these trials, those that are certain to be part of it). Raises StudyError if there are none."""
        folder = self.results / planned.study.name
        run = sweep.Run(planned, folder, trial_keys(self.where), statuses(self.retry), self.max_trials, prune=prune)
        if selected := [
            (trial, configuration) for trial, configuration in planned.trials() if run.wanted(trial.to_dict())
        ]:
            return run, selected
        raise StudyError([f"--where {self.where} matches no trial of {planned.study.document.path}"])


def planned_study(
    study_file: Path, small: bool, dry_run: bool, machine: Machine | None = None, cluster: Cluster = ALONE
) -> Plan:
    """The study on this machine, `data: auto` resolved once for all of it. Raises StudyError or HostError."""
    asked = study.load(study_file, small)
    cluster = replace(cluster, hosts=cluster.hosts or asked.hosts)
    draft = plan.draft(asked, machine or this_machine(), cluster)
    if dry_run:
        return draft.plan(datasets.available())
    missing.require_scripts()
    data = datasets.prepare(sorted(draft.data_needed))
    for name, source in data.items():
        if name in draft.data_named and source.name != name:
            raise HostError(f"{study_file} requires data: {name}, but {source.why}")
    return draft.plan(data)


def cluster_from(hosts: str, hostfile: Path | None, machine: str) -> Cluster:
    """The hosts and the machine file that the options name. Raises StudyError."""
    if hosts and hostfile:
        raise StudyError(["--hosts and --hostfile exclude each other: give one"])
    named = host_names.parse_option(hosts) if hosts else host_names.read_hostfile(hostfile) if hostfile else ()
    file = machine_file.load(machine_file.find(machine)) if machine else MachineFile()
    job = allocation.current()
    return Cluster(named or allocated(job), file, tuple(exported.exported_names(os.environ)), in_job=job is not None)


def trial_keys(text: str) -> dict[str, Any]:
    """`framework=horovod,workers=2` -> {"framework": "horovod", "workers": 2}. Raises StudyError."""
    known, chosen = Trial().to_dict(), {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in known:
            raise StudyError([f"--where {part}: expected key=value with a trial key{study.nearest(key, list(known))}"])
        if key in chosen:
            raise StudyError([f"--where: {key} is given twice"])
        chosen[key] = _value(value)
    return chosen


def _value(word: str) -> Any:
    """A command line's word as the value it stands for: 2, 0.001, true, or itself."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False, "": None}.get(word.lower(), word)


def statuses(text: str) -> frozenset[str]:
    """`failed,timeout` -> both. Raises StudyError for what is no status."""
    asked = frozenset(filter(None, text.split(",")))
    if unknown := asked - set(store.STATUSES):
        raise StudyError([f"--retry {', '.join(sorted(unknown))}: a status is one of {', '.join(store.STATUSES)}"])
    return asked


def words_again(context: typer.Context, without: Collection[str]) -> list[str]:
    """The words of a command line again, but for the parameters named in `without`."""
    words = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        source = context.get_parameter_source(name)
        if name in without or source is None or source.name != "COMMANDLINE":
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        else:
            words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(value)]
    return words


def shell_line(words: Collection[str], script: Path) -> str:
    """The command line that a person can paste."""
    return shlex.join(["python", os.path.relpath(script), *words])
