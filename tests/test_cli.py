"""The front door as a person uses it: real trials, real exit codes, one clear message each."""

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
NOBODY = "http://127.0.0.1:9"  # a proxy that does not answer


def sweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKOUT / "run_sweep.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_help_is_quick_and_names_the_options(tmp_path):
    before = os.times()
    done = sweep("--help", cwd=tmp_path)
    after = os.times()
    assert done.returncode == 0
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5
    assert all(option in done.stdout for option in ("--dry-run", "--where", "--json", "--small", "-q", "--doctor"))


def test_dry_run_starts_nothing_and_prints_commands(tiny, capsys):
    assert cli.run_sweep(["tiny.yaml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    script = shlex.quote(str(CHECKOUT / FRAMEWORKS["single"].script))  # a checkout may lie in a path with spaces
    assert "4 trials" in shown and f"{script} --model resnet8 --batch-per-worker 4" in shown
    assert "Estimated time" in shown
    assert not (tiny / "results").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_sweep_in_two_calls_then_the_same_again(tiny, capsys):
    (tiny / "tiny.yaml").write_text(TINY.replace("repeats: 2", "repeats: 1"))
    assert cli.run_sweep(["tiny.yaml", "--json", "--max-trials", "1", "--no-report"]) == 0
    first = capsys.readouterr()
    (trial,) = json.loads(first.out)["trials"]
    assert trial["status"] == "ok" and trial["samples_per_second"] > 0
    results = tiny / "results" / "tiny"
    assert "scaling-study tables results/tiny" in first.err and not list(results.glob("*/*.png"))
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
    assert cli.run_sweep(["tiny.yaml", "--no-report"]) == 0
    assert "2 of 2 trials are already finished" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in records] == times


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_ctrl_c_keeps_what_is_finished_says_how_to_go_on_and_leaves_nothing(tiny, number):
    (tiny / "tiny.yaml").write_text(TINY.replace("min_steps: 3", "min_steps: 100000").replace("max_steps: 3,", ""))
    driver = subprocess.Popen(
        [sys.executable, str(CHECKOUT / "run_sweep.py"), "tiny.yaml", "--retry", "failed,ok"], cwd=tiny,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until(lambda: list(tiny.glob("results/tiny/trials/*/log.txt")))
    until(lambda: len(psutil.Process(driver.pid).children(recursive=True)) >= 2)  # its supervisor, and the trial
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(number)
    said, _ = driver.communicate(timeout=600)
    assert driver.returncode == 130
    assert f"Stopped by {number.name}" in said
    assert re.search(r"^To resume: python \S*run_sweep\.py tiny\.yaml --retry failed$", said, re.MULTILINE)
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


def test_insisting_on_data_that_is_not_there_is_one_sentence_before_anything_runs(tiny, capsys, monkeypatch):
    (tiny / "tiny.yaml").write_text(TINY.replace("synthetic", "cifar10"))
    for name, value in {"DATA_ROOT": str(tiny / "no-data"), "http_proxy": NOBODY, "https_proxy": NOBODY}.items():
        monkeypatch.setenv(name, value)
    for said in ("no-data (the environment): there is no such folder",
                 "tiny.yaml requires data: cifar10, but CIFAR-10 is not in"):  # fmt: skip
        assert cli.run_sweep(["tiny.yaml"]) == 1
        (line,) = filter(None, capsys.readouterr().err.splitlines())
        assert said in line
        (tiny / "no-data").mkdir(exist_ok=True)
    assert not (tiny / "results").exists()
