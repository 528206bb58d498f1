"""Sweeps of scripts that behave and scripts that do not (scripts_that/), which take the place of frameworks'."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, cast

from scaling_study import sweep
from scaling_study.frameworks import FRAMEWORKS, Framework
from scaling_study.launch.shared_launch import Watch
from scaling_study.machine import Machine
from scaling_study.processes import process
from scaling_study.records.results import Summary
from scaling_study.study.documents import Document
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.study import Measure, Study
from scaling_study.trial import Trial

HERE = Path(__file__).parent
MACHINE = Machine(cores=2, cpu="test", memory_bytes=2**34)
TABLE = cast("MutableMapping[str, Framework]", FRAMEWORKS)


class Seen(Watch):
    """A display that remembers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.kept: list[str] = []
        self.ended: list[Summary] = []
        self.built: list[Trial] = []
        self.expected: list[Planned] = []

    def starts(self, planned: Planned) -> None:
        self.started.append(planned.trial.id)

    def building(self, trial: Trial) -> None:
        self.built.append(trial)

    def expects(self, more: Sequence[Planned]) -> None:
        self.expected += more

    def finished(self, planned: Planned, record: Summary, again: bool) -> None:
        (self.kept.append(planned.trial.id) if again else self.ended.append(record))


def framework(script: str) -> Framework:
    """A planted script as an entry of the table, under the script's name."""
    path = str(HERE / "scripts_that" / f"{script}.py")
    return Framework(script, path, ("python",), (), FRAMEWORKS["single"].axes)


def plan(*scripts: str, batches: tuple[int, ...] = (32,), unsupported: str = "", **measure: float) -> Plan:
    """A plan of planted scripts that are in the table; without `measure`, one repeat of each."""
    settings = Measure.model_validate({"repeats": 1, "max_repeats": 1, "timeout_seconds": 300.0, **measure})
    trials = [
        Trial(framework=script, device="cpu", allreduce="none", batch_per_worker=batch)
        for script in scripts
        for batch in batches
    ]
    document = Document(Path("study.yaml"), "study: planted\n", {}, {})
    study = Study("planted", "weak", None, 0, settings, (), document)
    return Plan(study, MACHINE, tuple(Planned(trial, settings, unsupported) for trial in trials), ())


def run(
    plan: Plan, folder: Path, after: Callable[[process.Interruption], None] | None = None, **options: Any
) -> tuple[Seen, sweep.Run]:
    """One run of the driver over it."""
    seen = Seen()
    job = sweep.Run(plan, folder, **options)
    job.open()
    with process.Interruption() as interruption:
        if after:
            after(interruption)
        job.run(seen, interruption)
    return seen, job
