"""The folder results/<study>: opened for one study on one machine, held by one driver at a time."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import itertools
import math
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling_study.errors import HostError, printable
from scaling_study.models import NO_MODEL
from scaling_study.records import manifest, schema, store
from scaling_study.records.manifest import Manifest
from scaling_study.records.schema import STATUSES, RankError, Record, busy_elsewhere_cores, implied, throughput
from scaling_study.records.store import UnreadableRecord
from scaling_study.settings import utc_now
from scaling_study.study.plan import Plan
from scaling_study.targets import repeat_name
from scaling_study.trial import Trial

HALF_WRITTEN = re.compile(r"\..+\.(json|csv|md|npz|png|svg|html)\.[a-z0-9_]{8}")  # as tempfile.mkstemp names it
HALF = ".*.????????"  # what may be one


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished trial as the driver keeps it in memory: its record without the seconds of every step."""

    id: str
    configuration: str
    trial: Trial
    status: str
    reason: str
    parity: str
    total_seconds: float | None
    samples_per_second: float | None  # None unless ok, and where nothing is trained
    busy_elsewhere_cores: float | None
    launch: str = ""  # that it shared with others
    model_code: str = ""  # of a model of the user's own

    @property
    def implied(self) -> bool:
        return implied(self.status, self.reason)


def summarize(record: Record) -> Summary:
    """Raises UnreadableRecord for a record that contradicts itself."""
    ok = record.status == "ok"
    try:
        speed = throughput(record) if ok and record.trial.model != NO_MODEL else None
    except (ValueError, ArithmeticError) as error:
        raise UnreadableRecord(f"{record.id}: ok, but not every rank has timed steps") from error
    whole = record.status in STATUSES and record.id == f"{record.configuration}.{repeat_name(vars(record.trial))}"
    if not whole or (speed is not None and not 0 < speed < math.inf):
        raise UnreadableRecord(f"{record.id}: status {record.status!r}, throughput {speed} cannot be")
    return Summary(
        record.id,
        record.configuration,
        record.trial,
        record.status,
        printable(record.reason),
        printable(record.parity),
        record.total_seconds,
        speed,
        busy_elsewhere_cores(record.ranks) if ok else None,
        sys.intern(record.launch),
        sys.intern(printable(record.model_code)),
    )


def open_results(results: Path, plan: Plan, in_jobs: Collection[str] = ()) -> tuple[dict[str, Summary], list[str]]:
    """Make or reopen the folder; (finished trials by their ids, how the study was another one when it was last run
    here). Raises HostError where it does not fit the plan.

    `in_jobs`: ids of trials that jobs of their own may be running now, whose folders stay as they are.
    """
    now, before = manifest_of(plan), None
    try:
        (results / "trials").mkdir(parents=True, exist_ok=True)
        if (results / "study.json").exists():
            before = _checked_manifest(results, plan)
        now.model_copy(update={"stopped": before.stopped if before else ""}).write(results)
        (results / "study.yaml").write_text(plan.study.document.text, encoding="utf-8")
        # What was being written when a driver, a rank or the machine died. A trial that is not finished may be a job's,
        # which writes there now; whoever runs it again begins with nothing.
        finished_trials = [path.parent for path in results.glob("trials/*/record.json")]
        places = [results.glob(f"{place}{HALF}") for place in ("", "tables/", "figures/")]
        places += [folder.rglob(HALF) for folder in (results / "launches", *finished_trials)]
        for path in itertools.chain(*places):
            if HALF_WRITTEN.fullmatch(path.name):
                path.unlink(missing_ok=True)
        kept_aside = {aside_of(results / "trials" / trial) for trial in in_jobs}
        for aside in {*(results / "trials").glob(".*.before")} - kept_aside:  # retries that a killed driver left
            restore(aside)
    except OSError as error:
        raise write_error(results, error, first=True) from error
    known = finished(results)
    edits = manifest.changes(before, now, {each.configuration for each in known.values()}) if before else []
    return known, edits


def note_end(results: Path, plan: Plan, signal: str) -> None:
    """Have whatever is made of the results say by which signal the study was ended before its time; "": it was not."""
    with contextlib.suppress(OSError):  # of a full disk others say enough
        manifest_of(plan).model_copy(update={"stopped": signal}).write(results)


