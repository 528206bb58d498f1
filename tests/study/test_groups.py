"""Which configurations share a launch, and which never do."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from scaling_study import models
from scaling_study.study import groups
from scaling_study.study.study import Measure
from scaling_study.trial import Trial

DDP = Trial(framework="torch_ddp", workers=2, launcher="torchrun", device="cpu", cores_per_worker=1, machine="here")
HOROVOD = replace(DDP, framework="horovod", launcher="horovodrun", controller="mpi")


@pytest.mark.parametrize(
    "changes",
    [{}, {"framework": "lightning_ddp"}, {"hosts": 2}, {"model": "somebodys_own"}, {"device": "cuda", "workers": 1}],
)
def test_these_may_share(changes):
    assert groups.why_cold(replace(DDP, **changes)) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"framework": "deepspeed_zero"}, "one setting of autocast"),
        ({"framework": "hivemind"}, "go on averaging between blocks"),
        ({"launcher": "srun"}, "ranks that srun has started"),
        ({"device": "cuda"}, "with one worker of single"),
        ({"device": "cuda", "framework": "lightning_ddp", "workers": 1}, "with one worker of single"),
        ({"find": "max_batch"}, "short window"),
        ({"epochs": 1}, "short window"),
        ({"train_steps": 5}, "short window"),
        ({"input": "torchvision"}, "read ahead"),
        ({"input": "dali"}, "read ahead"),
        ({"data": "images"}, "read ahead"),
        ({"compile": True}, "others cannot share"),
        ({"oversubscribe": True}, "others cannot share"),
        ({"framework": "network_probe"}, "without steps"),
    ],
)
def test_these_have_a_launch_to_themselves(change, why):
    assert why in groups.why_cold(replace(DDP, **change))


def test_a_package_may_say_that_its_model_is_measured_alone(monkeypatch):
    points = [metadata.EntryPoint("theirs", "theirs:load", models.ENTRY_POINTS)]
    points += [metadata.EntryPoint(name, "theirs:load", models.ALONE) for name in ("theirs", "resnet8")]
    monkeypatch.setattr(metadata, "entry_points", metadata.EntryPoints(points).select)
    found = models.installed()
    assert set(found) == {"theirs"} and models.MODELS["resnet8"].cold == "", "what is ours stays so"
    monkeypatch.setattr(groups, "MODELS", found)
    why = "its package says so (an entry point of scaling_study.alone)"
    assert groups.why_cold(replace(DDP, model="theirs")) == why
    assert groups.why_cold(replace(DDP, model="another")) == ""


def warm(trial: Trial, **keys: Any) -> Trial:
    return groups.warmed(replace(trial, **keys), Measure(warm=True))


def test_those_that_share_a_launch_differ_in_what_a_build_decides():
    mine = [warm(DDP), warm(DDP, batch_per_worker=64), warm(DDP, model="resnet8"), warm(DDP, allreduce="fp16")]
    others = [warm(HOROVOD), warm(DDP, workers=1)]
    assert groups.groups([mine[0], *others, DDP, *mine[1:]]) == [mine, *([other] for other in others)]


OF_A_PROCESS: dict[str, Any] = {  # another value of each
    "framework": "torch_ddp", "launcher": "mpirun", "controller": "gloo", "workers": 4, "hosts": 2, "device": "auto",
    "cores_per_worker": 2, "allocator": "system", "fusion_bytes": 1, "cycle_seconds": 0.1, "machine": "another",
}  # fmt: skip


@pytest.mark.parametrize("key", groups.ALIKE)
def test_those_that_do_not_share_a_launch_differ_in_what_a_process_has_one_of(key):
    one, other = warm(HOROVOD), warm(HOROVOD, **{key: OF_A_PROCESS[key]})
    assert groups.groups([one, other]) == [[one], [other]]
