"""Results folders whose steps are known part by part: what each phase takes on each rank, what the device can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import Planted, plant, record

from scaling_study.records.schema import Phases
from scaling_study.records.store import write_record


@dataclass(frozen=True)
class Phased:
    """`phases`: seconds of a step; those not named are not exposed. `lags`: seconds that each rank's forward takes
    longer, for which the others wait in `waits_in`. `disturbance`: instrumented over timed steps."""

    one: Planted
    phases: Mapping[str, float]
    lags: tuple[float, ...] = ()
    waits_in: str = "communication"
    disturbance: float = 1.0
    noise: float = 0.0  # of each phase, between repeats
    report: Mapping[str, Any] = field(default_factory=dict)  # other fields of every rank
    price: Any = None  # of a worker-hour, as a machine file gave it

    @property
    def step_seconds(self) -> float:
        return sum(self.phases.values()) + (max(self.lags) if self.lags else 0.0)


def plant_phased(
    folder: Path, phased: Iterable[Phased], *, study: str = "planted", seed: int = 0, **about: Any
) -> Path:
    """Write folder/study.json and every record; throughput is global batch / the step that the phases make."""
    plant(folder, [], study=study, **{"baseline": {"framework": "single"}, **about})
    rng = np.random.default_rng(seed)
    for each in phased:
        for repeat in range(1, each.one.repeats + 1):
            trial = each.one.trial(repeat)
            factors = {name: 1 + each.noise * rng.standard_normal() for name in each.phases}
            varied = replace(each, phases={name: value * factors[name] for name, value in each.phases.items()})
            made = record(each.one, trial, trial.global_batch / varied.step_seconds, study, rng)
            ranks = [
                replace(
                    report, step_seconds=[varied.step_seconds] * each.one.steps, phases=phases_of(varied, rank),
                    **each.report,
                )
                for rank, report in enumerate(made.ranks)
            ]  # fmt: skip
            paid = {} if each.price is None else {"price_per_worker_hour": each.price}
            write_record(folder / "trials" / trial.id, replace(made, ranks=ranks, machine_file=paid))
    return folder


def phases_of(each: Phased, rank: int) -> Phases:
    """Of one rank: its own lag in forward, and waiting for the slowest."""
    parts = {name: value for name, value in each.phases.items() if name != "unattributed"}
    if each.lags:
        lag = each.lags[rank]
        parts["forward"] = parts.get("forward", 0.0) + lag
        parts[each.waits_in] = parts.get(each.waits_in, 0.0) + max(each.lags) - lag
    seconds = {f"{name}_seconds": value * each.disturbance for name, value in parts.items()}
    rest = each.phases.get("unattributed", 0.0) * each.disturbance
    return Phases(4, each.step_seconds * each.disturbance, unattributed_seconds=rest, **seconds)


STEP = {"data": 0.002, "forward": 0.030, "backward": 0.060, "optimizer": 0.005, "unattributed": 0.003}  # 100 ms


def grown(**more: float) -> dict[str, float]:
    """STEP with some parts longer, by so many seconds."""
    return {**STEP, **{name: STEP.get(name, 0.0) + value for name, value in more.items()}}
