"""Study + machine -> the ordered trials. Pure: the same arguments give the same plan, and nothing is started.

    matrix --product--> combinations --exclude--> --include--> --resolve--> configurations --repeats--> trials
                                                               device, cores, data, launcher;
                                                               what means the same runs once

Repeats interleave: every configuration once in a seeded random order, then every one again in another, so that drift
of the machine falls on all alike. A sentinel (`spread`), where the study names one, stands at equal distances.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from scaling_study.datasets import DataSource
from scaling_study.errors import StudyError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import CLASSES, FILE_NAME, MODELS, NO_MODEL, NONE, PAIR_VOCABULARY, model_named
from scaling_study.study import combinations, defaults, groups, on_gpus, rules, support
from scaling_study.study.combinations import data_shares, reducing, worker_count
from scaling_study.study.study import Measure, Study, Sweep
from scaling_study.study.support import ALONE, Cluster, unsupported
from scaling_study.trial import RESOLVED, Trial, Window

# The sentinel: one configuration that is run again and again through a sweep, so that the machine itself is measured.
# In shared launches it is first and last of each (launch/shared_launch.py), and has no repeats of its own; else:
#
#     planned     a b c d e f ...                      every configuration, repeat by repeat
#     with it     S a b c d e S f g h i j S ... S      the sentinel at equal distances, first and last
#
# Its repeats are ordinary trials. They differ by the machine's noise, and from the first to the last by its drift
# (analysis/views/noise.py).

EVERY = 10  # other trials for one more repeat: a sweep takes at most a tenth longer
MOST = 100  # repeats in all; more of them say nothing new
# What a key may say that means the same as leaving it out.
AS_LEFT_OUT: dict[str, Any] = {
    **{"train_loop": "ours", "wrap": "blocks", "weights": NONE, "freeze": NONE, "state_allreduce": "fp32", "env": ""},
    **{"gelu": "new", "vocabulary": PAIR_VOCABULARY, "cross_entropy": "whole", "compile_scope": "model"},
    **{"optimizer_kernels": "default", "classes": CLASSES, "resident_batches": 1, "checkpoint": NONE},
    **{"reduce_scatter": "library"},
}
SIZES = ("batch_per_worker", "global_batch", "seed")  # keys that decide nothing of what follows the device
T = TypeVar("T")


def repeats(planned: int, others: int) -> int:
    """The number of repeats of the sentinel, `planned` or more, beside so many trials of other configurations."""
    return max(planned, min(planned + others // EVERY, MOST))


def spread(others: Sequence[T], sentinel: Sequence[T]) -> list[T]:
    """Both in their own order, the runs of the sentinel at equal distances: the first begins, the last ends."""
    placed = list(others)
    for index, run in enumerate(sentinel):
        placed.insert(index + round(index * len(others) / max(1, len(sentinel) - 1)), run)
    return placed


@dataclass(frozen=True)
class Planned:
    """A trial of a plan, how it is measured, and why it cannot run here, if so. A configuration is its first repeat."""

    trial: Trial
    measure: Measure
    unsupported: str = ""
    seeds: tuple[int, ...] = ()  # of the repeats, where it is trained to a result

    def at(self, repeat: int) -> Planned:
        """The repeat-th repeat of the same configuration."""
        seed = self.seeds[repeat - 1] if self.seeds else self.trial.seed
        return replace(self, trial=replace(self.trial, repeat=repeat, seed=seed))


@dataclass(frozen=True)
class Plan:
    """The configurations of a study on a machine, and how they are run."""

    study: Study
    machine: Machine
    configurations: tuple[Planned, ...]
    notes: tuple[str, ...]  # what was collapsed or resolved, in words
    gates: tuple[Planned, ...] = ()  # what must be shown about each framework first
    cluster: Cluster = ALONE
    sentinel: str = ""  # the configuration that is repeated through the sweep, if any
    follows: tuple[str, ...] = ()  # keys of defaults.FOLLOWING that do so in some configuration

    @property
    def cores_per_worker(self) -> int:
        """The share of the cores that every worker of the study is given."""
        return max((p.trial.cores_per_worker or 1 for p in self.configurations), default=1)

    @property
    def baseline(self) -> list[Trial]:
        """The configurations against which others are held; none where the study has no baseline."""
        return _matching(self.study, "baseline", [planned.trial for planned in self.configurations])

    @property
    def alone(self) -> list[str]:
        """The configurations that are measured in place of warm ones which fail among others."""
        return [groups.cooled(planned.trial).configuration for planned in self.configurations if planned.trial.warm]

    def trials(self) -> list[Planned]:
        """The trials that are certain to run, in order: gates first. What cannot run here appears once."""
        planned: list[Planned] = []
        for repeat in range(1, max((p.measure.repeats for p in self.configurations), default=0) + 1):
            due = (p for p in self.shuffled(repeat) if repeat <= (1 if p.unsupported else p.measure.repeats))
            planned += [p.at(repeat) for p in due]
        others = [each for each in planned if each.trial.configuration != self.sentinel]
        return [*self.gates, *spread(others, [p for p in planned if p.trial.configuration == self.sentinel])]

    def shuffled(self, repeat: int) -> list[Planned]:
        """All configurations in the random order of their repeat-th repeats."""
        order = list(self.configurations)
        random.Random(f"{self.study.order_seed}/{repeat}").shuffle(order)
        return order


def make(
    study: Study, machine: Machine, data: Mapping[str, DataSource] | None = None, cluster: Cluster = ALONE
) -> Plan:
    """Expand and resolve; `data` says what `auto` means for each real data set, `machine` what every host is.

    Raises StudyError for what is wrong on every machine, with file, line and both values.
    """
    return draft(study, machine, cluster).plan(data or {})


@dataclass(frozen=True)
class Draft:
    """A study on a machine before it is known what `data: auto` means there."""

    study: Study
    machine: Machine
    cluster: Cluster
    trials: tuple[tuple[Trial, Sweep], ...]  # one for each combination, some of which may mean the same
    follows: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # on what follows the device

    @cached_property
    def data_named(self) -> set[str]:
        """The values of `data` in the trials: names of data sets, `auto`, `synthetic`."""
        return {trial.data for trial, _ in self.trials}

    @cached_property
    def data_needed(self) -> set[str]:
        """The real data sets that the trials name, or that `auto` means."""
        pairs = {(trial.data, trial.model) for trial, _ in self.trials if not trial.command}
        names = {model_named(model).data if data == "auto" else data for data, model in pairs}
        return {name for name in names if name and name != "synthetic"}

    def plan(self, data: Mapping[str, DataSource]) -> Plan:
        """The plan with these data sets. Raises StudyError where baseline or sentinel match no trial."""
        planned: dict[str, Planned] = {}
        wrong: dict[str, None] = {}
        alone_on_gpus = groups.alone_on_gpus(trial for trial, _ in self.trials)
        for trial, sweep in self.trials:
            own = None if trial.command else model_named(trial.model).data  # a command reads what it likes
            if trial.data == "auto" and (source := data.get(own or "")):
                trial = replace(trial, data=source.name)
            if trial.resident_batches and trial.data not in ("auto", "synthetic"):  # real data are read as they come
                trial = replace(trial, resident_batches=None)
            if sweep.measure.warm and not groups.why_cold(trial, alone_on_gpus, sweep.measure.interleave_gpus):
                trial = groups.warmed(trial, sweep.measure)
            if trial.configuration not in planned:
                why_not = unsupported(trial, self.machine, self.cluster)
                planned[trial.configuration] = Planned(trial, sweep.measure, why_not, seeds_of(trial, sweep))
                if (key := why_not.partition("=")[0]) in defaults.FOLLOWING:
                    wrong[f"{combinations.line_of(self.study, sweep, key)}: {why_not}"] = None
        collapsed = len(self.trials) - len(planned)
        notes = (*self.notes, *wrong, *_notes(planned, collapsed, data, self.cluster, self.machine))
        plan = Plan(
            self.study, self.machine, tuple(planned.values()), notes, cluster=self.cluster, follows=self.follows
        )
        _matching(self.study, "baseline", [configuration.trial for configuration in plan.configurations])
        plan = _with_sentinel(plan)
        return replace(plan, gates=tuple(_gates(plan))) if self.study.parity else plan


def draft(study: Study, machine: Machine, cluster: Cluster = ALONE) -> Draft:
    """Everything about a plan that needs no data. Raises StudyError before anything is downloaded."""
    asked = combinations.checked(study)
    if any(FILE_NAME.fullmatch(keys.get("model", "")) for keys, _ in asked):
        cluster = replace(cluster, models=study.folders)
    share = max(1, machine.cores // max(worker_count(keys) // keys.get("hosts", 1) for keys, _ in asked))
    fingerprint = cluster.fingerprint(machine.fingerprint)
    trials: list[tuple[Trial, Sweep]] = []
    kinds: dict[tuple[Any, ...], tuple[Mapping[str, Any], str, Callable[[defaults.Keys], str]]] = {}
    known: dict[tuple[Any, ...], tuple[defaults.Keys, dict[str, str]]] = {}
    follows, reasons = set[str](defaults.FOLLOWING if study.defaults else ()), dict[tuple[str, str], set[str]]()
    for keys, sweep in asked:
        resolve = partial(_resolve, sweep=sweep, machine=machine, fingerprint=fingerprint, share=share)
        kind = (sweep.framework, *(item for item in keys.items() if item[0] not in SIZES))
        if kind not in kinds:
            refused = partial(_refused, study, sweep, machine, cluster, resolve)
            kinds[kind] = (keys, sweep.framework, refused)
            known[kind] = defaults.of_device(keys, sweep.framework, machine, study.defaults, refused)
        named, (values, unchanged) = defaults.named(keys), known[kind]
        follows |= keys.keys() - named.keys()
        for reason in unchanged.items():
            reasons.setdefault(reason, set()).add(sweep.framework)
        trials.append((resolve({**named, **values}), sweep))
    for key in ("baseline", "sentinel"):
        _matching(study, key, [trial for trial, _ in trials], without=("data",))
    notes = (
        *defaults.in_words(reasons),
        *([] if study.defaults else defaults.older(kinds.values(), machine)),
        *filter(None, [study.document.older_names]),
    )
    return Draft(study, machine, cluster, tuple(trials), tuple(k for k in defaults.FOLLOWING if k in follows), notes)


def _refused(
    study: Study,
    sweep: Sweep,
    machine: Machine,
    cluster: Cluster,
    resolve: Callable[[Mapping[str, Any]], Trial],
    keys: Mapping[str, Any],
) -> str:
    """Why a combination is wrong on every machine, or unsupported on this one; empty if it is neither."""
    return combinations.problem(study, sweep, keys) or unsupported(resolve(keys), machine, cluster)


def _resolve(keys: Mapping[str, Any], sweep: Sweep, machine: Machine, fingerprint: str, share: int) -> Trial:
    """The trial in full, but for `data: auto`: what is left open becomes what this machine and framework make of it."""
    given = dict(keys)
    workers, shares = worker_count(given), data_shares(sweep.framework, given)
    if "global_batch" in given:
        given["batch_per_worker"] = given.pop("global_batch") // shares
    table = FRAMEWORKS[sweep.framework]
    given.update(rules.resolved(sweep.framework, workers, given))
    given.setdefault("launcher", table.launchers[0])
    if table.has("controller", given["launcher"]):
        given.setdefault("controller", "mpi")
    if not table.trains:
        given["model"] = NO_MODEL
    if given.get("device", "auto") == "auto":
        given["device"] = machine.device
    if reducing(sweep.framework, given) == 1:
        given["allreduce"] = "none"
    for key in RESOLVED.keys() & table.axes.keys():
        given.setdefault(key, RESOLVED[key])
    if workers == 1 and "buffers" in given:
        given["buffers"] = "local"  # there is nobody to synchronise with
    given = rules.sharded(sweep.framework, workers, given)
    given = {key: value for key, value in given.items() if key not in AS_LEFT_OUT or value != AS_LEFT_OUT[key]}
    if table.foreign:
        given.setdefault("allocator", "system")
    else:
        given.setdefault("cores_per_worker", share)
    trial = Trial(framework=sweep.framework, window=sweep.window, machine=fingerprint, **given)
    if trial.trained:
        return replace(trial, window=Window(), seed=seeds_of(trial, sweep)[0])
    return trial


def seeds_of(trial: Trial, sweep: Sweep) -> tuple[int, ...]:
    """The seeds of the repeats of a training to a result: those of the study, else from the trial's `seed` on."""
    if not trial.trained:
        return ()
    return sweep.seeds or tuple(range(trial.seed, trial.seed + sweep.measure.repeats))


