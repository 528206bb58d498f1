"""Of the parts in slurm/, one talks to Slurm; what decides anything is pure."""

from __future__ import annotations

import ast

import pytest

from scaling_study.settings import CHECKOUT

PARTS = {path.stem: ast.parse(path.read_text()) for path in (CHECKOUT / "scaling_study" / "slurm").glob("*.py")}
PURE = ("batch_script",)
IMPURE = {"subprocess", "time", "datetime", "socket", "psutil", "signal", "secrets", "shutil", "tempfile", "os"}


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_one_part_talks_to_slurm():
    assert [name for name, tree in PARTS.items() if "subprocess" in imported(tree)] == ["jobs"]


@pytest.mark.parametrize("name", PURE)
def test_what_decides_is_pure(name):
    assert not imported(PARTS[name]) & (IMPURE | {"scaling_study.slurm.jobs"})
