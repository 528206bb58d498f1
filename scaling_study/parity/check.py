"""Judge finished parity trials: `python -m scaling_study.parity.check FOLDER...`.                         [torch]

Reads trial.json (what was asked, not what a script made of it) and what the ranks left, trains the reference, and
writes parity.json: {"verdict": "passed" or the first fault, "checks": [...]}. What the ranks left is removed after a
pass: it is as large as the model, three times.
"""

from __future__ import annotations

import functools
import shutil
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from scaling_study.parity import reference
from scaling_study.parity.compare import checks
from scaling_study.parity.reference import ParityTrace
from scaling_study.records import store
from scaling_study.trial import Trial

right = functools.lru_cache(maxsize=1)(reference.run)  # for several trials of one kind, trained once


def main(folder: Path) -> None:
    trial = Trial.from_dict(store.load(folder / "trial.json"))
    torch.set_num_threads(trial.cores_per_worker or 1)  # as a rank had: layers this small gain little from more
    asked = trial if trial.precision == "fp64" else replace(trial, precision="fp32", allreduce="fp32")
    seen = read_trace(folder, trial.processes)
    answers = list(checks(trial, seen, right(asked, len(seen.losses[0]))))
    wrong = next((check for check in answers if not check.ok), None)
    verdict = f"{wrong.name}: {wrong.detail}" if wrong else "passed"
    store.write_json(folder / "parity.json", {"verdict": verdict, "checks": [asdict(check) for check in answers]})
    if not wrong:
        shutil.rmtree(folder / "parity")


def read_trace(folder: Path, processes: int) -> ParityTrace:
    """What the ranks of a trial left, by rank."""
    said: list[dict[str, Any]] = [
        torch.load(folder / "parity" / f"rank-{rank}.pt", weights_only=True) for rank in range(processes)
    ]
    spoke = [rank for rank in said if rank["losses"]]  # of a pipeline's ranks only those with the last stage
    return ParityTrace(
        losses=[rank["losses"] for rank in spoke],
        ids=[rank["ids"].long() for rank in spoke],
        epochs=[rank["epochs"].long() for rank in spoke],
        frozen=[name for rank in said for name in rank["frozen"]],
        weights=said[0]["weights"],
    )


def could_not(folder: Path, error: Exception) -> None:
    """The driver reads parity.json, and a gate that could not be judged has not passed."""
    said = f"could not be judged: {type(error).__name__}: {error}"
    store.write_json(folder / "parity.json", {"verdict": said, "checks": []})


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        try:
            main(Path(argument))
        except Exception as error:
            traceback.print_exception(error)
            could_not(Path(argument), error)
