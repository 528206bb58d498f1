"""A small study on a real Slurm: `run_sweep.py` as a person calls it, with planted ranks in place of training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_daemons import Slurm

from scaling_study.records import store
from scaling_study.records.store import Record

STUDY = """
study: tiny
parity: false
measure: {{repeats: {repeats}, max_repeats: {repeats}, timeout_seconds: {timeout}}}
sweeps:
  - {{{sweep}, data: synthetic, model: resnet8, matrix: {{seed: {seeds}}}}}
"""


class Study:
    """A study file in a folder of its own, and a Slurm to run it on. `book`: seed -> how its trials misbehave."""

    def __init__(
        self, folder: Path, checkout: Path, slurm: Slurm, seeds: int = 1, repeats: int = 1, timeout: float = 600.0,
        seconds: float = 0.2, book: dict[int, str] | None = None, sweep: str = "framework: single",
    ) -> None:  # fmt: skip
        self.folder, self.slurm, self.results = folder, slurm, folder / "results" / "tiny"
        self._door = [sys.executable, str(checkout / "run_sweep.py"), "study.yaml"]
        text = STUDY.format(repeats=repeats, timeout=timeout, seeds=list(range(seeds)), sweep=sweep)
        (folder / "study.yaml").write_text(text)
        (folder / "book.json").write_text(json.dumps(book or {}))
        self.starts = folder / "starts"
        self.environment = {
            **slurm.environment, "PLANTED_STARTS": str(self.starts), "PLANTED_SECONDS": str(seconds),
            "PLANTED_BOOK": str(folder / "book.json"), "COLUMNS": "160", "PYTHONPATH": str(checkout),
        }  # fmt: skip

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The front door with these words; the driver is gone when this returns."""
        return subprocess.run(
            [*self._door, *words], cwd=self.folder, env={**self.environment, **environment}, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip

    def by_hand(self, *command: str) -> str:
        """A command of a person's own, with the study's environment."""
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def submit(self, options: str = "", *words: str, **environment: str) -> list[str]:
        """--slurm; the numbers of the jobs."""
        done = self.run("--slurm", options, "--json", *words, **environment)
        assert done.returncode == 0, done.stderr
        return [job["job"] for job in json.loads(done.stdout)["jobs"]]

    def collect(self) -> tuple[int, str]:
        """--collect: its exit code and what it says."""
        done = self.run("--collect")
        return done.returncode, done.stdout + done.stderr

    def status(self) -> list[dict[str, Any]]:
        """--status --json: a row a job."""
        done = self.run("--status", "--json")
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def records(self) -> list[Record]:
        """What is on record, in the order of the seeds and repeats."""
        found = store.read_study(self.results)
        return sorted(found, key=lambda record: (record.trial.seed, record.trial.repeat))

    def outcomes(self) -> list[tuple[str, str]]:
        return [(record.status, record.reason) for record in self.records()]

    def until_started(self, count: int = 1) -> None:
        """Wait until so many trials run, or have run."""
        self.until(lambda: self.starts.exists() and len(self.starts.read_text().splitlines()) >= count)

    def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                said = "\n".join(path.read_text() for path in self.results.glob("slurm/*/output.txt"))
                raise AssertionError(f"it never came true; the jobs say:\n{said}")
            time.sleep(0.05)

    def end(self) -> None:
        """Leave no job to the next test."""
        self.slurm.ask("scancel", "--user", str(os.getuid()))
        self.until(lambda: not self.slurm.ask("squeue", "-h").strip())
