"""A partition's nodes -> the Machine that a job's trials are planned for, and what one trial's job asks for. Pure.

A login node seldom has the hardware of a cluster: jobs of single trials are planned for the nodes that sinfo shows,
with the libraries found here, which the nodes share. What a job is really given is looked at again inside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scaling_study.errors import StudyError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.slurm import options as slurm_options
from scaling_study.slurm.options import Options
from scaling_study.trial import Trial

GPUS = re.compile(r"gpu:(?:([A-Za-z0-9_.-]+):)?(\d+)")  # of a node's generic resources: gpu:a100:4(S:0-1)


@dataclass(frozen=True, order=True)
class Node:
    """One node, as far as a plan depends on it."""

    cores: int
    gpus: tuple[str, ...]
    megabytes: int
    name: str

    def __str__(self) -> str:
        gpus = f" and {len(self.gpus)} x {self.gpus[0]}" if self.gpus else ""
        return f"{self.cores} core{'' if self.cores == 1 else 's'}{gpus}"


def read(text: str, partition: str = "") -> list[Node]:
    """The nodes of a partition, by default of the default one, from controller.nodes."""
    found = []
    for line in text.splitlines():
        its, name, cores, megabytes, resources = (line.split("|") + [""] * 5)[:5]
        if (its.rstrip("*") in partition.split(",") if partition else its.endswith("*")) and cores.isdigit():
            gpus = [kind or "GPU" for kind, count in GPUS.findall(resources) for _ in range(int(count))]
            found.append(Node(int(cores), tuple(gpus), int(megabytes) if megabytes.isdigit() else 0, name))
    return found


def machine(found: Sequence[Node], options: Options, here: Machine) -> Machine:
    """The machine that every one of these nodes is. Raises StudyError where there are none, or they differ."""
    where = f"partition {options['partition']}" if "partition" in options else "the default partition"
    kinds = sorted({(node.cores, node.gpus): node for node in found}.values())
    if not kinds:
        raise StudyError([f"--slurm: {where} has no nodes that sinfo shows"])
    if len(kinds) > 1:
        said = "; ".join(map(str, kinds))
        raise StudyError([f"--slurm: nodes of {where} differ ({said}), and no study mixes them: choose with nodelist="])
    asked = slurm_options.gpus(options)
    gpus = kinds[0].gpus[:asked] if asked else ()  # a job sees no GPU that it did not ask for
    gpus += ("GPU",) * (asked - len(gpus))
    memory = min(node.megabytes for node in found) << 20
    return Machine(kinds[0].cores, f"a node of {where}", memory, gpus, here.libraries)


def resources(trial: Trial, options: Options) -> dict[str, str]:
    """The options of a job for this trial alone: no more nodes, tasks, cores and GPUs than it can use."""
    each, nodes = trial.cores_per_worker or 1, trial.hosts or 1
    workers = trial.workers // nodes  # on each node
    alone = FRAMEWORKS[trial.framework].one_process
    asked = {
        "nodes": str(nodes),
        "ntasks_per_node": str(1 if alone else workers),
        "cpus_per_task": str(each * workers if alone else each),
    }
    if trial.device == "cuda" and "gpus_per_node" in options:
        kind, colon, _ = options["gpus_per_node"].rpartition(":")
        asked["gpus_per_node"] = f"{kind}{colon}{workers}"
    fixed = {key: value for key, value in options.items() if key in ("ntasks_per_node", "cpus_per_task")}
    return {**options, **asked, **fixed}