def command_of(results: Path, trial: str) -> str:
    """The shell line that reproduces a trial. Raises HostError where no trial, or several, have an id that begins with
    `trial`; UnreadableRecord for one that is broken."""
    names = sorted({path.parent.name for path in (results / "trials").glob("[!.]*/*.json")})
    found = [trial] if trial in names else [name for name in names if name.startswith(trial)]
    if len(found) > 1:
        raise HostError(f"{results} has {len(found)} trials that begin with {trial}: {found[0]}, {found[1]}, ...")
    if not found:
        nearest = difflib.get_close_matches(trial, names, 1, 0.0)
        other = f"; the nearest is {nearest[0]}" if nearest else " or any other"
        raise HostError(f"{results} has no trial {trial}{other}")
    folder = results / "trials" / found[0]
    if (folder / "record.json").exists():
        return store.read_trial(folder).command
    if (folder / store.COMMAND).exists():  # of an older program
        return store.contents(folder / store.COMMAND).decode().strip()
    return store.read_record(folder / store.BEGUN).command


def finished(results: Path) -> dict[str, Summary]:
    """The finished trials in the folder, which need not exist, by their ids. Nothing is written.

    A record that is broken is not believed, and its trial is run again. Raises HostError for one that may be whole and
    cannot be read: running its trial would overwrite it.
    """
    found = dict[str, Summary]()
    for folder in sorted((results / "trials").glob("*")):
        try:
            known = summarize(store.read_trial(folder))
        except store.InaccessibleRecord as error:
            raise HostError(f"{error}; its trial may be finished: make it readable, or move it away") from error
        except UnreadableRecord:
            continue
        found[known.id] = known
    return found


def manifest_of(plan: Plan) -> Manifest:
    """The manifest (study.json) of a plan."""
    study, ordinary = plan.study, [p for p in plan.configurations if p.trial.configuration != plan.sentinel]
    given = [planned.measure.model_dump() for planned in ordinary] or [study.measure.model_dump()]
    return Manifest.model_validate(
        {
            "schema": schema.SCHEMA,
            "study": study.name,
            "scaling": study.scaling,
            "baseline": None if study.baseline is None else dict(study.baseline),
            "machine": plan.machine.to_dict(),
            "cores_per_worker": plan.cores_per_worker,
            "order_seed": study.order_seed,
            "sentinel": plan.sentinel or None,
            "target_interval": study.measure.target_interval,
            "measure": {
                key: sorted({measure[key] for measure in given}, key=lambda value: (value is None, value))
                for key in given[0]
            },
            "configurations": [planned.trial.configuration for planned in plan.configurations],
            "alone": plan.alone,
        }
    )


@contextlib.contextmanager
def cleared(folder: Path, keep: Sequence[str] = ()) -> Iterator[None]:
    """A folder for a trial, empty but for what is named in `keep`. If no record comes to be in it, a finished one that
    was there before is back."""
    aside = set_aside(folder, keep)
    try:
        folder.mkdir(exist_ok=True)
        if aside:
            carry(aside, folder, keep)
        yield
    finally:
        if aside:
            with contextlib.suppress(OSError):  # the next driver does it where this one cannot
                restore(aside)


def set_aside(folder: Path, keep: Sequence[str] = ()) -> Path | None:
    """Make room for a trial: a finished one is kept under another name until its successor is finished; of one that
    never finished what is named in `keep` stays."""
    if folder.is_symlink() or folder.is_file():  # never ours
        folder.unlink()
    if not folder.exists():
        return None
    if not (folder / "record.json").exists():  # an earlier try that never finished
        for path in folder.iterdir():
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if not keep:
            folder.rmdir()
        return None
    aside = aside_of(folder)
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def aside_of(folder: Path) -> Path:
    """The place of a trial's folder while it is run again."""
    return folder.with_name(f".{folder.name}.before")


def carry(aside: Path, folder: Path, names: Sequence[str]) -> None:
    """Copy these of what is in a trial that was set aside to its folder, which need not exist."""
    for name in names:
        if (aside / name).is_dir():  # as hard links: checkpoints are large and may be needed again
            shutil.copytree(aside / name, folder / name, copy_function=os.link)
        elif (aside / name).is_file():
            folder.mkdir(exist_ok=True)
            shutil.copy(aside / name, folder / name)


