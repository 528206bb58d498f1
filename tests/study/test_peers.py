"""Peers that average once they together have a target batch: what is wrong on every machine is said with its line."""

from __future__ import annotations

import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.study import rules, support
from scaling_study.trial import Trial

STUDY = "study: a\nsweeps:\n  - framework: hivemind\n    model: resnet8\n"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("workers: 1", "workers=1: one peer has nobody to average with"),
        (
            "batch_per_worker: 64, target_batch_size: 96",
            "target_batch_size=96 is less than the 128 samples of workers=2",
        ),
        ("target_batch_size: 129", "workers=2 does not divide target_batch_size=129"),
        ("matchmaking_seconds: 60", "matchmaking_seconds=60 leaves no time to average: averaging_timeout_seconds=60"),
        (
            "averaging_timeout_seconds: 2",
            "matchmaking_seconds=3 leaves no time to average: averaging_timeout_seconds=2",
        ),
        ("allreduce: int4", "allreduce"),
        ("updates: delayed, train: {steps: 9}", "updates=delayed can only be timed"),
        ("accumulation: 2", "framework hivemind has no 'accumulation'"),
        ("global_batch: 256, target_batch_size: 256", "give global_batch or target_batch_size, not both"),
    ],
)
def test_what_is_wrong_is_one_error_with_its_line(problems_of, keys, message):
    workers = "" if "workers" in keys.split(":")[0] else "workers: 2, "
    (problem,) = problems_of(f"study: a\nsweeps:\n  - {{framework: hivemind, model: resnet8, {workers}{keys}}}\n")
    assert problem.startswith("study.yaml:3: ") and message in problem


def test_no_other_framework_has_the_keys(problems_of):
    problems = problems_of(f"{STUDY.replace('hivemind', 'torch_ddp')}    workers: 2\n    target_batch_size: 256\n")
    assert len(problems) == 1 and "framework torch_ddp has no 'target_batch_size'" in problems[0]
    assert list(rules.peer_problems("torch_ddp", 1, 32, {"target_batch_size": 1})) == []


def test_the_same_gates_for_all_targets_and_ways_to_update():
    base = Trial(framework="hivemind", model="resnet8", workers=2, launcher="torchrun", device="cpu")
    others = [
        Trial(
            framework="hivemind", model="resnet8", workers=2, launcher="torchrun", device="cpu",
            target_batch_size=4096, matchmaking_seconds=9.0, updates=updates, average_state_every=3,
        )
        for updates in peers_updates()
    ]  # fmt: skip
    fp64, fp32 = support.needed([base, *others])
    assert (fp64.precision, fp64.target_batch_size, fp64.updates) == ("fp64", None, None)
    assert (fp32.precision, fp32.allreduce, fp32.updates) == ("fp32", "fp32", None), "what Hivemind does by itself"


def test_eight_bits_have_a_gate_of_their_own():
    trial = Trial(framework="hivemind", model="resnet8", workers=2, launcher="torchrun", device="cpu", allreduce="int8")
    assert [(gate.precision, gate.allreduce) for gate in support.gates_of(trial)] == [
        ("fp64", "fp32"),
        ("fp32", "int8"),
    ]


def peers_updates() -> tuple[object, ...]:
    return FRAMEWORKS["hivemind"].axes["updates"]
