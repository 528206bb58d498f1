"""What was published, as ratios: each names the two configurations of one study that it divides.

speed-up         2 workers / 1 worker, all else equal
16-bit gain      16 bits / 32: of the allreduce (Horovod), or of compute and allreduce together (FSDP)
larger batch     a batch size / the next smaller one
epoch            seconds of the one's epoch / those of the other, as an epoch was published
another way      one framework / another
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from analysis.frames.rows import as_rows
from analysis.published import reference
from analysis.published.reference import flaws_of, outcome

SPEEDUP, GAIN, BATCH, EPOCH, WAY = "speed-up", "16-bit gain", "larger batch", "epoch", "another way"
KEYS = ("framework", "model", "batch_per_worker", "precision", "allreduce", "workers")
Keys = Mapping[str, Any]  # trial keys that a configuration must have


@dataclass(frozen=True)
class Claim:
    """A published ratio. Of an EPOCH, `over` is whatever baseline the study has."""

    study: str
    kind: str
    what: str
    value: float
    flaws: tuple[str, ...]  # in the order of their numbers
    of: Keys
    over: Keys


@cache
def published() -> tuple[Claim, ...]:
    """Every one, table by table."""
    return (*_of_tables(), *_of_outcomes())


def _of_tables() -> Iterator[Claim]:
    """From throughput.csv."""
    rows = {tuple(row[key] for key in KEYS): row for row in as_rows(reference.throughput())}
    for place, row in rows.items():
        framework, model, batch, precision, allreduce, workers = place
        alone = rows.get((framework, model, batch, precision, "none", 1))
        if workers > 1 and alone:
            wire = f", {allreduce}" if precision == "fp32" else f", {precision} compute and allreduce"
            yield _claim(SPEEDUP, f"{_named(row)}: {workers} workers{wire} / 1 worker", row, alone)
        full = rows.get((framework, model, batch, "fp32", "fp32" if workers > 1 else "none", workers))
        if "fp16" in (precision, allreduce) and full:
            what = "fp16 / fp32 " + ("allreduce" if precision == "fp32" else "compute and allreduce")
            yield _claim(GAIN, f"{_named(row)}, {_workers(workers)}: {what}", row, full)
    yield from _of_batches(rows)


def _of_batches(rows: Mapping[tuple[Any, ...], Any]) -> Iterator[Claim]:
    series: dict[tuple[Any, ...], list[Any]] = {}
    for (framework, model, _, *others), row in rows.items():
        series.setdefault((framework, model, *others), []).append(row)
    for ours in series.values():
        for smaller, larger in pairwise(sorted(ours, key=lambda row: int(row["batch_per_worker"]))):
            half = larger["allreduce"] if larger["precision"] == "fp32" else f"{larger['precision']} compute"
            wire = f", {half}" if half != "none" else ""
            what = f"batch {larger['batch_per_worker']} / {smaller['batch_per_worker']}"
            name = f"{larger['framework']}, {larger['model']}, {_workers(larger['workers'])}{wire}"
            yield _claim(BATCH, f"{name}: {what}", larger, smaller)


def _of_outcomes() -> Iterator[Claim]:
    """From outcomes.csv: those that are ratios, or two times of which one is."""
    study = "optimizing_iformer"
    iformer = {"model": "iformer_small", "workers": 4}
    for name, framework, flaws in (
        ("DP", "torch_dp", ("F13", "F17")),
        ("DDP", "torch_ddp", ("F13", "F14", "F17")),
        ("Pipeline", "torch_pipeline", ("F15", "F16", "F17")),
    ):
        what = f"iformer_small: {name} on 4 GPUs / 1 GPU"
        value = outcome(study, name + " 4", "speedup")
        yield Claim(study, EPOCH, what, value, flaws, iformer | {"framework": framework}, {})
    study, lm = "distributed_dl", {"model": "transformer_lm_unmasked", "framework": "torch_pipeline", "workers": 2}
    value = outcome(study, "1 GPU", "epoch_time") / outcome(study, "2 GPU", "epoch_time")
    yield Claim(study, EPOCH, "transformer_lm: pipeline on 2 GPUs / 1 GPU", value, ("F9", "F10"), lm, {})
    study, vit = "lightning_hydra_timm", {"model": "timm:vit_base_patch32_224", "workers": 4}
    value = outcome(study, "DDP", "training_time") / outcome(study, "FSDP", "training_time")
    yield Claim(
        study, WAY, "vit_base_patch32_224, 4 workers: FSDP in fp16 / DDP in fp32", value, ("F21", "F22", "F24"),
        vit | {"framework": "lightning_fsdp", "precision": "fp16"},
        vit | {"framework": "lightning_ddp", "precision": "fp32"},
    )  # fmt: skip
    study, resnet = "w251_hw9", {"model": "resnet18", "image_size": 224, "batch_per_worker": 500}
    value = outcome(study, "single", "wall_time") / outcome(study, "DDP main", "wall_time")
    yield Claim(
        study, SPEEDUP, "resnet18 at 224 px, batch 500: DDP on 2 hosts / 1 worker", value, ("F25", "F26", "F28"),
        resnet | {"framework": "torch_ddp", "workers": 2, "hosts": 2}, resnet | {"framework": "single", "workers": 1},
    )  # fmt: skip


def _claim(kind: str, what: str, row: Any, other: Any) -> Claim:
    value = float(row["samples_per_second"]) / float(other["samples_per_second"])
    flaws = set()
    for side in (row, other):
        half = kind == GAIN or side["precision"] != "fp32"
        flaws |= flaws_of(side["framework"], side["model"], side["batch_per_worker"], side["workers"], half=half)
    of, over = ({key: side[key] for key in KEYS} for side in (row, other))
    return Claim(row["study"], kind, what, value, tuple(sorted(flaws, key=lambda flaw: int(flaw[1:]))), of, over)


def _named(row: Any) -> str:
    return f"{row['framework']}, {row['model']}, batch {row['batch_per_worker']}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
