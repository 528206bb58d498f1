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
from scaling_study.parity.compare import Check, compared
from scaling_study.parity.reference import ParityTrace
from scaling_study.records import store
from scaling_study.trial import Trial

train_reference = functools.lru_cache(maxsize=1)(reference.run)  # for several trials of one kind, trained once


def main(folder: Path) -> None:
    """Write the verdict on one finished trial."""
    trial = Trial.from_dict(store.load(folder / "trial.json"))
    torch.set_num_threads(trial.cores_per_worker or 1)  # as a rank had: layers this small gain little from more
    asked = trial if trial.precision == "fp64" else replace(trial, precision="fp32", allreduce="fp32")
    seen = read_trace(folder, trial.processes)
    steps = len(seen.losses[0])
    right = train_reference(asked, steps)
    results = list(compared(trial, seen, right))
    wrong = first_wrong(results)
    if wrong in results[-2:] and trial.precision == "fp64" and steps > 1:  # the checks in which rounding can have grown
        results = list(compared(trial, seen, right, reference.run(asked, steps, nudge=1)))
        wrong = first_wrong(results)
    verdict = f"{wrong.name}: {wrong.detail}" if wrong else "passed"
    store.write_json(folder / "parity.json", {"verdict": verdict, "checks": [asdict(check) for check in results]})
    if not wrong:
        shutil.rmtree(folder / "parity")


def first_wrong(results: list[Check]) -> Check | None:
    """The check that names the fault."""
    return next((check for check in results if not check.ok), None)


def read_trace(folder: Path, processes: int) -> ParityTrace:
    """What the ranks of a trial recorded, as one trace."""
    traces: list[dict[str, Any]] = [
        torch.load(folder / "parity" / f"rank-{rank}.pt", weights_only=True) for rank in range(processes)
    ]
    with_loss = [trace for trace in traces if trace["losses"]]  # of a pipeline's ranks only those with the last stage
    return ParityTrace(
        losses=[trace["losses"] for trace in with_loss],
        ids=[trace["ids"].long() for trace in with_loss],
        epochs=[trace["epochs"].long() for trace in with_loss],
        frozen=[name for trace in traces for name in trace["frozen"]],
        weights=traces[0]["weights"],
    )


def write_failure(folder: Path, error: Exception) -> None:
    """The driver reads parity.json, and a gate that could not be judged has not passed."""
    verdict = f"could not be judged: {type(error).__name__}: {error}"
    store.write_json(folder / "parity.json", {"verdict": verdict, "checks": []})


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        try:
            main(Path(argument))
        except Exception as error:
            traceback.print_exception(error)
            write_failure(Path(argument), error)
