"""The study of a results folder, read from results/<study>/study.json, which the sweep left there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling_study.records import manifest, store


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
    alone: tuple[str, ...] = ()  # the same, not warm, of which there are records where those failed among others
    sentinel: str | None = None  # the configuration that was repeated through the whole sweep
    stopped: str = ""  # the signal that ended its last run before its time

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
        about = manifest.read(results)
    except store.UnreadableRecord as error:
        raise NotResults(str(error)) from error
    configurations = None if about.configurations is None else tuple(about.configurations)
    return StudyInfo(
        about.study,
        about.scaling,
        about.baseline,
        about.machine,
        about.target_interval,
        configurations,
        tuple(about.alone),
        about.sentinel,
        about.stopped,
    )
