"""The FSDP studies, planned on machines made up for it. Which trials they expand to is held by tests/net."""

from __future__ import annotations

from collections import Counter

import pytest

from scaling_study.estimate import Estimate
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import OURS
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study, support
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial

NEEDED = {library for table in (*FRAMEWORKS.values(), *OURS.values()) for library in table.needs}
TWO_GPUS = Machine(16, "Xeon", 64 << 30, ("Tesla T4", "Tesla T4"), dict.fromkeys(NEEDED, "1"))
TWO_CORES = Machine(2, "Xeon", 8 << 30, (), dict.fromkeys(NEEDED, "1"))


def planned(name: str, machine: Machine, small: bool = False) -> Plan:
    return plan.make(study.load(CHECKOUT / "studies" / f"{name}.yaml", small), machine)


def test_every_number_of_the_cpu_study_is_comparable_and_stands_behind_a_gate() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES)
    there = {gate.trial.id for gate in made.gates}
    assert Counter(p.unsupported for p in made.configurations) == {"": 4 * 72 + 36}
    assert all(set(support.gate_ids(p.trial)) <= there for p in made.configurations)
    assert not [p.trial.framework for p in made.configurations if FRAMEWORKS[p.trial.framework].not_comparable_on_cpu]


def test_the_cpu_study_in_small_takes_under_10_minutes_on_2_cores() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES, small=True)
    estimate, judged = Estimate(), 6 * len(made.gates)  # each gate is judged by a process of its own
    assert sum(estimate(trial, of) for trial, of in made.trials()) + judged < 600


@pytest.mark.parametrize(
    ("precision", "allreduce", "supported"),
    [
        ("fp16", "fp16", True),
        ("fp16", "fp32", True),
        ("bf16", "fp32", True),
        ("fp32", "fp16", False),
        ("bf16", "fp16", False),
    ],
)
def test_fairscales_gradients_travel_as_they_were_computed(precision: str, allreduce: str, supported: bool) -> None:
    trial = Trial("fairscale_fsdp", precision=precision, allreduce=allreduce, workers=2, device="cuda")
    reason = "" if supported else FRAMEWORKS["fairscale_fsdp"].reduces_as_it_computes
    assert support.unsupported(trial, TWO_GPUS) == reason
