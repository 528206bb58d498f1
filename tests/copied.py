"""Copies of the product in a folder of their own: as it is, or with planted ranks in place of the frameworks' scripts.

    copy/run_sweep.py, scaling_study/, analysis/       as they are
    copy/data_parallel/single.py, fsdp/..., ...        as they are, or faults/planted_rank.py under each script's name

So `python run_sweep.py study.yaml` is what a user calls, with the real table, plan, launchers, supervisor and records.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.settings import CHECKOUT

LIBRARY = ("run_sweep.py", "scaling_study", "analysis")
SCRIPTS = [framework.script for framework in FRAMEWORKS.values()]


def copied(copy: Path, *more: str) -> Path:
    """The library and `more` of the checkout, in a new folder that anybody can read."""
    copy.mkdir(parents=True)
    for name in (*LIBRARY, *more):
        there = CHECKOUT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(there, copy / name, ignore=ignored) if there.is_dir() else shutil.copy(there, copy / name)
    return copy


def planted(copy: Path) -> Path:
    """The library and a planted rank under each script's name."""
    copied(copy)
    for script in SCRIPTS:
        (copy / script).parent.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).parent / "faults/planted_rank.py", copy / script)
    return copy
