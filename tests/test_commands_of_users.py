"""Commands of a user's own, really started: measured in turn, stopped between their steps, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from observe.test_observed import STUB
from planted_sweeps import run

from scaling_study import cli
from scaling_study.machine import this_machine
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.variables import NOT_RECORDED

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
open(os.environ["OUT"] + "/told", "w").write(os.environ.get("AUTH", "")[:7] + str(len(os.environ.get("HF_TOKEN", ""))))
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    open(os.environ["OUT"] + "/epochs", "a").write("x")
"""
SAME_DATA = "doubt: all ranks train on the same data: is a DistributedSampler missing?"
WORDS = "{batch_per_worker} {width}"
OUT = {"OUT": "{run_dir}"}
TOKEN = "hf_s3cret"
TORCHRUN = f"torchrun --master-port {{port}} --nproc-per-node {{workers}} train.py {WORDS}"


def swept(folder: Path, *sweeps: dict[str, Any], **measure: Any) -> dict[str, Record]:
    """Records of a study of commands that start in `folder`, by workers and arguments."""
    (folder / "train.py").write_text(TRAIN)
    own = {"framework": "command", "workdir": str(folder), "env": OUT}
    asked = [
        {**({} if "framework" in sweep else own), "batch_per_worker": 8, "device": "cpu", **sweep} for sweep in sweeps
    ]
    usual = {"repeats": 1, "timeout_seconds": 120.0, "retries": 0, "min_seconds": 0.0, "min_steps": 6}
    file = folder / "study.yaml"
    given = {"study": "mine", "parity": False, "measure": {**usual, **measure}, "sweeps": asked}
    file.write_text(yaml.safe_dump(given))
    run(plan.make(study.load(file), this_machine()), folder / "results")
    records = store.read_study(folder / "results")
    return {f"{record.trial.workers} {record.trial.arguments}": record for record in records}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def in_turn(folder: Path) -> dict[str, Record]:
    """One process and two, which take turns with a framework of ours; a token is in the environment and in `env`."""
    secret = {**OUT, "HF_TOKEN": "${HF_TOKEN}", "AUTH": "Bearer ${HF_TOKEN}"}
    alone = {"command": f"python train.py {WORDS}", "matrix": {"width": ["16"]}, "env": secret}
    two = {"command": TORCHRUN, "workers": 2, "matrix": {"width": ["16"]}, "env": secret}
    ours = {"framework": "single", "model": "resnet8", "data": "synthetic", "learning_rate": 0.1}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_TOKEN", TOKEN)
        return swept(folder, alone, two, ours, warm=True, rounds=3, block_seconds=0.05)


def commands(records: dict[str, Record]) -> dict[str, Record]:
    return {name: record for name, record in records.items() if record.trial.command}


def test_unmodified_commands_take_turns_in_one_launch(in_turn: dict[str, Record]) -> None:
    assert {record.status for record in in_turn.values()} == {"ok"}, [r.reason for r in in_turn.values()]
    assert {record.launch.partition("/")[0] for record in in_turn.values()} == {"1"}
    assert len({record.ranks[0].versions["torch"] for record in in_turn.values()}) == 1
    at = sorted((b.at, b.round, name) for name, r in in_turn.items() for b in r.ranks[0].blocks)
    assert [round for _, round, _ in at] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for name, record in commands(in_turn).items():
        ranks = record.ranks
        assert len(ranks) == int(name[0]) and {rank.world_size for rank in ranks} == {len(ranks)}
        assert {rank.samples_per_step for rank in ranks} == {8}
        said = [note for note in ranks[0].notes if not note.startswith("peak memory")]
        assert said == [SAME_DATA] * (len(ranks) == 2), "DDP, without a DistributedSampler"
        assert len({tuple(block.steps for block in rank.blocks) for rank in ranks}) == 1
        assert ranks[0].loss_first and ranks[0].learning_rate == 0.1 and ranks[0].versions["torch"]


def test_no_wait_between_turns_is_a_step_s(in_turn: dict[str, Record]) -> None:
    for record in commands(in_turn).values():
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
    (tmp_path / "long.py").write_text("import torch, time\ntime.sleep(600)\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "torch.py").write_text(STUB)
    records = swept(
        tmp_path,
        {"command": "python crash.py {a}", "matrix": {"a": ["1"]}},
        {"command": "python never.py {a}", "matrix": {"a": ["2"]}},
        {"command": "no-such-program {a}", "matrix": {"a": ["3"]}},
        {"command": "python long.py {a}", "matrix": {"a": ["4"]}, "env": {"PYTHONPATH": str(tmp_path / "old")}},
        {"command": f"python train.py {WORDS}", "matrix": {"width": ["8"]}, "batch_per_worker": 8},
        {"command": "python train.py 16 {width}", "matrix": {"width": ["4"]}},
    )
    reasons = {name: (record.status, record.reason) for name, record in records.items()}
    assert reasons["1 width=8"] == ("ok", "")
    assert len(records["1 width=8"].ranks[0].step_seconds) == 18
    facts = {
        "1 a=1": "RuntimeError: no such data",
        "1 a=2": "PYTHONPATH",
        "1 a=3": "no-such-program",
        "1 a=4": "not observed: RuntimeError: torch 1.13.1 is older than 2.1",  # at once, not after 120 s
        "1 width=4": "16",
    }
    for name, fact in facts.items():
        status, reason = reasons[name]
        assert status == "failed" and fact in reason + records[name].error, json.dumps(reasons)


def test_a_token_reaches_a_command_and_stays_out_of_records_logs_pages_and_exports(
    folder: Path, in_turn: dict[str, Record]
) -> None:
    results, exported, unpacked = folder / "results", folder / "exported", folder / "unpacked"
    for record in commands(in_turn).values():
        assert record.environment["HF_TOKEN"] == NOT_RECORDED
        assert "'AUTH=Bearer ${HF_TOKEN}'" in (record.trial.env or "") and '"${HF_TOKEN}"' in record.command
    told = [path.read_text() for path in results.rglob("told")]
    assert len(told) == 2 and set(told) == {f"Bearer {len(TOKEN)}"}
    for words in (["tables", "-q"], ["export", "--tensorboard", str(exported)], ["pack"]):
        assert cli.main([words[0], str(results), *words[1:]]) == 0
    table = (results / "tables" / "throughput-script-train.py.md").read_text()
    assert "torchrun" in table and "{" not in table and "Parameters: 1,210" in table, "as they were seen"
    assert cli.main(["unpack", f"{results}.study.zip", "--out", str(unpacked)]) == 0
    held = [path for path in folder.rglob("*") if path.is_file() and path.name != "results.study.zip"]
    assert len(held) > 30 and {*unpacked.iterdir()} and {*exported.iterdir()}
    assert not [path for path in held if TOKEN.encode() in path.read_bytes()]


def test_a_second_run_starts_nothing_and_no_driver_of_commands_needs_torch(
    folder: Path, in_turn: dict[str, Record]
) -> None:
    (blocked := folder / "blocked").mkdir()
    (blocked / "torch.py").write_text("raise ImportError('no torch here')\n")
    environment = {**os.environ, "HF_TOKEN": "another", "PYTHONPATH": str(blocked)}
    words = [sys.executable, str(CHECKOUT / "run_sweep.py"), "study.yaml", "--results", ".", "--no-report", "--json"]
    (folder / "mine").symlink_to("results")
    again = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout)["trials"]) == len(in_turn)
    assert list(store.read_study(folder / "results")) == list(in_turn.values())
