"""A small study on a real Slurm: `run_sweep.py` as a person calls it, with planted ranks or real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eventually import LATEST_SECONDS, until
from slurm_daemons import Slurm

from scaling_study.records import store
from scaling_study.records.schema import Record

ENDS_SOON, ONE = "{{repeats: {0}, max_repeats: {0}, timeout_seconds: {1}}}", "framework: single"


class Study:
    """A study file in a folder of its own, and a Slurm to run it on, whose users log in where its commands run."""

    def __init__(self, folder: Path, checkout: Path, slurm: Slurm, measure: str, sweeps: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.slurm, self.results = folder, slurm, folder / "results" / "tiny"
        self._door = [sys.executable, str(checkout / "run_sweep.py"), "study.yaml"]
        lines = ["study: tiny", "parity: false", f"measure: {measure}", "sweeps:", *(f"  - {one}" for one in sweeps)]
        (folder / "study.yaml").write_text("\n".join(lines) + "\n")
        self.environment = {**slurm.environment, "COLUMNS": "200", "PYTHONPATH": str(checkout)}

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The front door with these words; the driver is gone when this returns."""
        return subprocess.run(
            [*self.slurm.login(self.folder), *self._door, *words], cwd=self.folder,
            env={**self.environment, **environment}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def submit(self, options: str = "", *words: str, **environment: str) -> list[str]:
        """--slurm; the numbers of the jobs."""
        done = self.run("--slurm", options, "--json", *words, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return [job["job"] for job in json.loads(done.stdout)["jobs"]]

    def collect(self) -> tuple[int, str]:
        """--collect: its exit code and what it says."""
        done = self.run("--collect")
        return done.returncode, done.stdout + done.stderr

    def collected(self) -> tuple[str, str]:
        """Collect; status and reason of the only trial."""
        self.collect()
        (found,) = self.outcomes()
        return found

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

    def said(self) -> str:
        """The ends of what jobs and trials have printed."""
        paths = [*self.results.glob("slurm/*/output.txt"), *self.results.glob("trials/*/log.txt")]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths)

    def until(self, condition: Callable[[], object], seconds: float = LATEST_SECONDS) -> None:
        until(condition, seconds, self.said)

    def no_job_is_left(self) -> bool:
        return not self.slurm.ask("squeue", "-h").strip()

    def end(self) -> None:
        """Leave no job to the next test."""
        self.slurm.ask("scancel", "--user", str(os.getuid()))
        self.until(self.no_job_is_left)


class Planted(Study):
    """One whose ranks are planted. `book`: seed -> how its trials misbehave."""

    def __init__(
        self, folder: Path, checkout: Path, slurm: Slurm, seeds: int = 1, repeats: int = 1, timeout: float = 600.0,
        seconds: float = 0.2, book: dict[int, str] | None = None, sweep: str = ONE,
    ) -> None:  # fmt: skip
        keys = f"{{{sweep}, data: synthetic, model: resnet8, matrix: {{seed: {list(range(seeds))}}}}}"
        super().__init__(folder, checkout, slurm, ENDS_SOON.format(repeats, timeout), [keys])
        (folder / "book.json").write_text(json.dumps(book or {}))
        self.starts = folder / "starts"
        planted = {"STARTS": str(self.starts), "SECONDS": str(seconds), "BOOK": str(folder / "book.json")}
        self.environment |= {f"PLANTED_{name}": value for name, value in planted.items()}

    def running(self) -> str:
        """Submit the only trial and wait until it runs; its job."""
        (job,) = self.submit("", "--per-trial")
        self.until_started()
        return job

    def until_started(self, count: int = 1) -> None:
        """Wait until so many trials run, or have run."""
        self.until(lambda: self.starts.exists() and len(self.starts.read_text().splitlines()) >= count)
