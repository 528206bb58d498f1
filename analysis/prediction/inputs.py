"""Inputs of predictions that a study measured: ways of sharing gradients, one worker's step, its network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import results as series
from analysis.frames.configurations import KEYS, known, same, trains, values_of
from analysis.frames.measured import of_peers
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, grouped
from analysis.prediction import meshes
from analysis.prediction.network import CannotPredict, Link, ModelledNetwork
from analysis.prediction.simulate import (
    AFTERWARDS,
    DDP,
    HOROVOD,
    MESHES,
    Fusion,
    Gradient,
    SimulatedStep,
    Step,
    simulate,
)
from analysis.statistics import network
from analysis.statistics.network import Probe
from analysis.statistics.scaling_laws import hosts_of
from analysis.text import megabytes
from scaling_study.frameworks import COMMAND, FRAMEWORKS, POWERSGD
from scaling_study.records import store
from scaling_study.records.schema import RankReport, Record
from scaling_study.records.store import UnreadableRecord
from scaling_study.study import meshes as mesh_bytes
from scaling_study.study.rules import MATCHMAKING_SECONDS
from scaling_study.trial import Trial

# Predictable cases of a study: each way of sharing gradients that it ran, over one worker's step.
#
# configurations of data-parallel frameworks, whatever their workers and wire   -->  a way: framework, batch, knobs
# the framework's own run with one worker; without one, plain PyTorch's         -->  whose step it is

FUSIONS: Mapping[str, Fusion] = {
    "horovod": HOROVOD,
    "torch_ddp": DDP,
    "lightning_ddp": DDP,
    "mpi_allreduce": AFTERWARDS,
}
NOT_SIMULATED = (
    "{framework} is not predicted: its rounds follow clocks, with a floor of about {seconds:g} s in which peers look "
    "for each other, and end when peers together have their target; the simulator knows the calls of an allreduce only"
)
NOT_LOW_RANK = (
    "{framework} with gradients={wire} is not predicted: its products and factorisations take time that no step of one "
    "worker has"
)
NOT_SEEN_SHARING = "how it shares its gradients is not known: "  # of a command of a user's own
NEGLIGIBLE = 0.01  # of gradients' bytes: buffers that DDP broadcasts, the mean of a loss
ALONE = "single"  # whose step stands in for that of a framework without a run of its own with one worker
KNOBS = ("bucket_bytes", "fusion_bytes", "cycle_seconds", "buffers", "tuned_for")
SPREAD = (
    "framework",
    "workers",
    "allreduce",
    "launcher",
    "controller",
    "hosts",
    "oversubscribe",
    "global_batch",
    *KNOBS,
)
ALIKE = tuple(key for key in KEYS if key not in SPREAD)  # decide what one worker computes
TOGETHER = ("framework", "controller", *KNOBS)
OF_A_WAY = (*ALIKE, *TOGETHER)
OF_A_MESH = tuple(key for key in OF_A_WAY if key != "replicas")  # more workers are more of these
WIRE_BITS = {"fp32": 32, "fp16": 16, "bf16": 16}
Row = ConfigurationRow
# A Llama that is split: by closed forms (meshes.py). Its step is that of any run with one worker that computes alike.
SPLIT = ("torch_fsdp2", "torch_tp", "torch_context", "torch_pipeline")
COMPUTED_ALIKE = ("model", "precision", "sequence_length", "compile", "device", "cores_per_worker")
NO_FORMS = "{framework} of {model} is not predicted: the bytes that it sends have closed forms for a Llama alone"
NOT_ALONE = "no run with one worker and the same model, precision and length, so there is no step to predict from"


@dataclass(frozen=True)
class TrainingTarget:
    """A prediction's target: a framework's way of sharing the gradients of one worker's step, on each of `wires`."""

    row: Row  # the trial keys, of one of the framework's own configurations where the study has any
    label: str
    alone: OneWorker
    fusion: Fusion
    wires: tuple[str, ...]  # precisions of the allreduce

    def wire(self, allreduce: str) -> float:
        """Bytes on the wire for each byte of a gradient."""
        width = 64 if self.row["precision"] == "fp64" else 32
        return WIRE_BITS[allreduce] / width if allreduce != "fp32" else 1.0

    def samples(self, workers: int) -> int:
        """Samples of a step of so many workers."""
        return workers * self.alone.samples

    def ran(self, step: Step, workers: int, algorithm: str, network: ModelledNetwork, allreduce: str) -> SimulatedStep:
        """A step of so many workers, each of which would take `step` alone."""
        return simulate(step, workers, algorithm, network, self.fusion, self.wire(allreduce))

    def refused(self, workers: int) -> str:
        """Why so many workers cannot share the work so; empty if they can."""
        return ""

    def is_run(self, row: Row, allreduce: str) -> bool:
        """True where a configuration is this target, whatever its workers."""
        return row["allreduce"] == allreduce and all(same(row.get(key), self.row.get(key)) for key in OF_A_WAY)


