"""`scaling-study bench`: what it compares, what it says, and two commands that really take turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.side_by_side import Pair, Side, SideBySide
from scaling_study import cli
from scaling_study.commands import bench
from scaling_study.errors import StudyError
from scaling_study.stats.intervals import Interval

Capture = pytest.CaptureFixture[str]
TRAIN = """
import sys, time, torch
batch, delay = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 8), torch.randint(0, 4, (4096,)))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        time.sleep(delay)
        loss.backward()
        optimizer.step()
"""


# --- what is compared ---


def test_every_command_is_compared_with_every_value_that_it_names() -> None:
    asked = {"workers": "1,2", "batch_per_worker": "32"}
    found = bench.expanded(["a {workers} {batch_per_worker} {port}", "b {batch_per_worker}"], asked)
    assert [(each.label, each.text) for each in found] == [
        ("A", "a 1 32 {port}"),
        ("B", "a 2 32 {port}"),
        ("C", "b 32"),
    ]


def test_braces_that_are_no_placeholders_stay(capsys: Capture) -> None:
    assert cli.main(["bench", """python t.py '{"rate": 0.1}'""", "python t.py {}", "--dry-run"]) == 0
    assert """'{"rate": 0.1}'""" in capsys.readouterr().out


@pytest.mark.parametrize(
    "commands, asked, fact",
    [
        (["python t.py"], {}, "two commands"),
        (["a {workers}", "b"], {}, "--workers"),
        (["a {width}", "b"], {}, "{width}"),
        (["a 'b", "c"], {}, "No closing quotation"),
        (["a {workers}"], {"workers": "1,two"}, "'two'"),
        (["a", "b"] * 20, {}, "at most 26"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(commands: list[str], asked: dict[str, str], fact: str) -> None:
    with pytest.raises(StudyError) as refused:
        list(bench.expanded(commands, {"workers": "", "batch_per_worker": "", **asked}))
    assert fact in refused.value.problems[0]


@pytest.mark.parametrize("text, share", [("2%", 0.02), ("0.5", 0.005), ("-1%", None), ("two", None), ("90%", None)])
def test_a_margin_is_a_share(text: str, share: float | None) -> None:
    if share is None:
        with pytest.raises(StudyError):
            bench.margin_of(text)
    else:
        assert bench.margin_of(text) == pytest.approx(share)


def test_a_dry_run_says_what_would_start_and_starts_nothing(tmp_path: Path, capsys: Capture) -> None:
    words = ["bench", "touch {run_dir}/x", "touch y", "--dry-run", "--results", str(tmp_path / "r")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "touch {run_dir}/x" in said and "3 to 10 times" in said and not (tmp_path / "r").exists()


# --- what is said ---


def side(label: str, parts: dict[str, float], samples: int = 32) -> Side:
    row: Any = {"global_batch": samples, "samples_per_second": 100.0, "workers": 1, "command": "c"}
    return Side(label, row, sum(parts.values()), parts)


def pair(low: float | None, high: float | None, **other: Any) -> Pair:
    mean = 1.3 if low is None or high is None else (low * high) ** 0.5
    return Pair(side("B", {"forward": 0.05, "backward": 0.05}, **other), side("A", {"forward": 0.05, "backward": 0.1}),
                Interval(mean, low, high, 3))  # fmt: skip


@pytest.mark.parametrize(
    "low, high, words, resolved",
    [
        (1.28, 1.34, "B is 1.31x [1.28, 1.34] as fast as A", True),
        (0.70, 0.80, "B is 0.75x [0.70, 0.80] as fast as A", True),
        (0.99, 1.01, "B is as fast as A to 2 %", True),
        (0.95, 1.06, "Not resolved whether B is faster than A", False),
        (None, None, "say nothing of how sure", False),
    ],
)
def test_a_verdict_is_a_sentence_with_its_interval(
    low: float | None, high: float | None, words: str, resolved: bool
) -> None:
    assert words in pair(low, high).sentence(0.02) and pair(low, high).is_resolved(0.02) == resolved


def test_the_part_that_changed_is_named_and_unlike_work_too() -> None:
    assert pair(1.2, 1.4).changes() == ["backward 100.0 -> 50.0 ms"] and not list(pair(1.2, 1.4).caveats())
    (caveat,) = pair(1.2, 1.4, samples=64).caveats()
    assert "unlike work" in caveat and "32" in caveat and "64" in caveat
    lines = list(SideBySide([pair(1, 2).first, pair(1, 2).side], [pair(1.2, 1.4)], {"C": "failed"}).lines(0.02))
    assert len(lines) == 5 and "1 process" in lines[0] and lines[2] == "C  failed"


# --- for real ---


@pytest.fixture
def benched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "LAUNCHES", 2)
    monkeypatch.setattr(bench, "MOST_LAUNCHES", 2)
    monkeypatch.setattr(bench, "BLOCK_SECONDS", 0.1)
    Path("train.py").write_text(TRAIN)
    return lambda *words: cli.main(["bench", *words, "--name", "x"])


@pytest.mark.slow
def test_a_command_that_waits_is_slower_by_what_it_waits(benched: Callable[..., int], capsys: Capture) -> None:
    words = ("python train.py {batch_per_worker} 0.004", "python train.py 16 0.008", "--batch-per-worker", "16")
    assert benched(*words, "--json") == 3, "two launches claim no interval"
    said = json.loads(capsys.readouterr().out)
    (ratio,) = said["ratios"]
    assert (ratio["of"], ratio["over"]) == ("B", "A") and 0.45 < ratio["ratio"] < 0.65
    assert [side["step_samples"] for side in said["commands"]] == [16, 16]
    assert said["commands"][1]["step_seconds"] > 0.008
    records = sorted(Path("results/bench-x/trials").glob("*/record.json"))
    before = [path.stat().st_mtime_ns for path in records]
    assert benched(*words) == 3 and [path.stat().st_mtime_ns for path in records] == before, "nothing is measured again"
    assert len(records) == 4 and "as fast as A" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_command_that_crashes_is_named_with_its_last_words(benched: Callable[..., int], capsys: Capture) -> None:
    Path("crash.py").write_text("raise SystemExit('there is no such data set')\n")
    assert benched("python train.py 16 0", "python crash.py") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "B ended with 1" in said and "there is no such data set" in said
    sized = TRAIN.replace("loss = ", "x = x.repeat(3, 1)[:batch * 2]; y = y.repeat(3)[:batch * 2]; loss = ")
    Path("sized.py").write_text(sized)
    assert benched("python train.py 16 0", "python sized.py 16 0") == 1
    assert "B: the samples of its step were not seen" in " ".join(capsys.readouterr().err.split())
