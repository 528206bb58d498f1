"""The errors by which a sweep refuses to start, and others' words made fit to be shown."""

from __future__ import annotations

import io
import reprlib
import sys
from collections.abc import Sequence

# A key of a study file, a message of a failing rank, a folder's name: each may hold an escape sequence that clears
# the screen, or a megabyte. It is shown all the same, for the message is about it.
MOST_SHOWN = 60  # characters of a value that a message quotes

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = MOST_SHOWN


def quoted(value: object) -> str:
    """`value` as Python would write it, with the middle of what is long left out."""
    return _short.repr(value)


def printable(text: str, but: str = "") -> str:
    r"""`text` with whatever cannot be printed written out, so that ESC is \x1b; the characters in `but` stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in text)


def first_line(error: Exception) -> str:
    """The first line of what an error says; its kind, where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def shortened(text: str, most: int) -> str:
    """At most `most` characters of it; three dots say that there were more."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown_in_any_locale() -> None:
    """Let what this terminal has no sign for be shown as `?`: in the locale C that is all beyond ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not where it has been replaced
            stream.reconfigure(errors="replace")


MOST_PROBLEMS = 100  # that are listed individually
MOST_CHARACTERS = 2000  # of one; the path of a file may be long


class StudyError(Exception):
    """Everything that is wrong with a study or a command line, as lines `file:line: what, and what would be right`.

    `more` counts those that the caller did not even put into words.
    """

    def __init__(self, problems: Sequence[str], more: int = 0) -> None:
        self.problems = [_one_line(problem) for problem in problems[:MOST_PROBLEMS]]
        if more := more + len(problems) - len(self.problems):
            self.problems.append(f"... and {more:,} more problems")
        super().__init__("\n".join(self.problems))


class HostError(Exception):
    """Something on this machine or another is in the way: a folder, a disk, data, a host. The study may be right."""

    def __init__(self, *problems: str) -> None:
        self.problems = [_one_line(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


def _one_line(sentence: str) -> str:
    return shortened(printable(sentence), MOST_CHARACTERS)