def _gates(plan: Plan) -> Iterator[Planned]:
    """The parity trials of what can run here, once each and with no repeats."""
    for gate in support.needed(p.trial for p in plan.configurations if not p.unsupported):
        measure = plan.study.measure.model_copy(update={"repeats": 1, "max_repeats": 1})
        yield Planned(gate, measure, unsupported(gate, plan.machine, plan.cluster))


def _with_sentinel(plan: Plan) -> Plan:
    """With the repeats of the study's sentinel: the first configuration of its kind that trains and can run here."""
    matching = set(_matching(plan.study, "sentinel", [planned.trial for planned in plan.configurations]))
    able = (p for p in plan.configurations if not (p.unsupported or p.trial.find or p.trial.trained))
    chosen = next((p for p in able if p.trial.model != NO_MODEL and p.trial in matching), None)
    if chosen is None:
        return plan
    others = sum(1 if p.unsupported else p.measure.repeats for p in plan.configurations if p is not chosen)
    name = chosen.trial.configuration
    if chosen.trial.warm:
        note = f"drift check: {name} is first and last in each launch"
        return replace(plan, notes=(*plan.notes, note), sentinel=name)
    total = repeats(chosen.measure.repeats, others)
    measure = chosen.measure.model_copy(
        update={"repeats": total, "max_repeats": max(total, chosen.measure.max_repeats)}
    )
    more = tuple(replace(p, measure=measure) if p is chosen else p for p in plan.configurations)
    note = f"drift check: {name} has {total} launches, at equal distances through the sweep"
    return replace(plan, configurations=more, notes=(*plan.notes, note), sentinel=name)


