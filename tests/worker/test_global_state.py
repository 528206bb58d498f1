"""Every setting that a workload may leave behind is planted, named and taken back."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from scaling_study.worker.global_state import SETTINGS, GlobalState

LEAKS: dict[str, Callable[[], object]] = {
    "threads of torch": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "cores": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "default type": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "autocast on the CPU": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast on a GPU": lambda: torch.set_autocast_enabled("cuda", True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "TF32 of matrix products": lambda: flipped(torch.backends.cuda.matmul, "allow_tf32"),
    "TF32 of cuDNN": lambda: flipped(torch.backends.cudnn, "allow_tf32"),
    "cuDNN": lambda: flipped(torch.backends.cudnn, "enabled"),
    "cuDNN's trials": lambda: flipped(torch.backends.cudnn, "benchmark"),
    "cuDNN's determinism": lambda: flipped(torch.backends.cudnn, "deterministic"),
    "oneDNN": lambda: flipped(torch.backends.mkldnn, "enabled"),
    "garbage collector": lambda: gc.set_threshold(1, 2, 3),
    "environment": lambda: os.environ.update(LEFT_BEHIND="1"),
    "working folder": lambda: os.chdir("/"),
}


def flipped(owner: object, name: str) -> None:
    setattr(owner, name, not getattr(owner, name))


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = GlobalState()
    yield
    before.restore()


def test_every_setting_has_a_leak() -> None:
    assert list(LEAKS) == list(SETTINGS)


@pytest.mark.parametrize("name", LEAKS)
def test_what_a_block_changes_is_named_and_taken_back(name: str) -> None:
    if name == "cores" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one core")
    state = GlobalState()
    LEAKS[name]()
    left = state.leave()
    assert name in left and set(left) <= {name, "environment"}  # torch sets a variable where algorithms are to be exact
    state.restore()
    assert state.leave() == []


def test_a_variable_that_was_removed_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOVED", "before")
    state = GlobalState()
    del os.environ["REMOVED"]
    assert state.leave() == ["environment"]
    state.restore()
    assert os.environ["REMOVED"] == "before"


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()  # what workloads may use


def test_each_configuration_draws_as_if_it_were_alone() -> None:
    state = GlobalState()
    alone = [drawn() for _ in range(4)]
    state.restore()
    mine = [drawn()]
    for _ in range(3):  # others draw in between
        assert state.leave() == []
        drawn()
        state.restore()
        mine.append(drawn())
    assert mine == alone