def restore(aside: Path, folder: Path | None = None) -> None:
    """Put a trial back that was set aside, unless its successor was finished.

    A training that had not reached its end keeps the checkpoints that its successor has made meanwhile.
    """
    folder = folder or aside.with_name(aside.name.removeprefix(".").removesuffix(".before"))
    if (folder / "record.json").exists():
        shutil.rmtree(aside, ignore_errors=True)
        return
    if not _is_ok(aside):
        for newer in filter(Path.exists, (folder / name for name in store.OF_A_TRAINING)):
            older = aside / newer.name
            shutil.rmtree(older) if older.is_dir() else older.unlink(missing_ok=True)
            newer.rename(older)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def _is_ok(folder: Path) -> bool:
    try:
        return store.read_record(folder / "record.json").status == "ok"
    except UnreadableRecord:
        return False


def _checked_manifest(results: Path, plan: Plan) -> Manifest:
    """study.json as it is. Raises HostError if the folder belongs to another study, or to unlike hardware or shares."""
    try:
        before = Manifest.read(results)
    except UnreadableRecord as error:
        raise HostError(f"{error}; move it away, or choose another folder with --results") from error
    if before.study != plan.study.name:
        raise HostError(f"{results} holds study {before.study!r}, not {plan.study.name!r}: choose another --results")
    if not any((results / "trials").glob("*/record.json")):
        return before  # nothing was measured: a study that was looked at here may be run elsewhere
    was, now = before.machine, plan.machine.to_dict()
    if was.get("fingerprint") != now["fingerprint"]:
        hardware = [key for key in now if key not in ("fingerprint", "libraries") and was.get(key) != now[key]]
        unlike = "; ".join(f"{key} {was.get(key)} then, {now[key]} now" for key in hardware)
        raise HostError(f"{results} was measured on another machine ({unlike}): choose another --results")
    if before.cores_per_worker != plan.cores_per_worker:
        raise HostError(
            f"{results} was measured with {before.cores_per_worker} core(s) a worker, the study now gives "
            f"{plan.cores_per_worker} (the cores over its largest worker count): choose another --results"
        )
    return before


@contextlib.contextmanager
def locked(results: Path) -> Iterator[None]:
    """Hold the results folder. Raises HostError, naming the holder, if another driver has it."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        file = (results / ".driver").open("a+", encoding="utf-8")
    except OSError as error:
        raise write_error(results, error, first=True) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip()
            raise HostError(f"{results} is in use by another run ({holder}); wait for it, or stop it") from error
        except OSError as error:
            raise HostError(
                f"{results}: its file system has no locks ({error.strerror}), so two runs could overwrite each other: "
                "choose a folder on another one with --results"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} since {utc_now()}\n")
        file.flush()
        yield


# Results that cannot be written end a sweep: the next trial would fail in the same way, and the one after it, and each
# would be recorded as a failure that it is not.

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("No space left on device", "Disk quota exceeded")  # in the message of a rank
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENOTCONN)
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
LEAST_BYTES = 1 << 20  # free, below which it is the disk's fault that a trial failed


def write_error(results: Path, error: OSError, first: bool = False) -> HostError:
    """The error of a folder that cannot be written; `first`: not even its first file. Raises one of another cause."""
    if error.errno in FULL:
        return full_error(results)
    if first:
        return HostError(f"{results}: cannot write results there: {error.strerror}; choose another with --results")
    if error.errno not in GONE + REFUSED:
        raise error
    what = f"can no longer be written to ({error.strerror})"
    if not (results / manifest.FILE).exists():
        what = f"is gone ({error.strerror}): it was moved or removed"
    return HostError(f"{results} {what}; finished trials are kept; the same command resumes once it is back")


def full_error(results: Path, why: str = "") -> HostError:
    """The error of a full disk, with what a rank said of it."""
    kept = "finished trials are kept: free disk space, then the same command resumes"
    return HostError(f"{results}: no space left on the disk{f' ({why})' if why else ''}; {kept}")


def raise_if_unwritable(results: Path, errors: Sequence[RankError]) -> None:
    """Raises HostError where a trial failed because its disk is full or the folder is gone; `errors`: of its ranks."""
    if not (results / manifest.FILE).exists():
        raise write_error(results, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    for error in errors:
        if any(words in error.message for words in FULL_WORDS):
            raise full_error(results, f"rank {error.rank}: {error.message.strip()}")
    if shutil.disk_usage(results).free < LEAST_BYTES:
        raise full_error(results)