def _matching(study: Study, key: str, trials: Sequence[Trial], without: Sequence[str] = ()) -> list[Trial]:
    """The trials that the study's `key` means; none where it has no such key. Raises StudyError for no match.

    `without`: keys of a trial that are not known yet, and match anything.
    """
    partial: Mapping[str, Any] = getattr(study, key) or {}
    left_out = {name for name, value in partial.items() if AS_LEFT_OUT.get(name) == value}
    wanted = {name: None if name in left_out else value for name, value in partial.items() if name not in without}
    matching = [trial for trial in trials if partial and wanted.items() <= trial.to_dict().items()]
    if partial and not matching:
        keys = ", ".join(f"{name}={value}" for name, value in partial.items())
        frameworks = ", ".join(sorted({trial.framework for trial in trials}))
        place = study.document.at((key,))
        what = f"{study.document.names.get(key, key)} {study.document.worded(keys)}"
        raise StudyError([f"{place}: {what} matches no trial of this study (frameworks: {frameworks})"])
    return matching


ONE_HOST = (  # said where several were given
    "no trial of this study is spread over hosts, so all run on this one; its sweeps need a key like `hosts: [1, 2]` "
    "(studies/two_hosts.yaml has it)"
)


def _notes(
    planned: Mapping[str, Planned], collapsed: int, data: Mapping[str, DataSource], cluster: Cluster, machine: Machine
) -> Iterator[str]:
    if collapsed:
        yield (
            f"{collapsed} combination(s) mean the same as another and run once "
            "(with one worker no gradients are sent, so `gradients` does not matter)"
        )
    if len(cluster.hosts) > 1 and not any(each.trial.hosts for each in planned.values()):
        yield ONE_HOST
    synthetic = {MODELS[p.trial.model].data for p in planned.values() if p.trial.data == "synthetic"}
    for name, source in data.items():
        if source.name == "synthetic" and name in synthetic:
            yield f"SYNTHETIC DATA: {source.why}"
    alone: dict[str, set[str]] = {}
    alone_on_gpus = groups.alone_on_gpus(each.trial for each in planned.values())
    able = [each for each in planned.values() if not each.unsupported]
    for each in able:
        asked = each.measure
        if asked.warm and (why := groups.why_cold(each.trial, alone_on_gpus, asked.interleave_gpus)):
            alone.setdefault(why, set()).add(each.trial.framework)
    for why, names in sorted(alone.items()):
        yield f"not interleaved: {', '.join(sorted(names))}: {why}"
    in_turns = [each.trial for each in able if each.trial.warm]
    if any(map(groups.on_several_gpus, in_turns)):
        yield groups.UNTESTED
        on_gpus_alone = [group for group in groups.groups(in_turns) if group[0].device == "cuda"]
        yield on_gpus.side_by_side(on_gpus_alone, machine.gpu_memory_bytes)
    yield from _unlike_the_file(cluster, machine)


def _unlike_the_file(cluster: Cluster, machine: Machine) -> Iterator[str]:
    """GPUs that the machine file has and this machine does not show, such as one that is missing."""
    if (hardware := cluster.file.hardware) and (described := hardware.machine({})).gpus != machine.gpus:
        yield (
            f"the machine file describes {described.gpus_text}, this machine shows {machine.gpus_text}: what needs "
            "more is unsupported"
        )
