"""Gradients as they arrive: every parameter once, in backward's order, and nothing that is measured moves by it."""

from __future__ import annotations

import itertools

import forked
import pytest
import torch
from test_measure import toy
from torch import nn

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import launchers
from scaling_study.measure import Phase, Training, Wire, measure
from scaling_study.measure.inspected import Arrivals, watchable
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.trial import Trial, Window

CPU = torch.device("cpu")


def watched(model: nn.Module, batches: int = 1) -> Arrivals:
    """One step of `batches` micro-batches under watch."""
    arrivals, phase = Arrivals(CPU), Phase(CPU)
    with arrivals.watching(model.parameters(), phase):
        for _ in range(batches):
            with phase("forward"):
                loss = model(torch.ones(4, 10)).square().mean()
            with phase("backward"):
                loss.backward()
    assert not phase.on and phase.entered is None
    return arrivals


def test_every_trained_parameter_comes_once_the_last_layer_first():
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5, bias=False))
    model[0].bias.requires_grad_(False)
    gradients = watched(model).gradients
    assert [size for size, _ in gradients] == [20 * 5 * 4, 10 * 20 * 4]
    seconds = [0.0, *(seconds for _, seconds in gradients)]
    assert all(a < b for a, b in itertools.pairwise(seconds))
    assert len(watched(nn.Linear(10, 5), batches=3).gradients) == 2, "of micro-batches the last counts"
    layer = nn.Linear(10, 10, bias=False)
    assert [size for size, _ in watched(nn.Sequential(layer, layer)).gradients] == [400]


def test_no_hook_stays_and_a_step_that_fails_leaves_none_either():
    model = nn.Linear(10, 5)
    arrivals, phase = Arrivals(CPU), Phase(CPU)
    with pytest.raises(ZeroDivisionError), arrivals.watching(model.parameters(), phase):
        raise ZeroDivisionError
    before = arrivals.gradients
    model(torch.ones(4, 10)).sum().backward()
    assert arrivals.gradients == before == [] and not phase.on


def test_who_is_watched():
    said = {name for name in FRAMEWORKS if watchable(Trial(framework=name))}
    assert said == {"single", "torch_ddp", "horovod", "mpi_allreduce", "lightning_ddp"}
    assert not watchable(Trial(find="parity")) and not watchable(Trial(find="max_batch"))


@pytest.mark.slow
def test_nothing_that_is_timed_or_counted_runs_under_watch(tmp_path):
    """One step has the hooks; warm-up, timed and instrumented steps have none, nor has the one that is counted."""
    workload, phase = toy(), Phase(CPU)
    optimizer, watched_steps = workload.optimizer(workload.model.parameters()), []

    def step(batch):
        hooks = [parameter._post_accumulate_grad_hooks for parameter in workload.model.parameters()]
        watched_steps.append(any(hooks) or phase.entered is not None)
        with phase("forward"):
            loss = workload.loss(workload.model, batch)
        with phase("backward"):
            loss.backward()
        optimizer.step()
        return loss.detach()

    window = Window(warmup_steps=4, min_steps=20, max_steps=20, min_seconds=0)
    training = Training(step, workload, optimizer, phase, Wire())
    report = measure(training, Trial(window=window), Ranks(), str(tmp_path))
    assert watched_steps == [False] * (4 + 20 + 5) + [True, False]
    assert [size for size, _ in report.gradients] == [10 * 5 * 4]
    assert store.read_ranks(tmp_path, 1) == [report]
    assert report.phases is not None and report.phases.steps == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "workers", "keys"),
    [
        ("single", 1, {}),
        ("single", 1, {"accumulation": 2}),
        ("torch_ddp", 2, {"allreduce": "fp16"}),
        ("torch_ddp", 2, {"accumulation": 2}),
        ("lightning_ddp", 2, {}),  # the others: frameworks/test_launches.py
    ],
)
def test_a_script_leaves_a_timeline_of_its_gradients(tmp_path, framework, workers, keys):
    window = Window(warmup_steps=1, min_steps=8, max_steps=8, min_seconds=0)
    launcher = FRAMEWORKS[framework].launchers[0]
    trial = Trial(
        framework=framework, workers=workers, launcher=launcher, model="resnet8", batch_per_worker=8,
        data="synthetic", window=window, **keys,
    )  # fmt: skip
    done = forked.run(launchers.command(trial, record=tmp_path).argv, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in store.read_ranks(tmp_path, workers):
        assert sum(size for size, _ in rank.gradients) == 78_042 * 4
        seconds = [seconds for _, seconds in rank.gradients]
        assert seconds == sorted(seconds) and seconds[0] > 0
        assert max(size for size, _ in rank.gradients[-3:]) == 3 * 3 * 3 * 16 * 4  # the first layers come last
        assert rank.phases is not None and rank.phases.steps == 2  # the watched step is none of these
        assert len(rank.step_seconds) == 8
