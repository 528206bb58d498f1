"""A training is killed with -9 at random moments, its saves included, and started again until it is over.

It must come to what the same training comes to that nobody kills, its record must say how often it was killed, and no
checkpoint may be left that the next start cannot use.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ledger import SEED, TIMES, Ledger, Row
from tiny_cifar import tiny_cifar

from scaling_study.settings import CHECKOUT

KILLS = 2 if TIMES == 1 else TIMES  # half of them inside a save
STEPS, EVERY = 40, 2
FLAGS = f"""--model resnet8_groupnorm --precision fp64 --device cpu --cores-per-worker 1
    --train-steps {STEPS} --train-evaluate-every {EVERY / 11:.4f} --train-optimizer nesterov
    --learning-rate 0.05 --train-augmentation crop_flip --train-schedule cosine""".split()
MOST_SAVE_SECONDS = 0.03
DIES = str(CHECKOUT / "tests/train/dies.py")


@dataclass(frozen=True)
class Case:
    """How a framework is started."""

    name: str
    launch: tuple[str, ...]
    script: str
    batch: int

    def run(self, folder: Path, data: Path, when: str = "") -> subprocess.CompletedProcess[str]:
        killed = [DIES, when] if when else []
        flags = [*FLAGS, "--batch-per-worker", str(self.batch), "--record", str(folder)]
        return subprocess.run(
            [*self.launch, *killed, str(CHECKOUT / self.script), *flags], capture_output=True, text=True,
            cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": str(CHECKOUT), "DATA_ROOT": str(data)},
        )  # fmt: skip


SINGLE = Case("single", (sys.executable,), "data_parallel/single.py", 32)
DDP = Case("torch_ddp", ("torchrun", "--standalone", "--nproc-per-node", "2"), "data_parallel/torch_ddp.py", 16)


@pytest.mark.parametrize("case", [DDP] if TIMES == 1 else [SINGLE, DDP], ids=lambda case: case.name)
def test_killed_at_random_moments_it_comes_to_the_same(case: Case, ledger: Ledger, tmp_path: Path) -> None:
    moments = random.Random(f"{SEED} {case.name}")
    with tiny_cifar(tmp_path / "data") as data:
        done = case.run(tmp_path / "whole", data)
        assert done.returncode == 0, done.stderr[-3000:]
        whole = training(tmp_path / "whole")
        seconds, kills, attempt = sum(whole["seconds"].values()), 0, 0
        while kills < KILLS:
            attempt += 1
            folder, rows = tmp_path / f"attempt-{attempt}", []
            while kills < KILLS:
                left = seconds * (1 - steps(folder) / STEPS)
                in_save = len(rows) % 2 == 1
                when = f"save:{moments.randint(1, 3)}:{moments.uniform(0, MOST_SAVE_SECONDS):.4f}" if in_save else (
                    f"seconds:{moments.uniform(0, left):.3f}"
                )  # fmt: skip
                done = case.run(folder, data, when)
                if done.returncode == 0:  # it was over before
                    break
                kills += 1
                rows.append(Row("kill -9 of a training", "rank", f"{case.name}, {when}", seed=SEED))
            else:
                done = case.run(folder, data)
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
    (report, *_) = sorted(folder.glob("ranks/rank-0.json"))
    result: dict[str, Any] = json.loads(report.read_text())["training"]
    return result


def unlike(whole: dict[str, Any], resumed: dict[str, Any], kills: int) -> list[str]:
    """What came out otherwise than without the kills."""
    wrong = []
    for key in ("train_loss", "loss", "steps", "samples"):
        ours, theirs = ([row[key] for row in training["rows"]] for training in (resumed, whole))
        if ours != pytest.approx(theirs, rel=1e-12):
            wrong.append(f"{key}: {ours} for {theirs}")
    metrics = ("step", "samples", "accuracy", "loss")
    if [resumed["evaluated"][k] for k in metrics] != pytest.approx([whole["evaluated"][k] for k in metrics], rel=1e-12):
        wrong.append(f"test: {resumed['evaluated']} for {whole['evaluated']}")
    if resumed["orders"] != whole["orders"]:
        wrong.append("another order of samples")
    if resumed["resumed"] != kills:
        wrong.append(f"it says that it was gone on with {resumed['resumed']} times, for {kills} kills")
    return wrong
