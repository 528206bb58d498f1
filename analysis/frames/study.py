"""What the results folder says of its study: results/<study>/study.json, left there by the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling_study.quoting import printable, quoted
from scaling_study.records import store

SCHEMA = 1


class NotResults(Exception):
    """The folder holds no results of a study. The message is one clear sentence and names the folder."""


@dataclass(frozen=True)
class StudyInfo:
    """The part of a study that the analysis must know and no record holds."""

    name: str
    scaling: str  # weak: batch_per_worker is held fixed; strong: global_batch is
    baseline: Mapping[str, Any] | None  # a partial match; None: no speed-ups are claimed
    machine: Mapping[str, Any] = field(default_factory=dict)  # cores, cpu, gpus, memory_bytes, fingerprint
    target_interval: float = 0.02  # half-width of the 95 % interval over the mean
    configurations: tuple[str, ...] | None = None  # of the study as it is now; None: all there are
    sentinel: str | None = None  # the configuration that was repeated through the whole sweep

    @property
    def batch_key(self) -> str:
        """The batch size that is held fixed when workers are added: the rows of tables, the x axis of figures."""
        return "global_batch" if self.scaling == "strong" else "batch_per_worker"

    @property
    def baseline_text(self) -> str:
        """`single`, or `horovod, workers=1`: the baseline as a figure's axis names it."""
        keys = dict(self.baseline or {})
        framework = [str(keys.pop("framework"))] if "framework" in keys else []
        workers = [workers_text(int(keys.pop("workers")))] if "workers" in keys else []
        return ", ".join(framework + workers + [f"{key}={value}" for key, value in keys.items()])

    @property
    def machine_text(self) -> str:
        """`2 x Tesla T4, 8 cores of Intel Xeon`, or what is known of it."""
        gpus = [str(name) for name in self.machine.get("gpus") or []]
        parts = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
        cpu = " ".join(str(self.machine.get("cpu") or "").replace("(R)", "").replace("(TM)", "").split())
        if cores := self.machine.get("cores"):
            parts.append(f"{cores} cores" + (f" of {cpu}" if cpu else ""))
        if not gpus:
            parts.append("no GPU")
        return ", ".join(parts) if self.machine else "unknown machine"


def workers_text(workers: int) -> str:
    """`1 worker`, `2 workers`."""
    return "1 worker" if workers == 1 else f"{workers} workers"


def read(results: Path) -> StudyInfo:
    """Raises NotResults if `results` is not a folder with a whole study.json."""
    path = results / "study.json"
    if not results.is_dir():
        raise NotResults(f"{results} is not a folder" if results.exists() else f"{results} does not exist")
    if not path.exists():
        raise NotResults(f"{results} is not a results folder: it has no study.json")
    try:
        value = _printable(store.load(path))
    except store.UnreadableRecord as error:
        raise NotResults(str(error)) from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or not isinstance(value.get("study"), str):
        raise NotResults(f"{path} is not a study.json of schema {SCHEMA}")
    scaling, baseline = value.get("scaling", "weak"), value.get("baseline")
    if scaling not in ("weak", "strong") or not isinstance(baseline, dict | None):
        raise NotResults(f"{path} is not whole: scaling={quoted(scaling)}, baseline={quoted(baseline)}")
    machine, target = value.get("machine") or {}, value.get("target_interval") or 0.02
    workers, configurations = (baseline or {}).get("workers", 1), value.get("configurations")
    if not isinstance(machine, dict) or not isinstance(machine.get("gpus") or [], list):
        raise NotResults(f"{path} is not whole: machine={quoted(machine)}")
    for name, one, kind in (("workers", workers, int), ("target_interval", target, int | float)):
        if not isinstance(one, kind):
            raise NotResults(f"{path} is not whole: {name}={quoted(one)}")
    if not isinstance(sentinel := value.get("sentinel"), str | None):
        raise NotResults(f"{path} is not whole: sentinel={quoted(sentinel)}")
    if not isinstance(configurations, list | None):
        raise NotResults(f"{path} is not whole: configurations={quoted(configurations)}")
    return StudyInfo(
        name=value["study"],
        scaling=scaling,
        baseline=baseline,
        machine=machine,
        target_interval=float(target),
        configurations=None if configurations is None else tuple(map(str, configurations)),
        sentinel=sentinel,
    )


def _printable(value: Any) -> Any:
    """The same JSON without escape sequences in its words: a results folder may come from anybody."""
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {printable(key): _printable(one) for key, one in value.items()}
    return printable(value) if isinstance(value, str) else value
