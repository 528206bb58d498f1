"""The front door as a person uses it: real processes, real exit codes, one clear message each."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from eventually import gone, until

from scaling_study import cli
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.settings import CHECKOUT

TINY = """
study: tiny
parity: false
measure: {warmup_steps: 1, min_steps: 3, min_seconds: 0, max_steps: 3, repeats: 2, max_repeats: 2}
sweeps:
  - framework: single
    data: synthetic
    matrix: {model: [resnet8], batch_per_worker: [4, 8]}
"""


def sweep(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHECKOUT / "run_sweep.py"), *arguments], cwd=cwd, env={**os.environ, **(env or {})},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.strip())
    return line


@pytest.mark.slow
def test_help_is_quick_and_names_the_options(tmp_path):
    before = os.times()
    done = sweep("--help", cwd=tmp_path)
    after = os.times()
    assert done.returncode == 0
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5
    assert all(option in done.stdout for option in ("--dry-run", "--where", "--json", "--small", "-q", "--doctor"))


def test_dry_run_starts_nothing_and_prints_commands(tiny):
    done = sweep("tiny.yaml", "--dry-run", cwd=tiny)
    assert done.returncode == 0, done.stderr
    script = shlex.quote(str(CHECKOUT / FRAMEWORKS["single"].script))  # a checkout may lie in a path with spaces
    assert "4 trials" in done.stdout and f"{script} --model resnet8 --batch-per-worker 4" in done.stdout
    assert "Estimated time" in done.stdout
    assert not (tiny / "results").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_sweep_in_two_calls_then_the_same_again(tiny):
    (tiny / "tiny.yaml").write_text(TINY.replace("repeats: 2", "repeats: 1"))
    first = sweep("tiny.yaml", "--json", "--max-trials", "1", "--no-report", cwd=tiny)
    assert first.returncode == 0, first.stdout + first.stderr
    (trial,) = json.loads(first.stdout)["trials"]
    assert trial["status"] == "ok" and trial["samples_per_second"] > 0
    results = tiny / "results" / "tiny"
    assert "scaling-study tables results/tiny" in first.stderr and not list(results.glob("*/*.png"))
    done = sweep("tiny.yaml", cwd=tiny)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((results / "study.json").read_text())["stopped"] == ""
    rows = list(csv.DictReader((results / "results.csv").open()))
    assert len(rows) == 2 and {row["status"] for row in rows} == {"ok"}
    assert {row["data_source"] for row in rows} == {"synthetic (asked for)"}
    assert "SYNTHETIC" in done.stdout.upper()
    assert list((results / "figures").glob("*.png")) and list((results / "tables").glob("*.md"))
    records = sorted(results.glob("trials/*/record.json"))
    times = [path.stat().st_mtime_ns for path in records]
    again = sweep("tiny.yaml", "--no-report", cwd=tiny)
    assert again.returncode == 0 and "2 of 2 trials are already finished" in again.stdout
    assert [path.stat().st_mtime_ns for path in records] == times


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_ctrl_c_keeps_what_is_finished_says_how_to_go_on_and_leaves_nothing(tiny, number):
    (tiny / "tiny.yaml").write_text(TINY.replace("min_steps: 3", "min_steps: 100000").replace("max_steps: 3,", ""))
    driver = subprocess.Popen(
        [sys.executable, str(CHECKOUT / "run_sweep.py"), "tiny.yaml"], cwd=tiny, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until(lambda: list(tiny.glob("results/tiny/trials/*/log.txt")))
    until(lambda: len(psutil.Process(driver.pid).children(recursive=True)) >= 2)  # its supervisor, and the trial
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(number)
    said, _ = driver.communicate(timeout=600)
    assert driver.returncode == 130
    assert f"Stopped by {number.name}" in said
    assert re.search(r"^To resume: python \S*run_sweep\.py tiny\.yaml$", said, re.MULTILINE)
    assert not gone(below)
    assert not list(tiny.glob("results/tiny/trials/*/record.json"))
    assert json.loads((tiny / "results/tiny/study.json").read_text())["stopped"] == number.name


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_larger_batch_than_one_out_of_memory_is_implied_and_no_failure_of_its_own(tmp_path, capsys):
    study = "study: big\nparity: false\nmeasure: {repeats: 1, max_repeats: 1}\n"
    study += "sweeps: [{framework: single, data: synthetic, model: resnet8, image_size: 100000, "
    (tmp_path / "big.yaml").write_text(study + "matrix: {batch_per_worker: [1, 2]}}]\n")

    def swept(*options):  # in this process: what it prints is as wide as where it prints to
        code = cli.run_sweep([str(tmp_path / "big.yaml"), "--results", str(tmp_path / "results"), *options])
        return code, " ".join(capsys.readouterr().out.split())

    code, failed = swept("--where", "batch_per_worker=1")
    assert code == 1 and "oom: single-resnet8-b1-" in failed, "it really ran out"
    code, implied = swept("--where", "batch_per_worker=2")
    assert code == 0
    assert "Skipped because a smaller batch ran out of memory: 1 (--no-prune runs them)." in implied
    assert "implied: batch_per_worker=1 was out of memory (single-resnet8-b1-" in implied
    assert "oom (implied)" in implied
    code, really = swept("--no-prune", "--where", "batch_per_worker=2")
    assert code == 1 and "oom: single-resnet8-b2-" in really


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_insisting_on_data_that_is_not_there_is_one_sentence_before_anything_runs(tiny):
    (tiny / "tiny.yaml").write_text(TINY.replace("synthetic", "cifar10"))
    no_network = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")}
    environment = {"DATA_ROOT": str(tiny / "no-data"), **no_network}
    done = sweep("tiny.yaml", cwd=tiny, env=environment)
    assert done.returncode == 1 and "no-data (the environment): there is no such folder" in error_of(done)
    (tiny / "no-data").mkdir()
    done = sweep("tiny.yaml", cwd=tiny, env=environment)
    assert done.returncode == 1
    assert "tiny.yaml requires data: cifar10, but CIFAR-10 is not in" in error_of(done)
    assert not (tiny / "results").exists()
