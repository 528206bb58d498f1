"""The last word of a batch script, exit.json: how it ended, for when Slurm has forgotten or never knew.

It is written by the script's own trap (job.sh.jinja), also after a TERM. A script that was killed left none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scaling_study.records import reading

FILE = "exit.json"


@dataclass(frozen=True)
class Word:
    """What the script said."""

    job: str  # Slurm's number of the job that said it
    node: str
    stage: str  # that it was in: setup or study
    code: int  # its exit code
    asked: str  # TERM, if it was asked to end
    at: int  # Unix seconds


def read(folder: Path, job: str) -> Word | None:
    """The word of that job in its folder; None if there is none that is whole, or it is another's."""
    try:
        said = reading.load(folder / FILE)
        word = Word(**said)
    except (reading.UnreadableRecord, TypeError):
        return None
    return word if not reading.misfit(word) and word.job == job else None
