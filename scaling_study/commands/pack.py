"""`scaling-study pack` and `unpack`: a study as one file, and as a folder again; `command`: how to repeat one trial."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from scaling_study.commands.options import OK, show_errors
from scaling_study.errors import HostError, printable
from scaling_study.records import pack as packing
from scaling_study.records import results as results_folder
from scaling_study.records import store
from scaling_study.records.pack import Packed, PackError
from scaling_study.records.store import UnreadableRecord

ANONYMOUS = "Replace user names, host names and values of environment variables, each by the same word everywhere."
MOST_NAMES = 20  # of one kind that are listed
IN_RECORDS = tuple(f"trials/*/{name}" for name in (store.ASKED, store.COMMAND))  # that say what their record says


def pack(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="A results folder, such as results/<study>.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write FILE; default: RESULTS.study.zip.", show_default=False)
    ] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help=ANONYMOUS)] = False,
) -> int:
    """Make one file of a study's records and maps. Every command that reads results reads this file too.

    It lists what is left out, and the names in the file. Exit codes: 0 done; 2 refused.
    """

    def command() -> None:
        packed = packing.pack(results, out, anonymous)
        count = f"{packed.trials:,} trial{'s' * (packed.trials != 1)}"
        print(f"{packed.file}: {count}, {packed.bytes / 1e6:.2f} MB")
        for line in (*_left_out(packed), *_names(packed, "replaced" if anonymous else "carried")):
            print(printable(line))

    return _exit_code(command)


def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A packed study: X.study.zip.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder; default: X beside X.study.zip.", show_default=False)
    ] = None,
) -> int:
    """Make the results folder of a packed study again: its records and maps, byte by byte.

    Exit codes: 0 done; 2 refused: files are in the way, or FILE is no packed study, or an unsafe one.
    """
    return _exit_code(lambda: print(packing.unpack(file, out)))


def command(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="A results folder or a packed study.", show_default=False)
    ],
    trial: Annotated[
        str, typer.Argument(metavar="TRIAL", help="The id of a trial, or its beginning.", show_default=False)
    ],
) -> int:
    """Print the shell command that repeats a trial by hand, from the root of the checkout.

    Exit codes: 0 done; 2 refused: no trial, or several, have an id that begins with TRIAL.
    """

    def show() -> None:
        with packing.unpacked(results) if results.is_file() else contextlib.nullcontext(results) as folder:
            try:
                print(printable(results_folder.command_of(folder, trial)))
            except (HostError, UnreadableRecord) as error:
                raise PackError(str(error).replace(str(folder), str(results))) from error

    return _exit_code(show)


def _exit_code(command: Callable[[], None]) -> int:
    try:
        command()
    except PackError as error:
        return show_errors([printable(str(error))])
    except OSError as error:
        return show_errors([f"{error.filename or 'it'} cannot be read or written: {error.strerror or error}"])
    return OK


def _left_out(packed: Packed) -> Iterator[str]:
    for kind, count in sorted(packed.left_out.items()):
        files = f"{count:,} file{'s' * (count != 1)}, {packed.left_out_bytes[kind] / 1e6:.2f} MB"
        yield f"left out: {kind} ({files}{'; the records say the same' if kind in IN_RECORDS else ''})"


def _names(packed: Packed, done: str) -> Iterator[str]:
    variables = [f"{name}={value}" for name, value in packed.names.variables]
    for kind, names in (
        ("user names", packed.names.users),
        ("host names", packed.names.hosts),
        ("environment values", variables),
    ):
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        yield f"{done}: {kind}: {', '.join(names[:MOST_NAMES]) or 'none'}{more}"
