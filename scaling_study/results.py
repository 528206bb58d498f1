"""The folder results/<study>: opened for one study on one machine, held by one driver at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling_study import records
from scaling_study.errors import Trouble
from scaling_study.plan import Plan
from scaling_study.provenance import utc_now
from scaling_study.records import Record


def open_results(results: Path, plan: Plan) -> dict[str, Record]:
    """Make or reopen the folder; the finished records by trial id. Raises Trouble where it does not fit the plan."""
    try:
        (results / "trials").mkdir(parents=True, exist_ok=True)
        if (results / "study.json").exists():
            _check_same(results, plan)
        records.write_json(results / "study.json", about(plan))
        (results / "study.yaml").write_text(plan.study.document.text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(results, error) from error
    for aside in (results / "trials").glob(".*.before"):  # a retry that a killed driver did not finish
        restore(aside)
    found = {}
    for path in sorted((results / "trials").glob("*/record.json")):
        with contextlib.suppress(records.UnreadableRecord):  # not believed, so it is run again
            record = records.read_record(path)
            found[record.id] = record
    return found


def about(plan: Plan) -> dict[str, Any]:
    """study.json: what an analysis must know that no single record holds."""
    return {
        "schema": records.SCHEMA,
        "study": plan.study.name,
        "scaling": plan.study.scaling,
        "baseline": plan.study.baseline,
        "machine": plan.machine.to_dict(),
        "cores_per_worker": plan.cores_per_worker,
        "order_seed": plan.study.order_seed,
        "target_interval": plan.study.measure.target_interval,
        # The study as it is now: records of what it once was stay, but share no table with these.
        "configurations": [planned.trial.configuration for planned in plan.configurations],
    }


def set_aside(folder: Path) -> Path | None:
    """Make room for a trial: a finished one is kept under another name until its successor is finished."""
    if not folder.exists():
        return None
    if not (folder / "record.json").exists():  # an earlier try that never finished
        shutil.rmtree(folder)
        return None
    aside = folder.with_name(f".{folder.name}.before")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def restore(aside: Path) -> None:
    """Put a trial back that was set aside, unless its successor was finished."""
    folder = aside.with_name(aside.name.removeprefix(".").removesuffix(".before"))
    if (folder / "record.json").exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def _check_same(results: Path, plan: Plan) -> None:
    """Raises Trouble if the folder belongs to another study, or to unlike hardware or shares of it."""
    try:
        before: Mapping[str, Any] = records.load(results / "study.json")
    except records.UnreadableRecord as error:
        raise Trouble(f"{error}; move it away, or choose another folder with --results") from error
    if before.get("study") != plan.study.name:
        raise Trouble(
            f"{results} holds study {before.get('study')!r}, not {plan.study.name!r}: choose another --results"
        )
    was, now = before.get("machine", {}), plan.machine.to_dict()
    if was.get("fingerprint") != now["fingerprint"]:
        hardware = [key for key in now if key not in ("fingerprint", "libraries") and was.get(key) != now[key]]
        unlike = "; ".join(f"{key} {was.get(key)} then, {now[key]} now" for key in hardware)
        raise Trouble(f"{results} was measured on another machine ({unlike}): choose another --results")
    if before.get("cores_per_worker") != plan.cores_per_worker:
        raise Trouble(
            f"{results} was measured with {before.get('cores_per_worker')} core(s) a worker, the study now gives "
            f"{plan.cores_per_worker} (the cores over its largest worker count): choose another --results"
        )


def holder(results: Path) -> int | None:
    """The process number of the driver that holds the folder, or did last."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((results / ".driver").read_text(encoding="utf-8").split()[1])
    return None


@contextlib.contextmanager
def locked(results: Path) -> Iterator[None]:
    """Hold the results folder. Raises Trouble, naming the holder, if another driver has it."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        file = (results / ".driver").open("a+", encoding="utf-8")
    except OSError as error:
        raise _unwritable(results, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip()
            raise Trouble(f"{results} is in use by another run ({holder}); wait for it, or stop it") from error
        file.truncate(0)
        file.write(f"process {os.getpid()} since {utc_now()}\n")
        file.flush()
        yield


def _unwritable(results: Path, error: OSError) -> Trouble:
    return Trouble(f"{results}: cannot write results there: {error.strerror}; choose another with --results")
