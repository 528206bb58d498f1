"""Study + machine -> the ordered trials. Pure: the same arguments give the same plan, and nothing is started.

    matrix --product--> combinations --exclude--> --include--> --resolve--> configurations --repeats--> trials
                                                               device, cores, data, launcher;
                                                               what means the same runs once

Repeats interleave: every configuration once in a seeded random order, then every one again in another, so that drift
of the machine falls on all alike. A sentinel (sentinel.py), where the study names one, stands at equal distances.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scaling_study.datasets import Data
from scaling_study.errors import StudyError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts import hosts
from scaling_study.machine import Machine
from scaling_study.models import MODELS, NO_MODEL, SAMPLE_KEYS, about
from scaling_study.stats import collectives
from scaling_study.study import gates, matrix, pipelines, sentinel
from scaling_study.study.cluster import ALONE, Cluster
from scaling_study.study.study import Measure, Study, Sweep, by_line, nearest
from scaling_study.trial import Trial


@dataclass(frozen=True)
class Planned:
    """A configuration (as its first repeat), how it is measured, and why it cannot run here, if so."""

    trial: Trial
    measure: Measure
    unsupported: str = ""


@dataclass(frozen=True)
class Plan:
    """Every configuration of a study on a machine."""

    study: Study
    machine: Machine
    configurations: tuple[Planned, ...]
    notes: tuple[str, ...]  # what was collapsed or resolved, in words
    gates: tuple[Planned, ...] = ()  # what must be shown about each framework first
    cluster: Cluster = ALONE
    sentinel: str = ""  # the configuration that is repeated through the sweep, if any

    @property
    def cores_per_worker(self) -> int:
        """The share of the cores that every worker of the study is given."""
        return max((p.trial.cores_per_worker or 1 for p in self.configurations), default=1)

    def trials(self) -> Iterator[tuple[Trial, Planned]]:
        """Every trial that is certain to run, in order: gates first. What cannot run here appears once."""
        yield from ((gate.trial, gate) for gate in self.gates)
        rounds = range(1, max((p.measure.repeats for p in self.configurations), default=0) + 1)
        planned = (pair for repeat in rounds for pair in self.round(repeat))
        if not self.sentinel:
            yield from planned
            return
        apart: dict[bool, list[tuple[Trial, Planned]]] = {True: [], False: []}
        for pair in planned:
            apart[pair[0].configuration == self.sentinel].append(pair)
        yield from sentinel.spread(apart[False], apart[True])

    def round(self, repeat: int) -> Iterator[tuple[Trial, Planned]]:
        """The planned repeat-th trial of each configuration that has one."""
        for planned in self.shuffled(repeat):
            if repeat == 1 or (repeat <= planned.measure.repeats and not planned.unsupported):
                yield planned.trial if repeat == 1 else replace(planned.trial, repeat=repeat), planned

    def shuffled(self, repeat: int) -> list[Planned]:
        """All configurations in that round's own random order."""
        order = list(self.configurations)
        random.Random(f"{self.study.order_seed}/{repeat}").shuffle(order)
        return order


