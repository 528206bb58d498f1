"""Published ratios beside the same ratios of a study, with the flaws of each published one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise, product
from typing import Any

import pandas as pd

from analysis.frames.configurations import KEYS, SPREADING_KEYS, has, known, over, same
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows, grouped
from analysis.frames.study import workers_text
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import with_interval
from analysis.views import epochs
from analysis.views.view import Gap, StudyTable, View

FLAWS = {
    "F1": "no warm-up, and no wait for the device",
    "F2": "one run each",
    "F3": "gradients of GPUs very probably went through the host",
    "F4": "a cliff with no cause given",
    "F5": "the table of ResNet-50 is very probably ResNet-18's",
    "F6": "one loader process, which large batches waited for",
    "F7": "fp16 is compute here, and the wire elsewhere",
    "F8": "launch, wrapping and a checkpoint were timed",
    "F9": "unequal work: 2,929 batches against 50",
    "F10": "the pipelined model had no causal mask",
    "F11": "two frozen networks were compared",
    "F12": "losses of the last batch only",
    "F13": "391 against 98 optimiser steps an epoch at one learning rate",
    "F14": "GPUs over gloo instead of NCCL",
    "F15": "533,120 weights were never trained",
    "F16": "the cut of the model caps the speed-up",
    "F17": "unequal CPU cores, and a share of data loading that grows",
    "F18": "the test set selected the model",
    "F19": "the global batch changes with the number of GPUs, the learning rate does not",
    "F20": "a checkpoint of another architecture is gone on from unnoticed",
    "F21": "fp32 against fp16: precision, not sharding",
    "F22": "training and test sets were mixed",
    "F23": "unequal optimiser steps at one learning rate",
    "F24": "sharded as one unit",
    "F25": "every epoch in the same order",
    "F26": "the global batch doubled at an unscaled learning rate",
    "F27": "each rank validated its own half",
    "F28": "the single run waited for its loader",
}
LARGEST = 1024  # batch of the Horovod tables with cliffs
LOADER_BOUND = 128  # batch of the FSDP tables from which one loader process was the limit


@cache
def throughput() -> pd.DataFrame:
    """throughput.csv: study, framework, model, batch_per_worker, precision, allreduce, workers, samples_per_second."""
    return read_file("throughput.csv")


@cache
def outcomes() -> pd.DataFrame:
    """outcomes.csv: study, experiment, configuration, metric, value (text), unit."""
    return read_file("outcomes.csv", text=True)


def outcome(study: str, configuration: str, metric: str) -> float:
    """One number of outcomes.csv, whose configuration begins so. Raises LookupError unless there is exactly one."""
    rows = outcomes()
    matching = rows[(rows.study == study) & rows.configuration.str.startswith(configuration) & (rows.metric == metric)]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} published rows are {study}, {configuration}, {metric}")
    return float(matching.value.iloc[0])


def flaws_of(framework: str, model: str, batch: int, workers: int, *, half: bool) -> set[str]:
    """The flaws of one row of throughput.csv. `half`: True where 16 bits are in what is compared."""
    images = model.startswith("resnet")
    if framework == "horovod":
        several = {"F3"} if workers > 1 else set()
        return {"F1", "F2", *several, *({"F4"} if images and batch >= LARGEST else ())}
    flaws = {"F2", "F8", *({"F7"} if half else ())}
    if images and batch >= LOADER_BOUND:
        flaws.add("F6")
    return flaws | ({"F5"} if model == "resnet50" else set())


def read_file(name: str, text: bool = False) -> pd.DataFrame:
    """A file of this folder; `text`: whose cells stay as they are written."""
    with resources.files("analysis.published").joinpath(name).open(encoding="utf-8") as stream:
        return pd.read_csv(stream, dtype=str if text else None, keep_default_na=False)


# Published figures as ratios: each names the two configurations of one study that it divides.
#
#     speed-up        2 workers / 1 worker, all else equal
#     16-bit gain     16 bits / 32: of the allreduce (Horovod), or of compute and allreduce together (FSDP)
#     larger batch    a batch size / the next smaller one
#     epoch           seconds of the one's epoch / those of the other, as an epoch was published
#     another way     one framework / another

SPEEDUP, GAIN, BATCH, EPOCH, WAY = "speed-up", "16-bit gain", "larger batch", "epoch", "another way"
MEASURED_KEYS = ("framework", "model", "batch_per_worker", "precision", "allreduce", "workers")
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
    rows = {tuple(row[key] for key in MEASURED_KEYS): row for row in as_rows(throughput())}
    for place, row in rows.items():
        framework, model, batch, precision, allreduce, workers = place
        alone = rows.get((framework, model, batch, precision, "none", 1))
        if workers > 1 and alone:
            wire = f", {allreduce}" if precision == "fp32" else f", {precision} compute and gradients"
            yield _claim(SPEEDUP, f"{_named(row)}: {workers} workers{wire} / 1 worker", row, alone)
        full = rows.get((framework, model, batch, "fp32", "fp32" if workers > 1 else "none", workers))
        if "fp16" in (precision, allreduce) and full:
            what = "fp16 / fp32 " + ("gradients" if precision == "fp32" else "compute and gradients")
            yield _claim(GAIN, f"{_named(row)}, {workers_text(workers)}: {what}", row, full)
    yield from _of_batches(rows.values())


def _of_batches(rows: Iterable[Mapping[Any, Any]]) -> Iterator[Claim]:
    alike = [key for key in MEASURED_KEYS if key != "batch_per_worker"]
    for ours in grouped(rows, lambda row: tuple(row[key] for key in alike)).values():
        for smaller, larger in pairwise(sorted(ours, key=lambda row: int(row["batch_per_worker"]))):
            half = larger["allreduce"] if larger["precision"] == "fp32" else f"{larger['precision']} compute"
            wire = f", {half}" if half != "none" else ""
            what = f"batch {larger['batch_per_worker']} / {smaller['batch_per_worker']}"
            name = f"{larger['framework']}, {larger['model']}, {workers_text(larger['workers'])}{wire}"
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
        study,
        WAY,
        "vit_base_patch32_224, 4 workers: FSDP in fp16 / DDP in fp32",
        value,
        ("F21", "F22", "F24"),
        vit | {"framework": "lightning_fsdp", "precision": "fp16"},
        vit | {"framework": "lightning_ddp", "precision": "fp32"},
    )
    study, resnet = "w251_hw9", {"model": "resnet18", "image_size": 224, "batch_per_worker": 500}
    value = outcome(study, "single", "wall_time") / outcome(study, "DDP main", "wall_time")
    yield Claim(
        study,
        SPEEDUP,
        "resnet18 at 224 px, batch 500: DDP on 2 hosts / 1 worker",
        value,
        ("F25", "F26", "F28"),
        resnet | {"framework": "torch_ddp", "workers": 2, "hosts": 2},
        resnet | {"framework": "single", "workers": 1},
    )


def _claim(kind: str, what: str, row: Any, other: Any) -> Claim:
    value = float(row["samples_per_second"]) / float(other["samples_per_second"])
    flaws = set()
    for side in (row, other):
        half = kind == GAIN or side["precision"] != "fp32"
        flaws |= flaws_of(side["framework"], side["model"], side["batch_per_worker"], side["workers"], half=half)
    of, over = ({key: side[key] for key in MEASURED_KEYS} for side in (row, other))
    return Claim(row["study"], kind, what, value, tuple(sorted(flaws, key=lambda flaw: int(flaw[1:]))), of, over)


def _named(row: Any) -> str:
    return f"{row['framework']}, {row['model']}, batch {row['batch_per_worker']}"


AGREES, DIFFERS, NO_INTERVAL = "agrees", "differs", "no interval"
COLUMNS = (
    "study",
    "kind",
    "what",
    "series",
    "published",
    "flaws",
    "measured",
    "measured_low",
    "measured_high",
    "equal_work",
    "verdict",
    "configuration",
    "reference",
)


def claims_table(results: Results) -> pd.DataFrame:
    """A row of COLUMNS for each published ratio that this study has too, and for each way in which it has it.

    `verdict`: whether the 95 % interval of the measured ratio contains the published one. `equal_work`: of an epoch,
    the ratio at equal work. `flaws`: known ones of the published ratio, as a tuple.
    """
    shown = results.configurations
    usable = shown[(shown.n > 0) & ~shown.oversubscribed.fillna(False) & (shown.not_comparable.fillna("") == "")]
    rows, timed = as_rows(usable), as_rows(epochs.epochs_table(results))
    rows_made: list[dict[str, Any]] = []
    for claim in published():
        rows_made += _epochs(claim, _of(claim.of, timed)) if claim.kind == EPOCH else _rates(claim, rows)
    return pd.DataFrame(rows_made, columns=list(COLUMNS), dtype=object)


def _of(keys: Keys, rows: Sequence[ConfigurationRow]) -> list[ConfigurationRow]:
    """The rows that have these keys."""
    alike = [row for row in rows if (row["framework"], row["model"]) == (keys["framework"], keys["model"])]
    return [row for row in alike if all(same(row.get(key), value) for key, value in keys.items())]


def _rates(claim: Claim, rows: Sequence[ConfigurationRow]) -> Iterator[dict[str, Any]]:
    """A row for each pair of configurations that the claim divides and that are otherwise alike."""
    divided = {key for key in {*claim.of, *claim.over} if claim.of.get(key) != claim.over.get(key)}
    spread = {*SPREADING_KEYS} if "framework" in divided else set()
    alike = [key for key in KEYS if key not in {*divided, *spread, "global_batch"}]
    for row, other in product(_of(claim.of, rows), _of(claim.over, rows)):
        shared = (key for key in alike if all(has(str(side["framework"]), key) for side in (row, other)))
        if all(same(row[key], other[key]) for key in shared):
            gain = over(row, other)
            yield _row(claim, row, str(other["configuration"]), gain.mean, gain.low, gain.high)


def _epochs(claim: Claim, rows: Sequence[ConfigurationRow]) -> Iterator[dict[str, Any]]:
    """A row for each configuration that ran epochs as the claim's did, against its baseline."""
    for row in rows:
        if known(row["epoch_ratio"]) and row["epoch_baseline"] != row["configuration"]:
            low, high = (bound if known(bound) else None for bound in (row["epoch_ratio_low"], row["epoch_ratio_high"]))
            columns = _row(claim, row, str(row["epoch_baseline"]), float(row["epoch_ratio"]), low, high)
            yield columns | {"equal_work": row["equal_work_ratio"]}


