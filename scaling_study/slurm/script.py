"""The batch script, as text: what --slurm-print shows and what sbatch is given (pure but for reading its template).

job.sh.jinja is the template. Into it go directives whose values options.py has let through, words that are quoted for
the shell here, and the machine file's setup lines, which are shell by intention and a person's own.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling_study.errors import StudyError
from scaling_study.quoting import quoted
from scaling_study.slurm.options import Options, directives

TEMPLATE = Path(__file__).with_name("job.sh.jinja")
UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\"'\\%]")  # in a path that a directive names: Slurm would take it for its own


@dataclass(frozen=True)
class Job:
    """All that a batch script is made of."""

    title: str  # for whoever reads it
    name: str  # Slurm's name for the job
    folder: Path  # where the command runs: an absolute path
    files: Path  # the folder of this job's own files, an absolute path
    command: Sequence[str]
    options: Options
    setup: Sequence[str] = ()  # shell lines
    container: Sequence[str] = ()  # words before the command that run it in a container


def text(job: Job) -> str:
    """The whole script. Raises StudyError where a path cannot stand in a directive."""
    output = job.files / "output.txt"
    if UNSPEAKABLE.search(str(output)):
        raise StudyError([f"Slurm would misread the path {quoted(str(output))}: choose --results with plain letters"])
    mine = [f"--job-name={job.name}", f'--output="{output}"', "--open-mode=append", "--no-requeue"]
    made: str = _template().render(
        title=" ".join(job.title.split()),
        directives=[*mine, *directives(job.options)],
        word=shlex.quote(str(job.files / "exit.json")),
        folder=shlex.quote(str(job.folder)),
        setup=[line.rstrip() for line in job.setup],
        command=shlex.join([*job.container, *job.command]),
    )
    return made


@functools.cache
def _template():  # type: ignore[no-untyped-def]
    from jinja2 import Environment, StrictUndefined

    text = TEMPLATE.read_text(encoding="utf-8")
    return Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    ).from_string(text)
