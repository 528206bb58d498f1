"""The parity gate of a framework for a workload, really trained and judged.

assert gated.judged(Trial(framework="torch_fsdp2", model=..., ...), tmp_path)["verdict"] == "passed"
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import forked
import pytest
from trained import ran

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import installed
from scaling_study.ranks import as_pipelined
from scaling_study.records import store
from scaling_study.study import support
from scaling_study.trial import Trial, Window


def gate_of(trial: Trial) -> Trial:
    """The first gate that a configuration stands behind, of two steps. Skips where its framework is not installed."""
    if absent := [name for name in FRAMEWORKS[trial.framework].needs if not installed(name)]:
        pytest.skip(f"{absent[0]} is not installed")
    gate = next(support.gates_of(as_pipelined(trial) if FRAMEWORKS[trial.framework].cuts_model else trial))
    return replace(gate, window=Window(0, 2, 0.0, None, 2))


def judged(trial: Trial, folder: Path, *before: str | Path) -> dict[str, Any]:
    """What the gate of a configuration says, once its ranks have trained. `before`: a program that runs the script."""
    gate = gate_of(trial)
    store.write_json(folder / "trial.json", {**gate.to_dict(), "window": asdict(gate.window)})
    done = ran(gate, folder, *before)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert forked.run(["python", "-m", "scaling_study.parity.compare", folder]).returncode == 0
    answer: dict[str, Any] = json.loads((folder / "parity.json").read_text())
    return answer
