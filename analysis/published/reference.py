"""The published figures as frames, and the flaws of the measurement behind each."""

from __future__ import annotations

from functools import cache
from importlib import resources

import pandas as pd

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
    return table("throughput.csv")


@cache
def outcomes() -> pd.DataFrame:
    """outcomes.csv: study, experiment, configuration, metric, value (text), unit."""
    return table("outcomes.csv", text=True)


def outcome(study: str, configuration: str, metric: str) -> float:
    """One number of outcomes.csv, whose configuration begins so. Raises LookupError unless there is exactly one."""
    rows = outcomes()
    matching = rows[(rows.study == study) & rows.configuration.str.startswith(configuration) & (rows.metric == metric)]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} published rows are {study}, {configuration}, {metric}")
    return float(matching.value.iloc[0])


def flaws_of(framework: str, model: str, batch: int, workers: int, *, half: bool) -> set[str]:
    """Of one row of throughput.csv. `half`: whether 16 bits are in what is compared."""
    images = model.startswith("resnet")
    if framework == "horovod":
        several = {"F3"} if workers > 1 else set()
        return {"F1", "F2", *several, *({"F4"} if images and batch >= LARGEST else ())}
    flaws = {"F2", "F8", *({"F7"} if half else ())}
    if images and batch >= LOADER_BOUND:
        flaws.add("F6")
    return flaws | ({"F5"} if model == "resnet50" else set())


def table(name: str, text: bool = False) -> pd.DataFrame:
    """A file of this folder; `text`: whose cells stay as they are written."""
    with resources.files("analysis.published").joinpath(name).open(encoding="utf-8") as stream:
        return pd.read_csv(stream, dtype=str if text else None, keep_default_na=False)
