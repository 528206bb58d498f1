"""Files written whole or not at all, and parts that may fail alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pandas as pd

from scaling_study.errors import printable, shortened
from scaling_study.records import store


def write_csv(path: Path, frame: pd.DataFrame) -> Path:
    return store.replaced(path, lambda beside: frame.to_csv(beside, index=False), durable=False)


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8. Names of files that the locale could not read are escaped, as `\\udcc3`."""
    encoded = text.encode("utf-8", errors="backslashreplace")
    return store.replaced(path, lambda beside: beside.write_bytes(encoded), durable=False)


# Parts that are made one by one: what one of them cannot do costs nobody the others.
#
# A table that meets what nobody foresaw fails alone. It is named, with the reason, in its place on the page, at the
# page's top, and in what the command says when it ends.

MOST_LETTERS = 300  # of a reason
T = TypeVar("T")


class LostPart(UserWarning):
    """A part that could not be made, named, with the reason."""


@dataclass(eq=False)
class Salvage:
    """`lost`: a sentence for each part that could not be made. `strict`: nothing is salvaged, errors are raised."""

    lost: list[str] = field(default_factory=list)
    strict: bool = False

    def made(self, what: str, make: Callable[[], T], instead: T) -> T:
        """Call `make` and return its value; return `instead` where it raises. Errors as in `or_else`."""
        return self.or_else(what, make, lambda why: instead)

    def or_else(self, what: str, make: Callable[[], T], instead: Callable[[str], T]) -> T:
        """Call `make` and return its value; where it raises, note the loss and return `instead(reason)`.

        Raises OSError and MemoryError always, and every error with `strict`.
        """
        try:
            return make()
        except (OSError, MemoryError):  # a full disk: nor would the next part be written
            raise
        except Exception as error:
            if self.strict:
                raise
            why = reason(error)
            message = f"{what} could not be made: {why}"
            if message not in self.lost:
                self.lost.append(message)
            return instead(why)


NOTHING = Salvage(strict=True)


def reason(error: Exception) -> str:
    """`KeyError: 'workers'`, on one line; where in the code, for who mends it."""
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    place = "".join(f" ({Path(at.filename).name}, line {at.lineno})" for at in last)
    text = " ".join(printable(str(error)).split())
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__, MOST_LETTERS) + place
