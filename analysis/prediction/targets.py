"""What can be predicted of a study: each way of sharing gradients that it ran, over one worker's step.

configurations of data-parallel frameworks, whatever their workers and wire   -->  a way: framework, batch, knobs
the framework's own run with one worker; without one, plain PyTorch's         -->  whose step it is
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from analysis.frames import series
from analysis.frames.baseline import known, same, value_of, values_of
from analysis.frames.configurations import KEYS
from analysis.frames.results import Results
from analysis.frames.rounds import of_peers
from analysis.frames.row_types import ConfigurationRow
from analysis.prediction import fusion
from analysis.prediction.fusion import Fusion
from analysis.prediction.measured import OneWorker, one_worker
from scaling_study.study.peers import MATCHMAKING_SECONDS
from scaling_study.targets import ENDS

FUSIONS: Mapping[str, Fusion] = {
    "horovod": fusion.HOROVOD,
    "torch_ddp": fusion.DDP,
    "lightning_ddp": fusion.DDP,
    "mpi_allreduce": fusion.AFTERWARDS,
}
NOT_SIMULATED = (
    "{framework} is not predicted: its rounds follow clocks, with a floor of about {seconds:g} s in which peers look "
    "for each other, and end when peers together have their target; the simulator knows the calls of an allreduce only"
)
ALONE = "single"  # whose step stands in for that of a framework without a run of its own with one worker
KNOBS = ("bucket_bytes", "fusion_bytes", "cycle_seconds", "buffers", "tuned_for")
SPREAD = (
    *("framework", "workers", "allreduce", "launcher", "controller", "hosts", "oversubscribe", "global_batch"),
    *KNOBS,
)
ALIKE = tuple(key for key in KEYS if key not in SPREAD)  # decide what one worker computes
WIRE_BITS = {"fp32": 32, "fp16": 16, "bf16": 16}
Row = ConfigurationRow


@dataclass(frozen=True)
class Target:
    """What is predicted: a framework's way of sharing the gradients of one worker's step, on each of `wires`."""

    row: Row  # the trial keys, of one of the framework's own configurations where the study has any
    label: str
    alone: OneWorker
    fusion: Fusion
    wires: tuple[str, ...]  # precisions of the allreduce

    def wire(self, allreduce: str) -> float:
        """Bytes on the wire for each byte of a gradient."""
        width = 64 if self.row["precision"] == "fp64" else 32
        return WIRE_BITS[allreduce] / width if allreduce != "fp32" else 1.0


def targets(results: Results, folder: Path, asked: Sequence[str] = ()) -> tuple[list[Target], list[str]]:
    """(what can be predicted, in the order of the tables, one sentence for each thing that cannot).

    `asked`: precisions of the allreduce; without any, those that the study ran with several workers, else fp32.
    Trainings to a result were not timed in parts. Where a study shares gradients in nothing else, its one-worker steps
    are shared as they do; but not where it shares them in rounds of peers, which nothing here is like.
    """
    every: list[Row] = [row for row in results.rows if not known(row["find"])]
    rows = [row for row in every if not _trained(row)]
    shared = [row for row in rows if row["framework"] in FUSIONS]
    chosen, wrong = [], [_not_simulated(row) for row in every if row["n"] and of_peers(str(row["framework"]))]
    stood_for = _trained_ways(every) or ([] if wrong else [{"framework": "horovod"}])
    ways = list(_ways(shared or _as(stood_for, rows)))
    bases: dict[str, OneWorker | str] = {}
    for way in ways:
        base = _base(way, rows)
        if isinstance(base, str):
            wrong.append(f"{way['framework']}, {way['model']}, batch {way['batch_per_worker']}: {base}")
            continue
        name = str(base["configuration"])
        alone = bases.setdefault(name, one_worker(base, results.trials, folder))
        if isinstance(alone, str):
            wrong.append(f"{name}: {alone}")
            continue
        chosen.append(Target(way, _label(way, results), alone, policy(way), tuple(asked) or _wires(way, every)))
    return chosen, list(dict.fromkeys(wrong))


def _not_simulated(row: Row) -> str:
    asked = row["matchmaking_seconds"]
    seconds = asked if known(asked) else MATCHMAKING_SECONDS
    return NOT_SIMULATED.format(framework=row["framework"], seconds=seconds)


def policy(row: Row) -> Fusion:
    """How a configuration's framework fuses gradients, with the knobs that it was run with."""
    fusion_policy = FUSIONS[str(row["framework"])]
    knob = {key: value for key in KNOBS if known(value := value_of(row, key))}
    if "fusion_bytes" in knob:
        fusion_policy = replace(fusion_policy, most_bytes=float(knob["fusion_bytes"]))
    if "cycle_seconds" in knob:
        fusion_policy = replace(fusion_policy, cycle_seconds=float(knob["cycle_seconds"]))
    if "bucket_bytes" in knob:  # then the first bucket is like the others
        fusion_policy = replace(fusion_policy, most_bytes=float(knob["bucket_bytes"]), first_bytes=None)
    return fusion_policy


def _ways(rows: Iterable[Row]) -> Iterator[Row]:
    """One row for each way of sharing gradients: whatever its workers and precision on the wire."""
    seen: list[tuple[Any, ...]] = []
    for row in rows:
        way = values_of(row, (*ALIKE, "framework", "controller", *KNOBS))
        if way not in seen and row["n"]:
            seen.append(way)
            yield row


def _trained(row: Row) -> bool:
    return any(known(value_of(row, end)) for end in ENDS)


def _trained_ways(rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    """How trainings to a result shared gradients: framework, controller and knobs."""
    keys = ("framework", "controller", *KNOBS)
    found = [dict(zip(keys, values_of(row, keys), strict=True)) for row in rows if _trained(row)]
    return [way for number, way in enumerate(found) if way["framework"] in FUSIONS and way not in found[:number]]


def _as(ways: Sequence[Mapping[str, Any]], rows: Iterable[Row]) -> list[Row]:
    """One-worker steps of plain PyTorch, as if their gradients were shared in each of these ways."""
    alone = [row for row in rows if row["framework"] == ALONE and row["workers"] == 1]
    return [cast(Row, {**row, **way}) for way in ways for row in alone]


def _differing(row: Row, other: Row, keys: Sequence[str]) -> int:
    """In how many of the keys."""
    return sum(not same(value_of(row, key), value_of(other, key)) for key in keys)


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
    names = [key for key in results.series_keys if key not in series.MAIN_KEYS]
    words = series.words(way, names)
    return ", ".join([str(way["framework"]), f"batch {way['batch_per_worker']}", *words])