@dataclass(frozen=True)
class MeshTarget(TrainingTarget):
    """A Llama that is split over workers. With more of them there are more groups of the same tensor, context and
    stages, each with the same samples."""

    trial: Trial

    def with_workers(self, workers: int) -> Trial:
        return replace(self.trial, workers=workers)

    def samples(self, workers: int) -> int:
        return self.with_workers(workers).global_batch

    def ran(self, step: Step, workers: int, algorithm: str, network: ModelledNetwork, allreduce: str) -> SimulatedStep:
        shape = mesh_bytes.SHAPES[self.trial.model]
        made = mesh_bytes.of_trial(replace(self.with_workers(workers), allreduce=allreduce))
        assert made, "mesh_targets takes no others"
        mesh, work = made
        computing = meshes.as_alone(shape, mesh, work, step, self.alone.samples)
        one = meshes.simulate(shape, mesh, work, network, computing)
        calls = sum(meshes.calls_of(each, shape, mesh, work) for each in mesh_bytes.traffic(shape, mesh, work))
        wire = sum(meshes.costs(shape, mesh, work, network).values())
        return SimulatedStep(one.step_seconds, one.step_seconds - one.computing_seconds, wire, calls)

    def refused(self, workers: int) -> str:
        group, shards = self.trial.workers // self.trial.data_parallel, self.trial.shard_group or 1
        if workers % group:
            return f"{workers:,} workers are no multiple of {group}, that share a batch"
        if (copies := workers // group) % shards:
            return f"shard_group={shards} does not divide {copies:,}, of {workers:,} workers"
        return ""

    def is_run(self, row: Row, allreduce: str) -> bool:
        wires = (allreduce, "none") if allreduce == "fp32" else (allreduce,)
        alike = all(same(row.get(key), self.row.get(key)) for key in OF_A_MESH)
        return alike and row["allreduce"] in wires and not row.get("oversubscribe")


def targets(results: Results, folder: Path, asked: Sequence[str] = ()) -> tuple[list[TrainingTarget], list[str]]:
    """(what can be predicted, in the order of the tables, one sentence for each thing that cannot).

    `asked`: precisions of the allreduce; without any, those that the study ran with several workers, else fp32.
    Trainings to a result were not timed in parts. Where a study shares gradients in nothing else, its one-worker steps
    are shared as they do; but not where it shares them in rounds of peers, which nothing here is like, nor where it
    splits a Llama.
    """
    every: list[Row] = [row for row in results.rows if not known(row["find"])]
    rows = [row for row in every if not trains(row)]
    shared = [row for row in rows if row["framework"] in FUSIONS]
    chosen, wrong = list[TrainingTarget](), list[str]()
    split, not_split = mesh_targets(results, rows, folder, asked)
    for row in every:
        if row["n"] and of_peers(str(row["framework"])):
            seconds = row["matchmaking_seconds"] if known(row["matchmaking_seconds"]) else MATCHMAKING_SECONDS
            wrong.append(NOT_SIMULATED.format(framework=row["framework"], seconds=seconds))
    if not (
        shared or split or not_split
    ):  # one-worker steps of plain PyTorch, as if their gradients were shared in each of these ways
        stood_for = _trained_ways(every) or ([] if wrong else [{"framework": "horovod"}])
        alone = [row for row in rows if row["framework"] == ALONE and row["workers"] == 1]
        shared = [{**row, **way} for way in stood_for for row in alone]
    shared += [row for row in rows if row["framework"] == COMMAND]
    low_rank = (row for row in rows if row["n"] and str(row["allreduce"]) in POWERSGD)
    wrong += [NOT_LOW_RANK.format(framework=row["framework"], wire=row["allreduce"]) for row in low_rank]
    bases: dict[str, OneWorker | str] = {}
    for way in _first_of_each([row for row in shared if row["n"]], OF_A_WAY):
        base = _base(way, rows)
        if isinstance(base, str):
            wrong.append(f"{way['framework']}, {way['model']}, batch {way['batch_per_worker']}: {base}")
            continue
        name = str(base["configuration"])
        if name not in bases:
            bases[name] = one_worker(base, results.trials, folder)
        if isinstance(one := bases[name], str):
            wrong.append(f"{name}: {one}")
            continue
        fusion = _of_command(way, rows, results.trials, folder) if way["framework"] == COMMAND else policy(way)
        if isinstance(fusion, str):
            wrong.append(f"{_label(way, results)}: {NOT_SEEN_SHARING}{fusion}")
        else:
            chosen.append(TrainingTarget(way, _label(way, results), one, fusion, tuple(asked) or _wires(way, every)))
    return [*chosen, *split], list(dict.fromkeys([*wrong, *not_split]))


def mesh_targets(
    results: Results, rows: Sequence[Row], folder: Path, asked: Sequence[str] = ()
) -> tuple[list[MeshTarget], list[str]]:
    """(each way among `rows` in which a Llama was split over several workers, a sentence for each that is none)."""
    split = [row for row in rows if row["framework"] in SPLIT and row["workers"] > 1 and row["n"]]
    chosen, wrong = [], []
    for way in _first_of_each(split, OF_A_MESH):
        record = next(_records(str(way["configuration"]), results.trials, folder), None)
        if record is None or not mesh_bytes.of_trial(record.trial):
            wrong.append(NO_FORMS.format(framework=way["framework"], model=way["model"]))
            continue
        label, one = _label(way, results), _computing_alike(way, rows, results.trials, folder)
        if isinstance(one, str):
            wrong.append(f"{label}: {one}")
            continue
        own = str(way["allreduce"])
        wires = tuple(asked) or ("fp32" if own == "none" else own,)
        chosen.append(MeshTarget(way, label, one, MESHES, wires, record.trial))
    return chosen, list(dict.fromkeys(wrong))


def _computing_alike(way: Row, rows: Iterable[Row], trials: pd.DataFrame, folder: Path) -> OneWorker | str:
    """The step of one worker that computes what all workers of `way` do together, or why there is none."""
    fits = [row for row in rows if row["workers"] == 1 and row["n"] and not _differing(row, way, COMPUTED_ALIKE)]
    fits = [row for row in fits if not known(row["checkpoint"]) or row["checkpoint"] == "none"]
    if not fits:
        return NOT_ALONE
    nearest = min(fits, key=lambda row: (_differing(row, way, ["batch_per_worker"]), row["framework"] != ALONE))
    return one_worker(nearest, trials, folder)


def _of_command(way: Row, rows: Iterable[Row], trials: pd.DataFrame, folder: Path) -> Fusion | str:
    """The fusion of a user's command, by what its own runs with several workers were seen to send; or why none."""
    if way["device"] == "cuda":
        return "on a GPU the parts of its steps are times of the host"
    several = [row for row in rows if row["n"] and row["workers"] > 1 and row["framework"] == COMMAND]
    ours = [str(row["configuration"]) for row in several if not _differing(row, way, ALIKE)]
    reports = [report for name in ours for report in _first_ranks(name, trials, folder)]
    return seen_fusion(reports[0]) if reports else "it was not run with several workers and this batch"


def seen_fusion(report: RankReport) -> Fusion | str:
    """The fusion of gradients that collectives of one of its steps show; or why nothing simulated is like them.

    What its allreduces carry must be its gradients, 4 bytes a parameter, and all that it sends. In backward they are
    DDP's or Horovod's, with their default buckets and cycles; elsewhere they come one after the other.
    """
    sent, whole = report.communication_bytes, 4.0 * report.parameters
    reduced = sent.get("allreduce", 0)
    if not sent or not whole:
        return "collectives and parameters of a step were not both counted"
    if abs(reduced - whole) > NEGLIGIBLE * whole or sum(sent.values()) - reduced > NEGLIGIBLE * whole:
        kinds = ", ".join(f"{megabytes(size)} MB to {kind}" for kind, size in sent.items())
        return f"a step hands {kinds}, and not its {megabytes(whole)} MB of gradients to an allreduce alone"
    part, calls = report.backend.get("reduced_in"), report.backend.get("reduced_calls")
    if not part or not calls:
        return "its records do not say in which part of a step it sends them, as newer ones do"
    if part != "backward":
        return replace(AFTERWARDS, most_bytes=whole / float(calls))
    return HOROVOD if report.backend.get("reduced_by") == "horovod" else DDP


def policy(row: Row) -> Fusion:
    """How a configuration's framework fuses gradients, with the knobs that it was run with."""
    fusion = FUSIONS[str(row["framework"])]
    if known(row["fusion_bytes"]):
        fusion = replace(fusion, most_bytes=float(row["fusion_bytes"]))
    if known(row["cycle_seconds"]):
        fusion = replace(fusion, cycle_seconds=float(row["cycle_seconds"]))
    if known(row["bucket_bytes"]):  # then the first bucket is like the others
        fusion = replace(fusion, most_bytes=float(row["bucket_bytes"]), first_bytes=None)
    return fusion


def _first_of_each(rows: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """One row for each combination of values that these keys have."""
    return [ours[0] for ours in grouped(rows, lambda row: values_of(row, keys)).values()]


def _trained_ways(rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    """How trainings to a result shared gradients: framework, controller and knobs."""
    trained = (row for row in rows if trains(row) and row["framework"] in FUSIONS)
    return [{key: row[key] for key in TOGETHER} for row in _first_of_each(trained, TOGETHER)]


def _differing(row: Row, other: Row, keys: Sequence[str]) -> int:
    """In how many of the keys."""
    return sum(not same(row[key], other[key]) for key in keys)


def _base(way: Row, rows: Sequence[Row]) -> Row | str:
    """The one-worker configuration that stands for each worker of `way`, or why there is none."""
    fits = [row for row in rows if row["workers"] == 1 and not _differing(row, way, ALIKE)]
    ranked = [row for row in fits if row["framework"] == way["framework"]]
    ranked.sort(key=lambda row: _differing(row, way, (*KNOBS, "controller")))
    ranked += [row for row in fits if row["framework"] == ALONE]
    good = [row for row in ranked if row["n"]]
    if not good:
        return "no run with one worker and the same batch, so there is no step to predict from"
    if way["buffers"] == "synced":
        return "its buffers are broadcast in forward, which is not predicted"
    if way["not_comparable"]:
        return str(way["not_comparable"])
    return good[0]


def _wires(way: Row, rows: Iterable[Row]) -> tuple[str, ...]:
    ran = {
        str(row["allreduce"])
        for row in rows
        if row["workers"] > 1 and row["framework"] == way["framework"] and row["model"] == way["model"]
    }
    return tuple(name for name in WIRE_BITS if name in ran) or ("fp32",)


def _label(way: Row, results: Results) -> str:
    """`horovod, batch 32`, with what else tells this study's configurations apart."""
    names = [key for key in results.series_keys if key not in (*series.MAIN_KEYS, "replicas")]
    words = series.words(way, names)
    return ", ".join([str(way["framework"]), f"batch {way['batch_per_worker']}", *words])


# One worker's step as a study measured it: its parts, when its gradients are there, and how much all of it varies.
#
#     timed steps          their mean, how it varies between repeats and from step to step
#     instrumented steps   data, forward, backward, the rest: scaled to the timed mean, since timing them disturbs
#     the step after       which gradient came when: scaled to backward
#
# Gradients that nobody noted, as in older records, are taken to come evenly.

EVEN_PARTS = 64  # of a backward whose gradients nobody noted


@dataclass(frozen=True)
class OneWorker:
    """`log_error`: standard error of the logarithm of its mean step, between `repeats`; `variation`: deviation of one
    timed step over the mean. `noted`: whether gradients were seen to arrive, or are taken to come evenly."""

    configuration: str
    step: Step
    samples: int
    repeats: int
    log_error: float
    variation: float
    noted: bool

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.step.seconds


def one_worker(base: Row, trials: pd.DataFrame, folder: Path) -> OneWorker | str:
    """The step of a configuration with one worker, from its repeats, or the reason why they do not tell."""
    reports = list(_first_ranks(str(base["configuration"]), trials, folder))
    micro_batches = int(base["accumulation"]) if known(base["accumulation"]) else 1
    if base["framework"] == COMMAND and reports:
        micro_batches = int(reports[0].backend.get("backwards") or 1)
    return of_reports(str(base["configuration"]), reports, micro_batches)


def _records(configuration: str, trials: pd.DataFrame, folder: Path) -> Iterator[Record]:
    """The record of each repeat that can be read."""
    for trial in trials[(trials.configuration == configuration) & (trials.status == "ok")].trial:
        with suppress(UnreadableRecord):
            yield store.read_trial(folder / "trials" / str(trial))


def _first_ranks(configuration: str, trials: pd.DataFrame, folder: Path) -> Iterator[RankReport]:
    """The report of rank 0 of each of them."""
    return (record.ranks[0] for record in _records(configuration, trials, folder) if record.ranks)


def one_worker_of(results: Results, folder: Path, model: str, length: int, precision: str) -> OneWorker:
    """The step of a model in the study's run with one worker, of plain PyTorch where it ran that. Raises CannotPredict.

    `length`: of its sequences, where the run names one.
    """
    fits = [
        row
        for row in results.rows
        if (row["model"], row["workers"], row["precision"]) == (model, 1, precision) and row["n"]
        if not known(row["sequence_length"]) or row["sequence_length"] == length
    ]
    found: OneWorker | str = "no run with one worker"
    if fits:
        base = min(fits, key=lambda row: row["framework"] != ALONE)
        found = one_worker(base, results.trials, folder)
    if isinstance(found, str):
        raise CannotPredict(f"{folder}, {model} in {precision}, sequences of {length}: {found}")
    return found


def of_reports(configuration: str, reports: Sequence[RankReport], micro_batches: int = 1) -> OneWorker | str:
    """one_worker() from reports of ranks, one for each repeat."""
    if not reports:
        return "none of its records can be read"
    seen = [r for r in reports if r.phases and None not in (r.phases.forward_seconds, r.phases.backward_seconds)]
    if not seen:  # in rounds one launch inspects for all
        return "its records do not say how long forward and backward take"
    means = np.array([np.mean(report.step_seconds) for report in reports])
    varied = [float(np.std(report.step_seconds) / np.mean(report.step_seconds)) for report in reports]
    spread = float(np.std(np.log(means), ddof=1)) if len(reports) > 1 else 0.0
    gradients, noted = arrivals(reports)
    return OneWorker(
        configuration,
        _step(seen, gradients, micro_batches, float(np.mean(means))),
        reports[0].samples_per_step,
        len(reports),
        spread / math.sqrt(len(reports)),
        float(np.mean(varied)),
        noted,
    )


def _step(
    reports: Sequence[RankReport], gradients: Sequence[Gradient], micro_batches: int, whole_seconds: float
) -> Step:
    """Means over the repeats whose phases were timed, of a step that takes `whole_seconds` in the mean of all.

    `gradients`: arrivals as shares of the last micro-batch's backward, which sends them.
    """
    before, backward, whole = [], [], []
    for report in reports:
        phases = report.phases
        assert phases is not None and phases.forward_seconds is not None and phases.backward_seconds is not None
        seconds = float(np.mean(report.step_seconds))
        undisturbed = seconds / phases.step_seconds
        last = phases.backward_seconds / micro_batches
        earlier = (phases.data_seconds or 0.0) + phases.forward_seconds + phases.backward_seconds - last
        before.append(earlier * undisturbed)
        backward.append(last * undisturbed)
        whole.append(seconds)
    of_all = whole_seconds / float(np.mean(whole))
    seconds, half = float(np.mean(backward)) * of_all, float(np.mean(before)) * of_all
    rest = whole_seconds - half - seconds
    return Step(half, seconds, rest, tuple((size, share * seconds) for size, share in gradients))


def arrivals(reports: Sequence[RankReport]) -> tuple[list[Gradient], bool]:
    """(bytes, share of backward after which it is there) of each gradient, and whether it was noted.

    The last gradient ends backward: autograd runs nothing that leads to none. Repeats that came in one order are
    averaged. Without notes (older records) the parameters' bytes come evenly.
    """
    noted = [report.gradients for report in reports if report.gradients and report.gradients[-1][1] > 0]
    if not noted:
        total = 4.0 * reports[0].parameters
        return [(total / EVEN_PARTS, (part + 1) / EVEN_PARTS) for part in range(EVEN_PARTS)], False
    sizes = [size for size, _ in noted[0]]
    alike = [moments for moments in noted if [size for size, _ in moments] == sizes]
    shares = np.mean([[seconds / moments[-1][1] for _, seconds in moments] for moments in alike], axis=0)
    return list(zip(sizes, map(float, shares), strict=True)), True


# Workers of one host slow each other's computing: they share its memory, its caches and its clock.
#
# A run with one worker has the host to itself. Forward communicates nothing, so where a study ran a configuration with
# one worker and with w on one host, seconds of forward with w over seconds with one is what crowding costs; the
# geometric mean over such pairs is taken for all. Configurations that synchronise buffers in forward are left out.


def crowding_ratios(rows: Sequence[Row], workers_per_host: int, without: Sequence[str] = ()) -> list[float]:
    """Forward with so many workers over forward with one, of each configuration that ran both on one host.

    `without`: configurations to leave out, because it is they that are predicted.
    """
    timed = [row for row in rows if row["framework"] in (*FUSIONS, COMMAND) and known(row["forward_seconds"])]
    ratios = []
    for row in timed:
        if row["workers"] != workers_per_host or row["configuration"] in without or not row["n"]:
            continue
        if FRAMEWORKS[str(row["framework"])].syncs(row["buffers"]) or hosts_of(row) > 1:
            continue
        alone = (
            float(other["forward_seconds"])
            for other in timed
            if other["workers"] == 1 and other["framework"] == row["framework"] and not _differing(other, row, ALIKE)
        )
        ratios += [float(row["forward_seconds"]) / seconds for seconds in islice(alone, 1)]
    return ratios


def crowding(ratios: Sequence[float]) -> float:
    """How many times as long workers compute that share a host: the geometric mean; 1 where nothing was measured."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def host_spread(trials: pd.DataFrame, folder: Path, without: Sequence[str] = ()) -> float | None:
    """Standard deviation of hosts' seconds of forward over their mean, as far as it stays from repeat to repeat.

    Forward communicates nothing, so no host waits in it for another. None where no configuration ran twice over the
    same several hosts. `without`: configurations to leave out, because it is they that are predicted.
    """
    squares = freedom = 0.0
    over_several = trials[(trials.status == "ok") & (pd.to_numeric(trials.hosts, errors="coerce") > 1)]
    for configuration, ours in over_several.groupby("configuration"):
        if configuration in without:
            continue
        logs = [
            np.log([np.mean(seconds) for _, seconds in sorted(by_host.items())])
            for trial in ours.trial
            if (by_host := _forward_by_host(folder / "trials" / str(trial)))
        ]
        logs = [seconds - seconds.mean() for seconds in logs if len(seconds) == len(logs[0])]
        if len(logs) > 1:
            repeats = np.array(logs)
            noise = float(repeats.var(axis=0, ddof=1).mean())
            hosts = repeats.shape[1]
            squares += (hosts - 1) * (float(repeats.mean(axis=0).var(ddof=1)) - noise / len(logs))
            freedom += hosts - 1
    return math.sqrt(max(0.0, squares / freedom)) if freedom else None


def _forward_by_host(folder: Path) -> dict[str, list[float]]:
    """Host -> seconds of forward of each of its ranks; empty where a rank does not say."""
    found: dict[str, list[float]] = {}
    with suppress(UnreadableRecord):
        for report in store.read_trial(folder).ranks:
            if report.phases is None or not report.phases.forward_seconds:
                return {}
            found.setdefault(report.host, []).append(report.phases.forward_seconds)
    return found if len(found) > 1 else {}


# The network as the study's own probes measured it, taken apart into links.
#
#     probe: seconds = A + B bytes, an allreduce of n workers        link: alpha = A / (2 (n-1))
#                                                                          beta  = B n / (2 (n-1))
#
# as if the probe had run a ring. Of n = 2 any algorithm gives the same beta; the bus bandwidth of nccl-tests is 1 /
# beta. Horovod's calls wait for its background thread, half a cycle on average: simulate.py counts that by itself, so
# here it is taken off A. On a CPU every probe measures twice, with the cores idle and busy; network.py says what for.

IDLE, BUSY = ("allreduce", False), ("allreduce", True)
LAUNCHER = {  # whose collectives a framework calls -> the probe that called the same
    "horovod": "horovodrun",
    "torch_ddp": "torchrun",
    "lightning_ddp": "torchrun",
    "mpi_allreduce": "mpirun",
}
CARRIES = {"mpi": "mpirun", "gloo": "torchrun"}  # the probe that used what this controller of Horovod's uses
NORMAL_95 = 1.96
MOST_SPREAD = 1.0  # of a logarithm: what is known no better than this is known not at all


def probes(results: Results) -> list[Probe]:
    """The study's probes that timed an allreduce."""
    return [probe for probe in network.probes(results) if IDLE in probe.fits and probe.workers > 1]


def network_of(row: Row, among: Sequence[Probe]) -> ModelledNetwork:
    """The network that a framework's configuration runs on, from probes(), of which there is at least one.

    Each link is that of the nearest probe: within a host of one that ran on one host, between hosts of one that ran on
    several. Where only the first was measured, the network is that of one host.
    """
    ranked = sorted(among, key=lambda probe: _nearness(probe, row), reverse=True)
    local = next((probe for probe in ranked if probe.hosts == 1), None)
    wide = next((probe for probe in ranked if probe.hosts > 1), local)
    assert wide is not None
    per_host = local.workers if local else 1
    name, inside = (f"{probe.name} ({probe.configuration})" if probe else "" for probe in (wide, local))
    if wide is local:
        source = f"by {name} on one host"
    else:
        unseen = f" on {wide.hosts} hosts (switches that more share it has not seen)"
        source = f"between hosts by {name}{unseen}" + (f", within a host by {inside}" if local else "")

    def of(kind: network.Key) -> ModelledNetwork:
        return ModelledNetwork(
            link(wide, kind),
            link(local, kind) if local else None,
            per_host,
            one_host=wide is local,
            source=f"measured {source}",
        )

    measured_busy = all(BUSY in part.fits for part in (wide, local) if part)
    return replace(of(IDLE), busy=of(BUSY) if measured_busy else None)


def link(probe: Probe, kind: network.Key) -> Link:
    """The link of each of the 2 (n-1) steps of a ring, with the relative errors of the fit, and without the wait for
    Horovod's background thread."""
    fitted, steps = probe.fits[kind], 2 * (probe.workers - 1)
    waits = HOROVOD.cycle_seconds / 2 if probe.launcher == "horovodrun" else 0.0
    alpha, beta = max(0.0, fitted.alpha_seconds - waits), fitted.beta_seconds_per_byte
    return Link(
        alpha / steps,
        beta * probe.workers / steps,
        _spread(alpha, fitted.alpha_low, fitted.alpha_high),
        _spread(beta, fitted.beta_low, fitted.beta_high),
    )


def _spread(value: float, low: float | None, high: float | None) -> float:
    """Relative standard error from a 95 % interval; 0 where none is claimed or nothing is there."""
    if low is None or high is None or value <= 0:
        return 0.0
    return min(MOST_SPREAD, (high - low) / 2 / NORMAL_95 / value)


def _nearness(probe: Probe, row: Row) -> tuple[bool, bool, bool, int]:
    """Sort key: the same library and controller, else a probe that carries bytes alike, else that of most workers."""
    same_library = probe.launcher == LAUNCHER.get(str(row["framework"]))
    controller = row.get("controller")
    carried = known(controller) and probe.launcher == CARRIES.get(str(controller))
    same_controller = not known(controller) or probe.controller == controller
    return same_library and same_controller, carried, same_library, probe.workers
