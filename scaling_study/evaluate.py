"""The best model of a training, on the test set: `python -m scaling_study.evaluate RUN`.                  [torch]

RUN is a trial's folder, or what `--record` named by hand. Its weights are those of `best.pt` there, which a training
with `keep: best` replaces at each evaluation that is better, and leaves behind: so it works while it runs, and after.
One process, whatever trained it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scaling_study import workloads
from scaling_study.errors import printable
from scaling_study.models import FOLDERS, MODEL_NAMES
from scaling_study.ranks import Ranks, claim_device
from scaling_study.records import store
from scaling_study.records.store import BEST
from scaling_study.targets import trains
from scaling_study.train import checkpoints
from scaling_study.train.loop import evaluate, shown
from scaling_study.trial import Trial
from scaling_study.workloads import Workload

WRONG = 2  # exit code, as of scaling-study
ALONE: dict[str, Any] = {  # keys of how it was trained, of which evaluating knows none
    **{"framework": "single", "workers": 1, "launcher": "python", "allreduce": "none", "accumulation": 1},
    **{"compile": False, "device": "auto", "oversubscribe": False},
    **dict.fromkeys(("hosts", "controller", "zero_stage", "schedule", "stages", "virtual_stages", "micro_batches")),
    **dict.fromkeys(("replicas", "stage_cut", "train_loop", "train_log", "train_keep", "find", "compile_scope")),
    **{"sequence_parallel": False, "loss_parallel": False},
    **dict.fromkeys(("tensor_parallel", "context_parallel", "attention", "shard_group", "reduce_scatter")),
    **dict.fromkeys(("sync_every", "outer")),
}


def main(words: Sequence[str] | None = None) -> int:
    """Print its metrics; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scaling_study.evaluate", description="The best model of a training, on the test set."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a trial's folder, like results/<study>/trials/<id>")
    run = parser.parse_args(words).run
    try:
        if why := nothing_in(run):
            raise ValueError(why)
        if folders := folders_of(run):
            os.environ.setdefault(FOLDERS, folders)
        kept = checkpoints.load(run / BEST)
        scores = tested(kept)
    except (ValueError, OSError, store.UnreadableRecord, SystemExit) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return WRONG
    print(
        f"{printable(run.resolve().name)}: best after step {kept['step']:,} (epoch {kept['epoch']:.2f}), "
        f"{kept['metric']} {kept['value']:.4f} on validation data\n"
        f"test set, {scores['samples']:,.0f} samples: {shown(scores)}"
    )
    return 0


def nothing_in(run: Path) -> str:
    """Why there is no best model in a folder, and what would be right; empty where there is one."""
    if not run.is_dir():
        return f"{run}: no such folder"
    if (run / BEST).is_file():
        return ""
    if (run / "trials").is_dir():
        having = sorted(path.parent for path in (run / "trials").glob(f"*/{BEST}"))
        return f"{run} has a study's results: give one of its trials, " + (
            f"like {having[0]}" if having else "none of which has kept a best model so far"
        )
    having_asked = [path for name in ("record.json", store.BEGUN, store.ASKED) if (path := run / name).is_file()]
    if not having_asked:
        return f"{run} is no training's folder: it has no {BEST}; give one like results/<study>/trials/<id>"
    asked = store.load(having_asked[0])
    asked = asked.get("trial", asked)  # a record holds it beside its window and what came of it
    if not trains(asked):
        return f"{run} was timed, not trained to a result: there is no model to evaluate"
    if not asked.get("train_keep"):
        return f"{run} has kept no model: its study needs train: {{keep: best}}"
    return f"{run} has no best model yet: the first is there after the first evaluation on validation data"


def folders_of(run: Path) -> str:
    """The folders of files that define models, as its record names them; empty where it has no such model."""
    for name in ("record.json", store.BEGUN):
        with contextlib.suppress(store.UnreadableRecord):
            return str(store.load(run / name).get("environment", {}).get(FOLDERS, ""))
    return ""


def tested(kept: dict[str, Any]) -> dict[str, float]:
    """{metric: value, "samples": n} of the test set. Raises ValueError or SystemExit."""
    _, ranks, workload = restored(kept)
    assert workload.held_out is not None  # or workloads.load had refused
    with torch.no_grad():
        return evaluate(workload.held_out, "test", workload, None, ranks)


def restored(kept: dict[str, Any], **otherwise: Any) -> tuple[Trial, Ranks, Workload]:
    """(the trial, in one process and with other keys `otherwise`; its place; the workload with the weights that were
    kept). Raises ValueError or SystemExit."""
    try:
        asked = Trial.from_dict({**kept["trial"], "window": {}})
        trial = replace(asked, **ALONE, **otherwise)
        assert trial.model in MODEL_NAMES
    except (TypeError, AssertionError) as error:
        raise ValueError(f"it was trained by another version: {error or kept['trial'].get('model')}") from error
    device = claim_device(trial)
    if device.type == "cpu" and trial.precision == "fp16":
        trial = replace(trial, precision="fp32")  # fp16 on a CPU takes 20 times as long
    ranks = Ranks(device=device)
    workload = workloads.load(trial, ranks)
    try:
        workload.model.load_state_dict(kept["weights"])
    except RuntimeError as error:
        lines = " ".join(str(error).split())
        raise ValueError(f"its weights are not those of {trial.model}: {lines[:300]}") from error
    return trial, ranks, workload


if __name__ == "__main__":
    sys.exit(main())
