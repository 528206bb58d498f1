"""Results as they are named on a command line: a folder, or a packed study (scaling_study/records/pack.py).

A packed study is read from a temporary folder, and what is made of it is written beside the file, into X/ of
X.study.zip. Messages name the file, never the temporary folder.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from analysis.frames.study import NotResults
from scaling_study.records import pack
from scaling_study.records.pack import PackError


@dataclass(frozen=True)
class Source:
    """One study's results: `folder` to read, `out` to write to, and `named`, which the user wrote."""

    folder: Path
    out: Path
    named: Path

    def text(self, message: str) -> str:
        """A message with the path that the user wrote."""
        return message if self.folder == self.named else message.replace(str(self.folder), str(self.named))


@contextlib.contextmanager
def opened(results: Path, out: Path | None = None) -> Iterator[Source]:
    """The results in a folder or a packed study, for as long as they are read. Raises NotResults, OSError."""
    if not results.is_file():
        yield Source(results, out or results, results)
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(pack.unpacked(results))
        except PackError as error:
            raise NotResults(f"{results} is not a folder, and no packed study: {error}") from error
        source = Source(folder, out or pack.folder_of(results), results)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield source
        except Exception as error:
            error.args = tuple(source.text(part) if isinstance(part, str) else part for part in error.args)
            raise
        finally:
            for warning in caught:
                warnings.warn(source.text(str(warning.message)), warning.category, stacklevel=3)
