"""A training is killed with -9 at random moments, its saves included, and started again until it is over.

It must come to what the same training comes to that nobody kills, its record must say how often it was killed, and no
checkpoint may be left that the next start cannot use.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from ledger import SEED, TIMES, Ledger, Row
from tiny_cifar import tiny_cifar

from scaling_study.records import store
from scaling_study.settings import CHECKOUT

KILLS = 2 if TIMES == 1 else TIMES  # half of them inside a save
STEPS, EVERY = 40, 2
FLAGS = f"""--model resnet8_groupnorm --precision fp64 --device cpu --cores-per-worker 1
    --train-steps {STEPS} --train-evaluate-every {EVERY / 11:.4f} --train-optimizer nesterov
    --learning-rate 0.05 --train-augmentation crop_flip --train-schedule cosine""".split()
MOST_SAVE_SECONDS = 0.03
DIES = str(CHECKOUT / "tests/train/dies.py")
LAUNCH = {  # by framework; the batch of one worker
    "single": ([sys.executable], 32),
    "torch_ddp": (["torchrun", "--standalone", "--nproc-per-node", "2"], 16),
}


def run(framework: str, folder: Path, data: Path, when: str = "") -> subprocess.CompletedProcess[str]:
    """`when`: the moment at which it is killed, as dies.py takes it."""
    launch, batch = LAUNCH[framework]
    script = str(CHECKOUT / f"data_parallel/{framework}.py")
    argv = [*launch, *([DIES, when] if when else []), script, *FLAGS, "--batch-per-worker", str(batch)]
    env = {"PYTHONPATH": str(CHECKOUT), "DATA_ROOT": str(data)}
    return forked.alone([*argv, "--record", str(folder)], env)


@pytest.mark.parametrize("framework", ["torch_ddp"] if TIMES == 1 else LAUNCH)
def test_killed_at_random_moments_it_comes_to_the_same(framework: str, ledger: Ledger, tmp_path: Path) -> None:
    moments = random.Random(f"{SEED} {framework}")
    with tiny_cifar(tmp_path / "data") as data:
        done = run(framework, tmp_path / "whole", data)
        assert done.returncode == 0, done.stderr[-3000:]
        whole = training(tmp_path / "whole")
        seconds, kills, attempt = sum(whole["seconds"].values()), 0, 0
        while kills < KILLS:
            attempt += 1
            folder, rows = tmp_path / f"attempt-{attempt}", []
            while kills < KILLS:
                left = seconds * (1 - steps(folder) / STEPS)
                when = f"seconds:{moments.uniform(0, left):.3f}"
                if len(rows) % 2 == 1:
                    when = f"save:{moments.randint(1, 3)}:{moments.uniform(0, MOST_SAVE_SECONDS):.4f}"
                done = run(framework, folder, data, when)
                if done.returncode == 0:  # it was over before
                    break
                kills += 1
                rows.append(Row("kill -9 of a training", "rank", f"{framework}, {when}", seed=SEED))
            else:
                done = run(framework, folder, data)
            wrong = [] if done.returncode == 0 else [f"it does not go on: {done.stderr[-2000:]}"]
            wrong = wrong or unlike(whole, training(folder), len(rows))
            if rows:
                rows[-1].wrong += wrong
            ledger.rows += rows
            assert not wrong, (wrong, [str(row) for row in rows])


def steps(folder: Path) -> int:
    """How far the last whole checkpoint is."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")), default=0)


def training(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = store.load(folder / "ranks/rank-0.json")["training"]
    return result


def unlike(whole: dict[str, Any], resumed: dict[str, Any], kills: int) -> list[str]:
    """What came out otherwise than without the kills."""
    pairs = {"orders": (resumed["orders"], whole["orders"]), "resumed": (resumed["resumed"], kills)}
    for key in ("train_loss", "loss", "steps", "samples"):
        ours, theirs = ([row[key] for row in training["rows"]] for training in (resumed, whole))
        pairs[key] = ours, pytest.approx(theirs, rel=1e-12)
    for key in ("step", "samples", "accuracy", "loss"):
        pairs[f"test: {key}"] = resumed["evaluated"][key], pytest.approx(whole["evaluated"][key], rel=1e-12)
    return [f"{key}: {ours} for {theirs}" for key, (ours, theirs) in pairs.items() if ours != theirs]
