"""Trials on GPUs without any GPU: who has which, what others do on them, what rounds of several need."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from planted_gpus import GIB, Gpu, plant

from scaling_study.launch import attempts, warm_group
from scaling_study.launch.attempts import Attempts
from scaling_study.launch.launch_folders import LaunchRecord
from scaling_study.launch.shared_launch import Launch, Watch
from scaling_study.launch.warm_group import WarmGroup
from scaling_study.machine import Machine
from scaling_study.processes.process import Exit
from scaling_study.ranks import LOCAL_RANK, claim_device
from scaling_study.records import outcome, store
from scaling_study.records.schema import RankReport, Record, gpus_in_use
from scaling_study.study.support import Cluster, unsupported
from scaling_study.trial import Trial

ONE = Trial(device="cuda", allreduce="none")
DDP = Trial(framework="torch_ddp", launcher="torchrun", workers=2, device="cuda")
ZERO = replace(DDP, framework="deepspeed_zero", launcher="deepspeed")
BY_INDEX = "launcher=deepspeed takes indices of GPUs"


@pytest.mark.parametrize(
    ("count", "rank", "oversubscribe", "mine"),
    [(8, 3, False, 3), (2, 3, True, 1), (1, 3, False, 0), (7, 7, False, None), (2, 3, False, None)],
)
def test_each_rank_has_a_gpu_of_its_own_or_ends(
    monkeypatch: pytest.MonkeyPatch, count: int, rank: int, oversubscribe: bool, mine: int | None
) -> None:
    """The only GPU that a rank sees may be its own, as Slurm gives it: whether it is, their reports tell."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,2")
    trial = replace(DDP, oversubscribe=oversubscribe)
    if mine is None:
        said = rf"^local rank {rank} has no GPU: torch sees {count} here \(CUDA_VISIBLE_DEVICES 5,2; "
        with pytest.raises(SystemExit, match=said):
            claim_device(trial)
    else:
        assert claim_device(trial) == torch.device("cuda", mine) and chosen == [torch.device("cuda", mine)]


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        ("", ""),
        ("3,1", ""),
        ("GPU-1e2f,GPU-2e2f", f"{BY_INDEX}, not names as in CUDA_VISIBLE_DEVICES=GPU-1e2f,GPU-2e2f"),
        ("MIG-a,MIG-b", BY_INDEX),
    ],
)
def test_deepspeeds_launcher_takes_no_names_of_gpus_and_others_do(visible: str, why: str) -> None:
    here = Machine(8, "Xeon", 2**36, ("A", "B"), dict.fromkeys(("torch", "torchvision", "deepspeed"), "9"))
    said = unsupported(ZERO, here, Cluster(visible_gpus=visible))
    assert said.startswith(why) and bool(said) == bool(why)
    for other in (replace(ZERO, launcher="torchrun"), replace(ZERO, device="cpu"), DDP):
        assert unsupported(other, here, Cluster(visible_gpus=visible)) == ""


def test_a_gpu_that_others_use_is_in_the_record_and_a_doubt_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    free, used = Gpu(looks=[4 << 20]), Gpu(looks=[3 * GIB], pids=[7], busy=97.0)
    plant(monkeypatch, [free, used])
    supervisor: Any = SimpleNamespace(run=lambda *_: Exit(1, 2.0))
    attempt = Attempts(supervisor).run_once(ONE, tmp_path, 9.0)
    record = attempt.completed(Record("a", ONE.id, ONE.configuration, ONE, "cancelled"))
    assert [(use.used_bytes, use.processes, use.utilization_percent) for use in record.gpus_before] == [
        (4 << 20, 0, 0.0),
        (3 * GIB, 1, 97.0),
    ]
    doubt = "doubt: in use by others before it began: 3.0 GiB of H100, by 1 process, 97 % busy"
    assert record.notes == [doubt], "which GPU its ranks had is not known"
    store.write_record(tmp_path, record)
    assert store.read_record(tmp_path / "record.json").gpus_before == record.gpus_before
    for mine, uses in ((free, []), (used, record.gpus_before[1:])):
        assert gpus_in_use(replace(record, ranks=[rank_report(gpu_uuids=[mine.uuid])])) == uses
    elsewhere = replace(record, ranks=[rank_report(gpu_uuids=["GPU-of-a-part"])])
    assert gpus_in_use(elsewhere) == record.gpus_before[1:], "torch and NVML name a part differently"
    assert attempts.gpus_before(replace(ONE, device="cpu")) == (), "nobody asks what a trial on CPUs does not use"


def test_a_batch_that_is_out_of_a_gpus_memory_says_what_would_be_right(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    said = {"rank": 0, "at": 1.0, "type": "OutOfMemoryError", "message": "CUDA out of memory.", "traceback": ""}
    (tmp_path / "ranks" / "error-0.json").write_text(json.dumps({**said, "oom": True}))
    right = "; batch_per_worker=512 does not fit: give less, or `find: max_batch`, which measures what does"
    for device, said_too in (("cuda", right), ("cpu", "")):
        result = outcome.judge(Trial(device=device, batch_per_worker=512), tmp_path, Exit(1, 2.0))
        assert (result.status, result.reason) == ("oom", f"rank 0: CUDA out of memory.{said_too}")


def test_ranks_on_parts_of_a_gpu_are_held_against_no_name(rank_report: Callable[..., RankReport]) -> None:
    ranks = [rank_report(gpu_uuids=["GPU-a-part-as-torch-calls-it"])]
    assert outcome.foreign_gpus(ranks, {"MIG-a": "H100 MIG 3g.40gb"}) == ""
    assert outcome.foreign_gpus(ranks, {"GPU-b": "H100"}) != ""


# --- rounds over several GPUs


@pytest.mark.parametrize(
    ("shares", "model", "batch", "memory", "full"),
    [
        ((0.3,), "resnet50", 256, 80, False),  # 13 of 80 GiB more
        ((0.3,), "gpt2", 32, 80, True),  # 43
        ((0.3, 0.46), "resnet50", 256, 80, True),  # of the fullest
        ((0.3,), "gpt2", 32, 0, False),  # seen when it is built
        ((0.3,), "resnet18", 32, 80, False),  # no estimate
        ((0.7,), "resnet18", 32, 0, True),
        ((), "gpt2", 32, 40, False),  # the first is started whatever it takes
    ],
)
def test_a_group_is_started_beside_others_where_the_fullest_gpu_has_room(
    tmp_path: Path, shares: tuple[float, ...], model: str, batch: int, memory: int, full: bool
) -> None:
    nothing: Any = SimpleNamespace()
    launch = Launch({}, {}, LaunchRecord(tmp_path, 1), 0, nothing, Watch(), gpu_memory_bytes=memory * GIB)
    built: list[Any] = [SimpleNamespace(gpu_share=share) for share in shares]
    size = 224 if model == "resnet50" else None
    order = [replace(DDP, model=model, batch_per_worker=batch, precision="bf16", image_size=size)]
    assert launch._gpus_are_full(built, order) is full


def test_no_watchdog_of_nccl_takes_a_stopped_rank_for_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Any] = []

    class Supervisor:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Supervisor:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, *asked: Any) -> Exit:
            told.extend(asked)
            return Exit(0, 1.0)

    monkeypatch.setattr(warm_group, "SupervisorClient", Supervisor)
    WarmGroup([DDP], tmp_path, [tmp_path], 9.0)._run(DDP, tmp_path / "request.json")
    argv, environment, *_ = told
    assert any(str(word).endswith("torchrun") for word in argv)
    assert environment["TORCH_NCCL_ENABLE_MONITORING"] == environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
