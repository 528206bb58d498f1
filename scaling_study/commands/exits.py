"""How a command ends: its exit code, and one clear line for each thing that is wrong. Never a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study.errors import HostError, StudyError
from scaling_study.processes import process
from scaling_study.quoting import shown_in_any_locale

OK, SOME_FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130  # exit codes


def call(app: Callable[[], typer.Typer], name: str, words: Sequence[str] | None = None) -> int:
    """Run the command of `app()` that `words` (None: those of this process) ask for; its exit code.

    `app` imports what its commands need: Ctrl-C meanwhile ends the process without a word, as nothing has begun. The
    options are parsed by typer. What it finds wrong with them is one line, and the code WRONG.
    """
    try:
        shown_in_any_locale()
        return int(app()(args=words, prog_name=name, standalone_mode=False) or OK)
    except (KeyboardInterrupt, typer.Abort):  # typer's word for the same
        return INTERRUPTED
    except typer.TyperException as error:
        return show_errors([error.format_message()])
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def exit_code(command: Callable[[], int]) -> int:
    """The exit code of `command()`, with the errors that it raises shown to the user."""
    try:
        return command()
    except StudyError as error:
        return show_errors(error.problems)
    except HostError as error:
        return show_errors(error.problems, SOME_FAILED)
    except OSError as error:
        if error.errno == errno.EIO and not error.filename:  # the terminal is closed: a message would not be seen
            process.detach_from_terminal()
            return INTERRUPTED
        place = f"{error.filename}: " if error.filename else ""
        kept = "finished trials are kept; the same command resumes"
        return show_errors([f"{place}{error.strerror}; {kept}"], SOME_FAILED)


def show_errors(problems: Sequence[str], code: int = WRONG) -> int:
    """Print each on a line of standard error; returns `code`."""
    for problem in problems:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(problem)}")
    return code
