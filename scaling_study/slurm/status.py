"""--status and --collect as a person sees them: what waits and runs, and what has come of the rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling_study.records import store
from scaling_study.records.store import Record
from scaling_study.slurm import collect, jobs
from scaling_study.slurm.collect import Seen
from scaling_study.slurm.controller import NoAnswer


def show(console: Console, folder: Path, as_json: bool) -> bool:
    """Show every job; False where Slurm could not be asked, so that its part is missing."""
    seen, answer = {}, ""
    try:
        seen = {one.job.name: one for one in collect.look(folder)}
    except NoAnswer as error:
        answer = str(error)
    rows = [_row(folder, job, seen.get(job.name)) for job in jobs.all_of(folder)]
    if as_json:
        print(json.dumps(rows))
        return not answer
    if not rows:
        console.print(f"No Slurm job was submitted into {escape(str(folder))}.")
        return True
    _table(console, [row for row in rows if not row["collected"]])
    if done := Counter(row["status"] for row in rows if row["collected"] and row["trial"]):
        console.print(f"Collected: {', '.join(f'{count} {status}' for status, count in done.items())}.")
    if finished := len(list((folder / "trials").glob("*/record.json"))):
        console.print(f"Finished in {escape(str(folder))}: {_trials(finished)}.")
    if answer:
        console.print(f"[bold red]Slurm does not say how they are:[/] {escape(answer)}", soft_wrap=True)
    elif any(str(row["state"]).startswith("ended") for row in rows):
        console.print("To record what has ended: the same command with --collect instead of --status.")
    return not answer


def collected(console: Console, folder: Path) -> list[Record]:
    """Record what has ended, and say so."""
    new = collect.collect(folder)
    for record in new:
        job = record.job.get("job", "")
        reason = f": {record.reason}" if record.reason else ""
        console.print(f"job {job}  {record.id}  {record.status}{escape(reason)}", soft_wrap=True)
    left = len(list(jobs.open_ones(folder)))
    waiting = "1 job waits or runs" if left == 1 else f"{left} jobs wait or run"
    console.print(f"Collected {_trials(len(new))}; {waiting}." if new or left else "Nothing to collect.")
    return new


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def _row(folder: Path, job: jobs.Job, seen: Seen | None) -> dict[str, object]:
    """One job, for --json."""
    state = seen.state if seen else None
    recorded = bool(job.trial) and (folder / "trials" / job.trial / "record.json").exists()
    if job.collected_at or recorded:
        word = "finished"
    elif seen is None:
        word = "unknown"
    elif seen.ended:
        word = f"ended: {state.state if state and state.ended else 'forgotten'}"
    else:
        word = "queued" if state and state.waits else "running"
    return {
        "job": job.id, "name": job.name, "trial": job.trial, "state": word, "reason": state.reason if state else "",
        "nodes": state.nodes if state else "", "elapsed": state.elapsed if state else "",
        "submitted_at": job.submitted_at, "collected": bool(job.collected_at),
        "status": _recorded_status(folder, job) if job.collected_at else "",
    }  # fmt: skip


def _recorded_status(folder: Path, job: jobs.Job) -> str:
    try:
        return store.read_trial(folder / "trials" / job.trial).status if job.trial else ""
    except store.UnreadableRecord:
        return ""


def _table(console: Console, rows: Sequence[dict[str, object]]) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("job", "state", "reason", "nodes", "time", "what"):
        table.add_column(title, overflow="fold")
    for row in rows:
        what = row["trial"] or "the whole study"
        cells = (row["job"] or "?", row["state"], row["reason"], row["nodes"], row["elapsed"], what)
        table.add_row(*(escape(str(cell)) for cell in cells))
    if rows:
        console.print(table)
