"""Commands of a user's own, really started: measured in turn, stopped between their steps, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from planted_sweeps import MACHINE, run

from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.study import plan, study

pytestmark = pytest.mark.slow

TRAIN = """
import os, sys, torch
from torch import nn
batch, width = int(sys.argv[1]), int(sys.argv[2])
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
if torch.distributed.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    open(sys.argv[3] + "/epochs", "a").write("x")
"""
WORDS = "{batch_per_worker} {width} {run_dir}"
TORCHRUN = f"torchrun --master-port {{port}} --nproc-per-node {{workers}} train.py {WORDS}"


def swept(folder: Path, *sweeps: dict[str, Any], **measure: Any) -> dict[str, Record]:
    """Records of a study of commands that start in `folder`, by workers and arguments."""
    (folder / "train.py").write_text(TRAIN)
    asked = [{"framework": "command", "workdir": str(folder), "batch_per_worker": 8, **sweep} for sweep in sweeps]
    usual = {"repeats": 1, "timeout_seconds": 120.0, "retries": 0, "min_seconds": 0.0, "min_steps": 6}
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump({"study": "mine", "measure": {**usual, **measure}, "sweeps": asked}))
    run(plan.make(study.load(file), MACHINE), folder / "results")
    records = store.read_study(folder / "results")
    return {f"{record.trial.workers} {record.trial.arguments}": record for record in records}


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """One process and two, which take turns."""
    folder = tmp_path_factory.mktemp("commands")
    alone = {"command": f"python train.py {WORDS}", "matrix": {"width": ["16"]}}
    two = {"command": TORCHRUN, "workers": 2, "matrix": {"width": ["16"]}}
    return swept(folder, alone, two, warm=True, rounds=3, block_seconds=0.05)


def test_unmodified_commands_take_turns_in_one_launch(in_turn: dict[str, Record]) -> None:
    assert {record.status for record in in_turn.values()} == {"ok"}, [r.reason for r in in_turn.values()]
    assert {record.launch.partition("/")[0] for record in in_turn.values()} == {"1"}
    at = sorted((b.at, b.round, name) for name, r in in_turn.items() for b in r.ranks[0].blocks)
    assert [round for _, round, _ in at] == [0, 0, 1, 1, 2, 2]
    for name, record in in_turn.items():
        ranks = record.ranks
        assert len(ranks) == int(name[0]) and {rank.world_size for rank in ranks} == {len(ranks)}
        assert {rank.samples_per_step for rank in ranks} == {8} and not ranks[0].notes
        assert len({tuple(block.steps for block in rank.blocks) for rank in ranks}) == 1
        assert ranks[0].loss_first and ranks[0].learning_rate == 0.1 and ranks[0].versions["torch"]


def test_no_wait_between_turns_is_a_step_s(in_turn: dict[str, Record]) -> None:
    for record in in_turn.values():
        for rank in record.ranks:
            between = rank.blocks[-1].at - rank.blocks[0].at  # type: ignore[operator]
            assert sum(rank.step_seconds[: -rank.blocks[-1].steps]) < between
            assert rank.phases and abs(rank.phases.step_seconds * len(rank.step_seconds) - rank.window_seconds) < 1e-6


def test_commands_end_with_the_study_and_keep_their_own_files(in_turn: dict[str, Record]) -> None:
    pids = {rank.pid for record in in_turn.values() for rank in record.ranks}
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_what_goes_wrong_with_a_command_is_its_reason(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text("import torch\n")
    (tmp_path / "crash.py").write_text("import torch\nraise RuntimeError('no such data')\n")
    records = swept(
        tmp_path,
        {"command": "python crash.py {a}", "matrix": {"a": ["1"]}},
        {"command": "python never.py {a}", "matrix": {"a": ["2"]}},
        {"command": "no-such-program {a}", "matrix": {"a": ["3"]}},
        {"command": f"python train.py {WORDS}", "matrix": {"width": ["8"]}, "batch_per_worker": 8},
        {"command": "python train.py 16 {width} {run_dir}", "matrix": {"width": ["4"]}},
    )
    reasons = {name: (record.status, record.reason) for name, record in records.items()}
    assert reasons["1 width=8"] == ("ok", "")
    assert len(records["1 width=8"].ranks[0].step_seconds) == 18
    facts = {
        "1 a=1": "RuntimeError: no such data",
        "1 a=2": "PYTHONPATH",
        "1 a=3": "no-such-program",
        "1 width=4": "16",
    }
    for name, fact in facts.items():
        status, reason = reasons[name]
        assert status == "failed" and fact in reason + records[name].error, json.dumps(reasons)
