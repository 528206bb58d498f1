"""docs/internals/add-a-framework.md, done: a framework that is not here joins by one script and one entry."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import forked
import pytest
from copied import copied

from scaling_study.settings import CHECKOUT

EXAMPLE = CHECKOUT / "examples" / "framework"
STUDY = """
study: added
measure: {warmup_steps: 1, min_steps: 3, min_seconds: 0, repeats: 1}
sweeps:
  - framework: torch_zero1
    matrix: {model: [resnet8], batch_per_worker: [8], data: [synthetic], workers: [2]}
"""


def lines_of_code(path: Path) -> list[str]:
    """Without the docstring, comments and blank lines."""
    body = path.read_text(encoding="utf-8").split('"""', 2)[2].splitlines()
    return [line for line in body if line.strip() and not line.strip().startswith("#")]


@pytest.mark.long
def test_one_script_and_one_entry_are_enough(tmp_path: Path) -> None:
    copy = copied(tmp_path / "checkout", "data_parallel", "setup.cfg")
    shutil.copy(EXAMPLE / "torch_zero1.py", copy / "data_parallel")
    table = copy / "scaling_study" / "frameworks.py"
    head, rest = table.read_text(encoding="utf-8").split('    "horovod": Framework(', 1)
    entry = (EXAMPLE / "entry.txt").read_text(encoding="utf-8")
    table.write_text(f'{head}{entry}    "horovod": Framework({rest}', encoding="utf-8")
    (copy / "study.yaml").write_text(STUDY, encoding="utf-8")

    done = forked.ended(forked.launch([sys.executable, "run_sweep.py", "study.yaml", "--json"], cwd=copy, path=(copy,)))
    said = json.loads(done.stdout)
    timed, gates = ({row["framework"]: row for row in said[kind]} for kind in ("trials", "gates"))
    assert gates["torch_zero1"]["status"] == "ok" and timed["torch_zero1"]["samples_per_second"] > 0
    record = copy / "results" / "added" / "trials" / timed["torch_zero1"]["trial"] / "record.json"
    ranks = json.loads(record.read_text(encoding="utf-8"))["ranks"]
    assert ranks[0]["communication_bytes"]["allreduce"] == 4 * 78_042


def test_the_lines_are_as_many_as_the_page_says() -> None:
    ours, sibling = (lines_of_code(p) for p in (EXAMPLE / "torch_zero1.py", CHECKOUT / "data_parallel/torch_ddp.py"))
    added = [line for line in ours if line not in sibling]
    removed = [line for line in sibling if line not in ours]
    entry = (EXAMPLE / "entry.txt").read_text(encoding="utf-8").splitlines()
    page = (CHECKOUT / "docs/internals/add-a-framework.md").read_text(encoding="utf-8")
    assert f"{len(added)} lines added and {len(removed)} removed" in page
    assert f"The entry, {len(entry)} lines" in page
