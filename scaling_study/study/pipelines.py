"""The shape of a pipeline: stages x replicas of workers, micro-batches, schedule. Pure.

    workers = stages x replicas          the model is cut into stages x virtual_stages parts

                 stage 0     stage 1
    replica 0    worker 0 -> worker 1    each replica reads data of its own, batch_per_worker samples a step,
    replica 1    worker 2 -> worker 3    in micro_batches parts; gradients are averaged down each column

What a study or a command line leaves open is filled in here, and contradictions are reported with both values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scaling_study.frameworks import FRAMEWORKS, SCHEDULES

SHAPE = ("stages", "replicas", "schedule", "virtual_stages", "micro_batches", "stage_cut")
DEFAULT_SCHEDULE = "1f1b"
CUTS = ("even", "time")


def resolved(framework: str, workers: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of the shape that the framework has, in full; `given` are those asked for. Nothing is checked here."""
    axes = FRAMEWORKS[framework].axes
    asked = {key: given[key] for key in SHAPE if given.get(key) is not None}
    stages = asked.get("stages") or max(1, workers // asked.get("replicas", 1))
    schedule = asked.get("schedule", DEFAULT_SCHEDULE)
    holds = {"one": 1, "two": 2, "several": 2}[SCHEDULES[schedule]]
    full = {
        "stages": stages, "replicas": max(1, workers // stages), "schedule": schedule, "virtual_stages": holds,
        "micro_batches": 2 * stages, "stage_cut": "even", **asked,
    }  # fmt: skip
    return {key: full[key] for key in SHAPE if key in axes}


def problems(framework: str, workers: int, batch: int, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it on every machine) of a shape that is asked for."""
    shape = resolved(framework, workers, given)
    stages, replicas = shape["stages"], shape.get("replicas", 1)
    if stages * replicas != workers:
        if "replicas" in given and "stages" in given:
            yield "workers", f"workers={workers} is not stages={stages} x replicas={given['replicas']}"
        elif "replicas" in given:
            yield "replicas", f"replicas={given['replicas']} does not divide workers={workers}"
        elif "replicas" in FRAMEWORKS[framework].axes:
            yield "stages", f"workers={workers} does not divide into pipelines of stages={stages}"
        else:
            yield "stages", f"{framework} has one stage a worker: stages={stages} is not workers={workers}"
    if "schedule" in shape:
        yield from _unheld(shape["schedule"], shape["virtual_stages"])
    parts = shape.get("micro_batches", 1)
    if "schedule" in shape and (problem := _too_few(shape["schedule"], stages, shape["virtual_stages"], parts)):
        yield "micro_batches", problem
    if batch and batch % parts:
        default = "" if "micro_batches" in given else " (2 x stages, the default)"
        yield "micro_batches", f"micro_batches={parts}{default} does not divide batch_per_worker={batch}"
    if (problem := _uncut(str(shape["stage_cut"]), stages * shape.get("virtual_stages", 1))) != "":
        yield "stage_cut", problem


def by_hand(stage_cut: str) -> list[int] | None:
    """`9,5` -> [9, 5], layers a stage in order; None for what is no such list."""
    parts = stage_cut.split(",")
    return [int(part) for part in parts] if all(re.fullmatch(r" *[0-9]{1,9} *", part) for part in parts) else None


def _unheld(schedule: str, virtual: int) -> Iterator[tuple[str, str]]:
    holds = SCHEDULES[schedule]
    if holds == "one" and virtual != 1:
        yield "virtual_stages", f"schedule={schedule} has one stage a worker, not virtual_stages={virtual}"
    elif holds == "two" and virtual != 2:
        yield "virtual_stages", f"schedule={schedule} has two stages a worker, not virtual_stages={virtual}"
    elif holds == "several" and virtual < 2:
        yield "virtual_stages", f"schedule={schedule} needs virtual_stages of 2 or more, not {virtual}; 1f1b has one"


def _too_few(schedule: str, stages: int, virtual: int, parts: int) -> str:
    """What torch's schedule refuses about the number of micro-batches; empty if nothing."""
    if schedule == "1f1b" and parts < stages:
        return f"schedule=1f1b needs a micro-batch for each of the {stages} stages, not micro_batches={parts}"
    if schedule == "dualpipev" and parts < stages * virtual:
        return f"schedule=dualpipev needs a micro-batch for each of the {stages * virtual} stages, not {parts}"
    rounds = max(1, parts // stages)
    if SCHEDULES[schedule] == "several" and schedule != "looped_bfs" and parts % rounds:
        return f"schedule={schedule} goes in rounds of {stages} workers: {rounds} of them do not divide {parts}"
    return ""


def _uncut(stage_cut: str, parts: int) -> str:
    """What is wrong with the cut; empty if nothing is."""
    if stage_cut in CUTS:
        return ""
    layers = by_hand(stage_cut)
    if layers is None:
        return f"stage_cut={stage_cut!r} is neither even nor time, nor layers a stage like 9,5"
    if len(layers) != parts:
        return f"stage_cut={stage_cut} names {len(layers)} stages, the pipeline has {parts}"
    return "" if min(layers) > 0 else f"stage_cut={stage_cut}: every stage needs a layer"
