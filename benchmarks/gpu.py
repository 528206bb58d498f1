"""The first hour on a GPU: `python -m benchmarks gpu --out DIR [--minutes 20]` checks, then measures, then reports.

    doctor   every framework by every launcher trains one step                     DIR/doctor.txt
    checks   the tests marked gpu: copies, memory, energy, peaks, clocks            DIR/checks.txt
    rounds   python -m benchmarks warm: is what is measured in rounds as fast?       DIR/rounds/
    study    studies/one_gpu.yaml: throughput, compiled and not; largest batches    DIR/one-gpu/, as any study's
    page     what works, what does not, the figures                                 DIR/README.md, one-gpu/report.html

What has passed is not run again: the same command goes on where it was. After `--minutes` the study is stopped as by
Ctrl-C, which loses nothing, and the page is written of what there is. `--device cpu` runs all of it at toy size on a
machine without a GPU: its figures say nothing, but that it runs is known before anybody pays for a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import publish
from scaling_study.machine import this_machine
from scaling_study.settings import CHECKOUT

STUDY = CHECKOUT / "studies" / "one_gpu.yaml"
RESULTS = "one-gpu"  # the study's name
LEAST_SECONDS = 30.0  # for the study, however long the checks took: one trial
STOP_SECONDS = 60.0  # for a stopped sweep to end its trial and write its tables
STEPS = ("doctor", "checks", "rounds")
DOCTOR = (sys.executable, str(CHECKOUT / "run_sweep.py"), "--doctor")
CHECKS = (sys.executable, "-m", "pytest", "-m", "gpu", "-rA", "-p", "no:cacheprovider", str(CHECKOUT / "tests/gpu"))
ROUNDS = (sys.executable, "-m", "benchmarks", "warm")
PAGES = (
    "rounds/README.md",
    *(f"{RESULTS}/tables/{name}" for name in ("throughput-*.md", "utilisation.md", "memory-*.md", "frontier.md")),
)


def main(argv: Sequence[str]) -> int:
    """0: every step ran, and nothing that was tried failed; 1: something failed, which the page names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for everything; the same one goes on")
    parser.add_argument("--minutes", type=float, default=20.0, help="stop the study after so long (default: 20)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: all of it at toy size")
    parser.add_argument("--pairs", type=int, default=3, help="of launches in rounds and by themselves (default: 3)")
    parser.add_argument("--skip", action="append", default=[], choices=STEPS, help="leave this step out")
    asked = parser.parse_args(argv)
    if asked.device == "cuda" and not this_machine().gpus:
        parser.error("this machine has no GPU: --device cpu runs the same steps at toy size")
    until = time.monotonic() + 60 * asked.minutes
    asked.out = asked.out.resolve()  # steps run in the checkout
    asked.out.mkdir(parents=True, exist_ok=True)
    small = ["--quick"] if asked.device == "cpu" else []
    rounds = (*ROUNDS, "--pairs", str(asked.pairs), "--results", str(asked.out / "rounds"), *small)
    steps = {"doctor": DOCTOR, "checks": CHECKS, "rounds": rounds}
    codes = [step(name, asked.out, command) for name, command in steps.items() if name not in asked.skip]
    codes.append(study(asked.out, asked.device, max(LEAST_SECONDS, until - time.monotonic())))
    (asked.out / "README.md").write_text(page(asked.out, asked.device), encoding="utf-8")
    print(f"Page: {asked.out / 'README.md'}; report: {asked.out / RESULTS / 'report.html'}")
    return int(any(codes))


def step(name: str, folder: Path, argv: Sequence[str]) -> int:
    """Run a step unless it has passed before; its exit code. What it prints is kept."""
    output, passed = folder / f"{name}.txt", folder / f"{name}.json"
    if passed.exists():
        print(f"{name}: passed before ({output})")
        return 0
    print(f"{name}: {' '.join(argv[1:3])} ...", flush=True)
    with output.open("w", encoding="utf-8") as stream:
        code = subprocess.run(argv, cwd=CHECKOUT, env=environment(), stdout=stream, stderr=subprocess.STDOUT).returncode
    if code == 0:
        passed.write_text(json.dumps(publish.surroundings()), encoding="utf-8")
    return code


def study(folder: Path, device: str, seconds: float) -> int:
    """Run or go on with the study for so long; the exit code, 0 where only the time was over."""
    argv = [sys.executable, str(CHECKOUT / "run_sweep.py"), str(STUDY), "--results", str(folder)]
    with subprocess.Popen([*argv, *(["--small"] if device == "cpu" else [])], env=environment()) as running:
        try:
            return running.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            print(f"study: {seconds / 60:.0f} minutes are over; the same command goes on", flush=True)
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=STOP_SECONDS)
            return 0


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}


def page(folder: Path, device: str) -> str:
    """DIR/README.md: where it ran, what failed, and the study's own tables."""
    about = publish.surroundings()
    lines = [f"# The first hour on {about['machine']}", ""]
    if device == "cpu":
        lines += ["**On a CPU, at toy size: this shows that it runs. No figure here says anything of a GPU.**", ""]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines += [f"{about['date']}, commit {about['commit']}; {versions}.", "", "## What works", ""]
    lines += [f"- {name}: {last_line(folder / f'{name}.txt')}" for name in ("doctor", "checks")]
    rounds = folder / "rounds.txt"
    failed = [] if (folder / "rounds.json").exists() or not rounds.exists() else [f"rounds: {last_line(rounds)}"]
    failed += [line for name in ("doctor", "checks") for line in failures(folder / f"{name}.txt")]
    failed += failed_trials(folder / RESULTS / "results.csv")
    lines += ["", "## What does not", "", *(f"    {line}" for line in failed or ["nothing that was tried"])]
    tables = [path for pattern in PAGES for path in sorted(folder.glob(pattern))]
    lines += ["", "## Figures", "", f"All of them: [{RESULTS}]({RESULTS}/report.html).", ""]
    return "\n".join([*lines, *("\n" + path.read_text(encoding="utf-8") for path in tables)])


def last_line(file: Path) -> str:
    text = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return text.splitlines()[-1].strip("= ") if text else "not run"


def failures(file: Path) -> list[str]:
    """The lines of a step's output that name what failed."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [line.strip() for line in text.splitlines() if re.match(r"(fails|FAILED|ERROR)\b", line)]


def failed_trials(file: Path) -> list[str]:
    """The study's trials that are neither ok nor unsupported, with the reason."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [f"{row['trial']}: {row['status']}" for row in rows if row["status"] not in ("ok", "unsupported")]
