"""Every setting that a workload may leave behind is planted, named and taken back."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from planted_optimizers import LEAKS

from scaling_study.worker.in_blocks import GlobalState


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = GlobalState()
    yield
    before.restore()


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


def newer(backend: str, format: str) -> Callable[[], None]:
    return lambda: setattr(getattr(torch.backends, backend).matmul, "fp32_precision", format)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda: setattr(torch.backends.cudnn, "allow_tf32", False), id="cuDNN"),
        pytest.param(lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), id="matmul"),
        pytest.param(lambda: torch.set_float32_matmul_precision("high"), id="high"),
        *(pytest.param(newer(*each), id=" ".join(each)) for each in (("cuda", "tf32"), ("mkldnn", "bf16"))),
    ],
)
def test_every_way_to_another_format_of_fp32_is_taken_back(change: Callable[[], None]) -> None:
    """By torch's newer settings too, after which it refuses to read the older ones."""
    if not hasattr(torch.backends.mkldnn, "matmul"):
        pytest.skip("this torch has the older settings only")
    torch.set_float32_matmul_precision("highest")  # whatever another test of this process has left
    torch.backends.cudnn.allow_tf32 = True
    state = GlobalState()
    change()
    theirs = GlobalState()  # of one that set it while it was built
    assert state.leave() == ["formats of fp32"]
    for other in ("highest", "high", "medium"):
        state.restore()
        assert state.leave() == [] and torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision(other)
        theirs.restore()
        assert theirs.leave() == [] and state.leave() == ["formats of fp32"]


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
