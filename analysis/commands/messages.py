"""How every command here ends: its exit code, and one line on standard error for each thing that is wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

OK, INCOMPLETE, REFUSED = 0, 1, 2  # exit codes
Value = TypeVar("Value")
FOLDER = "A results folder, such as results/<study>, or a packed study, such as X.study.zip."
ResultsFolder = Annotated[Path, typer.Argument(metavar="RESULTS", help=FOLDER, show_default=False)]
OUT = "Write there; default: into RESULTS, or into X/ beside X.study.zip."
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help=OUT, show_default=False)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Write the files, print no table.")]


def exit_code(
    command: Callable[[], int], unwritable: str, refusals: tuple[type[Exception], ...] = (), refused: int = REFUSED
) -> int:
    """The exit code of `command()`; `refused` where it raises NotResults, OSError or one of `refusals`.

    `unwritable`: how the line begins that explains an OSError. Skipped records are warnings; parts of the output that
    could not be made are errors, and make OK INCOMPLETE.
    """
    from analysis.execution.lost_parts import LostPart
    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    expected: tuple[type[Exception], ...] = (NotResults, *refusals)
    with warnings.catch_warnings(record=True) as caught:
        for kind in (SkippedRecord, LostPart):
            warnings.simplefilter("always", kind)
        try:
            code = command()
        except expected as error:
            print(f"error: {error}", file=sys.stderr)
            code = refused
        except OSError as error:
            print(f"error: {unwritable}: {error}", file=sys.stderr)
            code = refused
    lost = False
    for category, message in dict.fromkeys((warning.category, str(warning.message)) for warning in caught):
        if issubclass(category, SkippedRecord):
            print(f"warning: {message}", file=sys.stderr)
        elif issubclass(category, LostPart):
            print(f"error: {message}", file=sys.stderr)
            lost = True
    return INCOMPLETE if lost and code == OK else code


def parsed(option: str, parse: Callable[[str], Value], text: str | None) -> Value | None:
    """The value of an option that was given. Raises typer.BadParameter with what `parse` says is wrong."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error


def files_written(paths: list[Path]) -> str:
    """`12 files in a, b`."""
    return f"{len(paths)} files in {', '.join(sorted({str(path.parent) for path in paths}))}"
