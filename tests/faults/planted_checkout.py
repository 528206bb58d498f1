"""The product as it is, in a folder of its own, but for the frameworks' scripts: those are the planted rank.

    copy/run_sweep.py, scaling_study/, analysis/       as they are
    copy/data_parallel/single.py, fsdp/..., ...        planted_rank.py, under each script's own name

So `python run_sweep.py study.yaml` is what a user calls, with the real table, plan, launchers, supervisor and records.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.settings import CHECKOUT

AS_IT_IS = ("run_sweep.py", "scaling_study", "analysis")
RANK = Path(__file__).with_name("planted_rank.py")


def make(copy: Path) -> Path:
    """Copy the product to `copy`, which anybody can read, and plant the rank."""
    copy.mkdir(parents=True)
    for name in AS_IT_IS:
        there = CHECKOUT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(there, copy / name, ignore=ignored) if there.is_dir() else shutil.copy(there, copy / name)
    for framework in FRAMEWORKS.values():
        script = copy / framework.script
        script.parent.mkdir(exist_ok=True)
        shutil.copy(RANK, script)
    return copy