def _row(claim: Claim, row: ConfigurationRow, reference: str, ratio: float, low: Any, high: Any) -> dict[str, Any]:
    verdict = NO_INTERVAL if low is None else AGREES if low <= claim.value <= high else DIFFERS
    return {
        "study": claim.study,
        "kind": claim.kind,
        "what": claim.what,
        "series": str(row["series"]),
        "published": claim.value,
        "flaws": claim.flaws,
        "measured": ratio,
        "measured_low": low,
        "measured_high": high,
        "equal_work": None,
        "verdict": verdict,
        "configuration": str(row["configuration"]),
        "reference": reference,
    }


HEADER = ("published ratio", "study", "published", "flaws", "measured here [95 %]", "here / published", "verdict")
VERDICTS = {
    AGREES: "agrees: the interval contains the published ratio",
    DIFFERS: "differs",
    NO_INTERVAL: "no interval: fewer than 3 repeats",
}


def listing(results: Results) -> Listing | None:
    """One table; None where the study measured no published configuration."""
    claims = claims_table(results)
    if claims.empty:
        return None
    title = f"Published beside measured ({results.heading})"
    shown = len(HEADER) - (not results.study.machine.get("gpus"))  # of another class of device no ratio need agree
    several = claims.duplicated("what", keep=False)
    rows = tuple(_published_row(row, named)[:shown] for row, named in zip(as_rows(claims), several, strict=True))
    seen = sorted({flaw for flaws in claims.flaws for flaw in flaws}, key=lambda flaw: int(flaw[1:]))
    lines = [
        f"The published machines are not this one ({results.study.machine_text}): ratios are compared, not speeds. "
        "Published ratios are of single runs, without an interval.",
        f"Known flaws of the published measurements: {'; '.join(f'{flaw} {FLAWS[flaw]}' for flaw in seen)}.",
    ]
    return Listing(title, HEADER[:shown], rows, (*lines, f"{notes.source(results)}."))


def _published_row(row: Mapping[Any, Any], several: bool) -> tuple[str, ...]:
    what = f"{row['what']} ({row['series']})" if several else str(row["what"])
    measured = with_interval(row["measured"], row["measured_low"], row["measured_high"], "{:.2f}".format)
    equal = f"; at equal work {row['equal_work']:.2f}" if known(row["equal_work"]) else ""
    return (
        what,
        str(row["study"]),
        f"{row['published']:.2f}",
        ", ".join(row["flaws"]),
        f"{measured}{equal}",
        f"{row['measured'] / row['published']:.2f}",
        VERDICTS[row["verdict"]].split(":")[0],
    )


def _nothing(results: Results) -> str:
    models = sorted({str(claim.of["model"]) for claim in published()})
    frameworks = sorted({str(claim.of["framework"]) for claim in published()})
    ours = ", ".join(results.models) or "nothing"
    return (
        f"this study measured {ours}. Published are ratios of {', '.join(models)}, by {', '.join(frameworks)}; a ratio "
        "needs both of its configurations, measured and comparable"
    )


VIEW = View(
    "Do published ratios hold here?",
    (
        StudyTable(
            "published", listing, claims_table, section="published", gap=Gap("No published ratio is here too", _nothing)
        ),
    ),
)