def make(study: Study, machine: Machine, data: Mapping[str, Data] | None = None, cluster: Cluster = ALONE) -> Plan:
    """Expand and resolve; `data` says what `auto` means for each real data set, `machine` what every host is.

    Raises StudyError for what is wrong on every machine, with file, line and both values.
    """
    matrix.refuse_too_many(study)
    problems: matrix.Problem = {}
    asked = [(keys, sweep) for sweep in study.sweeps for keys in matrix.combinations(study, sweep, problems)]
    for keys, sweep in asked:
        _check(study, keys, sweep, problems)
    _stop(problems)

    share = max(1, machine.cores // max(_workers(keys) // keys.get("hosts", 1) for keys, _ in asked))
    found: dict[str, Planned] = {}
    collapsed = 0
    for keys, sweep in asked:
        trial = _resolve(keys, sweep, machine, data, share)
        trial = replace(trial, machine=cluster.fingerprint(trial.machine))
        collapsed += trial.configuration in found
        found.setdefault(trial.configuration, Planned(trial, sweep.measure, unsupported(trial, machine, cluster)))
    notes = tuple(_notes(found, collapsed, data or {}))
    plan = Plan(study, machine, tuple(found.values()), notes, cluster=cluster)
    _named(plan, "baseline", study.baseline)
    plan = _watched(plan)
    return replace(plan, gates=tuple(_gates(plan))) if study.parity else plan


def _gates(plan: Plan) -> Iterator[Planned]:
    """The parity trials of what can run here, once each and with no repeats."""
    for gate in gates.needed(p.trial for p in plan.configurations if not p.unsupported):
        measure = plan.study.measure.model_copy(update={"repeats": 1, "max_repeats": 1})
        yield Planned(gate, measure, unsupported(gate, plan.machine, plan.cluster))


def _watched(plan: Plan) -> Plan:
    """With the repeats of the study's sentinel: the first configuration of its kind that trains and can run here."""
    named = _named(plan, "sentinel", plan.study.sentinel)
    found = next((p for p in named if not p.unsupported and p.trial.model != NO_MODEL and p.trial.find is None), None)
    if found is None:
        return plan
    others = sum(1 if p.unsupported else p.measure.repeats for p in plan.configurations if p is not found)
    total = sentinel.repeats(found.measure.repeats, others)
    measure = found.measure.model_copy(update={"repeats": total, "max_repeats": max(total, found.measure.max_repeats)})
    more = tuple(replace(p, measure=measure) if p is found else p for p in plan.configurations)
    said = f"sentinel: {found.trial.configuration} has {total} repeats, at equal distances through the sweep"
    return replace(plan, configurations=more, notes=(*plan.notes, said), sentinel=found.trial.configuration)


def unsupported(trial: Trial, machine: Machine, cluster: Cluster = ALONE) -> str:
    """Why this machine, these hosts or the framework cannot run the trial; empty if they can."""
    table = FRAMEWORKS[trial.framework]
    for key, reasons in table.refusals.items():
        if reason := reasons.get(str(getattr(trial, key))):
            return reason
    if table.reduces_as_it_computes and trial.allreduce in gates.SIXTEEN_BIT and trial.allreduce != trial.precision:
        return table.reduces_as_it_computes
    if trial.launcher == "srun" and not cluster.in_job:
        return "launcher=srun starts ranks inside a Slurm job, and this is none: --slurm submits one"
    for library in (*table.needs, *table.launcher_needs.get(trial.launcher, ()), *about(trial.model).needs):
        if library not in machine.libraries:
            return f"{library} is not installed"
    if trial.device == "cpu" and table.needs_gpu:
        return table.needs_gpu
    if trial.device == "cpu":
        for key, reasons in table.refused_on_cpu.items():
            if reason := reasons.get(str(getattr(trial, key))):
                return reason
    if trial.find == "max_batch" and trial.device == "cpu":
        return "find: max_batch needs a GPU: on a CPU what fits is what the machine then swaps"
    if trial.device == "cuda" and not machine.gpus:
        return "device cuda: no GPU on this machine"
    if trial.device == "cpu" and trial.precision == "fp16":
        return "fp16 compute on a CPU is some 20 times slower than bf16 and says nothing; bf16 works"
    over = trial.hosts or 1
    spread = over > 1 or (trial.hosts and cluster.hosts)
    if spread and (why := hosts.capacity_problem(cluster.hosts, over, trial.workers)):
        return why
    workers, who = trial.workers // over, "each host" if over > 1 else "this machine"
    have, what = (len(machine.gpus), "GPUs") if trial.device == "cuda" else (machine.cores, "cores")
    need = workers * (1 if trial.device == "cuda" else trial.cores_per_worker or 1)
    if need > have and not trial.oversubscribe:
        each = "" if need == workers else f" of {trial.cores_per_worker} cores each"
        return f"{workers} workers{each} need {need} {what}, {who} has {have}"
    return ""


def _check(study: Study, keys: matrix.Keys, sweep: Sweep, problems: matrix.Problem) -> None:
    """What is wrong on every machine about one combination."""
    table = FRAMEWORKS[sweep.framework]

    def say(key: str, message: str) -> None:
        places = [(*sweep.place, "matrix", key), (*sweep.place, key), sweep.place]
        line = study.document.at(next(p for p in places if p in study.document.lines))
        problems[f"{line}: {message}"] = None

    for key, value in keys.items():
        if key in ("global_batch", "launcher"):
            continue
        if key not in table.axes:
            say(key, f"framework {sweep.framework} has no {key!r}{nearest(key, list(table.axes))}")
        elif table.axes[key] and value not in table.axes[key] and str(value) not in table.refusals.get(key, {}):
            choices = ", ".join(map(str, table.axes[key]))
            say(key, f"framework {sweep.framework} has no {key}={value}; it has {choices}")
        elif not table.has(key, launcher := keys.get("launcher", table.launchers[0])):
            having = " or ".join(table.launcher_axes[key])
            say(key, f"framework {sweep.framework} has {key!r} with launcher={having} only, not with {launcher}")
    if keys.get("launcher", table.launchers[0]) not in table.launchers:
        *first, last = table.launchers
        choices = f"{', '.join(first)} or {last}" if first else last
        say("launcher", f"framework {sweep.framework} is not started by {keys['launcher']}, but by {choices}")
    if _workers(keys) % keys.get("hosts", 1):
        say("hosts", f"workers={_workers(keys)} cannot be spread evenly over hosts={keys['hosts']}")
    if (by := keys.get("launcher")) in ("mpirun", "srun") and keys.get("controller") == "gloo":
        say("controller", f"launcher={by} carries Horovod's messages over MPI, not controller=gloo; use horovodrun")
    model = MODELS[keys.get("model", Trial.model)]
    for key in SAMPLE_KEYS:
        if key in keys and key not in model.keys:
            say(key, f"model {keys.get('model', Trial.model)} has no {key!r}: its samples have {', '.join(model.keys)}")
    if keys.get("data", "auto") not in ("auto", "synthetic", model.data, *model.also):
        own = " or ".join((model.data, *model.also)) if model.data else "data of its own"
        say("data", f"model {keys.get('model', Trial.model)} trains on {own}, not on {keys['data']}")
    if message := collectives.no_size(keys.get("min_bytes"), keys.get("max_bytes")):
        say("max_bytes" if "max_bytes" in keys else "min_bytes", message)
    shares = _shares(sweep.framework, keys)
    batch, parts = _batch(keys, shares), keys.get("accumulation", 1)
    if batch and batch % parts:
        say("accumulation", f"accumulation={parts} does not divide batch_per_worker={batch}")
    if "global_batch" in keys:
        if "batch_per_worker" in keys:
            say("global_batch", "give global_batch or batch_per_worker, not both: one follows from the other")
        elif keys["global_batch"] % shares:
            said = f"workers={shares}" if shares == _workers(keys) else f"replicas={shares}"
            say("global_batch", f"{said} does not divide global_batch={keys['global_batch']}")
    if table.cuts_model:
        for key, message in pipelines.wrong(sweep.framework, _workers(keys), batch, keys):
            say(key, message)
    if keys.get("allreduce") == "none" and shares > 1:
        what = "worker" if shares == _workers(keys) else "replica"
        say("allreduce", f"allreduce=none with {what}s={shares}: more than one {what} must reduce gradients")


def _resolve(
    keys: Mapping[str, Any], sweep: Sweep, machine: Machine, data: Mapping[str, Data] | None, share: int
) -> Trial:
    """The trial in full: what is left open becomes what this machine and framework make of it."""
    given = dict(keys)
    workers, shares = _workers(given), _shares(sweep.framework, given)
    if "global_batch" in given:
        given["batch_per_worker"] = given.pop("global_batch") // shares
    table = FRAMEWORKS[sweep.framework]
    if table.cuts_model:
        given.update(pipelines.resolved(sweep.framework, workers, given))
    given.setdefault("launcher", table.launchers[0])
    if table.has("controller", given["launcher"]):
        given.setdefault("controller", "mpi")
    if not table.trains:
        given["model"] = NO_MODEL
    if given.get("device", "auto") == "auto":
        given["device"] = machine.device
    real = about(given.get("model", Trial.model)).data
    if given.get("data", "auto") == "auto" and data and real and real in data:
        given["data"] = data[real].name
    if shares == 1:
        given["allreduce"] = "none"
    given.setdefault("cores_per_worker", share)
    return Trial(framework=sweep.framework, window=sweep.window, machine=machine.fingerprint, **given)


def _named(plan: Plan, key: str, partial: Mapping[str, Any] | None) -> list[Planned]:
    """The configurations that the study's `key` means, none where it has no such key; StudyError for no match."""
    matching = [p for p in plan.configurations if partial and _matches(p.trial.to_dict(), partial)]
    if partial and not matching:
        wanted = ", ".join(f"{k}={v}" for k, v in partial.items())
        have = ", ".join(sorted({p.trial.framework for p in plan.configurations}))
        place = plan.study.document.at((key,))
        raise StudyError([f"{place}: {key} {wanted} matches no trial of this study (frameworks: {have})"])
    return matching


def _notes(found: Mapping[str, Planned], collapsed: int, data: Mapping[str, Data]) -> Iterator[str]:
    if collapsed:
        yield (
            f"{collapsed} combination(s) mean the same as another and run once "
            "(with one worker nothing is reduced, so its allreduce is none)"
        )
    for name, one in data.items():
        if one.name == "synthetic" and any(
            p.trial.data == "synthetic" and MODELS[p.trial.model].data == name for p in found.values()
        ):
            yield f"SYNTHETIC DATA: {one.why}"


def _batch(keys: Mapping[str, Any], shares: int) -> int:
    """Samples of one worker (or pipeline), as far as the keys are right; 0 where they are not."""
    if "global_batch" not in keys:
        return int(keys.get("batch_per_worker", Trial.batch_per_worker))
    return 0 if keys["global_batch"] % shares else int(keys["global_batch"]) // shares


def _shares(framework: str, keys: Mapping[str, Any]) -> int:
    """How many workers, or pipelines of workers, share the data."""
    workers = _workers(keys)
    if not FRAMEWORKS[framework].cuts_model:
        return workers
    return max(1, workers // int(pipelines.resolved(framework, workers, keys)["stages"]))


def _workers(keys: Mapping[str, Any]) -> int:
    return int(keys.get("workers", 1))


def _matches(keys: Mapping[str, Any], partial: Mapping[str, Any]) -> bool:
    return all(keys.get(key) == value for key, value in partial.items())


def _stop(problems: matrix.Problem) -> None:
    if problems:
        raise StudyError(sorted(problems, key=by_line))
