"""Ranks that a person starts one by one: what the flags mean, and what is missing said in one line."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from tiny_tree import tiny_tree

from scaling_study.records import store
from scaling_study.records.schema import TrainingReport
from scaling_study.settings import CHECKOUT
from scaling_study.worker.script import taken

BOTH = ["--world-size", "2", "--rank", "1"]
SET = {"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "0"}


def test_the_flags_become_the_variables_of_a_launcher_and_all_others_stay() -> None:
    argv = ["--model", "resnet8", "--dist-url", "tcp://h1:29500", *BOTH, "--train-epochs", "2"]
    rest, variables = taken(argv, {})
    assert rest == ["--model", "resnet8", "--train-epochs", "2"]
    assert variables == {"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
    assert taken(["--dist-url=tcp://[::1]:29500", *BOTH], {})[1]["MASTER_ADDR"] == "::1"
    assert taken(["--model", "resnet8"], {}) == (["--model", "resnet8"], {})


def test_env_reads_what_is_set_and_a_flag_counts_more() -> None:
    assert taken(["--dist-url", "env://"], SET) == ([], {})
    assert taken(["--dist-url", "env://", "--rank", "1"], SET) == ([], {"RANK": "1"})


@pytest.mark.parametrize(
    ("argv", "variables", "message"),
    [
        (BOTH, {}, "--world-size 2 and --rank 1 without --dist-url: where do the ranks meet? --dist-url tcp://HOST:PORT"),
        (["--dist-url", "tcp://h1:29500", "--rank", "1"], {},
         "--dist-url tcp://h1:29500 without --world-size: each rank is told how many there are"),
        (["--dist-url", "tcp://h1:29500"], SET,
         "--dist-url tcp://h1:29500 without --world-size and --rank: each rank is told how many there are"),
        (["--dist-url", "tcp://h1", *BOTH], {},
         "--dist-url tcp://h1: it is tcp://HOST:PORT, like tcp://h1:29500, or env://"),
        (["--dist-url", "tcp://h1:29500", "--world-size", "2", "--rank", "2"], {},
         "--dist-url tcp://h1:29500 has rank 2 of world size 2: ranks are 0 to the world size less 1"),
        (["--dist-url", "env://"], {name: SET[name] for name in ("MASTER_ADDR", "RANK")},
         "--dist-url env:// needs MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK: MASTER_PORT and WORLD_SIZE missing"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_one_line(argv: list[str], variables: dict[str, str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        taken(argv, variables)
    assert str(stop.value) == message


DDP = [sys.executable, str(CHECKOUT / "data_parallel/torch_ddp.py")]


TRAINING = [  # three steps of eight images, of which each is cut and mirrored
    *("--model", "resnet8_groupnorm", "--data", "images", "--image-size", "32", "--device", "cpu"),
    *("--cores-per-worker", "1", "--precision", "fp64", "--train-steps", "3", "--train-augmentation", "resized_crop"),
    *("--train-optimizer", "sgd", "--train-weight-decay", "0.0001", "--learning-rate", "0.1"),
    *("--train-schedule", "cosine", "--train-evaluate-every", "0.2"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_two_ranks_started_by_hand_train_on_a_tree_what_one_process_trains(tmp_path: Path) -> None:
    """As torch's ImageNet example is started on two nodes: each rank by itself, on its own copy of the tree."""
    one = tiny_tree(tmp_path / "h1")
    trees = [one, Path(shutil.copytree(one, tmp_path / "h2"))]
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    ranks = list[subprocess.Popen[str]]()
    for rank, tree in enumerate(trees):
        meet = ["--dist-url", f"tcp://127.0.0.1:{port}", "--world-size", "2", "--rank", str(rank)]
        here = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "DATA_PATH": str(tree)}  # one host plays two
        flags = [*TRAINING, "--batch-per-worker", "4", "--record", str(tmp_path / "both")]
        env = {**os.environ, **here}
        ranks.append(subprocess.Popen([*DDP, *meet, *flags], env=env, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    single = [sys.executable, str(CHECKOUT / "data_parallel/single.py"), *TRAINING, "--batch-per-worker", "8"]
    done = forked.run([*single, "--record", str(tmp_path / "alone")], {"DATA_PATH": str(one)})
    assert done.returncode == 0, done.stderr
    both, alone = store.read_ranks(tmp_path / "both", 2), store.read_ranks(tmp_path / "alone", 1)[0].training
    for key in ("train_loss", "loss", "accuracy", "accuracy_top5", "learning_rate"):
        assert (
            column(both[0].training, key) == pytest.approx(column(alone, key), rel=1e-9)
            and len(column(alone, key)) == 3
        )
    assert len(alone.rows) == 3
    assert both[1].training.evaluated == both[0].training.evaluated and alone.evaluated["samples"] == 18
    for row in alone.rows:
        assert row["step_seconds"] > row["step_data_seconds"] > 0
    assert sum(column(alone, "step_seconds")) == pytest.approx(alone.seconds["train"])
    assert sum(column(alone, "step_data_seconds")) == pytest.approx(alone.data_seconds)


def column(training: TrainingReport, key: str) -> list[float]:
    return [row[key] for row in training.rows]
