"""The FSDP studies: what they expand to, planned on machines made up for it. Nothing runs."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from scaling_study.estimate import Estimate
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import OURS
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study, support
from scaling_study.study.plan import Plan
from scaling_study.study.support import unsupported
from scaling_study.trial import Trial

NEEDED = {library for table in (*FRAMEWORKS.values(), *OURS.values()) for library in table.needs}
TWO_GPUS = Machine(16, "Xeon", 64 << 30, ("Tesla T4", "Tesla T4"), dict.fromkeys(NEEDED, "1"))
TWO_CORES = Machine(2, "Xeon", 8 << 30, (), dict.fromkeys(NEEDED, "1"))

IMAGES = [(model, batch) for model in ("resnet18", "resnet50") for batch in (32, 64, 128, 256, 512, 1024)]
TEXTS = [("albert_base_v2", batch) for batch in (2, 4, 8, 16, 32, 64)]
# precision, allreduce, workers of the published tables: with one worker nothing is reduced
PUBLISHED = [("fp32", "none", 1), ("fp32", "fp32", 2), ("fp16", "none", 1), ("fp16", "fp16", 2)]
ON_CPU = [("fp32", "none", 1), ("fp32", "fp32", 2), ("bf16", "none", 1), ("bf16", "fp32", 2)]


def planned(name: str, machine: Machine, small: bool = False) -> Plan:
    return plan.make(study.load(CHECKOUT / "studies" / f"{name}.yaml", small), machine)


def rows(made: Plan, framework: str) -> list[tuple[str, int, str, str, int]]:
    trials = [p.trial for p in made.configurations if p.trial.framework == framework]
    return sorted((t.model, t.batch_per_worker, t.precision, t.allreduce, t.workers) for t in trials)


def crossed(settings: list[tuple[str, str, int]]) -> list[tuple[str, int, str, str, int]]:
    return sorted((*sample, *setting) for sample, setting in itertools.product(IMAGES + TEXTS, settings))


@pytest.mark.parametrize("small", [False, True])
def test_the_published_study_has_exactly_the_72_published_configurations(small: bool) -> None:
    made = planned("distributed_dl_fsdp", TWO_GPUS, small)
    assert rows(made, "lightning_fsdp") == crossed(PUBLISHED)
    assert len(made.configurations) == 72
    assert not [p.unsupported for p in made.configurations if p.unsupported]
    assert {p.trial.device for p in made.configurations} == {"cuda"}
    assert {p.trial.seed for p in made.configurations} == {42}
    texts = [p.trial for p in made.configurations if p.trial.model == "albert_base_v2"]
    assert {(t.sequence_length, t.padding) for t in texts} == {(128, "fixed")}
    assert {p.measure.repeats for p in made.configurations} == {1 if small else 3}


def test_on_a_laptop_the_published_study_is_planned_and_says_why_it_cannot_run() -> None:
    made = planned("distributed_dl_fsdp", TWO_CORES)
    assert Counter(p.unsupported for p in made.configurations) == {FRAMEWORKS["lightning_fsdp"].needs_gpu: 72}
    assert made.gates == ()


def test_the_cpu_study_asks_the_same_of_what_runs_with_no_gpu() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES)
    for framework in ("torch_fsdp2", "deepspeed_zero", "fairscale_oss", "lightning_ddp"):
        assert rows(made, framework) == crossed(ON_CPU)
    assert rows(made, "single") == crossed([("fp32", "none", 1), ("bf16", "none", 1)])
    assert len(made.configurations) == 4 * 72 + 36
    assert not [p.unsupported for p in made.configurations if p.unsupported]
    assert {p.trial.device for p in made.configurations} == {"cpu"}
    assert not [p.trial.framework for p in made.configurations if FRAMEWORKS[p.trial.framework].not_comparable_on_cpu]


def test_the_cpu_study_in_small_takes_under_10_minutes_on_2_cores() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES, small=True)
    assert len(made.configurations) == 15 and len(made.gates) == 17
    assert {p.trial.model for p in made.configurations} == {"resnet8", "albert_tiny"}
    estimate = Estimate()
    judged = 6 * len(made.gates)  # each gate is judged by a process of its own
    assert sum(estimate(trial, of) for trial, of in made.trials()) + judged < 600


def test_every_number_of_the_cpu_study_stands_behind_a_gate() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES)
    there = {gate.trial.id for gate in made.gates}
    assert all(set(support.gate_ids(p.trial)) <= there for p in made.configurations)


@pytest.mark.parametrize(
    ("precision", "allreduce", "reason"),
    [
        ("fp16", "fp16", ""),
        ("fp16", "fp32", ""),
        ("bf16", "fp32", ""),
        ("fp32", "fp16", FRAMEWORKS["fairscale_fsdp"].reduces_as_it_computes),
        ("bf16", "fp16", FRAMEWORKS["fairscale_fsdp"].reduces_as_it_computes),
    ],
)
def test_fairscales_gradients_travel_as_they_were_computed(precision: str, allreduce: str, reason: str) -> None:
    trial = Trial("fairscale_fsdp", precision=precision, allreduce=allreduce, workers=2, device="cuda")
    assert unsupported(trial, TWO_GPUS) == reason
