"""What Slurm says of jobs, read from the text of its commands. Pure.

    squeue -O "JobID:32|,..."   while the controller remembers: 5 minutes after a job's end (MinJobAge), by default
    sacct -p -o JobIDRaw,...    for ever, where there is accounting; `sacct -c` where jobs' ends are kept in a file

Each is asked for columns of our own choosing, none of which can hold the character between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")
SQUEUE = ("JobID:32", "Name:200", "State:32", "exit_code:16", "Reason:200", "NodeList:400", "TimeUsed:32")
SACCT = ("JobIDRaw", "JobName", "State", "ExitCode", "NodeList", "Elapsed")
NOTHING = ("", "None", "(null)", "None assigned", "N/A")  # Slurm's words for it


@dataclass(frozen=True)
class State:
    """One job, as Slurm sees it."""

    job: str
    name: str
    state: str  # Slurm's own word: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, ...
    code: int = 0  # that the batch script exited with
    signal: int = 0  # that killed it
    reason: str = ""  # why it waits, or why it ended; Slurm's own word
    nodes: str = ""
    elapsed: str = ""  # as Slurm writes it: 2:03

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        return self.state in RUNNING

    @property
    def ended(self) -> bool:
        return not (self.waits or self.runs)


def from_squeue(text: str) -> dict[str, State]:
    """Job number -> State, from `squeue -h -t all -O <SQUEUE, each with | behind it>`."""
    found = {}
    for job, name, state, exit_status, reason, nodes, elapsed in _rows(text, len(SQUEUE)):
        status = _number(exit_status)  # as wait(2) gives it
        found[job] = State(job, name, state, status >> 8, status & 0x7F, reason, nodes, elapsed)
    return found


def from_sacct(text: str) -> dict[str, State]:
    """Job number -> State, from `sacct -n -X -p -o <SACCT>`. `CANCELLED by 1000` is CANCELLED, with that as reason."""
    found = {}
    for job, name, said, exit_code, nodes, elapsed in _rows(text, len(SACCT)):
        state, _, reason = said.partition(" ")
        code, _, signal = exit_code.partition(":")
        found[job] = State(job, name, state, _number(code), _number(signal), reason, nodes, elapsed)
    return found


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    """The cells of each line that has as many as it should; every cell ends with |."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.rstrip().removesuffix("|").split("|")]
        if len(cells) == columns:
            yield ["" if cell in NOTHING else cell for cell in cells]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
