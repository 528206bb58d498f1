"""The two ways in which a sweep refuses to start. Both carry whole sentences for a person, never a traceback.

Whatever the sentences quote, they can be printed: no line breaks or escape sequences, and no more than can be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling_study.quoting import printable, shortened

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
