"""The oldest torch that the observer works with shows it what the newest does: `make test-long PART=observer`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from observe import scripts
from observe.test_kinds import KINDS, OTHER_LOSS, Kind, check_inside, of_rank
from observe.test_observed import clean, start, with_observer
from scaling_study import observe

OLDEST = os.environ.get("OBSERVER_PYTHON", "")  # of an environment with this torch, and nothing of this project
TORCH = "2.1"
NEWER = (
    "scaler",
    "a process of multiprocessing, while an error is handled",
    "FSDP2",
    "FairScale",
    "pipeline",
    "Lightning",
    "Accelerate",
    "HF Trainer",
    "DeepSpeed",
)
ON_OLDEST = [kind for kind in KINDS if kind.name not in NEWER]  # without what that torch, or the environment, lacks
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(not OLDEST, reason="OBSERVER_PYTHON names no Python"),
]


@pytest.mark.parametrize("kind", ON_OLDEST, ids=lambda kind: kind.name)
def test_a_script_is_seen_as_with_the_newest(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(scripts.HEAD + kind.script)
    (folder := tmp_path / "seen").mkdir()
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", kind.ranks] if kind.ranks > 1 else []
    argv = [OLDEST, *several, "train.py"]
    without = {} if "scaling_study" not in kind.script else {"PYTHONPATH": str(Path(observe.SITE).parents[2])}
    plain = start(argv, clean(**without), tmp_path)
    done = start(argv, with_observer(clean(**without), folder), tmp_path)
    assert plain.returncode == done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout) == sorted(plain.stdout), "ranks write into each other's lines"
    processes = observe.read(folder)
    assert len(processes) == kind.ranks
    printed = {float(line) for line in re.findall(r"^\d+\.?\d*$", done.stdout, re.MULTILINE)}
    for rank, (about, *steps, end) in enumerate(processes):
        assert about["torch"].startswith(TORCH)
        assert (end["kind"], end["why"], end["steps"]) == ("end", "the script ended", kind.steps), end
        assert end["samples_per_step"] == of_rank(kind.samples, rank)
        assert {step["optimizer"] for step in steps} == {kind.optimizer}
        check_inside(kind, end["inside"])
        assert kind.name in OTHER_LOSS or kind.ranks > 1 or {step["loss"] for step in steps} <= printed
