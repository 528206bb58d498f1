"""A checkout may lie below .cache and build, in a path with spaces and odd bytes, behind a symbolic link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from copied import SCRIPTS, copied

from scaling_study.machine import installed

FOLDERS = {Path(script).parts[0] for script in SCRIPTS}
STUDY = """
study: awkward
parity: false
measure: {warmup_steps: 1, min_steps: 3, max_steps: 3, min_seconds: 0, repeats: 1, max_repeats: 1}
sweeps: [{framework: horovod, model: resnet8, data: synthetic, workers: 2}]
"""


@pytest.mark.slow
@pytest.mark.skipif(not installed("horovod"), reason="horovod is not installed")
def test_a_study_is_planned_trained_and_analysed_there(tmp_path: Path) -> None:
    below, link = tmp_path / ".cache" / "with spaces", tmp_path / "link"
    link.symlink_to(below)
    below.mkdir(parents=True)
    checkout = copied(link / "build" / "check\udcffout", *FOLDERS)  # with a byte that is not UTF-8
    (checkout / "study.yaml").write_text(STUDY)

    def run(*words: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(checkout), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            [sys.executable, *words], cwd=checkout, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (planned,) = json.loads(run("run_sweep.py", "study.yaml", "--dry-run", "--json"))["trials"]
    assert "horovod_runs/resnet_cifar10.py" in planned["command"]
    run("run_sweep.py", "study.yaml", "--no-report")
    results = checkout / "results" / "awkward"
    assert [json.loads(path.read_text())["status"] for path in results.glob("trials/*/record.json")] == ["ok"]
    run("-m", "analysis", "report", str(results))
    assert (results / "report.html").exists() and (results / "configurations.csv").exists()
