"""One process that drives several GPUs: all of them are waited for, and all of them count."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from scaling_study.measure.clock import Stopwatch
from scaling_study.measure.memory import Memory
from scaling_study.measure.training import Phase
from scaling_study.ranks import Ranks
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

CPU = torch.device("cpu")
FIRST, SECOND, THIRD = (torch.device("cuda", index) for index in range(3))
ALL = {FIRST, SECOND, THIRD}


class Cuda:
    """torch.cuda as far as waiting goes: which devices the host, and which streams the first device's, waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_host: list[torch.device] = []
        self.by_events: list[set[torch.device]] = []  # of each event: whose work lies before it
        self.joined: set[torch.device] = set()
        monkeypatch.setattr(torch.cuda, "synchronize", self.by_host.append)
        monkeypatch.setattr(torch.cuda, "current_stream", self.stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: SimpleNamespace(
            record=self.recorded, elapsed_time=lambda other: 2.0
        ))  # fmt: skip

    def stream(self, device: torch.device) -> Any:
        return SimpleNamespace(
            device=device,
            synchronize=lambda: self.by_host.append(device),
            wait_stream=lambda other: self.joined.add(other.device),
        )

    def recorded(self, stream: Any) -> None:
        self.by_events.append({stream.device, *self.joined})
        self.joined.clear()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_a_step_ends_with_its_last_device(cuda: Cuda) -> None:
    watch = Stopwatch(FIRST, SECOND, THIRD)
    watch.start()
    assert set(cuda.by_host) == ALL, "nothing of the block before is still running"
    cuda.by_host.clear()
    watch.lap()
    watch.lap()
    assert cuda.by_events == [ALL] * 3 and not cuda.by_host, "no step waits on the host"
    assert watch.seconds() == [0.002, 0.002] and set(cuda.by_host) == ALL


def test_a_phase_ends_with_its_last_device(cuda: Cuda) -> None:
    phase = Phase(FIRST, SECOND, THIRD)
    phase.on = True
    with phase("backward"):
        cuda.by_host.clear()
    assert set(cuda.by_host) == ALL


def test_peak_memory_is_of_the_device_that_needed_most(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {FIRST: 100, SECOND: 700, THIRD: 300}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peaks.__getitem__)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peaks.update({device: 10}))
    memory = Memory(nn.Linear(2, 2), None, FIRST, further=(SECOND, THIRD))
    memory.start()
    peaks[THIRD] = 200
    memory.stop()
    assert (memory.setup_peak_bytes, memory.peak_bytes()) == (700, 200)


@pytest.mark.parametrize("script", ["pipeline/fairscale_pipe.py", "data_parallel/torch_dp.py"])
def test_scripts_of_one_process_name_all_of_their_gpus(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    if "fairscale" in script:
        pytest.importorskip("fairscale")
    join = runpy.run_path(str(CHECKOUT / script))["join"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    join.__globals__.update(
        claim_device=lambda trial, rank: FIRST, wants_gpu=lambda trial: True, claim_cores=lambda _: ()
    )
    ranks: Ranks = join(Trial(framework=script.split("/")[1][:-3], workers=3, device="cuda"))
    assert ranks.devices == (FIRST, SECOND, THIRD)
