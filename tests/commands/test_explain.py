"""`scaling-study explain`: what it starts, the study that it writes, and a command that is really explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.compare.explained import NOT_KNOWN, Explained, Explanation
from scaling_study import cli
from scaling_study.commands import compared, explain

Capture = pytest.CaptureFixture[str]
TRAIN = """
import sys, time, torch
from torch import nn
torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(8), index % 4
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(Slow(), int(sys.argv[1])):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
TORCHRUN = "torchrun --master-port {port} --nproc-per-node {workers} train.py {batch_per_worker}"


def test_one_command_is_enough_and_a_dry_run_starts_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["explain", "touch {run_dir}/x", "--dry-run", "--results", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert "touch {run_dir}/x" in said and "times for some seconds" in said and not (tmp_path / "r").exists()
    assert cli.main(["explain", "python t.py {workers}"]) == 2 and "--workers" in capsys.readouterr().err


@pytest.mark.parametrize("launches, facts", [(2, ["9 of 10 questions", "812 samples/s"]), (0, ["no launch has ended"])])
def test_an_explanation_that_is_stopped_says_what_is_known_so_far(launches, facts, tmp_path, capsys, monkeypatch):
    known = Explanation("How fast is it?", "812 samples/s", "2 launches")
    page = Explained("python train.py", [known, *9 * [Explanation("?", NOT_KNOWN, "too few launches")]], {})
    monkeypatch.setattr(compared, "looked_at", lambda *_: {"A": compared.Look(1, 32)})
    monkeypatch.setattr(compared, "in_turns", lambda *_: 130)
    monkeypatch.setattr(explain.results_folder, "finished", lambda _: dict.fromkeys(range(launches)))
    monkeypatch.setattr(explain.options, "explained", lambda *_: page)
    words = ["--results", str(tmp_path), "--out", str(tmp_path / "page.md")]
    assert cli.main(["explain", "python train.py", *words]) == 130
    said = capsys.readouterr().out
    assert all(fact in said for fact in facts) and NOT_KNOWN not in said and not (tmp_path / "page.md").exists()


@pytest.mark.slow
def test_a_loader_that_sleeps_is_what_to_change_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compared, "LAUNCHES", 2)
    monkeypatch.setattr(compared, "MOST_LAUNCHES", 2)
    monkeypatch.setattr(compared, "BLOCK_SECONDS", 0.1)
    Path("train.py").write_text(TRAIN)
    words = ["explain", TORCHRUN, "--workers", "2", "--batch-per-worker", "8", "--name", "x", "--out", "page.md"]
    assert cli.main([*words, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    loader, network, first = answers[2], answers[3], answers[9]
    assert loader["known"] and loader["numbers"]["share"] > 0.5, "40 ms of a step are slept"
    assert not network["known"] and "--workers 1,N" in network["evidence"]
    assert first["numbers"]["change"] == "Input that never keeps a step waiting"
    assert first["text"] in Path("page.md").read_text()
    before = [path.stat().st_mtime_ns for path in sorted(Path("results/explain-x/trials").glob("*/record.json"))]
    assert cli.main(words) == 0 and "num_workers" in capsys.readouterr().out
    after = [path.stat().st_mtime_ns for path in sorted(Path("results/explain-x/trials").glob("*/record.json"))]
    assert before == after and len(before) == 2, "nothing is measured again"
