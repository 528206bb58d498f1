"""Judge one finished parity trial: `python -m scaling_study.parity.check FOLDER`.                       [torch]

Reads trial.json (what was asked, not what a script made of it) and what the ranks left, trains the reference, and
writes parity.json: {"verdict": "passed" or the first fault, "checks": [...]}. What the ranks left is removed after a
pass: it is as large as the model, three times.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from scaling_study import records
from scaling_study.parity.compare import checks
from scaling_study.parity.reference import Testimony, run
from scaling_study.trial import Trial


def main(folder: Path) -> None:
    trial = Trial.from_dict(records.load(folder / "trial.json"))
    seen = testimony(folder, trial.processes)
    torch.set_num_threads(max(1, trial.cores_per_worker or 1) * trial.workers)  # the group's cores, now idle
    asked = trial if trial.precision == "fp64" else replace(trial, precision="fp32", allreduce="fp32")
    answers = list(checks(trial, seen, run(asked, len(seen.losses[0]))))
    wrong = next((check for check in answers if not check.ok), None)
    verdict = f"{wrong.name}: {wrong.detail}" if wrong else "passed"
    records.write_json(folder / "parity.json", {"verdict": verdict, "checks": [asdict(check) for check in answers]})
    if not wrong:
        shutil.rmtree(folder / "parity")


def testimony(folder: Path, processes: int) -> Testimony:
    """What the ranks of a trial left, by rank."""
    said: list[dict[str, Any]] = [
        torch.load(folder / "parity" / f"rank-{rank}.pt", weights_only=True) for rank in range(processes)
    ]
    return Testimony(
        losses=[rank["losses"] for rank in said],
        ids=[rank["ids"].long() for rank in said],
        epochs=[rank["epochs"].long() for rank in said],
        frozen=said[0]["frozen"],
        weights=said[0]["weights"],
    )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:  # the driver reads parity.json, and a gate that could not be judged has not passed
        records.write_json(Path(sys.argv[1]) / "parity.json", {"verdict": f"could not be judged: {error}", "checks": []})
        print(json.dumps({"error": str(error)}))
        raise
